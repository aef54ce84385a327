"""A request to the proxy as bytes, without any I/O: `CONNECT host:port`, and nothing that could be read in two ways.

What differs between readers of a URL (NUL, bare CR or LF, percent-encoding, userinfo, numbers that some take for an
IPv4 address, zones of IPv6, non-ASCII names) is refused rather than normalised. A `Host` field is not used: the target
of the request line is the one that is judged, resolved and connected to.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from http import HTTPStatus
from typing import NamedTuple

from ramet.core.policy.rights import uncovered_endpoints

MAX_HEADER_BYTES = 8 * 1024  #: the request line and all fields, with the empty line behind them
MAX_FIELDS = 64

#: The answer behind which the tunnel begins.
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

_BAD_BYTE = re.compile(rb"[^\t\r\n\x20-\x7e]|\r(?=[^\n])|(?<!\r)\n")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as a last label: some readers take the whole for an IPv4 address
_EXPECTED = "expected CONNECT host:port HTTP/1.1"


class Target(NamedTuple):
    """Where a tunnel is to lead, in canonical form: lower case, no trailing dot, IPv6 compressed and bare."""

    host: str
    port: int
    is_ip: bool

    @property
    def authority(self) -> str:
        """As it stands in a list of endpoints: `example.org:443`, `[2001:db8::1]:443`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ConnectRefusal(NamedTuple):
    """A request that is not carried out: the status of the answer, and a sentence for whoever asked."""

    status: int
    reason: str


class RequestReader:
    """Takes bytes as they come until they are a target or a refusal; how they were cut makes no difference."""

    __slots__ = ("_at", "_buffer", "_fields", "_found", "_hosts", "_looked", "_target")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  #: where the line under way begins
        self._looked = 0  #: up to where bytes were looked at
        self._fields = self._hosts = 0
        self._target: Target | None = None
        self._found: Target | ConnectRefusal | None = None

    @property
    def rest(self) -> bytes:
        """What came behind the header block: the tunnel's first bytes."""
        return bytes(self._buffer[self._at :]) if isinstance(self._found, Target) else b""

    def feed(self, data: bytes) -> Target | ConnectRefusal | None:
        """Take what has arrived; None while the header block has not ended. The answer, once given, stays."""
        self._buffer += data
        while self._found is None:
            end = self._buffer.find(b"\n", self._looked, MAX_HEADER_BYTES) + 1
            stop = end or min(len(self._buffer), MAX_HEADER_BYTES)
            # From one byte before: a CR is judged by what follows it.
            if _BAD_BYTE.search(self._buffer, max(self._at, self._looked - 1), stop):
                self._found = ConnectRefusal(400, "a byte that is no printable ASCII, or a CR or LF that stands alone")
            elif end:
                line = self._buffer[self._at : end - 2].decode("ascii")
                self._at = self._looked = end
                self._found = self._line(line)
            elif len(self._buffer) > MAX_HEADER_BYTES:
                self._found = ConnectRefusal(431, f"the header block is larger than {MAX_HEADER_BYTES} bytes")
            else:
                self._looked = stop
                break
        return self._found

    def _line(self, line: str) -> Target | ConnectRefusal | None:
        if self._target is None:
            found = _request_line(line)
            if isinstance(found, Target):
                self._target = found
                return None
            return found
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
    words = line.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]):
        return ConnectRefusal(400, f"the request line is malformed; {_EXPECTED}")
    method, target, version = words
    if method != "CONNECT":
        return ConnectRefusal(405, "this proxy only opens tunnels; use CONNECT host:port, for plain HTTP too")
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        return ConnectRefusal(400, f"another version of HTTP; {_EXPECTED}")
    return parse_target(target)


def parse_target(text: str) -> Target | ConnectRefusal:
    """Read `host:port`; whatever another reader could take for another place is a refusal with status 400."""
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


def allowed(entries: Collection[str], host: str, port: int) -> bool:
    """Whether a list of endpoints covers this one, by the rule of policies; the host is canonical, as in a `Target`.

    `*.example.org:443` stands for every name below example.org, not for itself; `*` for every name and every public
    address. To what address a name leads, the proxy judges by itself.
    """
    return not uncovered_endpoints(entries, [Target(host, port, False).authority])


def answer(refusal: ConnectRefusal) -> bytes:
    """The refusal as a whole HTTP response, after which the connection is closed."""
    body = f"{refusal.reason}\n".encode("ascii", "replace")
    head = [
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}",
        "Content-Type: text/plain",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Allow: CONNECT"] if refusal.status == 405 else []),
    ]
    return "\r\n".join([*head, "", ""]).encode("ascii") + body
