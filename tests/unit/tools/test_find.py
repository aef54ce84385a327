"""Glob and Grep; Grep with ripgrep and without, which must be the same."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, ToolException

from ramet.tools.context import ToolUseContext
from ramet.tools.files import glob, grep
from tests.support.context import calling, make_context

TOOLS: dict[str, BaseTool] = {tool.name: tool for tool in (*glob.find_tools(), *grep.grep_tools())}


@pytest.fixture
def context(tmp_path: Path) -> ToolUseContext:
    return make_context(tmp_path)


@pytest.fixture(params=["ripgrep", "python"])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test that asks for it runs twice: with ripgrep, and on a PATH that has none."""
    if request.param == "python":
        monkeypatch.setenv("PATH", "/nonexistent")
    elif shutil.which("rg") is None:
        pytest.skip("no ripgrep here; `make setup` installs it")
    return str(request.param)


async def call(context: ToolUseContext, name: str, **arguments: Any) -> str:
    with calling(context):
        result = await TOOLS[name].ainvoke(arguments)
    assert isinstance(result, str)
    return result


def make(root: Path, files: dict[str, str | bytes]) -> None:
    """Files with these contents, each a second newer than the one before."""
    for age, (name, content) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (1_700_000_000 + age, 1_700_000_000 + age))


async def test_glob_lists_the_newest_first(context: ToolUseContext) -> None:
    """Files come in the order of their last change, directories are not files."""
    make(context.cwd, {"b/old.py": "", "a/new.py": "", "a/other.txt": ""})

    assert await call(context, "Glob", pattern="*.py") == "a/new.py\nb/old.py"


async def test_glob_takes_a_path_and_an_absolute_pattern(context: ToolUseContext) -> None:
    """Paths come relative to the workspace, however the search was said."""
    make(context.cwd, {"a/x.py": "", "b/x.py": ""})

    assert await call(context, "Glob", pattern="*.py", path="a") == "a/x.py"
    assert await call(context, "Glob", pattern=f"{context.cwd}/a/**/*.py") == "a/x.py"
    assert await call(context, "Glob", pattern=f"{context.cwd}/a/x.py") == "a/x.py"


async def test_glob_begins_where_the_pattern_does(context: ToolUseContext) -> None:
    """Directories that a pattern names outright are entered at once, even one that is skipped; none is no error."""
    make(context.cwd, {"a/b/x.py": "", "a/y.py": "", ".venv/z.py": ""})

    assert await call(context, "Glob", pattern="a/b/*") == "a/b/x.py"
    assert await call(context, "Glob", pattern="./a/*/") == "a/b/"
    assert await call(context, "Glob", pattern=".venv/*.py") == ".venv/z.py"
    assert await call(context, "Glob", pattern="no/such/*.py") == "No files match no/such/*.py."


async def test_glob_finds_directories_by_a_slash_at_the_end(context: ToolUseContext) -> None:
    """`./*/` is the directories at the top, `*/` all of them."""
    make(context.cwd, {"a/deep/x.py": "", "b/x.py": ""})

    assert sorted((await call(context, "Glob", pattern="./*/")).split()) == ["a/", "b/"]
    assert sorted((await call(context, "Glob", pattern="*/")).split()) == ["a/", "a/deep/", "b/"]


async def test_glob_skips_what_nobody_wrote(context: ToolUseContext) -> None:
    """Repositories' insides, installed packages and run records are not the user's files."""
    make(
        context.cwd, {".git/x.py": "", "a/node_modules/x.py": "", ".venv/x.py": "", ".ramet/x.py": "", ".hidden.py": ""}
    )

    assert await call(context, "Glob", pattern="*.py") == ".hidden.py"


async def test_glob_says_that_nothing_fits(context: ToolUseContext) -> None:
    """An empty answer is words, not an error."""
    assert await call(context, "Glob", pattern="*.py") == "No files match *.py."


