"""Summarise a tool call: its name and the one or two most distinctive arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.cli.render.sanitize import one_line

#: Arguments that state the subject of a call, in order of preference; then its place.
_SUBJECT_KEYS = (
    "pattern",
    "query",
    "command",
    "file_path",
    "url",
    "skill",
    "to",
    "task_id",
    "description",
    "prompt",
    "code",
)
_LOCATION_KEYS = ("path", "file", "directory", "dir", "glob")
_QUOTED_KEYS = ("pattern", "query")


def describe_call(tool: str, args: Mapping[str, Any], limit: int = 120) -> str:
    """Return `Grep "timeout" in src`, `Read src/client.py`, `Bash make test`: one line, sanitized."""
    subject, location = _first_argument(args, _SUBJECT_KEYS), _first_argument(args, _LOCATION_KEYS)
    if subject is None and location is None:
        subject = next(
            ((key, value) for key, value in args.items() if isinstance(value, str | int) and value != ""), None
        )
    parts = [one_line(tool, 40)]
    if subject is not None:
        parts.append(f'"{_text(subject[1], 48)}"' if subject[0] in _QUOTED_KEYS else _text(subject[1], 80))
    if location is not None:
        parts.append(f"in {_text(location[1], 40)}" if subject is not None else _text(location[1], 80))
    return one_line(" ".join(parts), limit)


def _first_argument(args: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, Any] | None:
    return next(((key, args[key]) for key in keys if isinstance(args.get(key), str) and args[key]), None)


def _text(value: Any, limit: int) -> str:
    return one_line(str(value), limit)
