"""isolation/kubernetes/entrypoint/dialing.py: the program of a pod serves one kernel after another, by join tokens."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from ramet.core.errors import Gone
from ramet.isolation.kubernetes.entrypoint.dialing import run
from ramet.isolation.kubernetes.pod_args import PodArgs
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.node_agent import NodeAgent
from ramet.isolation.transport import certificates
from ramet.isolation.transport.join_token import JoinToken, format_token
from ramet.isolation.transport.listener import PATH, PodListener
from ramet.isolation.transport.resuming import LineTimeouts, ResumingLine
from tests.support.waiting import eventually


class Kernel(NamedTuple):
    """Its side of a line, and what it says to have the pod come."""

    line: ResumingLine
    machine: NodeClient
    invitation: JoinToken


@asynccontextmanager
async def kernel() -> AsyncIterator[Kernel]:
    """One with a listener, an authority and keys of its own."""
    identity = certificates.make(["127.0.0.1"])
    async with PodListener("127.0.0.1", 0, identity.context) as landing:
        line = ResumingLine(patience=LineTimeouts(give_up_s=None))
        key = landing.expect("uid-1", line, join_s=60)
        url = f"wss://127.0.0.1:{landing.port}{PATH}"
        machine = NodeClient(line)
        try:
            yield Kernel(line, machine, JoinToken(url=url, ca=identity.ca, key=key, pod="uid-1"))
        finally:
            await machine.close()


@asynccontextmanager
async def program(told: JoinToken, runs: Path, patience_s: float = 60) -> AsyncIterator[tuple[asyncio.Task[None], int]]:
    """A pod's program, and its standard input."""
    source, into = os.pipe()
    trying = threading.Thread(target=str)
    trying.start()
    pod = PodArgs(64, runs, ())  # shared: whoever runs the tests may be root
    working = asyncio.ensure_future(run(told, source, patience_s, pod, trying))
    try:
        yield working, into
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        os.close(into)


async def test_the_last_who_invites_is_served(tmp_path: Path) -> None:
    """Though another one is connected, which is told nothing; a word of leave from whoever is served is the end."""
    async with kernel() as old, kernel() as heir, program(old.invitation, tmp_path) as (working, into):
        await old.machine.hello()
        os.write(into, b"noise\n" + format_token(heir.invitation) * 3)
        await heir.machine.hello()
        await eventually(lambda: not old.line.is_connected)
        assert old.machine.is_open
        await heir.machine.close()
        await working


async def test_a_pod_that_its_kernel_has_let_go_of_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that lives, and is no more its own, ends the line without a word of leave."""
    served, serve = asyncio.Event(), NodeAgent.serve

    async def noted(self: NodeAgent, line: Line) -> bool:
        try:
            return await serve(self, line)
        finally:
            served.set()

    monkeypatch.setattr(NodeAgent, "serve", noted)
    async with kernel() as old, kernel() as heir, program(old.invitation, tmp_path) as (working, into):
        await old.machine.hello()
        await old.line.close()
        await served.wait()
        for _ in range(20):  # It has nothing else to do now.
            await asyncio.sleep(0)
        os.write(into, format_token(heir.invitation))
        await heir.machine.hello()
        await heir.machine.close()
        await working


@pytest.mark.parametrize("is_let_go", [False, True], ids=["away", "let go of"])
async def test_a_pod_without_a_kernel_ends(is_let_go: bool, tmp_path: Path) -> None:
    """After its patience, whatever it was that left it alone."""
    async with kernel() as old:
        invitation = old.invitation
        async with program(invitation, tmp_path, patience_s=0.3) as (working, _):
            await old.machine.hello()
            if is_let_go:
                await old.line.close()
            else:
                old.line.give_up()
            with pytest.raises(Gone, match=r"the kernel did not answer for 0.3 s at 127.0.0.1:\d+"):
                await working


async def test_a_pod_that_reaches_nobody_says_where_it_looked(tmp_path: Path) -> None:
    """What it was told to dial, and by which setting."""
    async with kernel() as old:
        invitation = old.invitation
    where = urlsplit(invitation.url).netloc
    async with program(invitation, tmp_path, patience_s=0.3) as (working, _):
        with pytest.raises(Gone, match=f"no kernel answered for 0.3 s at {where}, the address in pods.dial"):
            await working