async def test_glob_is_bounded_and_says_how_much_there_is(
    context: ToolUseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many files some are shown; of very many, not all are looked at."""
    make(context.cwd, {f"f{n:03d}.txt": "" for n in range(30)})

    monkeypatch.setattr(glob, "MAX_LISTED", 10)
    lines = (await call(context, "Glob", pattern="*")).split("\n")
    assert lines[:2] == ["f029.txt", "f028.txt"]
    assert lines[10:] == ["… [10 of 30 shown, the newest first; a narrower pattern shows the others]"]

    monkeypatch.setattr(glob, "MAX_ENTRIES", 20)
    assert "stopped after 20 entries" in await call(context, "Glob", pattern="*")


async def test_glob_lets_others_work_and_can_be_cancelled(context: ToolUseContext) -> None:
    """A walk over many entries is cut between two of them, and closes what it had open."""
    make(context.cwd, {f"d{n}/f": "" for n in range(300)})
    task = asyncio.create_task(call(context, "Glob", pattern="**"))
    await asyncio.sleep(0)  # it walks until its first pause
    assert not task.done()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task  # and conftest.py looks for descriptors left open


async def test_grep_gives_names_first(context: ToolUseContext, program: str) -> None:
    """Without a mode, only the names of files, in their order."""
    make(context.cwd, {"b.txt": "needle\nneedle\n", "a/c.txt": "needle", "z.txt": "hay"})

    assert await call(context, "Grep", pattern="needle") == "a/c.txt\nb.txt"


async def test_grep_content_is_path_line_text(context: ToolUseContext, program: str) -> None:
    """The form that every reader of compiler output knows; CRLF and a missing last line end do not matter."""
    make(context.cwd, {"a.txt": "hay\nneedle 1\r\nhay", "b.txt": "x:y\nneedle 2"})

    assert await call(context, "Grep", pattern="needle", output_mode="content") == "a.txt:2:needle 1\nb.txt:2:needle 2"
    assert await call(context, "Grep", pattern="needle", output_mode="content", **{"-n": False}) == (
        "a.txt:needle 1\nb.txt:needle 2"
    )


async def test_grep_shows_lines_around(context: ToolUseContext, program: str) -> None:
    """-A, -B and -C, with `--` where lines are left out and `-` for lines that do not match."""
    make(context.cwd, {"a.txt": "1\n2\nhit 3\n4\n5\n6\n7\nhit 8\n9\n"})

    assert await call(context, "Grep", pattern="hit", output_mode="content", **{"-B": 1, "-A": 1}) == (
        "a.txt-2-2\na.txt:3:hit 3\na.txt-4-4\n--\na.txt-7-7\na.txt:8:hit 8\na.txt-9-9"
    )
    assert await call(context, "Grep", pattern="hit", output_mode="content", **{"-C": 2}) == (
        "a.txt-1-1\na.txt-2-2\na.txt:3:hit 3\na.txt-4-4\na.txt-5-5\na.txt-6-6\na.txt-7-7\na.txt:8:hit 8\na.txt-9-9"
    )


async def test_grep_counts(context: ToolUseContext, program: str) -> None:
    """How many lines match, by file; files without a match are not listed."""
    make(context.cwd, {"a.txt": "x\nX\n", "b.txt": "y", "c.txt": "x x\n"})

    assert await call(context, "Grep", pattern="x", output_mode="count", **{"-i": True}) == "a.txt:2\nc.txt:1"


@pytest.mark.parametrize(
    ("narrowing", "found"),
    [
        ({"glob": "*.py"}, "a/x.py\nx.py"),
        ({"glob": "./*.py"}, "x.py"),
        ({"glob": "a/**"}, "a/x.py\na/x.rs"),
        ({"glob": "*.{py,rs}"}, "a/x.py\na/x.rs\nx.py"),
        ({"glob": "!*.py"}, "a/x.rs\nx.txt"),
        ({"type": "rust"}, "a/x.rs"),
        ({"path": "a"}, "a/x.py\na/x.rs"),
        ({"path": "a", "glob": "*.py"}, "a/x.py"),
        ({"path": "a/x.rs"}, "a/x.rs"),
        ({"path": "./a//x.rs", "glob": "*.py"}, "a/x.rs"),
    ],
)
async def test_grep_can_be_narrowed(
    context: ToolUseContext, program: str, narrowing: dict[str, str], found: str
) -> None:
    """By path, by name, by type."""
    make(context.cwd, {"x.py": "hit", "a/x.py": "hit", "a/x.rs": "hit", "x.txt": "hit", ".git/x.py": "hit"})

    assert await call(context, "Grep", pattern="hit", **narrowing) == found


async def test_grep_of_one_file_has_its_name(context: ToolUseContext, program: str) -> None:
    """A file given as the path is named as the workspace names it, in every mode."""
    make(context.cwd, {"a/x.txt": "no\nhit\n"})

    assert await call(context, "Grep", pattern="hit", path="a/x.txt", output_mode="content") == "a/x.txt:2:hit"
    assert await call(context, "Grep", pattern="hit", path="a/x.txt", output_mode="count") == "a/x.txt:1"


async def test_grep_looks_into_hidden_and_ignored_but_not_skipped_or_binary(
    context: ToolUseContext, program: str
) -> None:
    """What the user has is searched, whatever git thinks of it; what is no text is not."""
    make(
        context.cwd,
        {
            ".gitignore": "*.log\n",
            ".git/HEAD": "hit",
            ".env.example": "hit",
            "run.log": "hit",
            "node_modules/m.js": "hit",
            "bin.dat": b"\0\1hit\n",
            "latin.txt": b"caf\xe9 hit\n",
            "no-extension": "hit",
        },
    )

    assert await call(context, "Grep", pattern="hit") == ".env.example\nlatin.txt\nno-extension\nrun.log"


async def test_grep_pages(context: ToolUseContext, program: str) -> None:
    """head_limit and offset; the last line says how to go on."""
    make(context.cwd, {"a.txt": "".join(f"hit {n}\n" for n in range(1, 8))})

    text = await call(context, "Grep", pattern="hit", output_mode="content", head_limit=2, offset=2)

    assert text == ("a.txt:3:hit 3\na.txt:4:hit 4\n… [more matches; go on with offset=4, or narrow the search]")
    assert "more" not in await call(context, "Grep", pattern="hit", output_mode="content", head_limit=7)


async def test_grep_output_is_bounded(context: ToolUseContext, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much matches, the search is stopped once there is enough, and the answer fits a result."""
    monkeypatch.setattr(grep, "MAX_OUTPUT", 10_000)
    context.max_result_chars = 4_000
    make(context.cwd, {f"f{n}.txt": "hit and some more\n" * 20_000 for n in range(5)})

    text = await call(context, "Grep", pattern="hit", output_mode="content", head_limit=0)

    assert len(text) <= 4_000
    assert text.startswith("f0.txt:1:hit and some more\n")
    assert "more matches" in text


async def test_grep_cuts_long_lines(context: ToolUseContext, program: str) -> None:
    """A minified file does not fill the answer."""
    make(context.cwd, {"a.js": "hit" + "x" * 100_000})

    assert len(await call(context, "Grep", pattern="hit", output_mode="content")) < 1_000


async def test_grep_says_when_nothing_matches(context: ToolUseContext, program: str) -> None:
    """No match is an answer, not an error; so is an empty directory."""
    assert await call(context, "Grep", pattern="needle") == "No matches."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pattern": "("}, "pattern"),
        ({"pattern": "a\0"}, "NUL"),
        ({"pattern": ""}, "pattern"),
        ({"pattern": "a", "glob": "../*"}, "'..'"),
        ({"pattern": "a", "type": "cobol"}, "known: "),
        ({"pattern": "a", "type": "py", "glob": "*"}, "not both"),
        ({"pattern": "a", "path": "no/such"}, "no such"),
        ({"pattern": "a", "output_mode": "all"}, "output_mode"),
        ({"pattern": "a", "-i": "perhaps"}, "-i"),
        ({"pattern": "a", "ignore_case": True}, "ignore_case"),
    ],
)
async def test_grep_refuses_in_words(
    context: ToolUseContext, program: str, arguments: dict[str, Any], said: str
) -> None:
    """Each wrong argument is named, with what would be taken."""
    with pytest.raises(ToolException, match=said):
        await call(context, "Grep", **arguments)


