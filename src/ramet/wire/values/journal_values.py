"""Encode values for the journal as JSON that any program can read, and decode them to equal values.

The values are encoded by `ramet.wire.values.values`, so that a dataclass is an object with "@type" and its fields. A
value with binary parts, or with numbers that some JSON parsers do not accept, is an object with the one key "@body".
"""

from __future__ import annotations

import base64
import binascii
import gc
from typing import Any, Final

import msgspec

from ramet.core.errors import DefinitionMissing, NotShippable, ProtocolError
from ramet.wire.values import values
from ramet.wire.values.encoder import MAX_DEPTH

#: Maximum bytes of a value that is not plain JSON; a larger value is refused.
MAX_BYTES: Final = 1024 * 1024
_MAX_INT: Final = 2**53
_BODY: Final = "@body"


def to_record(value: Any, *, label: str = "value") -> Any:
    """Return the value as JSON data. Raises NotShippable, naming the part, if a part is not data or is too large."""
    size, body = values.encode(value, label=label)
    if size == len(body):
        data = msgspec.json.decode(body)
        if _is_exact(data):
            return data
    if len(body) > MAX_BYTES:
        raise NotShippable(label, f"it takes {len(body)} bytes of binary data", f"return at most {MAX_BYTES} bytes")
    return {_BODY: [size, base64.b64encode(body).decode()]}


def record_json(value: Any) -> bytes | None:
    """Return the data of `to_record` as JSON, if the value is plain data that every JSON parser reads exactly."""
    return values.plain_json(value, max_int=_MAX_INT)


def from_record(data: Any, returns: Any = None, *, label: str = "value") -> Any:
    """Return the value that `to_record` encoded, converted to the annotation `returns`.

    Raises InvalidValue if the value does not fit, ProtocolError for data that `to_record` cannot have written, and
    DefinitionMissing for a value that could not be kept.
    """
    if isinstance(data, dict):
        if data.keys() == {"@type", "repr"}:
            raise DefinitionMissing("value of type", str(data["@type"]))
        if data.keys() == {_BODY}:
            size, body = _body(data[_BODY])
            return values.decode(body, size, returns=returns, label=label, is_bounded=False)
    body = msgspec.json.encode(data)
    return values.decode(body, len(body), returns=returns, label=label, is_bounded=False)


def _body(entry: Any) -> tuple[int, bytes]:
    try:
        size, text = entry
        return int(size), base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ProtocolError("a recorded value whose body cannot be read") from None


def _is_exact(data: Any) -> bool:
    """Return whether every JSON parser reads the data exactly: it has no number that some parsers round."""
    level = [data]
    for _ in range(MAX_DEPTH + 1):
        if any(isinstance(each, int) and not -_MAX_INT <= each <= _MAX_INT for each in level):
            return False
        level = gc.get_referents(*level)  # the parts of lists and dicts, one level deeper
        if not level:
            return True
    return False
