"""The ports of a run, which exist while a sandbox of the run is active; callers can wait for them."""

from __future__ import annotations

import asyncio
import pathlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from ramet.core.errors import Gone


class Ports(Protocol):
    """The named ports of one sandbox, reached from the host.

    Every method raises Unknown for an unknown name. All raise Gone after the sandbox has ended.
    """

    def path(self, name: str) -> pathlib.Path:
        """Return the Unix socket of a port.

        Raises InvalidValue if its path is too long to connect to.
        """

    async def connect(self, name: str) -> tuple[StreamReader, StreamWriter]:
        """Open a connection from this process.

        Raises ConnectionError if no program listens, or if too many connections are open.
        """

    async def loopback_port(self, name: str) -> int:
        """Listen on the host's loopback, too, and return the port number, which the machine chose."""


class ServedPorts:
    """The ports of one run, across its successive sandboxes."""

    def __init__(self) -> None:
        self.now: Ports | None = None  #: the ports of the active sandbox; None while there is none
        self._waiters: set[asyncio.Future[Ports]] = set()

    async def ports(self, ended: asyncio.Future[Any]) -> Ports:
        """Wait until a sandbox of this run is active, and return its ports.

        Raises Gone once the run has `ended`. A port may exist without a listener yet.
        """
        if self.now is not None:
            return self.now
        waiter: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter, ended), return_when=asyncio.FIRST_COMPLETED)
            if waiter.done():
                return waiter.result()
            raise Gone("the run has ended, and its ports with it")
        finally:
            self._waiters.discard(waiter)

    @asynccontextmanager
    async def during(self, opening: AbstractAsyncContextManager[Ports] | None) -> AsyncGenerator[None]:
        """Make the opened ports reachable while the context is open; None if a policy names no ports."""
        if opening is None:
            yield
            return
        async with opening as ports:
            self.now = ports
            while self._waiters:
                waiter = self._waiters.pop()
                if not waiter.done():
                    waiter.set_result(ports)
            try:
                yield
            finally:
                self.now = None
