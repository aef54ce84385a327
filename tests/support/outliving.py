"""A backend whose machine outlives its kernel: the next kernel of the same folder adopts the sandboxes there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramet.core.errors import Gone
from ramet.isolation.contract import Probe, SandboxSpec
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.remote.sandbox import RemoteSandbox
from tests.support.stream_line import StreamLine
from tests.support.users import own_user

PROJECT = Path(__file__).parents[2]


class OutlivingBackend:
    """A backend with one machine for all kernels of a folder, one after the other. The last kernel calls `end`."""

    name = "outliving"
    owner = None

    def __init__(self, runs: Path) -> None:
        self._runs, self._path = runs, runs.with_name("machine.sock")
        self._machine: asyncio.Task[NodeClient] | None = None
        self.process: subprocess.Popen[bytes] | None = None  #: of the machine, if this began it

    async def machine(self) -> NodeClient:
        """Start or reach the machine; return its client."""
        if self._machine is None:
            self._machine = asyncio.create_task(self._connect_or_begin())
        return await asyncio.shield(self._machine)

    async def probe(self) -> Probe:
        """Return what the machine reports of itself."""
        hello = await (await self.machine()).hello()
        return Probe(hello.level, hello.mechanisms, hello.missing, hello.remedy, remote=True)

    async def start(self, spec: SandboxSpec) -> OutlivingSandbox:
        """Start a sandbox on the machine."""
        return self._describable(await (await self.machine()).start(spec))

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> OutlivingSandbox:
        """Adopt a sandbox that an earlier kernel of this folder started on the machine. Raises Gone."""
        try:
            return self._describable(await (await self.machine()).adopt(description["number"], spec))
        except OSError as problem:
            raise Gone(str(problem)) from problem

    def _describable(self, sandbox: RemoteSandbox) -> OutlivingSandbox:
        return OutlivingSandbox(sandbox, {"machine": self._path.stat().st_ino, "number": sandbox.number})

    async def reap(self) -> Sequence[str]:
        """Reap nothing: the machine ends by itself."""
        return ()

    async def close(self) -> None:
        """End the machine if this backend has reached it."""
        if self._machine is not None:
            machine, self._machine = await self._machine, None
            await machine.close()

    async def end(self) -> None:
        """End the machine of an earlier kernel, if it is there."""
        with contextlib.suppress(OSError):
            await (await self._dial()).close()

    async def _connect_or_begin(self) -> NodeClient:
        try:
            return await self._dial()
        except OSError:
            await asyncio.to_thread(self._begin)
            return await self._dial()

    async def _dial(self) -> NodeClient:
        return NodeClient(StreamLine(*await asyncio.open_unix_connection(self._path)))

    def _begin(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._path))
            listener.listen()
            arguments = [str(self._runs.parent), str(self._runs), str(own_user()), str(listener.fileno())]
            program = [sys.executable, "-m", "tests.support.machine", *arguments]
            self.process = subprocess.Popen(
                program,
                cwd=PROJECT,
                pass_fds=(listener.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )


class OutlivingSandbox:
    """A sandbox on the machine, with a description for adoption."""

    def __init__(self, inner: RemoteSandbox, described: Mapping[str, Any]) -> None:
        self._inner, self._described = inner, described

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def describe(self) -> Mapping[str, Any]:
        """Return the machine, and the number of the sandbox there."""
        return self._described
