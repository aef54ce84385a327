"""Tests of `kubernetes/entrypoint/dialing.py`: a pod's program serves one kernel after another, by join tokens."""

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
    """Kernel's side of a line, with the join token that invites the pod."""

    line: ResumingLine
    machine: NodeClient
    invitation: JoinToken


@asynccontextmanager
async def kernel() -> AsyncIterator[Kernel]:
    """Yield a kernel with a listener, an authority and keys of its own."""
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
async def program(
    join_token: JoinToken, runs: Path, patience_s: float = 60
) -> AsyncIterator[tuple[asyncio.Task[None], int]]:
    """Run a pod's program, and yield its task and its standard input."""
    source, into = os.pipe()
    trying = threading.Thread(target=str)
    trying.start()
    pod = PodArgs(64, runs, ())  # shared: whoever runs the tests may be root
    working = asyncio.ensure_future(run(join_token, source, patience_s, pod, trying))
    try:
        yield working, into
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        os.close(into)


async def test_a_pod_serves_the_kernel_that_invited_it_last(tmp_path: Path) -> None:
    """The earlier kernel gets no message; the `Leave` of the served kernel ends the program."""
    async with kernel() as old, kernel() as new_kernel, program(old.invitation, tmp_path) as (working, into):
        await old.machine.hello()
        os.write(into, b"noise\n" + format_token(new_kernel.invitation) * 3)
        await new_kernel.machine.hello()
        await eventually(lambda: not old.line.is_connected)
        assert old.machine.is_open
        await new_kernel.machine.close()
        await working


async def test_a_pod_whose_kernel_closed_the_line_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A living kernel that no longer owns the pod closes the line without `Leave`."""
    is_serving, serve = asyncio.Event(), NodeAgent.serve

    async def noted(self: NodeAgent, line: Line) -> bool:
        try:
            return await serve(self, line)
        finally:
            is_serving.set()

    monkeypatch.setattr(NodeAgent, "serve", noted)
    async with kernel() as old, kernel() as new_kernel, program(old.invitation, tmp_path) as (working, into):
        await old.machine.hello()
        await old.line.close()
        await is_serving.wait()
        for _ in range(20):  # It has nothing else to do now.
            await asyncio.sleep(0)
        os.write(into, format_token(new_kernel.invitation))
        await new_kernel.machine.hello()
        await new_kernel.machine.close()
        await working


@pytest.mark.parametrize("is_let_go", [False, True], ids=["away", "let go of"])
async def test_a_pod_without_a_kernel_ends(is_let_go: bool, tmp_path: Path) -> None:
    """The program ends after its patience, whatever left it without a kernel."""
    async with kernel() as old:
        invitation = old.invitation
        async with program(invitation, tmp_path, patience_s=2) as (working, _):
            await old.machine.hello()
            if is_let_go:
                await old.line.close()
            else:
                old.line.give_up()
            with pytest.raises(Gone, match=r"the kernel did not answer for 2 s at 127.0.0.1:\d+"):
                await working


async def test_a_pod_that_reaches_no_kernel_names_the_address(tmp_path: Path) -> None:
    """The error names the dialled address and its setting."""
    async with kernel() as old:
        invitation = old.invitation
    address = urlsplit(invitation.url).netloc
    async with program(invitation, tmp_path, patience_s=2) as (working, _):
        with pytest.raises(Gone, match=f"no kernel answered for 2 s at {address}, the address in pods.dial"):
            await working
