"""Glob and Grep; Grep gives the same with ripgrep and without."""

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
    """Run each test twice: with ripgrep, and with a PATH that has none."""
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
    """Make files with these contents, each a second newer than the one before."""
    for age, (name, content) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (1_700_000_000 + age, 1_700_000_000 + age))


async def test_glob_lists_the_newest_first(context: ToolUseContext) -> None:
    """Files come in the order of their last change, and directories are not files."""
    make(context.cwd, {"b/old.py": "", "a/new.py": "", "a/other.txt": ""})

    assert await call(context, "Glob", pattern="*.py") == "a/new.py\nb/old.py"


async def test_glob_accepts_a_path_and_an_absolute_pattern(context: ToolUseContext) -> None:
    """Results are relative to the workspace, for every kind of search."""
    make(context.cwd, {"a/x.py": "", "b/x.py": ""})

    assert await call(context, "Glob", pattern="*.py", path="a") == "a/x.py"
    assert await call(context, "Glob", pattern=f"{context.cwd}/a/**/*.py") == "a/x.py"
    assert await call(context, "Glob", pattern=f"{context.cwd}/a/x.py") == "a/x.py"


async def test_glob_starts_in_the_folder_of_the_pattern(context: ToolUseContext) -> None:
    """Named directories are entered at once, even one that is usually skipped; a missing one is no error."""
    make(context.cwd, {"a/b/x.py": "", "a/y.py": "", ".venv/z.py": ""})

    assert await call(context, "Glob", pattern="a/b/*") == "a/b/x.py"
    assert await call(context, "Glob", pattern="./a/*/") == "a/b/"
    assert await call(context, "Glob", pattern=".venv/*.py") == ".venv/z.py"
    assert await call(context, "Glob", pattern="no/such/*.py") == "No files match no/such/*.py."


async def test_a_final_slash_makes_glob_find_directories(context: ToolUseContext) -> None:
    """`./*/` gives the directories at the top, `*/` those at every depth."""
    make(context.cwd, {"a/deep/x.py": "", "b/x.py": ""})

    assert sorted((await call(context, "Glob", pattern="./*/")).split()) == ["a/", "b/"]
    assert sorted((await call(context, "Glob", pattern="*/")).split()) == ["a/", "a/deep/", "b/"]


async def test_glob_skips_generated_folders(context: ToolUseContext) -> None:
    """The insides of repositories, installed packages and run records are not files of the user."""
    make(
        context.cwd, {".git/x.py": "", "a/node_modules/x.py": "", ".venv/x.py": "", ".ramet/x.py": "", ".hidden.py": ""}
    )

    assert await call(context, "Glob", pattern="*.py") == ".hidden.py"


async def test_glob_reports_that_nothing_matches(context: ToolUseContext) -> None:
    """An empty answer is words, not an error."""
    assert await call(context, "Glob", pattern="*.py") == "No files match *.py."


