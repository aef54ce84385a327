"""Where a backend is checked: a folder, sandboxes with the suite's guest in them, and what may be left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import itertools
import json
import os
import pathlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Grant, Isolation
from ramet.isolation.contract import Backend, Exit, Probe, Sandbox, SandboxSpec
from ramet.wire import frames

ENTRY = "ramet.testing.conformance.isolation.guest:main"
#: In the environment of whoever runs the suite, and never in a sandbox.
CANARY = "RAMET_CONFORMANCE_CANARY"
PATIENCE_S = 60.0  #: how long anything that must happen may take; passed in full only by a backend that fails
_END_S = 10.0  #: from the end of a channel to that of its sandbox, before it is said that only the channel ended
#: What a sandbox gets where a check is not about a limit.
GRANT = Grant(memory_mb=128, pids=32, tmpfs_size_mb=16, workspace_size_mb=32)
_MAKES = "a module and what makes a backend of it, as in 'package.module:Backend'"


class Violation(AssertionError):
    """A backend that does not do what the contract promises."""


class NotHere(Exception):
    """A promise that cannot be checked here, or is not made by this backend: says why."""


class Refused(Exception):
    """What the guest tried and did not get: the name of an errno, or of an exception."""


class Ended(Exception):
    """The guest ended instead of answering."""


def holds(condition: object, promise: str) -> None:
    """Raises Violation, with the promise, unless the condition holds."""
    if not condition:
        raise Violation(promise)


def patience() -> asyncio.Timeout:
    """The time that anything may take."""
    return asyncio.timeout(PATIENCE_S)


async def eventually(
    condition: Callable[[], object | Awaitable[object]], promise: str, seen: Callable[[], object] = str
) -> None:
    """Wait until the condition holds, or what it awaits does. Raises Violation, with the promise and what is seen."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                met = condition()
                if await met if isinstance(met, Awaitable) else met:
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise Violation(f"{promise}{seen()}") from None


@dataclass(frozen=True)
class Workdir:
    """Which backend is checked, and where. `scratch` is an empty folder, `backend` as in "package.module:Backend".

    What `backend` names is called with `runs=`, the folder that all workspaces lie below. If its sandboxes run on
    another machine, `eyes` names what looks there: awaited with that folder and a file of a workspace, it says whether
    any process there holds the lock on that file; one that is not there is held by nobody.
    """

    backend: str
    scratch: pathlib.Path
    eyes: str = ""

    @property
    def runs(self) -> pathlib.Path:
        """The folder of all workspaces."""
        return self.scratch / "runs"

    def make(self) -> Backend:
        """A backend, not started. Raises InvalidValue for a name that stands for none."""
        backend: Backend = _named("backend", self.backend)(runs=self.runs)
        return backend

    @asynccontextmanager
    async def open(self) -> AsyncIterator[BackendFixture]:
        """A backend of its own, closed in the end."""
        self.runs.mkdir(exist_ok=True)
        backend = self.make()
        try:
            yield BackendFixture(self, backend, await backend.probe())
        finally:
            await backend.close()


class GuestSession:
    """One sandbox, with the guest in it."""

    def __init__(self, sandbox: Sandbox, spec: SandboxSpec, site: BackendFixture) -> None:
        self.sandbox, self.spec, self._site = sandbox, spec, site
        self._reader = frames.FrameReader()

    async def ask(self, deed: str, **given: object) -> Any:
        """What the guest answers. Raises Refused, or Ended if it ended over it."""
        return (await self.ask_with(b"", deed, **given))[0]

    async def ask_with(self, body: bytes, deed: str, **given: object) -> tuple[Any, bytes]:
        """Likewise, with bytes there and back."""
        try:
            await self._send(body, {"do": deed, "given": given, "quiet": False})
            frame = await self._receive()
        except (BrokenPipeError, ConnectionResetError):
            raise await self._end_over(deed) from None
        if frame is None:
            raise await self._end_over(deed)
        answer = json.loads(frame.control)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"], frame.body

    async def tell(self, deed: str, **given: object) -> None:
        """Have the guest do something that it does not answer."""
        await self._send(b"", {"do": deed, "given": given, "quiet": True})

    async def fails(self, deed: str, **given: object) -> str:
        """Why something fails, or "" if it does not."""
        try:
            await self.ask(deed, **given)
        except Refused as refusal:
            return str(refusal)
        return ""

    async def closed(self) -> None:
        """Wait for the channel's end. Raises Violation if it says something instead."""
        with contextlib.suppress(ConnectionResetError):
            holds(await self._receive() is None, "a channel ends when its guest does")

    async def output(self) -> tuple[bytes, bytes]:
        """All that is printed, to the end of both streams."""
        out, err = await asyncio.gather(read_all(self.sandbox.stdout), read_all(self.sandbox.stderr))
        return out, err

    async def ended(self) -> Exit:
        """Wait for its end."""
        async with patience():
            return await self.sandbox.wait()

    async def holding(self, name: str) -> bool:
        """Whether a process inside holds the lock on a file of the workspace."""
        return await self._site.is_held(self.spec.workspace / name)

    async def free(self, name: str) -> bool:
        """Whether none does."""
        return not await self.holding(name)

    async def refresh(self) -> None:
        """Have both sides see the same files, if they share no disk: where they do, they do so at any time."""
        if self._site.probe.remote:
            await self.sandbox.sync()

    async def seen(self, name: str) -> pathlib.Path:
        """A file of the workspace, as it is now."""
        await self.refresh()
        return self.spec.workspace / name

    async def _end_over(self, deed: str) -> Ended:
        """Return what to raise when the channel ended instead of an answer: with how the sandbox ended, if it did."""
        try:
            async with asyncio.timeout(_END_S):
                return Ended(f"{deed}: {await self.sandbox.wait()}")
        except TimeoutError:
            return Ended(f"{deed}: the channel ended, the sandbox did not within {_END_S:g} s")

    async def _send(self, body: bytes, told: dict[str, object]) -> None:
        async with patience():
            for piece in frames.pack(json.dumps(told).encode(), body):
                await asyncio.get_running_loop().sock_sendall(self.sandbox.channel, piece)

    async def _receive(self) -> frames.Frame | None:
        async with patience():
            while data := await asyncio.get_running_loop().sock_recv(self.sandbox.channel, 1 << 18):
                if found := self._reader.feed(data):
                    return found[0]
        return None


