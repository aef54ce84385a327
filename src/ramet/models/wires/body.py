"""The bodies of requests as members: read with checks, and written back with a maximum of output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from ramet.models.wires.contract import MAX_MODEL_NAME, MAX_REQUEST_BYTES, MAX_TOKENS, RefusalKind, RequestRefused

T = TypeVar("T")
Members = dict[str, msgspec.Raw]

_ANY: Any = Any
_FLAG: Any = bool | None
_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*")


def decode_members(body: bytes) -> Members:
    """Return the members of a JSON object; of one that occurs twice, the last. Raises RequestRefused."""
    if len(body) > MAX_REQUEST_BYTES:
        raise RequestRefused(
            RefusalKind.TOO_LARGE, f"the body has {len(body)} bytes; at most {MAX_REQUEST_BYTES} are accepted"
        )
    return read(body, Members, "the body", "a JSON object")


def read(data: bytes | msgspec.Raw, kind: type[T], name: str, accepted: str) -> T:
    """Return JSON data as a type. Raises RequestRefused, which names the member."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise RequestRefused(RefusalKind.INVALID, f"{name}: {accepted} is expected ({str(problem)[:100]})") from None


def encode_members(members: Mapping[str, msgspec.Raw]) -> bytes:
    """Return the body: the members in their order, each value as it came."""
    return msgspec.json.encode(members)


def raw_count(count: int) -> msgspec.Raw:
    return msgspec.Raw(b"%d" % count)


def read_model(members: Mapping[str, msgspec.Raw]) -> str:
    """Return the member `model`. Raises RequestRefused."""
    if "model" not in members:
        raise RequestRefused(RefusalKind.INVALID, "model: a name is expected, and there is none")
    return checked_model(read(members["model"], str, "model", "a name"))


def checked_model(name: str) -> str:
    """Return the name of a model. Raises RequestRefused for what no name can be."""
    if len(name) > MAX_MODEL_NAME or _MODEL_NAME.fullmatch(name) is None:
        raise RequestRefused(RefusalKind.INVALID, f"model: {name[:100]!r} is not the name of a model")
    return name


def read_flag(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Return a flag; False if it is missing or null. Raises RequestRefused."""
    return name in members and bool(read(members[name], _FLAG, name, "true or false"))


def read_count(members: Mapping[str, msgspec.Raw], name: str, *, least: int = 1, label: str = "") -> int | None:
    """Return a whole number; None if it is missing or null. Raises RequestRefused for any other value."""
    if name not in members:
        return None
    accepted = f"a whole number from {least} to {MAX_TOKENS}"
    count: Any = read(members[name], _ANY, label or name, accepted)
    if count is None:
        return None
    if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= MAX_TOKENS:
        raise RequestRefused(RefusalKind.INVALID, f"{label or name}: {accepted} is expected")
    return count


def is_given(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Return whether a member is there and says something: not null, false, or empty."""
    return name in members and bytes(members[name]).strip() not in (b"null", b"false", b'""', b"[]", b"{}")


def present_members(members: Mapping[str, msgspec.Raw], names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names whose members say something."""
    return tuple(name for name in names if is_given(members, name))


def is_one_of(members: Mapping[str, msgspec.Raw], name: str, accepted: frozenset[str]) -> bool:
    """Return whether a member is missing, null, or one of these texts."""
    if not is_given(members, name):
        return True
    try:
        return msgspec.json.decode(members[name], type=str) in accepted
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
