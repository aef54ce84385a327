"""The control socket of a running kernel: who may use it, what it refuses, and its removal."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet import AgentRuntime
from ramet.core.errors import InvalidValue
from ramet.host.control import socket as control_socket
from ramet.host.control.socket import (
    MAX_LINE,
    Answer,
    ControlledTrees,
    ControlSocket,
    NoKernel,
    Refused,
    Send,
    Stop,
    send_request,
)
from tests.support.waiting import eventually

LONG = "a-folder-whose-name-is-long-" * 7


@asynccontextmanager
async def kernel(folder: Path) -> AsyncIterator[AgentRuntime]:
    """A runtime whose journal is open."""
    async with AgentRuntime(folder) as runtime:
        assert runtime.journal is not None
        await runtime.journal.open()
        yield runtime


async def send_raw(folder: Path, data: bytes, *, end: bool = True) -> bytes:
    """Return the answer of the control socket to bytes."""
    reader, writer = await asyncio.open_unix_connection(folder / ".ramet" / "kernel.sock")
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:  # It has hung up on what was still to be sent.
        return b""
    finally:
        writer.close()


async def wait_for_ever() -> None:
    """A function that never returns."""
    await asyncio.Event().wait()


async def test_the_control_socket_exists_while_the_journal_is_open(tmp_path: Path) -> None:
    """No kernel answers and no file exists before and after."""
    socket_path = tmp_path / ".ramet" / "kernel.sock"
    async with AgentRuntime(tmp_path) as runtime:
        assert not socket_path.exists()
        assert runtime.journal is not None
        await runtime.journal.open()
        assert await send_request(tmp_path, ControlledTrees()) == {"pid": os.getpid(), "trees": [], "streaming": {}}
        assert socket_path.stat().st_mode & 0o777 == 0o600

    assert not socket_path.exists()
    with pytest.raises(NoKernel):
        await send_request(tmp_path, ControlledTrees())


async def test_a_run_is_stopped_through_the_control_socket(tmp_path: Path) -> None:
    """The trees are listed, and the answer names the stopped runs."""
    async with kernel(tmp_path) as runtime:
        handle = await runtime.spawn(wait_for_ever)
        await handle.run.context.wait_persisted()
        trees_answer = await send_request(tmp_path, ControlledTrees())
        stop_answer = await send_request(tmp_path, Stop(run=handle.id))
        result = await handle.result()

    assert trees_answer["trees"] == [handle.id]
    assert stop_answer == {"stopped": ["main"], "left": []}
    assert (result.status, result.error and result.error.message) == ("cancelled", "stopped by its user")


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Stop(run="run-0"), "Unknown"),
        (Send(run="run-0", text="hello"), "Unknown"),
        (Send(run="run-0", text=" "), "InvalidValue"),
        (Answer(approval="0", allowed=True), "Unknown"),
    ],
)
async def test_an_error_is_sent_back_as_refused(tmp_path: Path, request_: Stop | Send | Answer, kind: str) -> None:
    """Refused carries the name of the error."""
    async with kernel(tmp_path):
        with pytest.raises(Refused) as refusal:
            await send_request(tmp_path, request_)

    assert refusal.value.kind == kind


async def test_a_request_that_is_too_long_is_not_sent(tmp_path: Path) -> None:
    """The caller gets InvalidValue."""
    with pytest.raises(InvalidValue):
        await send_request(tmp_path, Send(run="run-0", text="x" * MAX_LINE))


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"hello\n",
        b"\xff\xfe\n",
        b'{"type":"format"}\n',
        b'{"type":"stop"}\n',
        b'{"type":"stop","run":5}\n',
        b'{"type":"stop","run":"run-0","more":1}\n',
        b"[" * 100_000 + b"\n",
    ],
)
async def test_an_invalid_request_is_refused_and_the_socket_stays_usable(tmp_path: Path, data: bytes) -> None:
    """The answer is a typed error; the next request succeeds."""
    async with kernel(tmp_path):
        assert json.loads(await send_raw(tmp_path, data))["error"]["type"] == "InvalidValue"
        assert (await send_request(tmp_path, ControlledTrees()))["trees"] == []


@pytest.mark.parametrize("data", [b"", b'{"type":"trees"}', b"x" * (3 * MAX_LINE)])
async def test_a_half_request_or_a_flood_does_not_stop_the_socket(tmp_path: Path, data: bytes) -> None:
    """A half request and a flood get no success; the next request succeeds."""
    async with kernel(tmp_path):
        assert b"ok" not in await send_raw(tmp_path, data)
        assert (await send_request(tmp_path, ControlledTrees()))["trees"] == []


async def test_a_silent_client_does_not_delay_the_end(tmp_path: Path) -> None:
    """A runtime that stops closes the connection."""
    async with kernel(tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / ".ramet" / "kernel.sock")
        await send_request(tmp_path, ControlledTrees())
    assert await reader.read() == b""
    writer.close()


async def test_a_client_that_does_not_read_its_answer_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed after a time, and nothing of it is left that the end of the kernel could wait for."""

    async def long_answer(*_: object) -> bytes:
        return bytes(4_000_000)

    monkeypatch.setattr(control_socket, "READ_S", 0.1)
    monkeypatch.setattr(ControlSocket, "_answer", long_answer)
    with socket.socket(socket.AF_UNIX) as client:
        async with kernel(tmp_path):
            client.connect(str(tmp_path / ".ramet" / "kernel.sock"))
            client.sendall(b"{}\n")
            await eventually(lambda: bool(select.select([client], [], [], 0)[0]))  # The answer has begun.
            await eventually(lambda: _connections() == 0)
        client.settimeout(5)
        received = sum(map(len, iter(lambda: client.recv(1 << 20), b"")))

    assert 0 < received < 4_000_000


