"""The input tokens of a request's body: an estimate, or the certain bound.

The bound is the number of bytes: a token of text has at least one. Images and documents have no bound: a page of a few
bytes may count as thousands of tokens, and one by its address has no bytes here at all. The estimate counts three bytes
of JSON as a token, and `DATA_BYTES` of encoded files, which are blocks of nothing but base64. Usage is settled as the
provider reports it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

#: Bytes of a request's JSON, or of an encoded image or document, that count as one token.
TEXT_BYTES: Final = 3
DATA_BYTES: Final = 32
_BLOCK: Final = 2_048  #: a block of base64 of this size is a part of a file, not of a text
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
#: Members of requests that hold their content, in any wire.
_CONTENT: Final = ("messages", "system", "input", "instructions", "contents", "systemInstruction")
#: Types and members of parts that are no text.
_MEDIA: Final = frozenset(
    (
        "audio document file fileData file_data file_id file_url image image_url inlineData inline_data input_audio "
        "input_file input_image item_reference video"
    ).split()
)


def estimate_tokens(body: bytes) -> int:
    """Return about how many tokens of input a body has."""
    data_bytes = 0
    for at in range(0, len(body) - _BLOCK + 1, _BLOCK):
        if not body[at : at + _BLOCK].translate(None, _BASE64):
            data_bytes += _BLOCK
    return math.ceil((len(body) - data_bytes) / TEXT_BYTES + data_bytes / DATA_BYTES)


def media_in(members: Mapping[str, msgspec.Raw]) -> str:
    """Return the name of a part of the content that is no text, such as an image; empty if all of it is text.

    A part of any depth counts, also where it only looks like one: this is for the certain bound.
    """
    try:
        rest: list[Any] = [msgspec.json.decode(members[name]) for name in _CONTENT if name in members]
    except (msgspec.DecodeError, ValueError, RecursionError):
        return "a body that cannot be read"
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            for name in _names_of(part):
                if name in _MEDIA:
                    return name
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)
    return ""


def _names_of(part: dict[str, Any]) -> Iterator[str]:
    """Yield the type of a part, and the names of its members."""
    if isinstance(kind := part.get("type"), str):
        yield kind
    yield from part
