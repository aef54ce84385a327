"""The input tokens of a request's body: an estimate, or the certain bound.

The bound is the number of bytes: a token has at least one. The estimate counts three bytes of JSON as a token, and
`DATA_BYTES` of encoded files, which are blocks of nothing but base64. Usage is settled as the provider reports it.
"""

from __future__ import annotations

import math
from typing import Final

#: Bytes of a request's JSON, or of an encoded image or document, that count as one token.
TEXT_BYTES: Final = 3
DATA_BYTES: Final = 32
_BLOCK: Final = 2_048  #: a block of base64 of this size is a part of a file, not of a text
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"


def estimate_tokens(body: bytes) -> int:
    """Return about how many tokens of input a body has."""
    data_bytes = 0
    for at in range(0, len(body) - _BLOCK + 1, _BLOCK):
        if not body[at : at + _BLOCK].translate(None, _BASE64):
            data_bytes += _BLOCK
    return math.ceil((len(body) - data_bytes) / TEXT_BYTES + data_bytes / DATA_BYTES)
