"""The environment of a backend check: a folder, sandboxes with the suite's guest, and a test for remains."""

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
from ramet.testing.conformance.checks import NotHere, Violation, expect
from ramet.wire import frames

ENTRY = "ramet.testing.conformance.isolation.guest:main"
#: A variable in the environment of the suite's process, and never in a sandbox.
CANARY = "RAMET_CONFORMANCE_CANARY"
PATIENCE_S = 60.0  #: the time limit for any event that must happen; only a failing backend needs all of it
#: From the end of a channel to that of its sandbox, before the check reports that only the channel ended.
_END_TIMEOUT_S = 10.0
#: The grant of a sandbox where a check is not about a limit.
GRANT = Grant(memory_mb=128, pids=32, tmpfs_size_mb=16, workspace_size_mb=32)
_BACKEND_FORM = "a module and the callable in it that creates a backend, as in 'package.module:Backend'"


class Refused(Exception):
    """A refused attempt of the guest: the name of an errno, or of an exception."""


class Ended(Exception):
    """The end of the guest instead of an answer."""


def time_limit() -> asyncio.Timeout:
    """Return the time limit for any single event."""
    return asyncio.timeout(PATIENCE_S)


async def eventually(
    condition: Callable[[], object | Awaitable[object]], promise: str, details: Callable[[], object] = str
) -> None:
    """Wait until the condition, or its awaited value, holds.

    Raises Violation, with the promise and the result of `details`.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                result = condition()
                if await result if isinstance(result, Awaitable) else result:
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise Violation(f"{promise}{details()}") from None


@dataclass(frozen=True)
class Workdir:
    """The checked backend, and its folder.

    `scratch` is an empty folder, `backend` has the form "package.module:Backend".

    The object that `backend` names is called with `runs=`, the parent folder of all workspaces. If its sandboxes run on
    another machine, `lock_probe` names an async function for that machine. It receives that folder and a file of a
    workspace, and returns whether any process there holds the lock on that file; a missing file is held by none.
    """

    backend: str
    scratch: pathlib.Path
    lock_probe: str = ""

    @property
    def runs(self) -> pathlib.Path:
        """The folder of all workspaces."""
        return self.scratch / "runs"

    def make(self) -> Backend:
        """Return a backend that is not started. Raises InvalidValue if the name does not exist."""
        backend: Backend = _import("backend", self.backend)(runs=self.runs)
        return backend

    @asynccontextmanager
    async def open(self) -> AsyncIterator[BackendFixture]:
        """Open a new backend, and close it afterwards."""
        self.runs.mkdir(exist_ok=True)
        backend = self.make()
        try:
            yield BackendFixture(self, backend, await backend.probe())
        finally:
            await backend.close()


class GuestSession:
    """A sandbox with the guest in it."""

    def __init__(self, sandbox: Sandbox, spec: SandboxSpec, fixture: BackendFixture) -> None:
        self.sandbox, self.spec, self._fixture = sandbox, spec, fixture
        self._reader = frames.FrameReader()

    async def ask(self, request: str, **arguments: object) -> Any:
        """Return the guest's answer. Raises Refused, or Ended if the guest ended before the answer."""
        return (await self.ask_with(b"", request, **arguments))[0]

    async def ask_with(self, body: bytes, request: str, **arguments: object) -> tuple[Any, bytes]:
        """Return the guest's answer, with bytes in both directions. Raises the same as `ask`."""
        try:
            await self._send(body, {"do": request, "given": arguments, "quiet": False})
            frame = await self._receive()
        except (BrokenPipeError, ConnectionResetError):
            raise await self._ended_instead(request) from None
        if frame is None:
            raise await self._ended_instead(request)
        answer = json.loads(frame.control)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"], frame.body

    async def send(self, request: str, **arguments: object) -> None:
        """Send the guest a request without an answer."""
        await self._send(b"", {"do": request, "given": arguments, "quiet": True})

    async def failure_of(self, request: str, **arguments: object) -> str:
        """Return the reason why a request fails, or "" if it succeeds."""
        try:
            await self.ask(request, **arguments)
        except Refused as refusal:
            return str(refusal)
        return ""

    async def wait_closed(self) -> None:
        """Wait for the channel's end. Raises Violation if a message arrives instead."""
        with contextlib.suppress(ConnectionResetError):
            expect(await self._receive() is None, "a channel ends when its guest ends")

    async def output(self) -> tuple[bytes, bytes]:
        """Return all output, to the end of both streams."""
        out, err = await asyncio.gather(read_all(self.sandbox.stdout), read_all(self.sandbox.stderr))
        return out, err

    async def wait_ended(self) -> Exit:
        """Wait for the end of the sandbox."""
        async with time_limit():
            return await self.sandbox.wait()

    async def is_locked(self, name: str) -> bool:
        """Return whether a process inside holds the lock on a file of the workspace."""
        return await self._fixture.is_locked(self.spec.workspace / name)

    async def is_unlocked(self, name: str) -> bool:
        """Return whether no process holds the lock."""
        return not await self.is_locked(name)

    async def sync(self) -> None:
        """Make both sides see the same files, if they share no disk; otherwise they always do."""
        if self._fixture.probe.remote:
            await self.sandbox.sync()

    async def synced_path(self, name: str) -> pathlib.Path:
        """Return a file of the workspace in its current state."""
        await self.sync()
        return self.spec.workspace / name

    async def _ended_instead(self, request: str) -> Ended:
        """Return the error for a channel that ended instead of an answer, with the sandbox's end, if it has ended."""
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                return Ended(f"{request}: {await self.sandbox.wait()}")
        except TimeoutError:
            return Ended(f"{request}: the channel ended, the sandbox did not within {_END_TIMEOUT_S:g} s")

    async def _send(self, body: bytes, request: dict[str, object]) -> None:
        async with time_limit():
            for piece in frames.pack(json.dumps(request).encode(), body):
                await asyncio.get_running_loop().sock_sendall(self.sandbox.channel, piece)

    async def _receive(self) -> frames.Frame | None:
        async with time_limit():
            while data := await asyncio.get_running_loop().sock_recv(self.sandbox.channel, 1 << 18):
                if frames_received := self._reader.feed(data):
                    return frames_received[0]
        return None


