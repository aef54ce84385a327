"""Parse an entry of a tool list: `Read`, or `Agent(explore, plan)`."""

from __future__ import annotations

import re
from typing import NamedTuple

from ramet.core.errors import InvalidValue

#: The tool that spawns agents, and its older name.
SPAWNERS = frozenset({"Agent", "Task"})
EVERYTHING = "*"
_ENTRY = re.compile(r"\s*+([^\s(),]++)\s*+(?:\((.*)\))?\s*\Z", re.DOTALL)


class ToolEntry(NamedTuple):
    """A tool's name, and the arguments in parentheses; None without parentheses."""

    name: str
    arguments: tuple[str, ...] | None = None

    @property
    def spawns(self) -> bool:
        """Return whether the arguments are types of agents."""
        return self.name in SPAWNERS


def parse_entry(text: str, *, field: str = "tools") -> ToolEntry:
    """Parse one entry. Raises InvalidValue if it has no name, or unbalanced parentheses."""
    match = _ENTRY.match(text)
    if match is None or not _is_balanced(text):
        raise InvalidValue(field, text, "a tool's name, or Agent(type, …)")
    name, arguments = match.groups()
    if arguments is None:
        return ToolEntry(name)
    return ToolEntry(name, tuple(part.strip() for part in arguments.split(",") if part.strip()))


def split_entries(text: str) -> tuple[str, ...]:
    """Split `Read, Agent(a, b), Bash` at the commas outside of parentheses."""
    entries, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth <= 0:
            entries.append(text[start:at])
            start = at + 1
    entries.append(text[start:])
    return tuple(entry.strip() for entry in entries if entry.strip())


def _is_balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return False
    return depth == 0
