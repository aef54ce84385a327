"""The connection to a target: the name is looked up once, its addresses are checked, and only they are connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import socket
from collections.abc import Callable, Collection, Sequence

from ramet.concurrency.threads import in_thread
from ramet.core.addresses import IPAddress, IPNetwork, objection
from ramet.host.egress.addresses import is_own
from ramet.wire.http_connect import ConnectRefusal, Target, is_allowed

#: Returns the addresses of a name and a port; blocks, raises OSError.
Lookup = Callable[[str, int], Sequence[str]]

#: Addresses of one name that are tried, of both families in turn.
_MAX_TRIED = 4
#: Concurrent lookups of one run. A thread in the resolver cannot be ended, so an abandoned lookup still counts.
_MAX_LOOKUPS = 8


class Dialer:
    """The allowed endpoints of one run, and the connections to them."""

    def __init__(self, endpoints: Collection[str], *, lookup: Lookup, private_networks: Sequence[IPNetwork]) -> None:
        self._endpoints, self._lookup, self._private = frozenset(endpoints), lookup, private_networks
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)

    async def find(self, target: Target) -> Sequence[IPAddress] | ConnectRefusal:
        """Return the addresses that a tunnel to `target` may use. A name that is not listed is not looked up."""
        if "*" not in self._endpoints and not is_allowed(self._endpoints, target.host, target.port):
            return ConnectRefusal(403, f"{target.authority} is not in the list of allowed endpoints")
        if target.is_ip:
            address = ipaddress.ip_address(target.host)
            # Only an authorized source puts a numeric private address into a list: it is intended.
            return [address] if target.authority in self._endpoints else self._check_addresses([address], target)
        try:
            texts = await self._look_up(target)
        except OSError as error:
            return ConnectRefusal(502, f"{target.host} could not be looked up: {_describe(error)}")
        if not texts:
            return ConnectRefusal(502, f"{target.host} has no address")
        return self._check_addresses([ipaddress.ip_address(text) for text in texts], target)

    def _check_addresses(self, addresses: Sequence[IPAddress], target: Target) -> Sequence[IPAddress] | ConnectRefusal:
        is_named = is_allowed(self._endpoints - {"*"}, target.host, target.port)
        for address in addresses:
            if is_named and any(address in network for network in self._private):
                continue
            problem = objection(address) or ("it is an address of the host itself" if is_own(address) else None)
            if problem:
                return ConnectRefusal(403, f"{target.host} leads to {address}: {problem}")
        return addresses

    async def _look_up(self, target: Target) -> Sequence[str]:
        await self._lookups.acquire()
        # Not the executor of asyncio: a name server that never answers would block its few threads for all users.
        thread = in_thread(lambda: self._lookup(target.host, target.port), name="ramet-lookup")
        thread.add_done_callback(self._on_lookup_done)
        return await asyncio.shield(thread)

    def _on_lookup_done(self, thread: asyncio.Future[Sequence[str]]) -> None:
        self._lookups.release()
        thread.exception()  # Mark the exception as retrieved: the lookup may have been abandoned.


async def connect(addresses: Sequence[IPAddress], port: int, *, end: float) -> socket.socket | ConnectRefusal:
    """Return a socket connected to one of these addresses, tried one after the other, each with a share of the time.

    `end` is in the event loop's time.
    """
    candidates = _interleave(addresses)[:_MAX_TRIED]
    refusal = ConnectRefusal(502, "there is no address to connect to")
    for index, address in enumerate(candidates):
        share = (end - asyncio.get_running_loop().time()) / (len(candidates) - index)
        try:
            async with asyncio.timeout(share):
                return await _connect(address, port)
        except TimeoutError:
            refusal = ConnectRefusal(504, "the server did not answer in time")
        except OSError as error:
            refusal = ConnectRefusal(502, f"no connection to the server: {_describe(error)}")
    return refusal


async def _connect(address: IPAddress, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


def _interleave(addresses: Sequence[IPAddress]) -> list[IPAddress]:
    """Return the addresses with alternating families, the first one's first, so that no family uses up all tries."""
    first = [address for address in addresses if address.version == addresses[0].version]
    second = [address for address in addresses if address.version != addresses[0].version]
    return [address for pair in itertools.zip_longest(first, second) for address in pair if address is not None]


def _describe(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return str(error.strerror)
    return os.strerror(error.errno) if error.errno else type(error).__name__
