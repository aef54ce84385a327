"""Read, Write and Edit, as a model calls them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import ToolException

from ramet.tools.context import ToolUseContext
from ramet.tools.files.files import MAX_CHANGED, MAX_LINES, file_tools
from ramet.tools.files.lines import SMALL
from tests.support.context import calling, make_context

TOOLS = {tool.name: tool for tool in file_tools()}


@pytest.fixture
def context(tmp_path: Path) -> ToolUseContext:
    return make_context(tmp_path)


async def call(context: ToolUseContext, name: str, **arguments: Any) -> str:
    with calling(context):
        result = await TOOLS[name].ainvoke(arguments)
    assert isinstance(result, str)
    return result


async def refusal_of(context: ToolUseContext, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolException) as refusal:
        await call(context, name, **arguments)
    return str(refusal.value)


async def test_read_numbers_lines_as_cat_does(context: ToolUseContext) -> None:
    """Numbers and lines are separated by a tab, as `cat -n` writes them."""
    (context.cwd / "a.txt").write_text("one\ntwo\n")

    assert await call(context, "Read", file_path="a.txt") == "     1\tone\n     2\ttwo"


async def test_read_accepts_absolute_names_inside_the_workspace(context: ToolUseContext) -> None:
    """A name may start at the root of the file system, if it is inside."""
    (context.cwd / "a.txt").write_text("one")

    assert await call(context, "Read", file_path=str(context.cwd / "a.txt")) == "     1\tone"


async def test_read_of_a_part_shows_where_to_continue(context: ToolUseContext) -> None:
    """The last line gives the range of lines and the next offset."""
    (context.cwd / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))

    text = await call(context, "Read", file_path="a.txt", offset=3, limit=2)

    assert text == "     3\tline 3\n     4\tline 4\n… [lines 3 to 4 of 10; go on with offset=5]"


@pytest.mark.parametrize("content", ["a\nb\nc", "a\nb\nc\n"])
async def test_read_counts_a_last_line_without_a_newline(context: ToolUseContext, content: str) -> None:
    """A file has the same number of lines with and without the last newline, and later lines do not exist."""
    (context.cwd / "a.txt").write_text(content)

    assert (await call(context, "Read", file_path="a.txt", offset=3)) == "     3\tc"
    assert (await call(context, "Read", file_path="a.txt", offset=4)) == "(the file has 3 lines; there is no line 4)"
    assert (await call(context, "Read", file_path="a.txt", offset=9)) == "(the file has 3 lines; there is no line 9)"


async def test_read_of_an_empty_file_says_so(context: ToolUseContext) -> None:
    """An empty file has its own message."""
    (context.cwd / "a.txt").touch()

    assert await call(context, "Read", file_path="a.txt") == "(the file is empty)"


async def test_read_limits_the_number_of_lines(context: ToolUseContext) -> None:
    """Read returns MAX_LINES lines at most, even if more were asked for."""
    context.max_result_chars = 1_000_000
    (context.cwd / "a.txt").write_text("x\n" * (MAX_LINES + 5))

    text = await call(context, "Read", file_path="a.txt", limit=MAX_LINES + 5)

    assert f"lines 1 to {MAX_LINES} of {MAX_LINES + 5}; go on with offset={MAX_LINES + 1}" in text


async def test_read_stays_below_the_size_that_is_spilled(context: ToolUseContext) -> None:
    """Each result of Read fits, so that reading never makes another file to read."""
    context.max_result_chars = 5_000
    (context.cwd / "a.txt").write_text("0123456789\n" * 2_000)

    text = await call(context, "Read", file_path="a.txt")

    assert len(text) <= 5_000
    assert "go on with offset=" in text


async def test_read_cuts_a_long_line(context: ToolUseContext) -> None:
    """A line of a megabyte costs no more than its beginning."""
    (context.cwd / "a.txt").write_text("x" * (SMALL // 2) + "\nshort\n")

    first, second = (await call(context, "Read", file_path="a.txt")).split("\n")

    assert first.startswith("     1\t" + "x" * 2_000 + "… [about")
    assert second == "     2\tshort"


async def test_read_reads_a_large_file_in_parts(context: ToolUseContext) -> None:
    """A file that is too large to hold in memory is read in parts, at any line."""
    with (context.cwd / "big.log").open("w") as file:
        file.writelines(f"{n:07d} something happened here\n" for n in range(1, 80_001))

    text = await call(context, "Read", file_path="big.log", offset=79_999, limit=1)

    assert text == " 79999\t0079999 something happened here\n… [lines 79999 to 79999; go on with offset=80000]"
    assert "0080000" in await call(context, "Read", file_path="big.log", offset=80_000)
    assert "80000 lines" in await call(context, "Read", file_path="big.log", offset=80_002)


async def test_read_reports_a_binary_file(context: ToolUseContext) -> None:
    """A model gets no bytes that are no text."""
    (context.cwd / "a.bin").write_bytes(b"\x7fELF\x00\x01")

    assert "binary" in await refusal_of(context, "Read", file_path="a.bin")


async def test_read_shows_text_that_is_not_utf8(context: ToolUseContext) -> None:
    """Latin-1 text is shown as well as possible."""
    (context.cwd / "a.txt").write_bytes(b"caf\xe9\n")

    assert await call(context, "Read", file_path="a.txt") == "     1\tcaf\N{REPLACEMENT CHARACTER}"


async def test_read_of_a_directory_points_to_glob(context: ToolUseContext) -> None:
    """The error names the tool that lists directories."""
    assert "Glob" in await refusal_of(context, "Read", file_path=".")


async def test_a_missing_file_is_reported_in_one_sentence(context: ToolUseContext) -> None:
    """The error says that it does not exist."""
    assert await refusal_of(context, "Read", file_path="no/such") == "no/such: there is no such file or directory"


async def test_write_makes_a_file_and_its_directories(context: ToolUseContext) -> None:
    """A new file need not be read before, and missing directories are made."""
    await call(context, "Write", file_path="new/deep/a.txt", content="hé\n")

    assert (context.cwd / "new/deep/a.txt").read_bytes() == "hé\n".encode()


async def test_write_refuses_an_unread_file(context: ToolUseContext) -> None:
    """A file that exists is replaced only after it was read."""
    (context.cwd / "a.txt").write_text("old")

    assert "Read it first" in await refusal_of(context, "Write", file_path="a.txt", content="new")
    assert (context.cwd / "a.txt").read_text() == "old"

    await call(context, "Read", file_path="a.txt")
    await call(context, "Write", file_path="a.txt", content="new")
    assert (context.cwd / "a.txt").read_text() == "new"


@pytest.mark.parametrize("tool", ["Write", "Edit"])
async def test_a_change_since_reading_is_noticed(context: ToolUseContext, tool: str) -> None:
    """The text of another writer is not lost, even with the same size and time of change."""
    path = context.cwd / "a.txt"
    path.write_text("mine")
    before = path.stat()
    await call(context, "Read", file_path="a.txt")
    path.write_text("them")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    arguments = {"content": "x"} if tool == "Write" else {"old_string": "them", "new_string": "x"}

    assert "has changed" in await refusal_of(context, tool, file_path="a.txt", **arguments)
    assert path.read_text() == "them"


async def test_a_touched_file_counts_as_read(context: ToolUseContext) -> None:
    """A new time with the same content is no change."""
    path = context.cwd / "a.txt"
    path.write_text("one")
    await call(context, "Read", file_path="a.txt")
    os.utime(path, ns=(1, 1))

    await call(context, "Edit", file_path="a.txt", old_string="one", new_string="two")

    assert path.read_text() == "two"


async def test_a_written_file_counts_as_read(context: ToolUseContext) -> None:
    """A run need not read what it wrote itself; writes and edits follow each other."""
    await call(context, "Write", file_path="a.txt", content="one")
    await call(context, "Edit", file_path="a.txt", old_string="one", new_string="two")
    await call(context, "Write", file_path="a.txt", content="three")

    assert (context.cwd / "a.txt").read_text() == "three"


async def test_reading_in_one_context_does_not_count_in_another(context: ToolUseContext) -> None:
    """Another context must read the file before it writes."""
    (context.cwd / "a.txt").write_text("old")
    await call(context, "Read", file_path="a.txt")

    assert "Read it first" in await refusal_of(make_context(context.cwd), "Write", file_path="a.txt", content="new")


async def test_a_replaced_file_keeps_its_mode(context: ToolUseContext) -> None:
    """An executable file stays executable."""
    path = context.cwd / "run.sh"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o750)
    await call(context, "Read", file_path="run.sh")

    await call(context, "Write", file_path="run.sh", content="#!/bin/bash\n")

    assert path.stat().st_mode & 0o777 == 0o750
    assert [each.name for each in context.cwd.iterdir()] == ["run.sh"]


async def test_edit_replaces_a_single_occurrence(context: ToolUseContext) -> None:
    """The answer says where it was."""
    (context.cwd / "a.txt").write_text("one\ntwo\nthree\n")
    await call(context, "Read", file_path="a.txt")

    answer = await call(context, "Edit", file_path="a.txt", old_string="two", new_string="2")

    assert answer == "Edited a.txt: line 2."
    assert (context.cwd / "a.txt").read_text() == "one\n2\nthree\n"


async def test_edit_refuses_a_missing_or_repeated_text(context: ToolUseContext) -> None:
    """An edit that could mean nothing, or two things, changes nothing."""
    (context.cwd / "a.txt").write_text("x = 1\nx = 1\n")
    await call(context, "Read", file_path="a.txt")

    assert "not in the file" in await refusal_of(context, "Edit", file_path="a.txt", old_string="y", new_string="z")
    assert "2 times" in await refusal_of(context, "Edit", file_path="a.txt", old_string="x = 1", new_string="z")
    assert (context.cwd / "a.txt").read_text() == "x = 1\nx = 1\n"

    await call(context, "Edit", file_path="a.txt", old_string="x = 1", new_string="z", replace_all=True)
    assert (context.cwd / "a.txt").read_text() == "z\nz\n"


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("same", "same")])
async def test_edit_refuses_an_edit_without_effect(context: ToolUseContext, old: str, new: str) -> None:
    """An empty old_string, or a new one equal to it, is a mistake."""
    (context.cwd / "a.txt").write_text("same")
    await call(context, "Read", file_path="a.txt")

    await refusal_of(context, "Edit", file_path="a.txt", old_string=old, new_string=new)


async def test_edit_keeps_line_ends_and_foreign_bytes(context: ToolUseContext) -> None:
    """CRLF stays CRLF though a model writes LF, and bytes that are not UTF-8 stay, too."""
    path = context.cwd / "a.txt"
    path.write_bytes(b"caf\xe9\r\none\r\ntwo\r\n")
    await call(context, "Read", file_path="a.txt")

    await call(context, "Edit", file_path="a.txt", old_string="one\ntwo", new_string="1\n2")

    assert path.read_bytes() == b"caf\xe9\r\n1\r\n2\r\n"


async def test_a_text_that_is_too_large_is_refused_before_it_is_made(context: ToolUseContext) -> None:
    """The size is computed first, so that no memory is used."""
    (context.cwd / "a.txt").write_text("a" * 100_000)
    await call(context, "Read", file_path="a.txt")

    assert str(MAX_CHANGED) in await refusal_of(
        context, "Edit", file_path="a.txt", old_string="a", new_string="b" * 100_000, replace_all=True
    )
    assert str(MAX_CHANGED) in await refusal_of(context, "Write", file_path="b.txt", content="b" * (MAX_CHANGED + 1))
    assert not (context.cwd / "b.txt").exists()


async def test_half_a_surrogate_pair_is_refused(context: ToolUseContext) -> None:
    """Text without a UTF-8 form is refused with its cause, in a content and in the name of a file."""
    assert "surrogate" in await refusal_of(context, "Write", file_path="a.txt", content="\ud800")
    assert "encoding" in await refusal_of(context, "Write", file_path="\ud800.txt", content="x")


async def test_wrong_arguments_get_a_short_error(context: ToolUseContext) -> None:
    """The error is one sentence that names the argument, not a copy of the request."""
    answer = await refusal_of(context, "Read", file_path="a", limit="x" * 1_000_000)
    assert "limit" in answer
    assert len(answer) < 500

    assert "colour: Extra inputs" in await refusal_of(context, "Read", file_path="a", colour="red")


async def test_a_tool_outside_a_run_says_so() -> None:
    """A tool that is called by hand, without a run, says what it needs."""
    with pytest.raises(ToolException, match="inside a ramet run"):
        await TOOLS["Read"].ainvoke({"file_path": "a"})