@dataclass(frozen=True)
class BackendFixture:
    """An open backend."""

    workdir: Workdir
    backend: Backend
    probe: Probe
    _count: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def is_confined(self) -> bool:
        """Return whether any confinement separates a guest from the host."""
        return self.probe.level.rank >= Isolation.L1.rank

    @property
    def has_namespaces(self) -> bool:
        """Return whether a guest has namespaces of its own, or more."""
        return self.probe.level.rank >= Isolation.L2.rank

    async def is_locked(self, file: pathlib.Path) -> bool:
        """Return whether any process holds the lock on a file of a workspace, here or on the sandbox's machine."""
        if not self.probe.remote:
            return is_locked(file)
        return bool(await _import("eyes", self.workdir.lock_probe)(self.workdir.runs, file))

    def require_confinement(self) -> None:
        """Raise NotHere if no confinement separates a guest from the host."""
        if not self.is_confined:
            raise NotHere(f"{self.backend.name} offers {self.probe.level} here")

    def spec(self, *, grant: Grant = GRANT, **fields: Any) -> SandboxSpec:
        """Return the spec of a sandbox to start, with a new workspace unless one is given."""
        run = f"conformance-{uuid.uuid4().hex[:12]}-{next(self._count)}"
        if "workspace" not in fields:
            fields["workspace"] = self.workspace(run)
        return SandboxSpec(run=run, grant=grant, **{"entry": ENTRY, **fields})

    def workspace(self, name: str) -> pathlib.Path:
        """Create a new folder that only the backend's owner may enter."""
        folder = self.workdir.runs / name
        folder.mkdir(mode=0o700)
        if self.backend.owner is not None:
            os.chown(folder, *self.backend.owner)
        return folder

    @asynccontextmanager
    async def start_guest(self, spec: SandboxSpec | None = None, **fields: Any) -> AsyncIterator[GuestSession]:
        """Start a sandbox with the guest in it, and clean it up afterwards."""
        async with time_limit():
            spec = spec or self.spec(**fields)
            sandbox = await self.backend.start(spec)
        try:
            yield GuestSession(sandbox, spec, self)
        finally:
            await sandbox.clean_up()

    @asynccontextmanager
    async def start_guest_if_granted(self, field: str, value: object, **fields: Any) -> AsyncIterator[GuestSession]:
        """Start a sandbox with one field of its grant set. Raises NotHere if the backend refuses that field by name."""
        try:
            async with self.start_guest(grant=replace_grant(GRANT, **{field: value}), **fields) as guest:
                yield guest
        except InvalidValue as refusal:
            expect(field in refusal.field, f"a limit that cannot be enforced is refused by its name: {field}")
            raise NotHere(f"{self.backend.name} refuses {field}") from None


def _import(field: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidValue(field, name, f"{_BACKEND_FORM} ({error})") from None


Check = Callable[[BackendFixture], Awaitable[None]]


def replace_grant(grant: Grant, **changes: Any) -> Grant:
    """Return a grant with other values in some fields."""
    return msgspec.structs.replace(grant, **changes)


def is_locked(path: pathlib.Path) -> bool:
    """Return whether any process holds a lock on a file."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_running(pid: int) -> bool:
    """Return whether a process of the host runs; a process that only waits to be reaped does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def cgroups(pid: int) -> frozenset[pathlib.Path]:
    """Return the cgroups of a process of the host that are not ours; none where they are not visible."""
    return _cgroups(pid) - _cgroups(os.getpid())


def _cgroups(pid: int) -> frozenset[pathlib.Path]:
    try:
        lines = [line.split(":", 2) for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return frozenset()
    groups = set()
    for _, names, path in lines:
        for *leading, kind, _, options in mounts:
            version_2 = kind == "cgroup2" and not names
            if version_2 or (kind == "cgroup" and names and set(names.split(",")) <= set(options.split(","))):
                groups.add(pathlib.Path(leading[4], path.lstrip("/")))
    return frozenset(groups)


async def read_all(fd: int) -> bytes:
    """Return the bytes from a descriptor, to its end."""
    loop, pieces, ready = asyncio.get_running_loop(), list[bytes](), asyncio.Event()
    os.set_blocking(fd, False)
    loop.add_reader(fd, ready.set)
    try:
        async with time_limit():
            while True:
                await ready.wait()
                ready.clear()
                with contextlib.suppress(BlockingIOError):
                    if not (data := os.read(fd, 1 << 18)):
                        return b"".join(pieces)
                    pieces.append(data)
    finally:
        loop.remove_reader(fd)
