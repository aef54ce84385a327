"""The kernel's side of one sandbox on another machine: `ramet.isolation.contract.Sandbox` over a line."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ramet.core.errors import Gone, InvalidValue, ProtocolError, RametError, SandboxFailed
from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import KILL_GRACE_S, Exit, Metrics, Ran, SandboxSpec
from ramet.isolation.remote.duplex import Duplex
from ramet.isolation.remote.messages import (
    CHANNEL,
    FIRST_OF_MACHINE,
    STDERR,
    STDOUT,
    WINDOW,
    Ended,
    Forget,
    Freeze,
    Measure,
    Run,
    Signal,
    Thaw,
)
from ramet.isolation.remote.rpc import PendingRequests, convert_value
from ramet.isolation.remote.staging import Staging
from ramet.isolation.remote.streams import Incoming, Post
from ramet.wire.error_codec import clean

_MAX_CONNECTIONS = 256
_MAX_WARNINGS = 1000
_KILL_S = 30.0  #: from SIGKILL to the report of the end
_FORGET_S = 30.0
_SYNC_S = 60.0  #: plus 1 s for each MiB that a workspace may hold
_PIPE_SIZE = 1031  #: F_SETPIPE_SZ
_log = logging.getLogger("ramet.remote")
_REASONS = frozenset(("exited", "signalled", "oom", "cpu", "workspace", "lost"))


class RemoteSandbox:
    """A sandbox on another machine. `clean_up` closes its descriptors."""

    def __init__(
        self,
        number: int,
        spec: SandboxSpec,
        level: Isolation,
        post: Post,
        questions: PendingRequests,
        *,
        on_done: Callable[[int], object],
        do: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        """Create the client of a sandbox. Raises SandboxFailed if there are no descriptors for it."""
        loop = asyncio.get_running_loop()
        self.number, self.spec = number, spec
        self.level, self._post, self._questions, self._on_done, self._do = level, post, questions, on_done, do
        self.start_future: asyncio.Future[None] = loop.create_future()  #: or refused
        self.start_future.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be no waiter
        self._exit_future: asyncio.Future[Exit] = loop.create_future()
        self._was_started = self._is_attached = False
        self._is_reachable = True  #: the line to its machine has not ended, and its machine answers
        self._is_final = False  #: its final files were fetched, or cannot be
        self._is_killed = self._is_frozen = False
        self.can_freeze = False  #: its machine can freeze it
        self._warnings = 0
        self.is_forgotten = False  #: its machine has confirmed that nothing of it is left there
        self._cleaning: asyncio.Task[None] | None = None
        self._syncing = asyncio.Lock()
        self.files = Staging(number, spec, post, questions)  #: for `NodeClient.start`, before the sandbox starts
        try:
            self.channel, self._inner = socket.socketpair()
            self.channel.setblocking(False)
            self._pipes: dict[int, list[int]] = {each: _pipe() for each in (STDOUT, STDERR)}
        except OSError as error:
            raise SandboxFailed(f"no descriptors for a sandbox: {error.strerror}") from error
        self._duplex = Duplex(number, CHANNEL, post)
        self._streams: dict[int, Incoming | Duplex] = {CHANNEL: self._duplex}
        self._output_streams: list[Incoming] = []
        for stream, ends in self._pipes.items():
            incoming = Incoming(number, stream, post, on_end=lambda ends=ends: _close(ends, 1))  # type: ignore[misc]
            incoming.attach(ends[1])
            self._streams[stream] = incoming
            self._output_streams.append(incoming)
        self._highest = FIRST_OF_MACHINE - 2

    # ---- the interface of its owner ---------------------------------------------------------------------------------

    @property
    def stdout(self) -> int:
        return self._pipes[STDOUT][0]

    @property
    def stderr(self) -> int:
        return self._pipes[STDERR][0]

    @property
    def pid(self) -> int:
        """The process id: always -1, because there is no process on this host."""
        return -1

    async def wait(self) -> Exit:
        """Wait for the end of the sandbox or of its machine."""
        return await asyncio.shield(self._exit_future)

    def signal(self, number: int) -> None:
        if not self._exit_future.done():
            self._is_killed |= number == signal.SIGKILL
            self._post(Signal(number=self.number, signal=number), b"")

    async def kill(self, grace_s: float = KILL_GRACE_S) -> Exit:
        """Send SIGTERM, then SIGKILL. If the machine does not answer that, the sandbox counts as lost."""
        try:
            if grace_s > 0 and not self._is_frozen:  # A frozen process could not handle it.
                self.signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        return await self.wait()
        finally:
            self.signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(_KILL_S):
                return await self.wait()
        except TimeoutError:
            self.end(Exit(-signal.SIGKILL, "lost", f"its machine did not end it within {_KILL_S:g} s"))
            return await self.wait()

    async def metrics(self) -> Metrics:
        answer, _ = await self._ask(lambda ask: Measure(ask=ask, number=self.number))
        metrics: Metrics = convert_value(answer.value, Metrics)
        return metrics

    async def freeze(self) -> bool:
        if self.can_freeze:
            answer, _ = await self._ask(lambda ask: Freeze(ask=ask, number=self.number))
            self._is_frozen = convert_value(answer.value, bool)
        return self._is_frozen

    async def thaw(self) -> None:
        if self._is_frozen:
            with contextlib.suppress(Gone):
                await self._ask(lambda ask: Thaw(ask=ask, number=self.number))
            self._is_frozen = False

    async def run_command(self, argv: Sequence[str], *, timeout_s: float, max_bytes: int) -> Ran:
        answer, body = await self._ask(
            lambda ask: Run(ask=ask, number=self.number, argv=tuple(argv), timeout_s=timeout_s, max_bytes=max_bytes)
        )
        code, size = convert_value(answer.value, tuple[int, int])
        if not 0 <= size <= min(len(body), max_bytes) or len(body) - size > max_bytes:
            raise SandboxFailed("its machine answers with more output than was asked for")
        return Ran(code, body[:size], body[size:])

    async def dial(self, port: int) -> socket.socket:
        """Raise InvalidValue: ports of other machines cannot be reached."""
        raise InvalidValue("port", port, "none on another machine")

    async def sync(self) -> None:
        """Send the import folder, and fetch the changes of the workspace. Raises SandboxFailed."""
        limit_s = _SYNC_S + self.spec.grant.workspace_size_mb
        try:
            async with asyncio.timeout(limit_s), self._syncing:
                if self._is_killed:  # Fetch the final files, after the end.
                    await self.wait()
                if self._is_final:
                    return
                self._is_final = self._exit_future.done()
                if not self._is_final:
                    await self.files.send_import_dir()
                await self.files.fetch()
        except TimeoutError:
            raise SandboxFailed(f"its files were not transferred within {limit_s:g} s") from None
        except SandboxFailed:
            raise
        except (RametError, OSError) as error:
            raise SandboxFailed(f"its files could not be transferred: {error}") from error

    async def clean_up(self) -> None:
        """Kill the sandbox, fetch its final files, remove it from its machine, close descriptors. Idempotent."""
        await asyncio.shield(self._being_cleaned_up())

    def drop(self) -> None:
        """Begin a `clean_up` without waiting for it."""
        self._being_cleaned_up()

    def _being_cleaned_up(self) -> asyncio.Task[None]:
        if self._cleaning is None:
            self._cleaning = self._do(self._clean_up())
        return self._cleaning

    def describe(self) -> Mapping[str, Any]:
        """Return enough data to identify a sandbox that is gone; the machine's owner knows more."""
        return {"run": self.spec.run, "pid": -1}

    # ---- messages of its machine ------------------------------------------------------------------------------------

    def begin(self, *, is_adopted: bool = False) -> None:
        """Mark the sandbox as started.

        `is_adopted`: another kernel started the sandbox, so this kernel has none of its files. Raises ProtocolError if
        the sandbox was already started or refused.
        """
        if self._was_started or self.start_future.done():
            if self._cleaning is None:
                raise ProtocolError(f"sandbox {self.number} starts twice")
            return
        self._was_started = True
        if is_adopted:
            self.files.is_foreign = True
        if self._cleaning is None:
            self._is_attached = True
            self._duplex.attach(self._inner)
        if not self.start_future.done():
            self.start_future.set_result(None)

    def refuse(self, error: Exception) -> None:
        """Fail the start of the sandbox. Raises ProtocolError if it was started."""
        if self._was_started:
            raise ProtocolError(f"sandbox {self.number} was started, and is refused")
        if not self.start_future.done():
            self.start_future.set_exception(error)

    def take(self, stream: int, data: bytes) -> None:
        """Take bytes of a stream. Raises ProtocolError for an unknown stream."""
        stream_object = self._streams.get(stream)
        if stream_object is not None:
            if stream <= STDERR and not self._was_started:
                raise ProtocolError(f"sandbox {self.number} sends before it is started")
            stream_object.take(data)
        elif not self.files.take(stream, data) and self._cleaning is None and stream > self._highest:
            raise ProtocolError(f"there is no stream {stream} of {self.number}")

    def grant(self, stream: int, size: int) -> None:
        """Allow more bytes of a stream. Raises ProtocolError for an unknown stream, and for too much credit."""
        stream_object = self._streams.get(stream)
        if isinstance(stream_object, Duplex):
            stream_object.grant(size)
        elif stream_object is not None:
            raise ProtocolError(f"stream {stream} of {self.number} does not go in that direction")
        else:
            self.files.grant(stream, size)

    def take_end(self, message: Ended) -> None:
        """Take the machine's report of the sandbox's end. Raises ProtocolError for an invalid report."""
        if not self._was_started or message.reason not in _REASONS or not -128 <= message.code <= 255:
            raise ProtocolError(f"this is not the end of sandbox {self.number}")
        detail = "".join(each if each.isprintable() else " " for each in clean(message.detail[:1000]))
        self.end(
            Exit(
                message.code,
                cast("Any", message.reason),
                detail,
                max(0.0, message.cpu_seconds),
                max(0.0, message.peak_mb),
            ),
            is_said=True,
        )

    def end(self, exit: Exit, *, is_said: bool = False) -> None:
        """End the sandbox with this exit. Wait for the machine's remaining data only if it reported the end."""
        if not self.start_future.done():
            self.start_future.set_exception(SandboxFailed(f"run {self.spec.run}: {exit.detail}"))
        if not self._exit_future.done():
            self._exit_future.set_result(exit)
        elif is_said and self._exit_future.result().reason != "lost":
            raise ProtocolError(f"sandbox {self.number} ends twice")
        if is_said:
            self._duplex.stop_sending()
            return
        self._is_reachable = False
        if self._is_attached:
            self._duplex.finish()
        else:
            self._inner.close()
        for each in self._output_streams:
            each.end()

    def may_warn(self) -> str:
        """Return the sandbox's run if one more warning is allowed, else an empty string."""
        self._warnings += 1
        return self.spec.run if self._warnings <= _MAX_WARNINGS else ""

    def connect(self, stream: int) -> None:
        """Connect a stream of the sandbox to the proxy. Raises ProtocolError if that is not allowed."""
        if self.spec.proxy is None or stream != self._highest + 2:
            raise ProtocolError(f"sandbox {self.number} opens stream {stream}")
        if sum(isinstance(each, Duplex) for each in self._streams.values()) > _MAX_CONNECTIONS:
            raise ProtocolError(f"sandbox {self.number} opens too many streams")
        self._highest = stream
        duplex = Duplex(self.number, stream, self._post, on_done=lambda: self._drop(stream))
        if self._cleaning is not None:
            duplex.fail()
            return
        self._streams[stream] = duplex
        self._do(_connect_to_proxy(duplex, self.spec.proxy))

    # ---- its end ----------------------------------------------------------------------------------------------------

    async def _clean_up(self) -> None:
        try:
            if self._was_started and not self._exit_future.done():
                await self.kill(0)
            if self._was_started and self._is_reachable:
                try:
                    await self.sync()
                except SandboxFailed as error:
                    _log.warning("run %s: %s", self.spec.run, error)
            with contextlib.suppress(RametError, TimeoutError):
                async with asyncio.timeout(_FORGET_S):
                    await self._questions.ask(lambda ask: Forget(ask=ask, number=self.number))
                    self.is_forgotten = True
        finally:
            self.end(Exit(-signal.SIGKILL, "lost", "it was not started"))
            self.files.close()
            for stream in list(self._streams):
                self._drop(stream)
            self._inner.close()
            self.channel.close()
            for ends in self._pipes.values():
                _close(ends, 0)
                _close(ends, 1)
            self._on_done(self.number)

    def _drop(self, stream: int) -> None:
        stream_object = self._streams.pop(stream, None)
        if stream_object is not None:
            stream_object.close()

    async def _ask(self, make_message: Callable[[int], Any]) -> Any:
        if self._exit_future.done():
            raise Gone("the sandbox has ended")
        try:
            return await self._questions.ask(make_message)
        except SandboxFailed:
            if self._exit_future.done():
                raise Gone("the sandbox has ended") from None
            raise


async def _connect_to_proxy(duplex: Duplex, proxy: Path) -> None:
    end = socket.socket(socket.AF_UNIX)
    end.setblocking(False)
    try:
        folder = os.open(proxy.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:  # The path may be longer than a socket address allows.
            await asyncio.get_running_loop().sock_connect(end, f"/proc/self/fd/{folder}/{proxy.name}")
        finally:
            os.close(folder)
    except OSError:
        end.close()
        duplex.fail()
    else:
        duplex.attach(end)


def _pipe() -> list[int]:
    ends = list(os.pipe())
    for end in ends:
        os.set_blocking(end, False)
    with contextlib.suppress(OSError):  # Otherwise the pipe has the default size.
        fcntl.fcntl(ends[1], _PIPE_SIZE, WINDOW)
    return ends


def _close(ends: list[int], index: int) -> None:
    if ends[index] >= 0:
        os.close(ends[index])
        ends[index] = -1
