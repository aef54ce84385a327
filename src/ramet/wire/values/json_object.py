"""Plain JSON objects as the body of a request: no tags, no binary parts, bounded in size and depth."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from ramet.core.errors import InvalidValue, ProtocolError
from ramet.wire.values.validators import check_parts

#: Bytes of JSON above which the collector of cycles waits: nothing that JSON makes is a cycle, and looking for them
#: takes 40 % of the time of a megabyte, or many times as long in a host with many objects of its own.
_LARGE: Final = 64 * 1024
#: Levels of objects and lists inside each other.
MAX_DEPTH: Final = 100


@contextmanager
def paused_gc(size: int) -> Iterator[None]:
    """Let the collector of cycles wait while JSON of so many bytes is read, if they are many."""
    pause = size > _LARGE and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()


def json_object(body: bytes, what: str, *, max_bytes: int) -> dict[str, Any]:
    """Read one. Raises InvalidValue for one above a bound, ProtocolError for what is no JSON object."""
    if len(body) > max_bytes:
        raise InvalidValue(what, f"{len(body)} bytes", f"at most {max_bytes} bytes of JSON")
    check_parts(body, len(body), what)
    try:
        with paused_gc(len(body)):
            said = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep(what) from None
    except (msgspec.DecodeError, UnicodeError) as problem:
        raise ProtocolError(f"{what} that is no JSON: {str(problem)[:200]}") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"{what} that is no object")
    level: list[Any] = [said]
    for _ in range(MAX_DEPTH):
        level = gc.get_referents(*level)  # one level of a tree of lists and dicts, at the speed of C
        if not level:
            return said
    raise _too_deep(what)


def json_body(said: Mapping[str, Any], what: str) -> bytes:
    """Write one. Raises InvalidValue for what is no JSON."""
    try:
        return msgspec.json.encode(said)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise InvalidValue(what, said, f"JSON data: {str(problem)[:200]}") from None


def _too_deep(what: str) -> InvalidValue:
    return InvalidValue(what, "objects in objects", f"at most {MAX_DEPTH} levels of them")