@dataclass(frozen=True)
class BackendFixture:
    """A backend that is open."""

    ground: Workdir
    backend: Backend
    probe: Probe
    _count: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def has_walls(self) -> bool:
        """Whether anything stands between a guest and the host."""
        return self.probe.level.rank >= Isolation.L1.rank

    @property
    def is_apart(self) -> bool:
        """Whether a guest has namespaces of its own, or more."""
        return self.probe.level.rank >= Isolation.L2.rank

    async def is_held(self, file: pathlib.Path) -> bool:
        """Whether any process holds the lock on a file of a workspace, here or on the machine of its sandbox."""
        if not self.probe.remote:
            return is_held(file)
        return bool(await _named("eyes", self.ground.eyes)(self.ground.runs, file))

    def needs_walls(self) -> None:
        """Raises NotHere where there are none."""
        if not self.has_walls:
            raise NotHere(f"{self.backend.name} offers {self.probe.level} here")

    def spec(self, *, grant: Grant = GRANT, **given: Any) -> SandboxSpec:
        """A sandbox to be started, with a new workspace unless one is given."""
        run = f"conformance-{uuid.uuid4().hex[:12]}-{next(self._count)}"
        if "workspace" not in given:
            given["workspace"] = self.workspace(run)
        return SandboxSpec(run=run, grant=grant, **{"entry": ENTRY, **given})

    def workspace(self, name: str) -> pathlib.Path:
        """A new folder, its owner's alone."""
        folder = self.ground.runs / name
        folder.mkdir(mode=0o700)
        if self.backend.owner is not None:
            os.chown(folder, *self.backend.owner)
        return folder

    @asynccontextmanager
    async def visit(self, spec: SandboxSpec | None = None, **given: Any) -> AsyncIterator[GuestSession]:
        """A sandbox with the guest in it, cleaned up in the end."""
        async with patience():
            spec = spec or self.spec(**given)
            sandbox = await self.backend.start(spec)
        try:
            yield GuestSession(sandbox, spec, self)
        finally:
            await sandbox.clean_up()

    @asynccontextmanager
    async def visit_if_granted(self, field: str, value: object, **given: Any) -> AsyncIterator[GuestSession]:
        """A sandbox with one field of its grant set; refusing that field by name is an answer, too: NotHere."""
        try:
            async with self.visit(grant=replace_grant(GRANT, **{field: value}), **given) as visit:
                yield visit
        except InvalidValue as refusal:
            holds(field in refusal.field, f"what cannot be enforced is refused by name: {field}")
            raise NotHere(f"{self.backend.name} refuses {field}") from None


def _named(field: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidValue(field, name, f"{_MAKES} ({error})") from None


Check = Callable[[BackendFixture], Awaitable[None]]


def replace_grant(grant: Grant, **changes: Any) -> Grant:
    """A grant with other values in some fields."""
    return msgspec.structs.replace(grant, **changes)


def is_held(path: pathlib.Path) -> bool:
    """Whether any process holds a lock on a file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def lives(pid: int) -> bool:
    """Whether a process of the host runs; one that only waits to be reaped does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def cgroups(pid: int) -> frozenset[pathlib.Path]:
    """The cgroups that a process of the host is in and we are not; none where nothing can be seen of it."""
    return _cgroups(pid) - _cgroups(os.getpid())


def _cgroups(pid: int) -> frozenset[pathlib.Path]:
    try:
        lines = [line.split(":", 2) for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return frozenset()
    found = set()
    for _, names, path in lines:
        for *before, kind, _, options in mounts:
            version_2 = kind == "cgroup2" and not names
            if version_2 or (kind == "cgroup" and names and set(names.split(",")) <= set(options.split(","))):
                found.add(pathlib.Path(before[4], path.lstrip("/")))
    return frozenset(found)


async def read_all(fd: int) -> bytes:
    """What comes from a descriptor, to its end."""
    loop, pieces, ready = asyncio.get_running_loop(), list[bytes](), asyncio.Event()
    os.set_blocking(fd, False)
    loop.add_reader(fd, ready.set)
    try:
        async with patience():
            while True:
                await ready.wait()
                ready.clear()
                with contextlib.suppress(BlockingIOError):
                    if not (data := os.read(fd, 1 << 18)):
                        return b"".join(pieces)
                    pieces.append(data)
    finally:
        loop.remove_reader(fd)
