"""Checks of what a browser says about a request: to whom it is, and from which page it comes.

A page of another origin can make a browser send requests here. With DNS rebinding its own name leads to this machine,
and the browser takes both for one origin: then only `Host` tells. `Sec-Fetch-Site` and `Origin` cannot be set by
scripts. Other programs send neither of them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers

from ramet.services.http.responses import Refusal
from ramet.wire.authority import AUTHORITY

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_SHOWN: Final = 80  #: characters of a refused header


@dataclass(frozen=True)
class AllowedHosts:
    """The values of `Host` that a request may have.

    Names of this machine's loopback interface need the `port`, if there is one. `names` are further hosts, each with
    or without a port. With `addresses`, any IP address is allowed: DNS rebinding needs a name.
    """

    port: int | None = None
    names: Collection[str] = frozenset()
    addresses: bool = False

    def allows(self, authority: str) -> bool:
        """Return whether a host with an optional port is allowed."""
        if (match := AUTHORITY.match(authority.lower())) is None:
            return False
        host, port = match[1], match[2]
        if host in LOOPBACK and (self.port is None or int(port or 80) == self.port):
            return True
        return host in self.names or match[0] in self.names or (self.addresses and _is_address(host))


def check_host(headers: Headers, hosts: AllowedHosts) -> None:
    """Check that a request is to this server by one of its names. Raises Refusal."""
    values = headers.getlist("host")
    if len(values) != 1 or not hosts.allows(values[0]):
        shown = ", ".join(values)[:_SHOWN]
        raise Refusal(HTTPStatus.MISDIRECTED_REQUEST, f"Host {shown!a} is not a name of this server")


def check_origin(headers: Headers, hosts: AllowedHosts) -> None:
    """Check that a request comes from a page of this server, or from no page. Raises Refusal."""
    for site in headers.getlist("sec-fetch-site"):
        if site not in ("same-origin", "none"):
            raise Refusal(HTTPStatus.FORBIDDEN, f"Sec-Fetch-Site {site[:_SHOWN]!a}: a page of another origin sent this")
    for origin in headers.getlist("origin"):
        scheme, _, authority = origin.lower().partition("://")
        is_own = authority == headers.get("host", "").lower() or authority in hosts.names
        if scheme not in ("http", "https") or not is_own or not hosts.allows(authority):
            raise Refusal(HTTPStatus.FORBIDDEN, f"Origin {origin[:_SHOWN]!a} is not the origin of this server")


def is_from_browser(headers: Headers) -> bool:
    """Return whether a request has one of the headers that browsers add."""
    return "origin" in headers or "sec-fetch-site" in headers


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
