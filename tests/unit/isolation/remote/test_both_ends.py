"""Tests of both ends of a line: after any message each end continues or ends the line, and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.core.errors import Gone, InvalidValue, ProtocolError, SandboxFailed
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Grant, Isolation
from ramet.isolation.contract import Exit, SandboxSpec
from ramet.isolation.mounts import roots_of
from ramet.isolation.remote import messages
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.remote.messages import (
    CHANNEL,
    MAX_PIECE,
    STDOUT,
    WINDOW,
    Answer,
    Connected,
    Credit,
    Data,
    Ended,
    Forget,
    Hello,
    Leave,
    NodeMessage,
    Refused,
    Signal,
    Start,
    Started,
    Threshold,
)
from ramet.isolation.remote.node_agent import serve
from ramet.isolation.remote.node_sandbox import NodeSandbox
from ramet.isolation.remote.sandbox import RemoteSandbox
from ramet.wire.frames import Frame
from tests.support.lines import send_message, two_ends
from tests.support.stream_line import StreamLine

HELLO = Hello(version=messages.VERSION, python="3", level=Isolation.L1, mechanisms={})
LOST_EXIT = Exit(-9, "lost", "OOMKilled")


@contextlib.asynccontextmanager
async def one_sandbox(folder: Path) -> AsyncIterator[tuple[NodeClient, RemoteSandbox, StreamLine]]:
    """Yield a simulated machine with one started sandbox."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    async with two_ends() as (our_end, their_end):
        machine = NodeClient(our_end)
        await send_message(their_end, HELLO)
        starting = asyncio.ensure_future(machine.start(SandboxSpec(run="run-1", grant=Grant(), workspace=folder)))
        frame = await their_end.receive()
        assert frame is not None
        word = messages.from_kernel(frame.control)
        assert isinstance(word, Start)
        await send_message(their_end, Started(number=word.number))
        sandbox = await starting
        try:
            yield machine, sandbox, their_end
        finally:
            await machine.close()
            await sandbox.clean_up()


NUMBER = st.sampled_from([0, 1, 1, 1, 2, 2**53])
STREAM = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 9, 2**53])
NODE_MESSAGES: st.SearchStrategy[NodeMessage] = st.one_of(
    st.builds(Data, number=NUMBER, stream=STREAM),
    st.builds(Credit, number=NUMBER, stream=STREAM, size=st.sampled_from([0, 1, WINDOW, 2**53])),
    st.just(HELLO),
    st.builds(Started, number=NUMBER),
    st.builds(Refused, number=NUMBER, error=st.builds(ErrorInfo, type=st.text(max_size=9), message=st.text())),
    st.builds(
        Ended,
        number=NUMBER,
        code=st.integers(-300, 300),
        reason=st.sampled_from(["exited", "oom", "lost", "", "completed"]),
        detail=st.text(max_size=20),
    ),
    st.builds(Connected, number=NUMBER, stream=STREAM),
    st.builds(Threshold, number=NUMBER, resource=st.text(max_size=9), used=st.floats(0, 9), limit=st.floats(0, 9)),
    st.builds(Answer, ask=NUMBER, value=st.none() | st.text() | st.lists(st.integers())),
)
FRAMES = st.one_of(
    st.tuples(
        st.builds(messages.encode, NODE_MESSAGES), st.sampled_from([b"", b"x", bytes(MAX_PIECE), bytes(MAX_PIECE + 1)])
    ),
    st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=4)),
)
FUZZ_SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ_SETTINGS
@given(frames=st.lists(FRAMES, max_size=8))
async def test_a_kernel_survives_any_messages_of_a_machine(frames: list[tuple[bytes, bytes]], tmp_path: Path) -> None:
    """Requests to the sandbox are answered, or fail with an error that a sandbox may have."""
    async with one_sandbox(tmp_path / "work") as (machine, sandbox, line):
        request = asyncio.ensure_future(sandbox.metrics())
        with contextlib.suppress(Gone):
            for control, body in frames:
                await line.send(Frame(control, body))
        await line.close()
        assert (await machine.wait_ended()).reason == "lost"
        with contextlib.suppress(Gone, SandboxFailed):
            await request
        end = await sandbox.wait()
        assert end.reason in ("exited", "oom", "lost")
        assert not list((tmp_path / "work").iterdir())


