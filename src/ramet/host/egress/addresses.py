"""Names and addresses from the view of this machine: the addresses of a name, and the machine's own addresses."""

from __future__ import annotations

import contextlib
import pathlib
import socket

from ramet.core.addresses import IPAddress, address_of


def is_own_endpoint(endpoint: str) -> bool:
    """Return whether a canonical endpoint is a numeric address of this machine."""
    address = address_of(endpoint)
    return address is not None and is_own(address)


def is_own(address: IPAddress) -> bool:
    """Return whether `address` is this machine's own: a listener on all addresses would be reached through it."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        if _may_bind_any(address.version):  # Then only the route shows it; a route ignores second addresses.
            probe.connect((str(address), 9))  # of a datagram socket: nothing is sent
            return bool(probe.getsockname()[0] == str(address))
        probe.bind((str(address), 0))
        return True
    return False


def _may_bind_any(version: int) -> bool:
    """Return whether any address can be bound to, own or not: a Linux option for machines that take over others."""
    family = "ipv6" if version == 6 else "ipv4"
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/sys/net/{family}/ip_nonlocal_bind").read_text().strip() == "1"
    return False


def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as this machine resolves it, each once. Blocks. Raises OSError (gaierror)."""
    # As bytes, so that the codec for international names is not used.
    results = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in results))
