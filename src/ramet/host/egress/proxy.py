"""The network access of a sandbox: a CONNECT proxy, one Unix socket for each run. The socket identifies the run.

A target must be listed, and every address that its name has must be public (`ramet.core.addresses`). The name is looked
up once, and the connection goes to a checked address: the name cannot lead elsewhere a moment later. "*" stands for
every public address. A private address is reachable in two ways only. Either the list names that very IP address and
port. Or the list names the host, other than by "*", and the operator gave the network to the `Proxy`. The creator of
the list ensures that such an address comes only from an authorized source: `narrow` from the parent, a server from its
rules.

A tunnel that opens with TLS must ask for the listed name (`ramet.host.egress.tunnel` lists the limits of this check).
In particular a server that answers for several names can be asked for any of them by an HTTP `Host` field inside the
encryption: listing a host means trusting every service that answers there.
"""

from __future__ import annotations

import asyncio
import ipaddress
import pathlib
import resource
from collections.abc import Callable, Sequence

from ramet.core.addresses import IPNetwork
from ramet.core.errors import InvalidValue
from ramet.host.egress.addresses import look_up
from ramet.host.egress.connection import ProxyDecision, ProxyLimits, ProxyQuota, RunProxy
from ramet.host.egress.dial import Dialer, Lookup
from ramet.host.unix_listener import listen


class Proxy:
    """The run proxies of one event loop. Runs share only the bound on descriptors."""

    def __init__(
        self,
        *,
        limits: ProxyLimits | None = None,
        lookup: Lookup = look_up,
        private_networks: Sequence[str] = (),
        max_connections: int | None = None,
    ) -> None:
        """Configure the proxy. `private_networks`, as "10.1.0.0/16", are reachable by listed names other than "*".

        `max_connections` bounds all runs together; None lets them take a quarter of the descriptors that the process
        may have. Raises InvalidValue for an invalid network.
        """
        self._limits = limits or ProxyLimits()
        self._lookup = lookup
        self._private = tuple(map(_network, private_networks))
        self._quota = ProxyQuota(max_connections or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self._run_proxies: dict[pathlib.Path, RunProxy] = {}

    async def open(
        self,
        path: pathlib.Path,
        endpoints: tuple[str, ...],
        *,
        owner: tuple[int, int] | None,
        on_event: Callable[[ProxyDecision], None],
    ) -> RunProxy:
        """Listen at `path` for one run that may reach `endpoints`, which are in the canonical form of a `Grant`.

        Only `owner` (user and group; None: the host's own) may open the file. A socket that a dead kernel left there is
        replaced. An exception of `on_event` ends the connection that it was called for. Raises InvalidValue if a run
        proxy of this proxy is open at `path`, OSError if the socket cannot be created.
        """
        if path in self._run_proxies:
            raise InvalidValue("path", str(path), "a path at which no proxy is open")
        run_proxy = self._run_proxies[path] = RunProxy(
            listen(path, owner),
            Dialer(endpoints, lookup=self._lookup, private_networks=self._private),
            path=path,
            limits=self._limits,
            quota=self._quota,
            on_event=on_event,
            on_closed=lambda: self._run_proxies.pop(path, None),
        )
        return run_proxy

    def unlink(self) -> None:
        """Remove the sockets of all runs, so that no new client connects; for a process that exits next."""
        for path in self._run_proxies:
            path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Close the proxies of all runs; idempotent."""
        await asyncio.gather(*(run_proxy.close() for run_proxy in tuple(self._run_proxies.values())))


def _network(text: str) -> IPNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise InvalidValue("private_networks", text, "an IP network such as 10.1.0.0/16") from None
