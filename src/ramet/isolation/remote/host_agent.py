"""The client of a machine that keeps sandboxes for this kernel. Each of them is a `Sandbox`.

An attacker may control the other end: it can then lie about its own sandboxes, and nothing else. Windows bound the
memory; a message out of turn, or about an unknown sandbox, ends the line.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ramet.core.errors import (
    Gone,
    InvalidValue,
    IsolationUnavailable,
    ProtocolError,
    RametError,
    SandboxFailed,
)
from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import Exit, SandboxSpec
from ramet.isolation.mounts import sources_by_mount
from ramet.isolation.remote import messages
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import (
    Adopt,
    Answer,
    Connected,
    Credit,
    Data,
    Ended,
    Forget,
    Hello,
    Leave,
    Link,
    Refused,
    Start,
    Started,
    Threshold,
)
from ramet.isolation.remote.outbox import Outbox
from ramet.isolation.remote.rpc import PendingRequests, decode_remote_error
from ramet.isolation.remote.sandbox import RemoteSandbox
from ramet.isolation.zygote.assignment_builder import absolute
from ramet.wire.error_codec import clean

#: Called with a run, the resource it uses most of, the amount, and the limit: see `ramet.isolation.zygote.backend`.
OnThreshold = Callable[[str, str, float, float], object]
#: Called with a run that was released here without a confirmation of its machine: it may still run there.
OnUnreachable = Callable[[str], object]

START_S = 60.0  #: after the files have arrived
NO_PORTS = "none where sandboxes are on another machine"  #: for `ports`: that loopback cannot be reached from here
_FILES_S = 120.0  #: for the transfer of files, plus 1 s for each MiB that a workspace may hold
_THRESHOLDS = frozenset(("cpu", "memory"))
_FLUSH_S = 2.0
_UNREAD_S = 300.0  #: how long a machine may read nothing while the outbox is full
_FRAMES_PER_TURN = 64  #: frames after which other tasks get a turn
_log = logging.getLogger("ramet.remote")


class NodeClient:
    """A client on one line to one machine. Create it on a running event loop; it reads the line at once."""

    def __init__(
        self,
        line: Line,
        *,
        level: Isolation | None = None,
        on_threshold: OnThreshold | None = None,
        on_deaf: OnUnreachable | None = None,
        wait_reason: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Begin to read the line.

        `level` is the isolation between the machine's sandboxes and the host, if that is more than the machine itself
        provides. The caller has compared it with the level that a run asks for; the machine is then not asked about
        isolation. `wait_reason` is awaited at the end of the line: its owner may know a better reason for that end, and
        call `on_lost` meanwhile.
        """
        loop = asyncio.get_running_loop()
        self._line, self._level = line, level
        self._on_threshold, self._on_deaf, self._wait_reason = on_threshold, on_deaf, wait_reason
        self._outbox = Outbox(line)
        self._questions = PendingRequests(self._outbox.post)
        self._hello: asyncio.Future[Hello] = loop.create_future()
        self._exit_future: asyncio.Future[Exit] = loop.create_future()
        self._sandboxes: dict[int, RemoteSandbox] = {}
        self._last_number = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._reading = loop.create_task(self._read())

    @property
    def is_open(self) -> bool:
        """Return whether sandboxes can start: the line has not ended, nothing is lost, and nothing was closed."""
        return not self._exit_future.done() and self._closing is None

    async def hello(self) -> Hello:
        """Wait for the machine's first message without a time limit, and return it.

        Raises SandboxFailed if the line has ended, before or after that message.
        """
        await asyncio.wait((self._hello, self._exit_future), return_when=asyncio.FIRST_COMPLETED)
        if self._exit_future.done():
            raise SandboxFailed(f"the machine is lost: {self._exit_future.result().detail}")
        return self._hello.result()

    async def check(self, within_s: float) -> None:
        """Wait until the machine has answered. Raises SandboxFailed if it does not answer in time, or is gone."""
        try:
            async with asyncio.timeout(within_s):
                await self._questions.ask(lambda ask: Forget(ask=ask, number=0))  # There is no sandbox 0.
        except TimeoutError:
            raise SandboxFailed(f"the machine has not answered within {within_s:g} s") from None

    async def start(self, spec: SandboxSpec, existing_mounts: Mapping[str, str] | None = None) -> RemoteSandbox:
        """Send the files of a run and start it, as `Backend.start`.

        Raises InvalidValue, IsolationUnavailable, SandboxFailed.

        A mount that is in `existing_mounts`, or lies below a path in it, is not sent: the machine's image has it at
        that path.
        """
        hello = await self.hello()
        if not self.is_open:
            raise SandboxFailed("the machine is closed")
        _check(spec)
        for each in [each for each in self._sandboxes.values() if each.spec.workspace == spec.workspace]:
            await each.clean_up()  # An earlier attempt: its files there are removed first.
        sandbox = self._new_sandbox(self._last_number + 1, spec, hello)
        try:
            async with asyncio.timeout(_FILES_S + spec.grant.workspace_size_mb):
                await asyncio.gather(*(self._link(path, to) for path, to in (existing_mounts or {}).items()))
                await sandbox.files.send_all(existing_mounts=[*(existing_mounts or ())])
            self._outbox.post(_make_start_message(sandbox.number, spec, is_asked=self._level is None))
            async with asyncio.timeout(START_S):
                await asyncio.shield(sandbox.start_future)
        except BaseException as error:
            self._do(sandbox.clean_up())
            if isinstance(error, TimeoutError):
                raise SandboxFailed(f"run {spec.run}: nothing started in time on its machine") from None
            raise
        return sandbox

    async def adopt(self, number: int, spec: SandboxSpec) -> RemoteSandbox:
        """Adopt the sandbox that another kernel started on the machine under that number.

        The unanswered messages of its channel arrive again. Raises Gone if it cannot be adopted, SandboxFailed.
        """
        hello = await self.hello()
        if not self.is_open:
            raise SandboxFailed("the machine is closed")
        if number not in hello.kept or number in self._sandboxes:
            raise Gone(f"run {spec.run}: its machine has no sandbox of it")
        _check(spec)
        sandbox = self._new_sandbox(number, spec, hello)
        sandbox.begin(is_adopted=True)
        try:
            async with asyncio.timeout(START_S):
                await self._questions.ask(lambda ask: Adopt(ask=ask, number=number))
        except BaseException as error:
            self._do(sandbox.clean_up())
            if isinstance(error, TimeoutError):
                raise Gone(f"run {spec.run}: its machine does not answer") from None
            raise
        return sandbox

    def on_lost(self, exit: Exit) -> None:
        """Declare the machine lost: all its sandboxes end with `exit` at once. Only the first call has an effect."""
        if self._exit_future.done():
            return
        self._exit_future.set_result(exit)
        for sandbox in list(self._sandboxes.values()):
            sandbox.end(exit)
        self._questions.fail(SandboxFailed(f"the machine is lost: {exit.detail}"))
        self._reading.cancel()
        self._do(self._hang_up())

    async def wait_ended(self) -> Exit:
        """Wait until the line has ended or the machine is lost; return the exit of its sandboxes."""
        return await asyncio.shield(self._exit_future)

    async def close(self) -> None:
        """Send `Leave`, and end the line: all its sandboxes end. Idempotent. They may be cleaned up later."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._outbox.post(Leave())
        if not self._exit_future.done():
            await self._outbox.flush(_FLUSH_S)
        self.on_lost(Exit(-signal.SIGKILL, "lost", "its backend was closed"))
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _hang_up(self) -> None:
        await asyncio.wait((self._reading,))
        await self._outbox.close()
        await self._line.close()

    def _new_sandbox(self, number: int, spec: SandboxSpec, hello: Hello) -> RemoteSandbox:
        """Create the client of a sandbox. Raises IsolationUnavailable, SandboxFailed."""
        level, post = self._level_of(hello, spec.grant.isolation), self._outbox.post
        sandbox = RemoteSandbox(number, spec, level, post, self._questions, on_done=self._remove_sandbox, do=self._do)
        sandbox.can_freeze = hello.mechanisms.get(messages.FREEZE, False)
        self._sandboxes[number], self._last_number = sandbox, max(self._last_number, number)
        return sandbox

    def _remove_sandbox(self, number: int) -> None:
        sandbox = self._sandboxes.pop(number, None)
        if sandbox is not None and not sandbox.is_forgotten and self.is_open and self._on_deaf is not None:
            self._on_deaf(sandbox.spec.run)

    def _do(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a sandbox on another machine: %s", error)

    def _level_of(self, hello: Hello, isolation: Isolation) -> Isolation:
        """Return the isolation level of a run. Raises IsolationUnavailable."""
        if self._level is not None:
            return self._level
        if isolation is Isolation.FRESH and hello.level is Isolation.L2:
            return isolation
        if isolation.rank > hello.level.rank:
            raise IsolationUnavailable(isolation, hello.level, hello.missing, hello.remedy)
        return hello.level

    async def _link(self, path: str, target: str) -> None:
        await self._questions.ask(lambda ask: Link(ask=ask, root=path, to=target))

    async def _read(self) -> None:
        reason = "the line to its machine ended"
        count = 0
        try:
            while (frame := await self._line.receive()) is not None:
                self._take(messages.from_machine(frame.control), frame.body)
                if self._outbox.is_full:
                    await self._outbox.wait_room(_UNREAD_S)
                count += 1
                if count % _FRAMES_PER_TURN == 0:
                    await asyncio.sleep(0)
            if self._wait_reason is not None:
                await self._wait_reason()
        except RametError as violation:
            reason = f"its machine violated the protocol: {clean(str(violation)[:300])}"
        except TimeoutError:
            reason = f"its machine read nothing for {_UNREAD_S:g} s, while too much data waited for it"
        except OSError as error:
            reason = f"the line to its machine ended: {error}"
        finally:
            self.on_lost(Exit(-signal.SIGKILL, "lost", reason))

    def _take(self, message: messages.FromMachine, body: bytes) -> None:
        if not self._hello.done():
            if not isinstance(message, Hello) or message.version != messages.VERSION:
                raise ProtocolError(f"the first message of a machine is a hello of version {messages.VERSION}")
            self._hello.set_result(message)
            self._last_number = message.last
            return
        if body and not isinstance(message, Data | Answer):
            raise ProtocolError("a body in a message without one")
        if isinstance(message, Ended | Threshold) and self._is_not_adopted(message.number):
            return  # An older version of ramet sends it before an adoption, and sends the end again after it.
        match message:
            case Hello():
                raise ProtocolError("a machine sends hello only once")
            case Answer():
                self._questions.answer(message, body)
            case Data():
                if len(body) > messages.MAX_PIECE:
                    raise ProtocolError("a piece of a stream that is too large")
                self._sandbox_of(message.number).take(message.stream, body)
            case Credit():
                self._sandbox_of(message.number).grant(message.stream, message.size)
            case Started():
                self._sandbox_of(message.number).begin()
            case Refused():
                self._sandbox_of(message.number).refuse(decode_remote_error(message.error, message.fields))
            case Ended():
                self._sandbox_of(message.number).take_end(message)
            case Connected():
                self._sandbox_of(message.number).connect(message.stream)
            case Threshold():
                if message.resource not in _THRESHOLDS:
                    raise ProtocolError(f"there is no threshold for a limit of {message.resource[:40]!r}")
                run = self._sandbox_of(message.number).may_warn()
                if run and self._on_threshold is not None:
                    self._on_threshold(run, message.resource, message.used, message.limit)

    def _is_not_adopted(self, number: int) -> bool:
        return number not in self._sandboxes and number in self._hello.result().kept

    def _sandbox_of(self, number: int) -> RemoteSandbox:
        try:
            return self._sandboxes[number]
        except KeyError:
            raise ProtocolError(f"there is no sandbox {number}") from None


def _check(spec: SandboxSpec) -> None:
    """Check what only the kernel's side can check. Raises InvalidValue."""
    if not spec.workspace.is_dir():
        raise InvalidValue("workspace", str(spec.workspace), "a folder")
    if spec.grant.writable_mounts:
        accepted = "nothing on another machine: its folders are copies"
        raise InvalidValue("writable_mounts", list(spec.grant.writable_mounts), accepted)
    workspace = spec.workspace.resolve()
    for mount, source in sources_by_mount(map(absolute, spec.grant.readonly_mounts), spec.mount_roots).items():
        if workspace != Path(source) and workspace.is_relative_to(source):
            raise InvalidValue("readonly_mounts", mount, "a folder that contains no workspace of another machine")
    if spec.grant.ports:
        raise InvalidValue("ports", dict(spec.grant.ports), NO_PORTS)
    if spec.import_dir is not None and not spec.import_dir.is_dir():
        raise InvalidValue("import_dir", str(spec.import_dir), "a folder")


def _make_start_message(number: int, spec: SandboxSpec, *, is_asked: bool) -> Start:
    """Return the message that starts a sandbox."""
    grant = spec.grant if is_asked else msgspec.structs.replace(spec.grant, isolation=Isolation.L0)
    return Start(
        number=number,
        run=spec.run,
        grant=grant,
        workspace=absolute(spec.workspace),
        cwd=None if spec.cwd is None else absolute(spec.cwd),
        image=spec.image,
        entry=spec.entry,
        env=dict(spec.env),
        proxied=spec.proxy is not None,
        import_dir=None if spec.import_dir is None else absolute(spec.import_dir),
    )
