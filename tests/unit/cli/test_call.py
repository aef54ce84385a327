"""Tool calls in a few words."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.cli.render.call_summary import describe_call


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("Grep", {"pattern": "ERROR|WARN", "path": "logs"}, 'Grep "ERROR|WARN" in logs'),
        ("Read", {"file_path": "src/x.py", "offset": 4}, "Read src/x.py"),
        ("Glob", {"pattern": "**/*.log"}, 'Glob "**/*.log"'),
        ("Bash", {"command": "make\ntest"}, "Bash make test"),
        ("Agent", {"prompt": "Look", "description": "look around"}, "Agent look around"),
        ("List", {"path": "src"}, "List src"),
        ("add", {"a": 1, "b": 2}, "add 1"),
        ("now", {}, "now"),
        ("odd", {"pattern": 7, "x": None}, 'odd "7"'),
        ("\x1b[2JBash", {"command": "\x1b]0;x\x07rm"}, "Bash rm"),
    ],
)
def test_a_call_is_described_by_its_main_argument(tool: str, args: dict[str, Any], expected: str) -> None:
    """The path is added if there is one; no escape sequence is printed."""
    assert describe_call(tool, args) == expected


def test_a_huge_argument_stays_short() -> None:
    """A megabyte of arguments becomes one short line."""
    assert len(describe_call("Write", {"file_path": "x" * 1_000_000, "content": "y" * 1_000_000}, 60)) <= 60
