"""docs/guides/command-agents.md names every frame and every field of `spawn_info`; its program is shipped."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import get_args

import pytest
from msgspec import Struct

from ramet.services.agent_types.command.type import CommandInfo, CommandType
from ramet.wire import command_protocol
from tests.docs.test_blocks_run import ROOT

PAGE = (ROOT / "docs" / "guides" / "command-agents.md").read_text()
HOST_FRAMES = [
    each
    for each in vars(command_protocol).values()
    if inspect.isclass(each) and each.__base__ is command_protocol.ToProgram
]


def row(name: str, heading: str) -> str:
    """Return the row of a name below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (found,) = [line for line in section.splitlines() if line.startswith(f"| `{name}` |")]
    return found


@pytest.mark.parametrize(
    ("kind", "heading"),
    [(each, "What it is told") for each in HOST_FRAMES]
    + [(each, "What it says") for each in get_args(command_protocol.ProgramMessage)],
    ids=lambda each: each.__name__ if inspect.isclass(each) else None,
)
def test_every_frame_is_listed_with_its_fields(kind: type[Struct], heading: str) -> None:
    """Each frame has a row with its fields, except for `size`."""
    line = row(str(kind.__struct_config__.tag), heading)
    for field in set(kind.__struct_fields__) - {"size"}:
        assert f"`{field}`" in line


def test_every_field_of_spawn_info_is_listed() -> None:
    """Each field of `spawn_info` has a row, and the page shows each operation."""
    for field in CommandInfo.__struct_fields__:
        row(field, "From a file to an answer")
    for operation in CommandType.operations:
        assert f'"@type": "{operation}"' in PAGE


def test_the_loop_of_the_program_is_that_of_the_shipped_example() -> None:
    """The last statement of the program, its loop, equals that of the shipped example."""
    shown = ast.parse(textwrap.dedent(PAGE.partition("<<'END'\n")[2].partition("\nEND\n")[0]))
    shipped = ast.parse((ROOT / "src" / "ramet" / "examples" / "commands" / "parrot.py").read_text())
    loop = [ast.unparse(each.body[-1]) for each in (shown, shipped)]
    assert loop[0] == loop[1]
