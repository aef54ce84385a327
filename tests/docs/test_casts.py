"""Casts of the documentation: they can be played, name no machine, and show commands that exist."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree
from pathlib import Path

import pytest

from ramet.cli.parser import build_parser
from tests.docs.cast_picture import draw
from tests.docs.cast_recorder import Cast, recording
from tests.docs.casts import CASTS, ROOT, SESSIONS
from tests.docs.terminal_screen import Screen
from tests.docs.test_blocks_run import blocks

#: Folders that a machine has, and that no example names.
PRIVATE = re.compile(r"(?<![\w.~])/(?:home|root|work|tmp|opt|srv|mnt|usr|var|Users)/\S+")
LARGEST_BYTES = 400_000
PAGES = {page.name: page.read_text() for page in ROOT.glob("docs/**/*.md")}
FIRST_AGENT = blocks(PAGES["first-agent.md"])[0]


def test_each_cast_can_be_played_and_names_no_machine() -> None:
    """Each session has a cast and the picture that its cast gives. The picture loads nothing and runs no script."""
    files = sorted(CASTS.iterdir())
    assert [each.name for each in files] == sorted(f"{name}.cast{end}" for name in SESSIONS for end in ("", ".svg"))
    assert sum(each.stat().st_size for each in files) < LARGEST_BYTES
    for name in SESSIONS:
        cast = Cast.decode((CASTS / f"{name}.cast").read_text())
        picture = (CASTS / f"{name}.cast.svg").read_text()
        moments = [seconds for seconds, _ in cast.events]
        assert moments == sorted(moments), name
        assert PRIVATE.findall(cast.output) == [], name
        assert picture == draw(cast), f"python -m tests.docs.casts {name}"
        tags = {each.tag.partition("}")[2] for each in xml.etree.ElementTree.fromstring(picture).iter()}
        assert tags == {"svg", "title", "style", "rect", "circle", "text", "g"}, name
        assert not re.search(r"href|url\(|@import|<script", picture), name


def test_the_commands_of_casts_exist() -> None:
    """The parser takes each command of `ramet` in a cast. Each program is an example, or of a page as it is now."""
    parser, seen = build_parser(), set()
    for name in SESSIONS:
        for line in re.findall(r"(?m)^\$ (.+)\r$", Cast.decode((CASTS / f"{name}.cast").read_text()).output):
            command, *arguments = shlex.split(line)
            seen.add(command)
            if command == "ramet":
                parser.parse_args(arguments)
            else:
                program = arguments[0]
                assert (ROOT / program).is_file() or any(f"# {program}\n" in page for page in PAGES.values()), line

    assert seen == {"ramet", "python", "cat"}
    shown = Cast.decode((CASTS / "first-agent.cast").read_text()).output.replace("\r\n", "\n")
    assert FIRST_AGENT.code in shown, "python -m tests.docs.casts first-agent"
    assert [name for name in SESSIONS if f"../casts/{name}.cast.svg" not in PAGES["gallery.md"]] == []


def test_a_session_is_recorded_without_its_folder(tmp_path: Path) -> None:
    """The cast of a real shell has its colours and no folder of the machine, and its picture shows the last screen."""
    with recording("a title & more", tmp_path, columns=40, rows=4) as terminal:
        terminal.run("printf '\\e[1;31mred\\e[0m\\n'; pwd")
    cast = Cast.decode(terminal.cast.encode())
    picture = draw(cast)

    assert cast.output.endswith("\r\n\x1b[1;31mred\x1b[0m\r\n~/project\r\n$ ")
    assert "a title &amp; more" in picture
    assert re.search(r'class="b c1 n" style="--t:[\d.]+s" x="0" [^>]+>red</text>', picture)


def test_a_screen_shows_what_a_terminal_shows() -> None:
    """Lines that are written again replace the old ones, long lines wrap, and an unknown sequence is refused."""
    screen = Screen(5, 2)
    screen.write("abcdefg\r\n1/2\r\x1b[2K\x1b[1A\x1b[2Kdone\r\n\x1b[32m2/2\x1b[0m")

    assert ["".join(cell.char for cell in line) for line in screen.lines] == ["abcde", "done", "2/2"]
    assert (screen.top, screen.lines[2][0].style.color) == (1, 2)
    with pytest.raises(ValueError, match="CSI 5H"):
        screen.write("\x1b[5H")
