"""A program that speaks frames: started as a tree of its own, in a sandbox or in the host, with pipes to it.

The tree is a run that lasts as long as the program. So the run is recorded, has the program's policy, and ends together
with all processes that the program started. The program's stderr is read without delay, and its newest part is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ramet.concurrency import processes
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.pipes import Capture
from ramet.core.errors import BusyError, InvalidValue, ProtocolError
from ramet.core.limits import Limits
from ramet.core.policy.policy import Policy, resolve_root_policy
from ramet.host.runtime import AgentRuntime
from ramet.isolation.masking.masking import Mask
from ramet.services.agent_types.command import exec_in_sandbox
from ramet.spawn.handle import Handle
from ramet.spawn.masking import forms_of_grant, masked_text
from ramet.wire.command_protocol import ToProgram, encode
from ramet.wire.frames import Frame
from ramet.wire.stdio_frames import LineReader

#: The size of the newest part of stderr that is kept in memory.
LOG_BYTES = 64 * 1024
#: The limit of bytes that wait for the program to read: a few messages of the largest kind.
UNREAD_BYTES = 32 * 1024 * 1024
_READ_BYTES = 64 * 1024
_MAX_TIMEOUT_S = 366 * 86400.0  #: seconds: the maximum of a policy


class StartedProgram(NamedTuple):
    """A program that was started, or that soon ends because it could not be started."""

    handle: Handle
    line: Line
    log: Callable[[], str]  #: returns the newest part of its stderr, without private values

    def mask(self, text: str) -> str:
        """Return a text that the program wrote, or that is about it, without private values."""
        return masked_text(self.handle.run, text)


async def start_inside(
    runtime: AgentRuntime, argv: Sequence[str], cwd: str, policy: Policy, limits: Limits, *, state_owner: str
) -> StartedProgram:
    """Start a program in a sandbox. The policy's time limits each turn, not the program; the caller enforces it.

    Raises any error that prevents the sandbox. Raises InvalidValue if sandboxes are on other machines: the program's
    pipes are files. Nothing remains after an error.
    """
    grant = resolve_root_policy(policy)
    backend = await runtime.sandboxes.placement().backend(grant)
    if (await backend.probe()).remote:
        raise InvalidValue("agent_type", "command", f"another type: sandboxes of {backend.name} are on other machines")
    log, is_ready = Capture(head=0, tail=LOG_BYTES), asyncio.Event()
    mask = Mask(forms_of_grant(grant))  # Mask before the log is cut: the rest of a cut value could not be found.

    def take_output(stream: str, text: str) -> None:
        if stream == "stderr":
            log.append(mask.feed(text.encode(errors="replace")))
        else:
            is_ready.set()

    handle = await runtime.spawn(
        exec_in_sandbox.start,
        args=(list(argv), cwd),
        policy=replace(policy, timeout_seconds=_MAX_TIMEOUT_S, retry_count=0),
        limits=limits,
        on_output=take_output,
        state_owner=state_owner,
    )
    try:
        await _wait_any(is_ready.wait(), handle.result())
        line = await Line.connect(*(_open_pipes(handle) if is_ready.is_set() else _closed_pipes()))
    except BaseException:
        await run_shielded(handle.cancel("the connection to the program could not be opened"))
        raise
    return StartedProgram(handle, line, lambda: masked_text(handle.run, _text(log)))


async def start_in_host(
    runtime: AgentRuntime, argv: Sequence[str], cwd: Path, limits: Limits, *, state_owner: str
) -> StartedProgram:
    """Start a program in the host, with the server's rights and a small part of its environment."""
    log = Capture(head=0, tail=LOG_BYTES)
    (stdin, write_fd), (read_fd, stdout) = os.pipe(), os.pipe()

    async def program() -> int | str:
        try:
            exit = await processes.run(
                argv,
                clock=runtime.clock,
                timeout_s=None,
                cwd=cwd,
                env=processes.environment(),
                stdin=stdin,
                stdout=stdout,
                stderr=log,
            )
        except OSError as problem:
            return exec_in_sandbox.error_text(problem)
        return exit.code

    def close_pipes(_: object) -> None:
        os.close(stdin)
        os.close(stdout)

    try:
        handle = await runtime.spawn(program, limits=limits, state_owner=state_owner)
    except BaseException:
        for fd in (stdin, stdout, write_fd, read_fd):
            os.close(fd)
        raise
    handle.run.recorded_end().add_done_callback(close_pipes)
    try:
        line = await Line.connect(write_fd, read_fd)
    except BaseException:
        await run_shielded(handle.cancel("the connection to the program could not be opened"))
        raise
    return StartedProgram(handle, line, lambda: masked_text(handle.run, _text(log)))


