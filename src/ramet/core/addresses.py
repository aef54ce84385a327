"""Distinguish public addresses from private ones.

This module holds data only. `ramet.host.egress.addresses` finds the machine's own addresses.
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

#: The address at which Azure's machines reach their host: metadata, keys, DNS. Its number looks public.
_AZURE_HOST = IPv4Address("168.63.129.16")
_RELAYS_6TO4 = IPv4Network("192.88.99.0/24")
_UNICAST = IPv6Network("2000::/3")
#: Special parts of global unicast: protocol assignments with Teredo and ORCHID, documentation, 6to4. None is needed to
#: reach a public server, and some carry an IPv4 address that a gateway would unwrap.
_SPECIAL = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = IPv6Network("64:ff9b::/96")  #: RFC 6052; the last 32 bits are an IPv4 address


def objection(address: IPAddress) -> str | None:
    """Return why a sandbox must not reach `address`, or None if the address is public.

    An own prefix for NAT64 is not known.
    """
    if isinstance(address, IPv6Address) and address in _NAT64:
        return objection(IPv4Address(address.packed[-4:]))
    return None if _is_public(address) else "its address is not public"


def _is_public(address: IPAddress) -> bool:
    if isinstance(address, IPv6Address):
        return (
            address.scope_id is None  # A zone marks a link-local address.
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


def address_of(endpoint: str) -> IPAddress | None:
    """Return the address in a canonical endpoint, or None for a name and for "*"."""
    try:
        return ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]"))
    except ValueError:
        return None
