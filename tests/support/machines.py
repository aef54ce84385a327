"""A backend whose sandboxes run on another machine: see `tests.support.machine`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, SandboxFailed
from ramet.isolation.contract import Probe, SandboxSpec
from ramet.isolation.remote.host_agent import NodeClient, OnThreshold
from ramet.isolation.remote.sandbox import RemoteSandbox
from ramet.testing.conformance.isolation.harness import is_locked
from tests.support.stream_line import open_pipe_line
from tests.support.users import own_user

PROJECT = Path(__file__).parents[2]


class MachineBackend:
    """A backend with one machine for all its sandboxes, which the first request starts."""

    name = "machine"
    owner = None

    def __init__(self, runs: Path, on_threshold: OnThreshold | None = None) -> None:
        self._runs, self._on_threshold = runs, on_threshold
        self._starting: asyncio.Task[tuple[subprocess.Popen[bytes], NodeClient]] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def machine(self) -> NodeClient:
        """Start the machine if needed; return its client."""
        if self._closing is not None:
            raise SandboxFailed("the backend is closed")
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        _, machine = await asyncio.shield(self._starting)
        return machine

    async def process(self) -> subprocess.Popen[bytes]:
        """Return the process of the machine."""
        await self.machine()
        assert self._starting is not None, "as above"
        return self._starting.result()[0]

    async def probe(self) -> Probe:
        """Return what the machine reports of itself."""
        hello = await (await self.machine()).hello()
        return Probe(hello.level, hello.mechanisms, hello.missing, hello.remedy, remote=True)

    async def start(self, spec: SandboxSpec) -> RemoteSandbox:
        """Start a sandbox on the machine."""
        return await (await self.machine()).start(spec)

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> RemoteSandbox:
        """Adopt nothing: sandboxes end with their line. Raises Gone."""
        raise Gone(f"run {spec.run} ended with its line")

    async def reap(self) -> Sequence[str]:
        """Reap nothing: a machine ends with its line."""
        return ()

    async def close(self) -> None:
        """End the machine."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._starting is None:
            return
        process, machine = await self._starting
        await machine.close()
        await in_thread(process.wait, name="wait-machine")
        (_folder(self._runs) / str(process.pid)).unlink()

    async def _start(self) -> tuple[subprocess.Popen[bytes], NodeClient]:
        process = _start_program(self._runs)
        assert process.stdin is not None, "asked for"
        assert process.stdout is not None, "likewise"
        line = await open_pipe_line(process.stdout, process.stdin)
        return process, NodeClient(line, on_threshold=self._on_threshold)


def _start_program(runs: Path) -> subprocess.Popen[bytes]:
    arguments = [str(runs.parent), str(runs), str(own_user())]
    program = [sys.executable, "-m", "tests.support.machine", *arguments]
    process = subprocess.Popen(program, cwd=PROJECT, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    folder = _folder(runs)
    folder.mkdir(exist_ok=True)
    (folder / str(process.pid)).touch()
    return process


async def eyes(runs: Path, file: Path) -> bool:
    """Return whether a process of one of these machines holds the lock on a file there."""
    for each in _folder(runs).iterdir():
        try:
            if is_locked(Path(f"/proc/{each.name}/root{file}")):
                return True
        except FileNotFoundError:
            continue
    return False


def _folder(runs: Path) -> Path:
    return runs.with_name("machines")
