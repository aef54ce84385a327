"""The kernel that a page starts for a folder without one, because a person acts: a child process.

It is `ramet serve`, or `ramet resume` of the run that is to go on. It ends with this process, also if that is killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

from ramet.services.http.responses import Refusal

START_S: Final = 60.0
END_S: Final = 30.0
LOOK_S: Final = 0.05  #: between two looks whether a kernel is at work


class StartedKernel:
    """The process, if it was started. It ends with `stop`, and its agents are continued by the next kernel."""

    def __init__(self, folder: Path, on_start: Callable[[str], None]) -> None:
        """Set the folder, and what is told of each start."""
        self._folder, self._on_start = folder, on_start
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def serve(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Start a server, and wait until it is ready. Raises Refusal."""
        await self._start(["serve", "--dir", str(self._folder)], is_ready)

    async def resume(self, run: str, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Start a kernel that continues the tree of an interrupted run, and wait until it is ready. Raises Refusal."""
        await self._start(["resume", "--quiet", "--dir", str(self._folder), "--", run], is_ready)

    async def stop(self) -> None:
        """End the process, if there is one. Idempotent."""
        async with self._lock:
            await self._end()

    async def _start(self, words: list[str], is_ready: Callable[[], Awaitable[bool]]) -> None:
        async with self._lock:
            if await is_ready():  # Another act has started it.
                return
            await self._end()
            # No module of the current folder, which may be anyone's, is imported. Its output would not fit in here.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "ramet.web.kernel_child", *words),
                stdin=asyncio.subprocess.PIPE,  # Its end tells the kernel that this process is gone.
                stdout=asyncio.subprocess.DEVNULL,
                cwd=self._folder,
            )
            command, pid = f"ramet {words[0]}", self._process.pid
            if not await self._becomes_ready(self._process, is_ready):
                await self._end()
                detail = f"no kernel could be started in {self._folder}: see what `{command}` says there"
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, detail)
            self._on_start(f"started a kernel, since the page acts: {command} (pid {pid}); it ends with this command")

    async def _becomes_ready(
        self, process: asyncio.subprocess.Process, is_ready: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Wait until a process is ready; return False if it ends before, or takes too long."""
        end = asyncio.create_task(process.wait())
        try:
            async with asyncio.timeout(START_S):
                while not await is_ready():
                    await asyncio.wait({end}, timeout=LOOK_S)
                    if end.done():
                        return False
        except TimeoutError:
            return False
        finally:
            end.cancel()
            await asyncio.wait({end})
        return True

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
