"""The ports of a run as those wait for them who want to reach it: they are there while a sandbox of it is at work."""

from __future__ import annotations

import asyncio
import pathlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from ramet.core.errors import Gone


class Ports(Protocol):
    """The named ports of one sandbox, reached from the host. Every name may raise Unknown; all raise Gone later."""

    def path(self, name: str) -> pathlib.Path:
        """Return the Unix socket of a port. Raises InvalidValue where its path is too long to connect to."""

    async def connect(self, name: str) -> tuple[StreamReader, StreamWriter]:
        """Open a connection of this process. Raises ConnectionError where nobody listens, or too many are open."""

    async def loopback_port(self, name: str) -> int:
        """Listen on the host's loopback, too, and return the port, which the machine chose."""


class Serving:
    """The ports of one run, from one sandbox to the next."""

    def __init__(self) -> None:
        self._ports: Ports | None = None
        self._waiting: set[asyncio.Future[Ports]] = set()

    @property
    def now(self) -> Ports | None:
        """Return those of the sandbox that is at work; None while there is none."""
        return self._ports

    def begin(self, ports: Ports) -> None:
        """Have them reached from now on."""
        self._ports = ports
        while self._waiting:
            waiter = self._waiting.pop()
            if not waiter.done():
                waiter.set_result(ports)

    def end(self) -> None:
        """Have them reached no more; a later sandbox may begin again."""
        self._ports = None

    async def ports(self, ended: asyncio.Future[Any]) -> Ports:
        """Wait until a sandbox of this run is at work, and return its ports. Raises Gone once the run has `ended`.

        A port that is there need have no listener yet.
        """
        if self._ports is not None:
            return self._ports
        waiter: asyncio.Future[Ports] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait((waiter, ended), return_when=asyncio.FIRST_COMPLETED)
            if waiter.done():
                return waiter.result()
            raise Gone("the run has ended, and its ports with it")
        finally:
            self._waiting.discard(waiter)

    @asynccontextmanager
    async def during(self, opening: AbstractAsyncContextManager[Ports] | None) -> AsyncGenerator[None]:
        """Have the ports that are opened reached while this is open; None where a policy names none."""
        if opening is None:
            yield
            return
        async with opening as ports:
            self.begin(ports)
            try:
                yield
            finally:
                self.end()
