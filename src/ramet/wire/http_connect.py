"""Parse a request to the proxy: `CONNECT host:port`, and no ambiguous form. The module does no I/O.

Input that URL parsers read differently is refused, not normalised: NUL, bare CR or LF, percent-encoding, userinfo,
numbers that some parsers accept as an IPv4 address, IPv6 zones, non-ASCII names. The `Host` field is ignored: the
target of the request line is judged, resolved and connected to.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from http import HTTPStatus
from typing import NamedTuple

from ramet.core.policy.rights import uncovered_endpoints

MAX_HEADER_BYTES = 8 * 1024  #: the request line and all fields, including the final empty line
MAX_FIELDS = 64

#: The response that precedes the tunnel.
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

_BAD_BYTE = re.compile(rb"[^\t\r\n\x20-\x7e]|\r(?=[^\n])|(?<!\r)\n")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as a last label: some parsers take the whole name for an IPv4 address
_EXPECTED = "expected CONNECT host:port HTTP/1.1"


class Target(NamedTuple):
    """The destination of a tunnel, in canonical form: lower case, no trailing dot, short IPv6 without brackets."""

    host: str
    port: int
    is_ip: bool

    @property
    def authority(self) -> str:
        """Return the form used in a list of endpoints: `example.org:443`, `[2001:db8::1]:443`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectRefusal(NamedTuple):
    """A refused request: the status of the response, and a reason for the client."""

    status: int
    reason: str


class RequestReader:
    """A reader that takes bytes until they give a target or a refusal. The division into reads has no effect."""

    __slots__ = ("_at", "_buffer", "_fields", "_hosts", "_result", "_search_offset", "_target")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  #: offset of the current line
        self._search_offset = 0  #: offset up to which bytes were examined
        self._fields = self._hosts = 0
        self._target: Target | None = None
        self._result: Target | ConnectRefusal | None = None

    @property
    def leftover(self) -> bytes:
        """Return the bytes after the header block: the tunnel's first bytes."""
        return bytes(self._buffer[self._at :]) if isinstance(self._result, Target) else b""

    def feed(self, data: bytes) -> Target | ConnectRefusal | None:
        """Add received bytes; return None while the header block is incomplete. The first result is final."""
        self._buffer += data
        while self._result is None:
            end = self._buffer.find(b"\n", self._search_offset, MAX_HEADER_BYTES) + 1
            stop = end or min(len(self._buffer), MAX_HEADER_BYTES)
            # Start one byte earlier: the byte after a CR decides whether the CR is allowed.
            if _BAD_BYTE.search(self._buffer, max(self._at, self._search_offset - 1), stop):
                self._result = ConnectRefusal(400, "a byte that is no printable ASCII, or a CR or LF that stands alone")
            elif end:
                line = self._buffer[self._at : end - 2].decode("ascii")
                self._at = self._search_offset = end
                self._result = self._parse_line(line)
            elif len(self._buffer) > MAX_HEADER_BYTES:
                self._result = ConnectRefusal(431, f"the header block is larger than {MAX_HEADER_BYTES} bytes")
            else:
                self._search_offset = stop
                break
        return self._result

    def _parse_line(self, line: str) -> Target | ConnectRefusal | None:
        if self._target is None:
            target = _request_line(line)
            if isinstance(target, Target):
                self._target = target
                return None
            return target
        if not line:
            return self._target
        self._fields += 1
        if self._fields > MAX_FIELDS:
            return ConnectRefusal(431, f"more than {MAX_FIELDS} header fields")
        return self._field(line)

    def _field(self, line: str) -> ConnectRefusal | None:
        name, colon, _ = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            return ConnectRefusal(400, "a line that is no header field, or one that is folded")
        match name.lower():
            case "content-length" | "transfer-encoding":
                return ConnectRefusal(400, f"{name} with CONNECT, which has no body")
            case "host":
                self._hosts += 1
                if self._hosts > 1:
                    return ConnectRefusal(400, "more than one Host")
        return None


def _request_line(line: str) -> Target | ConnectRefusal:
    parts = line.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]):
        return ConnectRefusal(400, f"the request line is malformed; {_EXPECTED}")
    method, target, version = parts
    if method != "CONNECT":
        return ConnectRefusal(405, "this proxy only opens tunnels; use CONNECT host:port, for plain HTTP too")
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        return ConnectRefusal(400, f"another version of HTTP; {_EXPECTED}")
    return parse_target(target)


def parse_target(text: str) -> Target | ConnectRefusal:
    """Parse `host:port`. A target that another parser could read as another host is refused with status 400."""
    host, colon, digits = text.rpartition(":")
    if not colon:
        return ConnectRefusal(400, f"the target has no port; {_EXPECTED}")
    if not _PORT.fullmatch(digits) or int(digits) > 65535:
        return ConnectRefusal(400, "the port is no plain decimal number from 1 to 65535")
    host, port = host.lower(), int(digits)
    if host.startswith("["):
        return _ipv6(host, port)
    name = host.removesuffix(".")
    labels = name.split(".")
    if not text.isascii() or len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        return ConnectRefusal(400, "the host is no plain ASCII name, IPv4 address or [IPv6 address]")
    if not _NUMBER.fullmatch(labels[-1]):
        return Target(name, port, False)
    try:
        return Target(str(ipaddress.IPv4Address(host)), port, True)
    except ValueError:
        return ConnectRefusal(400, "an IPv4 address is four decimal numbers without leading zeros")


def _ipv6(host: str, port: int) -> Target | ConnectRefusal:
    if host.endswith("]") and "%" not in host:
        try:
            return Target(str(ipaddress.IPv6Address(host[1:-1])), port, True)
        except ValueError:
            pass
    return ConnectRefusal(400, "the brackets hold no plain IPv6 address")


def is_allowed(entries: Collection[str], host: str, port: int) -> bool:
    """Return whether a list of endpoints covers this one, by the policy rule; the host is canonical, as in a `Target`.

    `*.example.org:443` covers every name below example.org, but not example.org. `*` covers every name and every public
    address. The proxy separately judges the address to which a name resolves.
    """
    return not uncovered_endpoints(entries, [Target(host, port, False).authority])


def answer(refusal: ConnectRefusal) -> bytes:
    """Return the refusal as a complete HTTP response; the caller then closes the connection."""
    body = f"{refusal.reason}\n".encode("ascii", "replace")
    head = [
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}",
        "Content-Type: text/plain",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Allow: CONNECT"] if refusal.status == 405 else []),
    ]
    return "\r\n".join([*head, "", ""]).encode("ascii") + body
