"""One short-lived process: started in a group of its own, bounded in time and output, and gone when the call returns.

Whatever it left in its group ends with it: a background job that a command started does not outlive the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import within

MAX_OUTPUT = 1 << 20
_CLEAN_UP_S = 1.0  #: how long pipes may take to close, and a group to be gone, once it is killed
_POLL_S = 0.002
_PROC = pathlib.Path("/proc")


class Finished(NamedTuple):
    """What a process left. `code` is negative for the signal that ended it; each stream is cut at the bound."""

    code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


async def run_process(
    argv: Sequence[str],
    *,
    clock: Clock,
    timeout_s: float | None,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    stdin: bytes = b"",
    abort: AbortController | None = None,
    max_output: int = MAX_OUTPUT,
    grace_s: float = 0.0,
) -> Finished:
    """Run `argv` to its end, in an environment of `env` only. What is cut off gets SIGTERM `grace_s` before SIGKILL.

    Raises OSError if it cannot be started, TimeoutError, and Aborted; when it raises, the group is gone.
    """
    loop = asyncio.get_running_loop()
    if abort is not None:
        abort.raise_if_aborted()
    starting = asyncio.ensure_future(
        loop.subprocess_exec(lambda: _Watch(loop, max_output), *argv, cwd=cwd, env=dict(env), start_new_session=True)
    )
    try:
        transport, watch = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # asyncio would kill the process but not its group: let the start finish, then end it like any other.
        await asyncio.wait({starting})
        if starting.exception() is None:
            await _end(*starting.result(), grace_s)
        raise
    try:
        feed = transport.get_pipe_transport(0)
        if isinstance(feed, asyncio.WriteTransport):
            feed.write(stdin)
            feed.write_eof()
        await within(asyncio.shield(watch.exited), clock=clock, seconds=timeout_s, abort=abort)
    finally:
        await _end(transport, watch, grace_s)
    code = transport.get_returncode()
    assert code is not None
    return Finished(code, bytes(watch.output[1]), bytes(watch.output[2]), watch.truncated)


class _Watch(asyncio.SubprocessProtocol):
    """Keeps the first `max_output` bytes of each stream; the rest is read and dropped, so that no writer blocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_output: int) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.output = {1: bytearray(), 2: bytearray()}
        self.truncated = False
        self._max = max_output

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        kept = self.output[fd]
        room = self._max - len(kept)
        kept += data[:room]
        self.truncated = self.truncated or len(data) > room

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.process_exited()
        if not self.closed.done():
            self.closed.set_result(None)


async def _end(transport: asyncio.SubprocessTransport, watch: _Watch, grace_s: float) -> None:
    """Leave nothing of the group, and no pipe: one that escaped the group may hold its end of a pipe, but not ours."""
    group = transport.get_pid()
    try:
        if grace_s and not watch.exited.done():
            _signal(group, signal.SIGTERM)
            await asyncio.wait({watch.exited}, timeout=grace_s)
    finally:
        _signal(group, signal.SIGKILL)
        try:
            await asyncio.wait({watch.closed}, timeout=_CLEAN_UP_S)
            await _gone(group)
        finally:
            transport.close()
            await asyncio.wait({watch.closed}, timeout=_CLEAN_UP_S)


async def _gone(group: int) -> None:
    """Wait until nothing of a killed group runs: the children of our child are not ours to wait for in another way."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _CLEAN_UP_S
    while _lives(group) and loop.time() < until:  # noqa: ASYNC110 - nothing tells of the end of others' children
        await asyncio.sleep(_POLL_S)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not _PROC.is_dir():
        return True
    for stat in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone since
            state, _, member_of = stat.read_text(errors="replace").rpartition(")")[2].split(maxsplit=3)[:3]
            if int(member_of) == group and state not in ("Z", "X"):  # Whoever adopted it may never reap it.
                return True
    return False


def _signal(group: int, number: Literal[signal.Signals.SIGTERM, signal.Signals.SIGKILL]) -> None:
    # PermissionError: what is left of the group changed its user; nothing more can be done from here.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