UNEXPECTED_MESSAGES: list[tuple[NodeMessage, bytes]] = [
    (Data(number=2, stream=0), b"x"),
    (Data(number=1, stream=4), b"x"),
    (Data(number=1, stream=7), b"x"),
    (Data(number=1, stream=STDOUT), bytes(MAX_PIECE + 1)),
    (Credit(number=1, stream=CHANNEL, size=1), b""),
    (Credit(number=1, stream=STDOUT, size=1), b""),
    (Started(number=1), b""),
    (Started(number=2), b""),
    (Refused(number=1, error=ErrorInfo(type="Gone", message="")), b""),
    (Ended(number=1, code=0, reason="completed"), b""),
    (Ended(number=1, code=4096, reason="exited"), b""),
    (Connected(number=1, stream=5), b""),
    (Threshold(number=1, resource="luck", used=1, limit=1), b""),
    (Answer(ask=9), b""),
    (HELLO, b""),
    (Started(number=1), b"body"),
]


@pytest.mark.parametrize(
    ("word", "body"),
    UNEXPECTED_MESSAGES,
    ids=[f"{type(word).__name__}-{at}" for at, (word, _) in enumerate(UNEXPECTED_MESSAGES)],
)
async def test_an_unexpected_message_ends_the_line(word: NodeMessage, body: bytes, tmp_path: Path) -> None:
    async with one_sandbox(tmp_path / "work") as (machine, sandbox, line):
        await send_message(line, word, body)

        end = await machine.wait_ended()

        assert end.reason == "lost"
        assert "violated the protocol" in end.detail
        assert await sandbox.wait() == end


