"""Which addresses a sandbox may be connected to: public ones of other machines, and what the operator named."""

from __future__ import annotations

import contextlib
import pathlib
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

#: Where Azure's machines find their host: metadata, keys, DNS. By its number a public address.
_AZURE_HOST = IPv4Address("168.63.129.16")
_RELAYS_6TO4 = IPv4Network("192.88.99.0/24")
_UNICAST = IPv6Network("2000::/3")
#: Special parts of global unicast: protocol assignments with Teredo and ORCHID, documentation, 6to4. None is needed to
#: reach a public server, and some carry an IPv4 address that a gateway would unwrap.
_SPECIAL = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")  #: RFC 6052; the last 32 bits are an IPv4 address


def objection(address: IPAddress) -> str | None:
    """Why nothing in a sandbox is to reach `address`, or None if it is public. An own prefix for NAT64 is not known."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return objection(IPv4Address(address.packed[-4:]))
    return None if _is_public(address) else "its address is not public"


def _is_public(address: IPAddress) -> bool:
    if isinstance(address, IPv6Address):
        return (
            address.scope_id is None  # A zone is the mark of a link.
            and address in _UNICAST
            and address.is_global
            and not any(address in special for special in _SPECIAL)
        )
    return (
        address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_private)
        and address not in IPv4Network("192.0.0.0/24")
        and address not in _RELAYS_6TO4
        and address != _AZURE_HOST
    )


def is_own(address: IPAddress) -> bool:
    """Whether `address` is one of this machine's: what listens on all addresses would be reached through it."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        if _may_bind_any(address.version):  # Then only the route tells; it does not know of second addresses.
            probe.connect((str(address), 9))  # of a datagram socket: nothing is sent
            return bool(probe.getsockname()[0] == str(address))
        probe.bind((str(address), 0))
        return True
    return False


def _may_bind_any(version: int) -> bool:
    """Whether any address can be bound to, one's own or not: an option of Linux for machines that take over others."""
    family = "ipv6" if version == 6 else "ipv4"
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/sys/net/{family}/ip_nonlocal_bind").read_text().strip() == "1"
    return False


def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, as this machine resolves it, each once. Blocks. Raises OSError (gaierror)."""
    # As bytes: the codec for international names is not asked.
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
