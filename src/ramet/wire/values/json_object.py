"""Read and write plain JSON objects as request bodies: no tags, no binary parts, bounded size and depth."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.wire.values.validators import check_parts

T = TypeVar("T")

#: Size in bytes of JSON above which garbage collection pauses: JSON data contains no cycles, and a search for them
#: takes 40 % of the time for a megabyte, or many times as long in a host with many objects of its own.
_LARGE: Final = 64 * 1024
#: Maximum levels of nested objects and lists.
MAX_DEPTH: Final = 100


def decode_json(body: bytes | memoryview, decode: Callable[..., T] = msgspec.json.decode) -> T:
    """Decode JSON; for a large text the cyclic garbage collector is paused. Raises the errors of `decode`."""
    pause = len(body) > _LARGE and gc.isenabled()
    if pause:
        gc.disable()
    try:
        return decode(body)
    finally:
        if pause:
            gc.enable()


def json_object(body: bytes, label: str, *, max_bytes: int) -> dict[str, Any]:
    """Decode a JSON object. Raises InvalidValue if it exceeds a bound, and ProtocolError if it is no JSON object."""
    if len(body) > max_bytes:
        raise InvalidValue(label, f"{len(body)} bytes", f"at most {max_bytes} bytes of JSON")
    check_parts(body, len(body), label)
    try:
        value: Any = decode_json(body)
    except RecursionError:
        raise _too_deep(label) from None
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise ProtocolError(f"{label} that is not JSON: {str(problem)[:200]}") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{label} that is not an object")
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = gc.get_referents(*level)  # one level of a tree of lists and dicts, at the speed of C
        if not level:
            return value
    raise _too_deep(label)


def json_body(value: Mapping[str, Any], label: str) -> bytes:
    """Encode a JSON object. Raises InvalidValue if the data is not JSON data."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise InvalidValue(label, value, f"JSON data: {str(problem)[:200]}") from None


def _too_deep(label: str) -> InvalidValue:
    return InvalidValue(label, "objects in objects", f"at most {MAX_DEPTH} levels of them")