async def test_a_flood_beyond_the_window_ends_the_line(tmp_path: Path) -> None:
    """Nothing reads the stream; stored bytes are bounded, and a sender above the window breaks the protocol."""
    async with one_sandbox(tmp_path / "work") as (machine, _, line):
        with contextlib.suppress(Gone):
            for _ in range(4 * WINDOW // MAX_PIECE):
                await send_message(line, Data(number=1, stream=STDOUT), bytes(MAX_PIECE))

        assert "window" in (await machine.wait_ended()).detail


async def test_the_loss_of_a_machine_ends_its_sandboxes_at_once(tmp_path: Path) -> None:
    """Output that had arrived by then can be read to its end."""
    async with one_sandbox(tmp_path / "work") as (machine, sandbox, line):
        await send_message(line, Data(number=1, stream=STDOUT), b"last words")
        await send_message(line, Threshold(number=1, resource="memory", used=1, limit=1))
        waiting = asyncio.ensure_future(sandbox.wait())
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(sandbox.stdout, readable.set)
        await readable.wait()
        loop.remove_reader(sandbox.stdout)

        machine.on_lost(LOST_EXIT)

        assert await waiting == LOST_EXIT
        assert await machine.wait_ended() == LOST_EXIT
        assert os.read(sandbox.stdout, 100) == b"last words"
        assert os.read(sandbox.stdout, 100) == b""
        assert await loop.sock_recv(sandbox.channel, 100) == b""
        for request in (sandbox.metrics(), sandbox.run_command(["true"], timeout_s=1, max_bytes=1)):
            with pytest.raises(Gone):
                await request
        with pytest.raises(SandboxFailed):
            await sandbox.sync()
        with pytest.raises(SandboxFailed, match="OOMKilled"):
            await machine.start(sandbox.spec)


@pytest.mark.parametrize("kind", ["Aborted", "BudgetExceeded", "KeyboardInterrupt", "Gone"])
async def test_a_machine_can_raise_only_errors_of_sandboxes(kind: str, tmp_path: Path) -> None:
    """A kernel that receives "Aborted" aborts nothing."""
    async with one_sandbox(tmp_path / "work") as (_, sandbox, line):
        request = asyncio.ensure_future(sandbox.metrics())
        await send_message(line, Answer(ask=1, error=ErrorInfo(type=kind, message="said so"), fields={"reason": "r"}))

        with pytest.raises(Gone if kind == "Gone" else SandboxFailed, match="said so"):
            await request


async def test_mounts_around_the_workspace_are_refused_by_name(tmp_path: Path) -> None:
    """A mount around the workspace, a link to such a mount, and a missing workspace are refused."""
    folder, link = tmp_path / "runs" / "work", tmp_path / "link"
    folder.mkdir(parents=True)
    link.symlink_to(tmp_path)
    async with two_ends() as (our_end, their_end):
        machine = NodeClient(our_end)
        await send_message(their_end, HELLO)
        for grant, workspace, field in (
            (Grant(readonly_mounts=(str(tmp_path),)), folder, "readonly_mounts"),
            (Grant(readonly_mounts=(str(link),)), folder, "readonly_mounts"),
            (Grant(writable_mounts=("/data",)), folder, "writable_mounts"),
            (Grant(), tmp_path / "none", "workspace"),
        ):
            with pytest.raises(InvalidValue) as refusal:
                await machine.start(SandboxSpec(run="run", grant=grant, workspace=workspace))
            assert refusal.value.field == field
        await machine.close()


@pytest.mark.parametrize("path", ["link", "link/below", "file"])
async def test_a_mount_behind_a_symbolic_link_is_not_copied(path: str, tmp_path: Path) -> None:
    """Issue 16, line 1: a pod is no exception; the refusal names the mount before the machine starts anything."""
    folder, repo, other = tmp_path / "runs" / "work", tmp_path / "repo", tmp_path / "other"
    for each in (folder, repo, other / "below"):
        each.mkdir(parents=True)
    (other / "key").write_text("key")
    (repo / "link").symlink_to(other)
    (repo / "file").symlink_to(other / "key")
    grant, roots = Grant(readonly_mounts=(str(repo / path),)), roots_of([str(repo)])
    async with two_ends() as (our_end, their_end):
        machine = NodeClient(our_end)
        await send_message(their_end, HELLO)
        with pytest.raises(InvalidValue, match="symbolic link") as refusal:
            await machine.start(SandboxSpec(run="run", grant=grant, workspace=folder, mount_roots=roots))
        await machine.close()

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", str(repo / path))


COMMANDS: st.SearchStrategy[NodeMessage] = st.one_of(
    st.builds(Data, number=NUMBER, stream=STREAM),
    st.builds(Credit, number=NUMBER, stream=STREAM, size=st.sampled_from([0, 1, WINDOW])),
    st.builds(messages.Put, ask=NUMBER, number=NUMBER, stream=STREAM, root=st.sampled_from(["/", "..", "", "/etc"])),
    st.builds(Signal, number=NUMBER, signal=st.integers(0, 70)),
    st.builds(messages.Measure, ask=NUMBER, number=NUMBER),
    st.builds(messages.Freeze, ask=NUMBER, number=NUMBER),
    st.builds(messages.Thaw, ask=NUMBER, number=NUMBER),
    st.builds(messages.Fetch, ask=NUMBER, number=NUMBER, stream=STREAM),
    st.builds(Forget, ask=NUMBER, number=NUMBER),
    st.builds(messages.Run, ask=NUMBER, number=NUMBER, argv=st.just(()), timeout_s=st.just(1.0), max_bytes=NUMBER),
)


@settings(FUZZ_SETTINGS, max_examples=20)
@given(words=st.lists(st.tuples(COMMANDS, st.sampled_from([b"", b"x"])), max_size=8), nonsense=st.binary(max_size=20))
async def test_a_machine_survives_any_messages_of_a_kernel(
    words: list[tuple[NodeMessage, bytes]], nonsense: bytes, tmp_path: Path
) -> None:
    """The machine serves until it gets an invalid message, then ends in order."""
    async with two_ends() as (our_end, their_end):
        serving = asyncio.ensure_future(serve(our_end, tmp_path / "runs"))
        hello = await their_end.receive()
        assert hello is not None
        assert isinstance(messages.from_machine(hello.control), Hello)
        with contextlib.suppress(Gone):
            for word, body in words:
                await send_message(their_end, word, body)
            await their_end.send(Frame(nonsense or messages.encode(Leave())))
        try:
            await serving
        except ProtocolError:
            assert nonsense or words
        assert not _remaining(tmp_path / "runs")


async def test_a_sandbox_whose_streams_cannot_be_sent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, the machine has no descriptor left: the kernel would wait for the sandbox forever."""

    def fail(self: NodeSandbox) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def start(self: NodeSandbox, *arguments: object) -> None:
        return None

    monkeypatch.setattr(NodeSandbox, "begin", fail)
    monkeypatch.setattr(NodeSandbox, "start", start)
    (workspace := tmp_path / "work").mkdir()
    async with two_ends() as (our_end, their_end):
        serving = asyncio.ensure_future(serve(their_end, tmp_path / "runs"))
        machine = NodeClient(our_end, level=Isolation.L0)
        try:
            with pytest.raises(SandboxFailed, match="Too many open files"):
                await machine.start(SandboxSpec(run="run", grant=Grant(), workspace=workspace))
        finally:
            await machine.close()
            await serving


def _remaining(folder: Path) -> list[Any]:
    return list(folder.iterdir()) if folder.exists() else []


def test_a_message_decodes_equal() -> None:
    """Control: the generated messages can be encoded."""
    word = Start(number=1, run="run", grant=Grant(), workspace="/w")

    assert messages.from_kernel(messages.encode(word)) == word
    assert msgspec.json.decode(messages.encode(word))["type"] == "start"
