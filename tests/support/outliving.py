"""A backend whose machine outlives the kernel that started it: the next one of the same folder goes on with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
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
from ramet.isolation.remote.stream_line import StreamLine

PROJECT = Path(__file__).parents[2]


class OutlivingBackend:
    """One machine for all kernels of a folder of runs, one after the other. The last of them says `end`."""

    name = "outliving"
    owner = None

    def __init__(self, runs: Path) -> None:
        self._runs, self._path = runs, runs.with_name("machine.sock")
        self._machine: asyncio.Task[NodeClient] | None = None
        self.process: subprocess.Popen[bytes] | None = None  #: of the machine, if this began it

    async def machine(self) -> NodeClient:
        """The machine, reached."""
        if self._machine is None:
            self._machine = asyncio.create_task(self._reached())
        return await asyncio.shield(self._machine)

    async def probe(self) -> Probe:
        """What it said."""
        hello = await (await self.machine()).hello()
        return Probe(hello.level, hello.mechanisms, hello.missing, hello.remedy, remote=True)

    async def start(self, spec: SandboxSpec) -> OutlivingSandbox:
        """There."""
        return self._known(await (await self.machine()).start(spec))

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> OutlivingSandbox:
        """What an earlier kernel of this folder had started there."""
        try:
            return self._known(await (await self.machine()).adopt(description["number"], spec))
        except OSError as problem:
            raise Gone(str(problem)) from problem

    def _known(self, box: RemoteSandbox) -> OutlivingSandbox:
        return OutlivingSandbox(box, {"machine": self._path.stat().st_ino, "number": box.number})

    async def reap(self) -> Sequence[str]:
        """It ends by itself."""
        return ()

    async def close(self) -> None:
        """End it."""
        if self._machine is not None:
            machine, self._machine = await self._machine, None
            await machine.close()

    async def end(self) -> None:
        """End what an earlier kernel has left, if it is there."""
        with contextlib.suppress(OSError):
            await (await self._dialled()).close()

    async def _reached(self) -> NodeClient:
        try:
            return await self._dialled()
        except OSError:
            await asyncio.to_thread(self._begin)
            return await self._dialled()

    async def _dialled(self) -> NodeClient:
        return NodeClient(StreamLine(*await asyncio.open_unix_connection(self._path)))

    def _begin(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._path))
            listener.listen()
            uid = 61600 + os.getpid() % 300
            arguments = [str(self._runs.parent), str(self._runs), str(uid), str(listener.fileno())]
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
    """A sandbox there, that says where it is."""

    def __init__(self, inner: RemoteSandbox, described: Mapping[str, Any]) -> None:
        self._inner, self._described = inner, described

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def describe(self) -> Mapping[str, Any]:
        """Its machine, and its number there."""
        return self._described