class Line:
    """The host's ends of a program's stdin and stdout."""

    def __init__(
        self,
        write_transport: asyncio.WriteTransport,
        read_transport: asyncio.ReadTransport,
        stream: asyncio.StreamReader,
    ):
        self._write_transport, self._read_transport, self._stream = write_transport, read_transport, stream

    @classmethod
    async def connect(cls, write_fd: int, read_fd: int) -> Line:
        """Take ownership of two pipes, and close them if this raises."""
        loop, stream = asyncio.get_running_loop(), asyncio.StreamReader(limit=_READ_BYTES)
        sink, source = os.fdopen(write_fd, "wb", 0), os.fdopen(read_fd, "rb", 0)
        try:
            read_transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), source)
            write_transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sink)
        except BaseException:
            source.close()
            sink.close()
            raise
        return cls(write_transport, read_transport, stream)

    def send(self, message: ToProgram, body: bytes = b"") -> None:
        """Send a whole message, as soon as the program reads; do nothing if the program has ended.

        Raises BusyError if the program has not read the earlier messages.
        """
        if self._write_transport.is_closing():
            return
        frame = encode(message, body)
        if self._write_transport.get_write_buffer_size() + len(frame) > UNREAD_BYTES:
            raise BusyError(f"the program has not read earlier messages; at most {UNREAD_BYTES} bytes may wait")
        self._write_transport.write(frame)

    async def frames(self, mask: Callable[[str], str]) -> AsyncGenerator[Frame]:
        """Yield the program's frames until its stdout closes. Raises ProtocolError; `mask` filters the error text."""
        reader = LineReader(mask)
        while data := await self._stream.read(_READ_BYTES):
            for frame in reader.feed(data):
                yield frame
        if reader.is_partial:
            raise ProtocolError("it ended in the middle of a frame")

    def abort(self) -> None:
        """Close the program's stdin immediately; data that was not read is lost. Idempotent."""
        if not self._write_transport.is_closing():  # It closes by itself when the other end is closed.
            self._write_transport.abort()

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self.abort()
        self._read_transport.close()


def _open_pipes(handle: Handle) -> tuple[int, int]:
    """Open the host's ends of the pipes in a run's own folder.

    Raises OSError, and ProtocolError for a file that is no pipe.
    """
    assert handle.run.sandbox.folder is not None, "a run in a sandbox has a folder"
    folder = os.open(handle.run.sandbox.folder.workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, folder)
        write_fd = _open_pipe(folder, exec_in_sandbox.STDIN, os.O_WRONLY)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(os.close, write_fd)
            read_fd = _open_pipe(folder, exec_in_sandbox.STDOUT, os.O_RDONLY)
            on_failure.pop_all()
    return write_fd, read_fd


def _open_pipe(folder: int, name: str, flags: int) -> int:
    fd = os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise ProtocolError(f"{name} in its folder is not a pipe")
    return fd


def _closed_pipes() -> tuple[int, int]:
    """Return pipe ends whose other ends are closed, for a program that never started."""
    (stdin, write_fd), (read_fd, stdout) = os.pipe(), os.pipe()
    os.close(stdin)
    os.close(stdout)
    return write_fd, read_fd


async def _wait_any(*awaitables: object) -> None:
    tasks = [asyncio.ensure_future(each) for each in awaitables]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _text(log: Capture) -> str:
    return log.data().decode(errors="replace")
