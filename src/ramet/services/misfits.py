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
#: What private values are below. A policy has other fields, too, which are shown.
_PRIVATE, _POLICY = frozenset({"env", "env_vars", "secrets"}), "policy"
_NAMES = re.compile(r"(?<![A-Za-z0-9_])(?:policy|env|env_vars|secrets)(?![A-Za-z0-9_])")


def hidden(value: object) -> str:
    """Return what stands for a value that may hold secrets: its type."""
    return f"({type(value).__name__}, not shown)"


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
        return InvalidValue(name, _at(path, data, within), _words(said))
    if named[1] == "missing required":
        return InvalidValue(name, None, "a value: it is required")
    known = getattr(kind, "__struct_fields__", ()) if not path else ()
    return InvalidValue(name, named[2], f"one of the fields {', '.join(known)}" if known else "no field of this name")


def _words(said: str) -> str:
    kinds = _KIND.match(said)
    return f"{kinds[1]}, not {kinds[2]}" if kinds is not None else said.removeprefix("Expected ")


def _at(path: str, data: object, within: str) -> object:
    """The value at the path of a refusal, as far as it can be followed; the type of one that may hold secrets."""
    value, end = data, 0
    if isinstance(data, bytes | msgspec.Raw):
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeError):  # It is worse than what was found first.
            return hidden(bytes(data))
    for step in _STEP.finditer(path):
        if step.start() != end:
            break
        end = step.end()
        try:
            value = value[int(step[2])] if step[2] else value[step[1]]  # type: ignore[index]
        except (LookupError, TypeError):
            break
    if _is_private(f"{within}.{path}"):
        return hidden(value)
    if isinstance(value, str):
        return hidden(value) if _NAMES.search(value) else value[:_CHARS]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return value
    try:
        text = msgspec.json.encode(value).decode()
        return hidden(value) if _NAMES.search(text) else text[:_CHARS]
    except (OverflowError, RecursionError):
        return f"a {type(value).__name__}"


def _is_private(path: str) -> bool:
    """Whether a path is a policy, or leads to, or into, secrets or variables."""
    names = [step[1] for step in _STEP.finditer(path) if step[1]]
    return bool(_PRIVATE.intersection(names)) or names[-1:] == [_POLICY]