async def test_glob_is_bounded_and_gives_the_total(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of many files are shown, and a search of very many files stops."""
    make(context.cwd, {f"f{n:03d}.txt": "" for n in range(30)})

    monkeypatch.setattr(glob, "MAX_LISTED", 10)
    lines = (await call(context, "Glob", pattern="*")).split("\n")
    assert lines[:2] == ["f029.txt", "f028.txt"]
    assert lines[10:] == ["… [10 of 30 shown, the newest first; a narrower pattern shows the others]"]

    monkeypatch.setattr(glob, "MAX_ENTRIES", 20)
    assert "stopped after 20 entries" in await call(context, "Glob", pattern="*")


async def test_glob_lets_others_run_and_can_be_cancelled(context: ToolUseContext) -> None:
    """A walk over many entries is interrupted between two of them, and closes what it had open."""
    make(context.cwd, {f"d{n}/f": "" for n in range(300)})
    task = asyncio.create_task(call(context, "Glob", pattern="**"))
    await asyncio.sleep(0)  # it walks until its first pause
    assert not task.done()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task  # and conftest.py looks for descriptors left open


async def test_grep_gives_names_by_default(context: ToolUseContext, program: str) -> None:
    """Names of files come, in their order, if no mode is given."""
    make(context.cwd, {"b.txt": "needle\nneedle\n", "a/c.txt": "needle", "z.txt": "hay"})

    assert await call(context, "Grep", pattern="needle") == "a/c.txt\nb.txt"


async def test_grep_content_is_path_line_and_text(context: ToolUseContext, program: str) -> None:
    """The form is that of compiler output; CRLF and a missing last newline do not matter."""
    make(context.cwd, {"a.txt": "hay\nneedle 1\r\nhay", "b.txt": "x:y\nneedle 2"})

    assert await call(context, "Grep", pattern="needle", output_mode="content") == "a.txt:2:needle 1\nb.txt:2:needle 2"
    assert await call(context, "Grep", pattern="needle", output_mode="content", **{"-n": False}) == (
        "a.txt:needle 1\nb.txt:needle 2"
    )


async def test_grep_shows_surrounding_lines(context: ToolUseContext, program: str) -> None:
    """-A, -B and -C work, with `--` for omitted lines and `-` for lines that do not match."""
    make(context.cwd, {"a.txt": "1\n2\nhit 3\n4\n5\n6\n7\nhit 8\n9\n"})

    assert await call(context, "Grep", pattern="hit", output_mode="content", **{"-B": 1, "-A": 1}) == (
        "a.txt-2-2\na.txt:3:hit 3\na.txt-4-4\n--\na.txt-7-7\na.txt:8:hit 8\na.txt-9-9"
    )
    assert await call(context, "Grep", pattern="hit", output_mode="content", **{"-C": 2}) == (
        "a.txt-1-1\na.txt-2-2\na.txt:3:hit 3\na.txt-4-4\na.txt-5-5\na.txt-6-6\na.txt-7-7\na.txt:8:hit 8\na.txt-9-9"
    )


async def test_grep_counts_matching_lines(context: ToolUseContext, program: str) -> None:
    """The count is given by file; files without a match are not listed."""
    make(context.cwd, {"a.txt": "x\nX\n", "b.txt": "y", "c.txt": "x x\n"})

    assert await call(context, "Grep", pattern="x", output_mode="count", **{"-i": True}) == "a.txt:2\nc.txt:1"


@pytest.mark.parametrize(
    ("narrowing", "expected"),
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
    context: ToolUseContext, program: str, narrowing: dict[str, str], expected: str
) -> None:
    """Path, name and type narrow a search."""
    make(context.cwd, {"x.py": "hit", "a/x.py": "hit", "a/x.rs": "hit", "x.txt": "hit", ".git/x.py": "hit"})

    assert await call(context, "Grep", pattern="hit", **narrowing) == expected


async def test_grep_of_one_file_shows_its_name(context: ToolUseContext, program: str) -> None:
    """A file that is given as the path has its name in the workspace, in lines and in counts."""
    make(context.cwd, {"a/x.txt": "no\nhit\n"})

    assert await call(context, "Grep", pattern="hit", path="a/x.txt", output_mode="content") == "a/x.txt:2:hit"
    assert await call(context, "Grep", pattern="hit", path="a/x.txt", output_mode="count") == "a/x.txt:1"


async def test_grep_searches_hidden_and_ignored_but_not_skipped_or_binary_files(
    context: ToolUseContext, program: str
) -> None:
    """Files that git ignores are searched, and binary files are not."""
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


async def test_grep_returns_pages(context: ToolUseContext, program: str) -> None:
    """head_limit and offset select a page; the last line gives the next offset."""
    make(context.cwd, {"a.txt": "".join(f"hit {n}\n" for n in range(1, 8))})

    text = await call(context, "Grep", pattern="hit", output_mode="content", head_limit=2, offset=2)

    assert text == ("a.txt:3:hit 3\na.txt:4:hit 4\n… [more matches; go on with offset=4, or narrow the search]")
    assert "more" not in await call(context, "Grep", pattern="hit", output_mode="content", head_limit=7)


async def test_grep_output_is_bounded(context: ToolUseContext, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search stops once it has enough, and the answer fits a result."""
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


async def test_grep_reports_that_nothing_matches(context: ToolUseContext, program: str) -> None:
    """No match is an answer, not an error; so is an empty directory."""
    assert await call(context, "Grep", pattern="needle") == "No matches."


@pytest.mark.parametrize(
    ("arguments", "message"),
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
async def test_grep_refuses_wrong_arguments_by_name(
    context: ToolUseContext, program: str, arguments: dict[str, Any], message: str
) -> None:
    """The error says what would be accepted."""
    with pytest.raises(ToolException, match=message):
        await call(context, "Grep", **arguments)


async def test_grep_accepts_a_pattern_that_looks_like_an_option(context: ToolUseContext, program: str) -> None:
    """Patterns and names may begin with a dash."""
    make(context.cwd, {"-v.txt": "--files\n"})

    assert await call(context, "Grep", pattern="--files", path="-v.txt", output_mode="content") == "-v.txt:1:--files"


async def test_an_endless_search_is_stopped(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that backtracks without end in Python is ended from outside."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(grep, "LIMIT_S", 0.2)
    make(context.cwd, {"a.txt": "a" * 60 + "!"})

    assert "was stopped" in await call(context, "Grep", pattern="(a+)+$")


async def test_a_search_that_cannot_start_is_an_error(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter without ramet ends with the status that ripgrep uses for "nothing"."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(grep, "_BOOT", "import no_such_module")
    make(context.cwd, {"a.txt": "text"})

    with pytest.raises(ToolException, match="gave no result"):
        await call(context, "Grep", pattern="text")


async def test_cancelling_ends_a_search(context: ToolUseContext, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Return the pids of the processes that this thread started and did not reap."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_the_schema_has_the_usual_names() -> None:
    """A model sees `-i`, not the Python name."""
    assert {"pattern", "path", "glob", "output_mode", "-i", "-n", "-A", "-B", "-C", "head_limit"} <= set(
        TOOLS["Grep"].args
    )
    assert "ignore_case" not in TOOLS["Grep"].args


@pytest.mark.parametrize("mode", ["files_with_matches", "count", "content"])
async def test_grep_and_glob_show_a_file_under_one_name(context: ToolUseContext, program: str, mode: str) -> None:
    """Examples are a name of bytes that are not UTF-8, and one of more than 300 characters."""
    odd, long = os.fsdecode(b"caf\xe9.txt"), f"{'d' * 200}/{'f' * 200}.txt"
    (context.cwd / long).parent.mkdir()
    for name in (odd, long):
        (context.cwd / name).write_bytes(b"needle \xff\n")

    names = set((await call(context, "Glob", pattern="**/*.txt")).split("\n"))
    lines = (await call(context, "Grep", pattern="needle", output_mode=mode)).split("\n")

    assert names == {r"caf\udce9.txt", long}
    assert {line.partition(":")[0] for line in lines} == names
    assert mode != "content" or {line.partition(":")[2] for line in lines} == {"1:needle \ufffd"}
