"""JSON that is no structure of the kind that was expected, told in the words of every other refusal."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ramet.core.errors import InvalidValue

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_FIELD = re.compile(r"^Object (contains unknown|missing required) field `([^`]*)`")
_KIND = re.compile(r"^Expected `([^`]*)`, got `([^`]*)`$")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_CHARS = 80  #: of a value that is shown again


def misfit(problem: msgspec.ValidationError, kind: Any, data: object, whole: str, within: str = "") -> InvalidValue:
    """What msgspec refused of `data`, JSON or plain: the field, its value, what would be accepted.

    `whole` names what is refused where no field is; `within` is said before the names of fields.
    """
    said = str(problem)
    found = _PATH.search(said)
    path, said = (found[1], said[: found.start()]) if found is not None else ("", said)
    named = _FIELD.match(said)
    name = ".".join(part for part in (within, path, named[2] if named is not None else "") if part) or whole
    if named is None:
        return InvalidValue(name, _at(path, data), _words(said))
    if named[1] == "missing required":
        return InvalidValue(name, None, "a value: it is required")
    known = getattr(kind, "__struct_fields__", ()) if not path else ()
    return InvalidValue(name, named[2], f"one of the fields {', '.join(known)}" if known else "no field of this name")


def _words(said: str) -> str:
    kinds = _KIND.match(said)
    return f"{kinds[1]}, not {kinds[2]}" if kinds is not None else said.removeprefix("Expected ")


def _at(path: str, data: object) -> object:
    """The value at the path of a refusal, as far as it can be followed."""
    value, end = data, 0
    if isinstance(data, bytes | msgspec.Raw):
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeError):  # It is worse than what was found first.
            return bytes(data)[:_CHARS].decode(errors="replace")
    for step in _STEP.finditer(path):
        if step.start() != end:
            break
        end = step.end()
        try:
            value = value[int(step[2])] if step[2] else value[step[1]]  # type: ignore[index]
        except (LookupError, TypeError):
            break
    if isinstance(value, str):
        return value[:_CHARS]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return value
    try:
        return msgspec.json.encode(value)[:_CHARS].decode(errors="replace")
    except (OverflowError, RecursionError):
        return f"a {type(value).__name__}"
