"""Checks of ports on which a process inside serves: reachable from the host alone, and separate in each sandbox."""

from __future__ import annotations

import asyncio
import socket

from ramet.core.errors import Gone, InvalidValue
from ramet.isolation.contract import Sandbox
from ramet.testing.conformance.isolation.harness import (
    GRANT,
    BackendFixture,
    Check,
    Violation,
    holds,
    patience,
    replace_grant,
)

_UNREACHABLE = {"EACCES", "EPERM", "ENETUNREACH", "ECONNREFUSED", "EAFNOSUPPORT", "EHOSTUNREACH"}


async def ports_are_reached_from_the_host_alone(site: BackendFixture) -> None:
    """Check that a declared port is reachable in its own sandbox, and no other port or sandbox."""
    port = _free_port()
    async with site.visit_if_granted("ports", {"web": port}) as one, site.visit() as other:
        box = one.sandbox
        try:
            await box.dial(port)
        except ConnectionRefusedError:
            pass
        else:
            raise Violation("a port on which nobody listens is not reached")
        for visit, each in ((one, port + 1), (other, port)):
            try:
                await visit.sandbox.dial(each)
            except InvalidValue as refusal:
                holds(str(each) in str(refusal), "a port that is not declared is refused by its number")
            else:
                raise Violation("a port that is not declared is not reached")
        for word in ("one", "two"):
            async with site.visit(grant=replace_grant(GRANT, ports={"web": port})) as visit:
                await visit.ask("greet_at", port=port, word=word)
                await one.ask("greet_at", port=port, word="first") if word == "one" else None
                holds(await _heard(visit.sandbox, port) == word.encode(), "each sandbox is reached by its own port")
                holds(await _heard(box, port) == b"first", "the same number in two sandboxes leads to each of them")
        said = await other.fails("connect_tcp", host="127.0.0.1", port=port)
        holds(said in _UNREACHABLE, f"another sandbox's port is out of reach: {said or 'reached'}")
        await box.kill(0)
        try:
            await box.dial(port)
        except Gone:
            return
        raise Violation("a port ends with its sandbox")


async def _heard(box: Sandbox, port: int) -> bytes:
    async with patience():
        with await box.dial(port) as way:
            said = b""
            while data := await asyncio.get_running_loop().sock_recv(way, 100):
                said += data
            return said


def _free_port() -> int:
    """Return a number that no process of the host uses now, so that a connection does not reach the host itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


CHECKS: tuple[Check, ...] = (ports_are_reached_from_the_host_alone,)