def _connections() -> int:
    return sum(task.get_name() == "ramet control socket" for task in asyncio.all_tasks())


async def test_the_socket_of_a_killed_kernel_is_replaced(tmp_path: Path) -> None:
    """Nothing listens at the old socket."""
    (tmp_path / ".ramet").mkdir()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / ".ramet" / "kernel.sock"))
    with pytest.raises(NoKernel):
        await send_request(tmp_path, ControlledTrees())

    async with kernel(tmp_path):
        assert (await send_request(tmp_path, ControlledTrees()))["pid"] == os.getpid()


async def test_a_path_may_be_longer_than_a_socket_address(tmp_path: Path) -> None:
    """Server and client both find the socket."""
    folder = tmp_path / LONG
    folder.mkdir()
    async with kernel(folder):
        assert (await send_request(folder, ControlledTrees()))["pid"] == os.getpid()


async def test_a_kernel_works_without_its_control_socket(tmp_path: Path) -> None:
    """No client can reach the kernel, but its runs work."""
    (tmp_path / ".ramet" / "kernel.sock").mkdir(parents=True)
    async with kernel(tmp_path) as runtime:
        result = await (await runtime.spawn(int)).result()
        with pytest.raises(NoKernel):
            await send_request(tmp_path, ControlledTrees())

    assert result.value == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_another_user_is_refused(tmp_path: Path) -> None:
    """The peer's credentials are checked, even if the file's mode allows access."""
    async with kernel(tmp_path):
        socket_path = tmp_path / ".ramet" / "kernel.sock"
        socket_path.chmod(0o777)
        folder = os.open(socket_path.parent, os.O_RDONLY)
        program = (
            "import os, socket, sys\n"
            f"os.chdir('/proc/self/fd/{folder}')\n"
            "os.setresuid(65534, 65534, 65534)\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "s.connect('kernel.sock')\n"
            's.sendall(b\'{"type":"trees"}\\n\')\n'
            "sys.stdout.write(repr(s.recv(100)))\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[folder]
        )
        out, err = await process.communicate()
        os.close(folder)

    assert (out, err.decode()) == (b"b''", "") or b"ConnectionReset" in err or b"BrokenPipe" in err


async def test_runtimes_that_share_a_journal_share_its_control_socket(tmp_path: Path) -> None:
    """Each run is found in its runtime; the socket stays until the last runtime has stopped."""
    async with AgentRuntime(tmp_path) as first:
        async with AgentRuntime(tmp_path) as second:
            handles = [await each.spawn(wait_for_ever) for each in (first, second)]
            for handle in handles:
                await handle.run.context.wait_persisted()
            assert set((await send_request(tmp_path, ControlledTrees()))["trees"]) == {each.id for each in handles}
            await send_request(tmp_path, Stop(run=handles[1].id))
            assert (await handles[1].result()).status == "cancelled"
        assert (await send_request(tmp_path, ControlledTrees()))["trees"] == [handles[0].id]
