"""The authority of a URL: a host, with a port or without, as browsers send it in `Host`."""

from __future__ import annotations

import re
from typing import Final

from ramet.core.errors import InvalidValue

#: A name, an IPv4 address, or an IPv6 address in brackets, in lower case; then the port.
AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)(?::([0-9]{1,5}))?\Z")
MAX_CHARS: Final = 260


def checked_authority(field: str, text: str) -> str:
    """Return an authority in lower case. Raises InvalidValue."""
    match = AUTHORITY.match(text.lower()) if len(text) <= MAX_CHARS else None
    if match is None or int(match[2] or 1) not in range(1, 65_536):
        raise InvalidValue(field, text, "a host, or HOST:PORT; an IPv6 address is in brackets")
    return match[0]
