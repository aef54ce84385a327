"""Summarise a tool call: its name and the one or two most distinctive arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.cli.render.sanitize import one_line

#: Arguments that state the subject of a call, in order of preference; then its place.
_ABOUT = ("pattern", "query", "command", "file_path", "url", "skill", "to", "task_id", "description", "prompt", "code")
_WHERE = ("path", "file", "directory", "dir", "glob")
_QUOTED = ("pattern", "query")


def describe_call(tool: str, args: Mapping[str, Any], limit: int = 120) -> str:
    """Return `Grep "timeout" in src`, `Read src/client.py`, `Bash make test`: one line, sanitized."""
    about, where = _first(args, _ABOUT), _first(args, _WHERE)
    if about is None and where is None:
        about = next(
            ((key, value) for key, value in args.items() if isinstance(value, str | int) and value != ""), None
        )
    words = [one_line(tool, 40)]
    if about is not None:
        words.append(f'"{_shown(about[1], 48)}"' if about[0] in _QUOTED else _shown(about[1], 80))
    if where is not None:
        words.append(f"in {_shown(where[1], 40)}" if about is not None else _shown(where[1], 80))
    return one_line(" ".join(words), limit)


def _first(args: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, Any] | None:
    return next(((key, args[key]) for key in keys if isinstance(args.get(key), str) and args[key]), None)


def _shown(value: Any, limit: int) -> str:
    return one_line(str(value), limit)
