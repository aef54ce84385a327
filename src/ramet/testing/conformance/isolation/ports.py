"""Checks of ports on which a process inside serves: reachable from the host alone, and separate in each sandbox."""

from __future__ import annotations

import asyncio
import socket

from ramet.core.errors import Gone, InvalidValue
from ramet.isolation.contract import Sandbox
from ramet.testing.conformance.checks import checks_of, expect, raises
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Check, replace_grant, time_limit

_UNREACHABLE = {"EACCES", "EPERM", "ENETUNREACH", "ECONNREFUSED", "EAFNOSUPPORT", "EHOSTUNREACH"}


async def ports_are_reached_from_the_host_alone(fixture: BackendFixture) -> None:
    """Check that a declared port is reachable in its own sandbox, and no other port or sandbox."""
    port = _free_port()
    async with fixture.start_guest_if_granted("ports", {"web": port}) as one, fixture.start_guest() as other:
        sandbox = one.sandbox
        await raises(ConnectionRefusedError, sandbox.dial(port), "a connection to a port without a listener")
        for guest, unreachable in ((one, port + 1), (other, port)):
            refusal = await raises(InvalidValue, guest.sandbox.dial(unreachable), "an undeclared port")
            expect(str(unreachable) in str(refusal), "an undeclared port is refused, with its number")
        for word in ("one", "two"):
            async with fixture.start_guest(grant=replace_grant(GRANT, ports={"web": port})) as guest:
                await guest.ask("greet_at", port=port, word=word)
                await one.ask("greet_at", port=port, word="first") if word == "one" else None
                expect(
                    await _receive_all(guest.sandbox, port) == word.encode(),
                    "each sandbox is reachable by its own port",
                )
                expect(
                    await _receive_all(sandbox, port) == b"first",
                    "the same port of two sandboxes leads to each of them",
                )
        error = await other.failure_of("connect_tcp", host="127.0.0.1", port=port)
        expect(error in _UNREACHABLE, f"the port of another sandbox is unreachable: {error or 'reached'}")
        await sandbox.kill(0)
        await raises(Gone, sandbox.dial(port), "a port of an ended sandbox")


async def _receive_all(sandbox: Sandbox, port: int) -> bytes:
    async with time_limit():
        with await sandbox.dial(port) as connection:
            received = b""
            while data := await asyncio.get_running_loop().sock_recv(connection, 100):
                received += data
            return received


def _free_port() -> int:
    """Return a number that no process of the host uses now, so that a connection does not reach the host itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


CHECKS: tuple[Check, ...] = checks_of(__name__)
