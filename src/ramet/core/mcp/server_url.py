"""The address of a server of the Model Context Protocol, and the headers of requests to it: checked, in one form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ramet.core.errors import InvalidValue
from ramet.core.policy import rights

MAX_URL, MAX_HEADERS, MAX_HEADER = 2_048, 32, 16 * 1024
_PORTS: Final = {"http": 80, "https": 443}
_ACCEPTED: Final = "http://HOST[:PORT]/PATH or https://…, without user, fragment, spaces and ${NAME}"
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^][:/?#@*\\$]+)(:(?P<port>[0-9]{1,5}))?(?P<rest>([/?][!-~]*)?)\Z"
)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}\Z")
#: Without blanks at its ends: an HTTP library would refuse it, and show it in the error.
_HEADER_VALUE: Final = re.compile(r"([!-~]([\t -~]*[!-~])?)?\Z")
#: Headers of the connection and of the protocol, which the client sets.
_OWN_HEADERS: Final = re.compile(
    r"(host|content-.*|transfer-encoding|connection|upgrade|te|trailer|expect|proxy-.*|accept|accept-encoding|mcp-.*"
    r"|last-event-id)\Z"
)
#: A value without a secret: a reference, also after the name of a way to authenticate.
_REFERENCE: Final = re.compile(r"((Bearer|Basic|Token|ApiKey) )?\$\{[A-Za-z_][A-Za-z0-9_.-]*\}\Z")


def checked_url(field: str, url: str) -> str:
    """Return an address that every part of a client reads in the same way. Raises InvalidValue."""
    match = _URL.match(url) if len(url) <= MAX_URL and url.isascii() else None
    if match is None or any(each in match["rest"] for each in ("#", "\\", "${")):
        raise InvalidValue(field, url[:MAX_URL], _ACCEPTED)
    try:
        rights.endpoints(field, [_authority(match)])
    except InvalidValue:  # Its text would name a list of endpoints.
        raise InvalidValue(field, url, _ACCEPTED) from None
    return url


def endpoint_of(url: str) -> str:
    """Return host and port of a checked address, in the form of a list of endpoints."""
    match = _URL.match(url)
    assert match is not None, "the address was checked"
    [endpoint] = rights.endpoints("url", [_authority(match)])
    return endpoint


def _authority(match: re.Match[str]) -> str:
    return f"{match['host']}:{match['port'] or _PORTS[match['scheme']]}"


def checked_headers(field: str, headers: object) -> dict[str, str]:
    """Return headers; no error shows a value. Raises InvalidValue."""
    if not isinstance(headers, Mapping) or len(headers) > MAX_HEADERS:
        raise InvalidValue(field, type(headers).__name__, f"a mapping of at most {MAX_HEADERS} names to texts")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.match(name) or _OWN_HEADERS.match(name.lower()):
            raise InvalidValue(field, name, "names of headers, other than those of the connection and of the protocol")
        check_header_value(f"{field}.{name}", value)
    return dict(headers)


def check_header_value(field: str, value: object) -> None:
    """Raise InvalidValue for a text that no header can have."""
    if not isinstance(value, str) or len(value) > MAX_HEADER or not _HEADER_VALUE.match(value):
        raise InvalidValue(
            field, "its value", f"printable ASCII text of at most {MAX_HEADER} characters, without blanks at its ends"
        )


def recorded_header(value: str) -> str | None:
    """Return the value of a header as it is recorded: None for one that may be a secret."""
    return value if _REFERENCE.match(value) else None
