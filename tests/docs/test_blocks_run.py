"""Python blocks of README.md, docs/ and the wheel's skill run without an error, in order, as a reader runs them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SKILLS = ROOT / "src" / "ramet" / "skills"
PAGES = sorted(
    page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *SKILLS.glob("*/*.md")] if page.exists()
)

FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Fenced block: the line where its code begins, its language, and the words after the language."""

    line: int
    language: str
    words: str
    code: str


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a Markdown text, in order. Raises ValueError if a fence is never closed."""
    found: list[Block] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not (opening := FENCE.fullmatch(line)):
            continue
        indent, fence = opening["indent"], opening["fence"]
        language, _, words = opening["info"].strip().partition(" ")
        code: list[str] = []
        for _, inner in lines:
            closing = inner.strip()
            if closing.startswith(fence) and not closing.strip(fence[0]):
                break
            code.append(inner.removeprefix(indent))
        else:
            raise ValueError(f"the fence of line {number} is never closed")
        found.append(Block(line=number + 1, language=language, words=words.strip(), code="\n".join(code) + "\n"))
    return found


def runnable_blocks(text: str) -> list[Block]:
    """Return the Python blocks that a reader can run. Raises ValueError for words other than `no-run: reason`."""
    python = [block for block in blocks(text) if block.language in ("python", "py")]
    for block in python:
        if block.words and not re.fullmatch(r"no-run: \S.*", block.words):
            raise ValueError(f"line {block.line - 1}: after `python` comes nothing, or `no-run: ` and a reason")
    return [block for block in python if not block.words]


def run(page: Path, text: str) -> None:
    """Run the blocks of a page in one `__main__` of their own; tracebacks name the page and its lines."""
    main = ModuleType("__main__")
    with asyncio.Runner() as runner:
        for block in runnable_blocks(text):
            source = "\n" * (block.line - 1) + block.code
            code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            sys.modules["__main__"] = main
            outcome = eval(code, main.__dict__)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(outcome)


@pytest.fixture
def scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty working directory, with a `__main__` that is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return tmp_path


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
@pytest.mark.usefixtures("scratch_folder")
def test_every_block_of_a_page_runs(page: Path) -> None:
    """A reader who copies the blocks of a page in order gets no error."""
    run(page, page.read_text())


@pytest.mark.usefixtures("scratch_folder")
def test_blocks_share_names_and_may_await() -> None:
    """A later block uses names of an earlier one, and `await` needs no function around it."""
    page = """
```python
import asyncio
left = []
```
   ```python
   await asyncio.sleep(0)
   left.append(__name__)
   ```
```python
assert left == ["__main__"]
asyncio.run(asyncio.sleep(0))
```
"""
    run(Path("page.md"), page)


@pytest.mark.usefixtures("scratch_folder")
def test_a_failing_block_is_reported_at_its_line_of_the_page() -> None:
    """The traceback of a failing block ends at the page's own line."""
    with pytest.raises(ZeroDivisionError) as failure:
        run(Path("page.md"), "words\n\n```python\n1\n1 / 0\n```\n")

    last = failure.traceback[-1]
    assert (str(last.path), last.lineno + 1) == ("page.md", 5)


def test_a_skipped_block_needs_a_reason() -> None:
    """A block with `no-run` and a reason is skipped. A page with other words, or without a reason, is refused."""
    assert runnable_blocks("```python no-run: needs a key\n1 / 0\n```\n```sh\nfalse\n```\n") == []
    for words in ("no-run", "no-run:", "skip"):
        with pytest.raises(ValueError, match="and a reason"):
            runnable_blocks(f"```python {words}\n1\n```\n")


def test_a_longer_fence_holds_a_shorter_one() -> None:
    """A page may show a fence inside a longer fence. A fence that is never closed is refused."""
    assert [block.language for block in blocks("````markdown\n```python\n1 / 0\n```\n````\n")] == ["markdown"]
    with pytest.raises(ValueError, match="line 1 is never closed"):
        blocks("```python\n1\n")
