"""`ramet serve` as its own process."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

ROOT = pathlib.Path(__file__).parents[2]
ECHO = "[ramet.agent_types]\necho = tests.support.echo_agents:EchoType\n"


def plugin(folder: pathlib.Path, points: str = ECHO) -> pathlib.Path:
    """Install a package as far as entry points need it. Without `points` it brings the agent type `echo`."""
    info = folder / "plugin" / "echoes-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echoes\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points)
    return info.parent


class Process:
    """A server process, and its first line of output."""

    def __init__(self, process: asyncio.subprocess.Process, line: str) -> None:
        self.process, self.line = process, line

    async def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal, and return the exit status and all of stderr."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        stderr = (await self.process.stderr.read()).decode()
        return await self.process.wait(), stderr


@asynccontextmanager
async def serve(
    folder: pathlib.Path, *options: str, descriptors: str = "", module: str = "ramet", **env: str
) -> AsyncIterator[Process]:
    """Run `ramet serve` in a folder; yield it once it listens. `descriptors` limits its open files."""
    limited = () if not descriptors else ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")
    path = os.pathsep.join([str(folder / "plugin"), str(ROOT)])
    process = await asyncio.create_subprocess_exec(
        *limited, sys.executable, "-m", module, "serve", "--dir", str(folder), *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path, **env},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield Process(process, (await process.stdout.readline()).decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
