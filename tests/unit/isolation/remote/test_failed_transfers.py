"""Tests of transfers that fail: the error is that of the end which packs, even if the other end complains first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, SandboxFailed
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Grant, Isolation
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.remote import messages, transfer
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.remote.messages import Answer, Data, Fetch, Hello, NodeMessage, Put, Start, Started
from ramet.isolation.remote.rpc import PendingRequests
from tests.support.lines import send_message, two_ends
from tests.support.stream_line import StreamLine

T = TypeVar("T")
HELLO = Hello(version=messages.VERSION, python="3", level=Isolation.L1, mechanisms={})
COMPLAINT = ErrorInfo(type="InvalidValue", message="archive: 'its end' is not accepted")


async def receive(line: StreamLine) -> NodeMessage | messages.FromKernel:
    frame = await line.receive()
    assert frame is not None
    return messages.from_kernel(frame.control)


async def test_a_mount_that_is_too_large_is_refused_by_name_also_if_the_machine_answers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine sees a stream that is cut, and its answer is there before the packing thread has ended."""
    work, mount = tmp_path / "runs" / "work", tmp_path / "mount"
    for each in (work, mount):
        each.mkdir(parents=True)
    with (mount / "large").open("wb") as file:
        file.truncate(257 * 2**20)
    answered = asyncio.Event()
    answer = PendingRequests.answer

    def note_answer(self: PendingRequests, *args: object) -> None:
        answer(self, *args)  # type: ignore[arg-type]  # handed on as they came
        answered.set()

    async def in_slow_thread(work: Callable[[], T], *, name: str) -> T:
        try:
            return await in_thread(work, name=name)
        finally:
            await answered.wait()

    monkeypatch.setattr(PendingRequests, "answer", note_answer)
    monkeypatch.setattr(transfer, "in_thread", in_slow_thread)
    async with two_ends() as (our_end, their_end):
        machine = NodeClient(our_end)
        await send_message(their_end, HELLO)
        spec = SandboxSpec(run="run", grant=Grant(readonly_mounts=(str(mount),)), workspace=work)
        starting = asyncio.ensure_future(machine.start(spec))
        put = await receive(their_end)
        assert isinstance(put, Put)
        await send_message(their_end, Answer(ask=put.ask, error=COMPLAINT, fields={"field": "archive"}))

        with pytest.raises(InvalidValue, match="image") as refusal:
            await starting
        await machine.close()

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", str(mount))


async def test_a_machine_that_cannot_pack_a_workspace_gives_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's stream is cut, which is seen here first; the error is the machine's."""
    unpacked = asyncio.Event()

    async def in_noted_thread(work: Callable[[], T], *, name: str) -> T:
        try:
            return await in_thread(work, name=name)
        finally:
            unpacked.set()

    monkeypatch.setattr(transfer, "in_thread", in_noted_thread)
    async with two_ends() as (our_end, their_end):
        machine = NodeClient(our_end)
        await send_message(their_end, HELLO)
        starting = asyncio.ensure_future(machine.start(SandboxSpec(run="run", grant=Grant(), workspace=tmp_path)))
        start = await receive(their_end)
        assert isinstance(start, Start)
        await send_message(their_end, Started(number=start.number))
        sandbox = await starting
        syncing = asyncio.ensure_future(sandbox.sync())
        fetch = await receive(their_end)
        assert isinstance(fetch, Fetch)
        await send_message(their_end, Data(number=start.number, stream=fetch.stream))
        await unpacked.wait()
        await send_message(their_end, Answer(ask=fetch.ask, error=ErrorInfo(type="OSError", message="a broken disk")))

        with pytest.raises(SandboxFailed, match="a broken disk"):
            await syncing
        await machine.close()
        await sandbox.clean_up()