async def test_grep_takes_a_pattern_that_looks_like_an_option(context: ToolUseContext, program: str) -> None:
    """A pattern is a pattern, and a name is a name, whatever they begin with."""
    make(context.cwd, {"-v.txt": "--files\n"})

    assert await call(context, "Grep", pattern="--files", path="-v.txt", output_mode="content") == "-v.txt:1:--files"


async def test_a_search_that_never_ends_is_stopped(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that backtracks without end, which Python's would, is ended from outside."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(grep, "LIMIT_S", 0.2)
    make(context.cwd, {"a.txt": "a" * 60 + "!"})

    assert "was stopped" in await call(context, "Grep", pattern="(a+)+$")


async def test_a_search_that_cannot_begin_is_no_search_without_a_match(
    context: ToolUseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that finds none of ramet ends with the status that ripgrep has for "nothing"."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(grep, "_BOOT", "import no_such_module")
    make(context.cwd, {"a.txt": "text"})

    with pytest.raises(ToolException, match="gave no result"):
        await call(context, "Grep", pattern="text")


async def test_a_search_is_ended_by_cancelling(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled search leaves no process: conftest.py looks for one."""
    monkeypatch.setenv("PATH", "/nonexistent")
    make(context.cwd, {"a.txt": "a" * 60 + "!"})
    before = children()
    task = asyncio.create_task(call(context, "Grep", pattern="(a+)+$"))
    while not children() - before:  # noqa: ASYNC110 - the system starts one, and tells nobody
        await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children() - before


def children() -> set[str]:
    """The pids of what this thread started and did not reap."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_the_schema_says_the_names_that_models_know() -> None:
    """A model is shown `-i`, not what Python calls it."""
    assert {"pattern", "path", "glob", "output_mode", "-i", "-n", "-A", "-B", "-C", "head_limit"} <= set(
        TOOLS["Grep"].args
    )
    assert "ignore_case" not in TOOLS["Grep"].args


@pytest.mark.parametrize("mode", ["files_with_matches", "count", "content"])
async def test_grep_and_glob_show_a_file_under_one_name(context: ToolUseContext, program: str, mode: str) -> None:
    """A name of bytes that are not UTF-8, and one of more than 300 characters."""
    odd, long = os.fsdecode(b"caf\xe9.txt"), f"{'d' * 200}/{'f' * 200}.txt"
    (context.cwd / long).parent.mkdir()
    for name in (odd, long):
        (context.cwd / name).write_bytes(b"needle \xff\n")

    names = set((await call(context, "Glob", pattern="**/*.txt")).split("\n"))
    found = (await call(context, "Grep", pattern="needle", output_mode=mode)).split("\n")

    assert names == {r"caf\udce9.txt", long}
    assert {line.partition(":")[0] for line in found} == names
    assert mode != "content" or {line.partition(":")[2] for line in found} == {"1:needle \ufffd"}
