"""The program of a machine: it keeps sandboxes there by the backend `local`, and executes the messages of a line.

Its sandboxes outlive a line: a kernel on the next line may adopt them. Sandboxes that are not adopted end with the
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, InvalidValue, RametError, SandboxFailed
from ramet.isolation import safe_walk
from ramet.isolation.local import LocalBackend
from ramet.isolation.remote import messages
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import (
    Adopt,
    Answer,
    Credit,
    Data,
    Fetch,
    Forget,
    Freeze,
    Hello,
    Leave,
    Link,
    Measure,
    NodeMessage,
    Put,
    Refused,
    Run,
    Signal,
    Start,
    Started,
    Thaw,
    Threshold,
)
from ramet.isolation.remote.node_sandbox import NodeSandbox
from ramet.isolation.remote.outbox import Outbox
from ramet.isolation.remote.transfer import IncomingDir
from ramet.isolation.zygote.assignment_builder import absolute
from ramet.wire.error_codec import clean, encode_error

_FLUSH_S = 2.0
_FRAMES_PER_TURN = 64  #: frames after which other tasks get a turn


@contextlib.asynccontextmanager
async def open_node_agent(runs: Path, places: Sequence[Path] = (), *, pod: bool = False) -> AsyncIterator[NodeAgent]:
    """Provide the node agent of this machine, for successive lines; remove all its data at the end.

    `runs` is the same path as on the kernel's host. `places` are other folders that mounts may be written to. A mount
    at one of them or below comes from the host; any other is what this machine has there. `pod` as in `LocalBackend`.
    """
    agent = NodeAgent(runs, places, pod=pod)
    try:
        yield agent
    finally:
        await agent.close()


async def serve(line: Line, runs: Path, places: Sequence[Path] = (), *, pod: bool = False) -> bool:
    """Serve one line with a new `open_node_agent`; return whether the kernel ended it by `Leave`."""
    async with open_node_agent(runs, places, pod=pod) as agent:
        return await agent.serve(line)


class NodeAgent:
    """The sandboxes of this machine, served on the current line. Call `close`, or use `open_node_agent`."""

    def __init__(self, runs: Path, places: Sequence[Path] = (), *, pod: bool = False) -> None:
        self._runs = runs
        self._places = [runs, *places]
        self._backend = LocalBackend(runs, on_threshold=self._near_a_limit, pod=pod, places=places)
        self._outbox: Outbox | None = None  #: of the current line
        self._sandboxes: dict[int, NodeSandbox] = {}
        self._last_number = 0  #: the highest number used so far
        self._users_by_folder: dict[Path, set[int]] = {}  #: the sandboxes that use each folder
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def serve(self, line: Line) -> bool:
        """Send a hello and execute messages until the line ends or a `Leave` arrives; return whether one arrived.

        After a `Leave`, nothing is left. Otherwise the started sandboxes continue, and wait for a kernel that adopts
        them on the next line. Raises ProtocolError.
        """
        outbox = self._outbox = Outbox(line)
        try:
            if should_exit := await self._work(line):
                await self.close()
                await outbox.flush(_FLUSH_S)
            return should_exit
        finally:
            self._outbox = None
            await self._detach()
            await outbox.close()

    async def _work(self, line: Line) -> bool:
        probe = await self._backend.probe()
        self._post(
            Hello(
                version=messages.VERSION,
                python=platform.python_version(),
                level=probe.level,
                mechanisms={**probe.mechanisms, messages.FREEZE: True},
                missing=probe.missing,
                remedy=probe.remedy,
                kept=tuple(self._sandboxes),
                last=self._last_number,
            )
        )
        count = 0
        while (frame := await line.receive()) is not None:
            message = messages.from_kernel(frame.control)
            if isinstance(message, Leave):
                return True
            self._take(message, frame.body)
            count += 1
            if count % _FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)
        return False

    async def close(self) -> None:
        """End all sandboxes, and remove their files as far as possible. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._end_tasks()
        await asyncio.gather(*(sandbox.close() for sandbox in self._sandboxes.values()), return_exceptions=True)
        await self._backend.close()
        for number in list(self._sandboxes):
            with contextlib.suppress(OSError):
                await self._remove_sandbox(number)

    async def _detach(self) -> None:
        """Detach from an ended line: close sandboxes that were not started; the others wait for the next line."""
        await self._end_tasks()
        for number, sandbox in list(self._sandboxes.items()):
            if sandbox.has_begun:
                sandbox.detach()
            else:
                await sandbox.close()
                with contextlib.suppress(OSError):
                    await self._remove_sandbox(number)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _post(self, message: NodeMessage, body: bytes = b"") -> None:
        """Send a message on the current line; drop it if there is none."""
        if self._outbox is not None:
            self._outbox.post(message, body)

    def _take(self, message: messages.FromKernel, body: bytes) -> None:
        match message:
            case Data():
                if (sandbox := self._sandboxes.get(message.number)) is not None:
                    sandbox.take(message.stream, body)
            case Credit():
                if (sandbox := self._sandboxes.get(message.number)) is not None:
                    sandbox.grant(message.stream, message.size)
            case Signal():
                if (sandbox := self._sandboxes.get(message.number)) is not None:
                    sandbox.signal(message.signal)
            case Put():
                sandbox_of_put = self._new(message.number)
                incoming = sandbox_of_put.receive(message.stream)
                self._answer(message.ask, lambda: self._put(sandbox_of_put, message, incoming))
            case Link():
                self._answer(message.ask, lambda: self._link(message))
            case Start():
                sandbox = self._new(message.number)
                sandbox.starting = self._do(self._start(sandbox, message))
            case Adopt():
                self._answer(message.ask, lambda: self._adopt(message))
            case Measure():
                self._answer(message.ask, lambda: self._measure(message))
            case Run():
                self._answer(message.ask, lambda: self._run(message))
            case Freeze():
                self._answer(message.ask, lambda: self._freeze(message.number))
            case Thaw():
                self._answer(message.ask, lambda: self._thaw(message.number))
            case Fetch():
                self._answer(message.ask, lambda: self._fetch(message))
            case Forget():
                self._answer(message.ask, lambda: self._forget(message.number))
            case Leave():
                raise AssertionError("handled before")

    def _new(self, number: int) -> NodeSandbox:
        if number not in self._sandboxes:
            self._sandboxes[number], self._last_number = (
                NodeSandbox(number, self._post, self._runs),
                max(self._last_number, number),
            )
        return self._sandboxes[number]

    def _find_sandbox(self, number: int) -> NodeSandbox:
        try:
            return self._sandboxes[number]
        except KeyError:
            raise Gone(f"there is no sandbox {number}") from None

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _answer(self, ask: int, work: Callable[[], Awaitable[tuple[Any, bytes]]]) -> None:
        async def answer() -> None:
            try:
                value, body = await work()
                self._post(Answer(ask=ask, value=value), body)
            except Exception as error:  # The kernel waits for an answer in any case, also if this one is no JSON.
                info, fields = encode_error(error)
                self._post(Answer(ask=ask, error=info, fields=fields))

        self._do(answer())

    async def _put(self, sandbox: NodeSandbox, message: Put, incoming: IncomingDir) -> tuple[Any, bytes]:
        root = Path(absolute(message.root))
        if not any(folder == root or folder in root.parents for folder in self._places):
            sandbox.drop(message.stream)
            return False, b""
        if root == self._runs or root in self._runs.parents:
            sandbox.drop(message.stream)
            raise InvalidValue("readonly_mounts", str(root), "a folder that contains no workspace of another machine")
        self._users_by_folder.setdefault(root, set()).add(sandbox.number)
        await sandbox.put(message.stream, root, incoming)
        return True, b""

    async def _link(self, message: Link) -> tuple[Any, bytes]:
        root, to = Path(absolute(message.root)), Path(absolute(message.to))
        if not any(folder in root.parents for folder in self._places) or self._runs in root.parents:
            raise InvalidValue("readonly_mounts", str(root), "a path in a folder that this machine keeps for mounts")
        await in_thread(lambda: _link(root, to), name="ramet-folder")
        return None, b""

    async def _start(self, sandbox: NodeSandbox, message: Start) -> None:
        try:
            await sandbox.start(self._backend, message)
            sandbox.begin()  # Sends nothing before this returns.
        except Exception as problem:  # The kernel waits for an answer in any case.
            error = problem if isinstance(problem, RametError) else SandboxFailed(repr(problem))
            info, fields = encode_error(error)
            self._post(Refused(number=message.number, error=info, fields=fields))
            return
        self._users_by_folder.setdefault(Path(message.workspace), set()).add(sandbox.number)
        self._post(Started(number=message.number))

    async def _adopt(self, message: Adopt) -> tuple[Any, bytes]:
        sandbox = self._find_sandbox(message.number)
        sandbox.adopt()
        await sandbox.sandbox.thaw()  # Its new kernel decides whether it stays frozen.
        return None, b""

    async def _measure(self, message: Measure) -> tuple[Any, bytes]:
        return list(await self._find_sandbox(message.number).sandbox.metrics()), b""

    async def _run(self, message: Run) -> tuple[Any, bytes]:
        sandbox = self._find_sandbox(message.number).sandbox
        code, out, err = await sandbox.run_command(
            message.argv, timeout_s=message.timeout_s, max_bytes=message.max_bytes
        )
        return [code, len(out)], out + err

    async def _freeze(self, number: int) -> tuple[Any, bytes]:
        return await self._find_sandbox(number).sandbox.freeze(), b""

    async def _thaw(self, number: int) -> tuple[Any, bytes]:
        await self._find_sandbox(number).sandbox.thaw()
        return None, b""

    async def _fetch(self, message: Fetch) -> tuple[Any, bytes]:
        pack_result = await self._find_sandbox(message.number).fetch(message.stream)
        return [clean(each) for each in pack_result.refused_paths], b"".join(
            os.fsencode(path) + b"\0" for path in pack_result.removed_paths
        )

    async def _forget(self, number: int) -> tuple[Any, bytes]:
        sandbox = self._sandboxes.get(number)
        if sandbox is not None:
            await sandbox.close()
            await self._remove_sandbox(number)
        return None, b""

    async def _remove_sandbox(self, number: int) -> None:
        """Remove the files that only this sandbox used."""
        sandbox = self._sandboxes.pop(number)
        # A mount stays: zygotes that wait for other runs with the same mount have it open.
        unshared_folders = [
            root for root, users in self._users_by_folder.items() if users == {number} and self._runs in root.parents
        ]
        for users in self._users_by_folder.values():
            users.discard(number)
        for root in unshared_folders:
            del self._users_by_folder[root]
        await in_thread(lambda: _remove([*unshared_folders, sandbox.proxies]), name="ramet-folder")

    def _near_a_limit(self, run: str, resource: str, used: float, limit: float) -> None:
        for sandbox in self._sandboxes.values():
            if sandbox.run == run and sandbox.is_started_reported:
                self._post(Threshold(number=sandbox.number, resource=resource, used=used, limit=limit))


def _link(root: Path, target: Path) -> None:
    if not target.exists():
        raise InvalidValue("readonly_mounts", str(target), "what the image of this machine has")
    root.parent.mkdir(parents=True, exist_ok=True)
    if not (root.is_symlink() and root.readlink() == target):
        root.symlink_to(target)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            safe_walk.remove_path(path)
