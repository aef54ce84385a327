"""The process of a folder's kernel, held open to wait for its end: its pid may be reused a moment later."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ramet.host.control.run_queries import NoJournal, journal_in, kernel_of
from ramet.host.control.socket import ControlledTrees, NoKernel, send_request

#: A kernel that still answers this long after a stop request continues with other work.
EXIT_TIMEOUT_S = 3.0
#: How long to wait for the end of a kernel that does not answer any more.
SILENT_EXIT_TIMEOUT_S = 60.0


class KernelProcess:
    """A process by its descriptor, or none, which counts as never ending."""

    def __init__(self, folder: Path, descriptor: int | None) -> None:
        self._folder, self._descriptor = folder, descriptor

    async def has_ended(self) -> bool:
        """Wait until the process has ended; return False if the kernel answers after EXIT_TIMEOUT_S, or is unknown."""
        if await self._ended_within(EXIT_TIMEOUT_S):
            return True
        with contextlib.suppress(NoKernel):
            await send_request(self._folder, ControlledTrees(), patience_s=EXIT_TIMEOUT_S)
            return False
        return await self._ended_within(SILENT_EXIT_TIMEOUT_S)

    async def _ended_within(self, seconds: float) -> bool:
        if self._descriptor is None:
            return False
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, ended.set)  # The descriptor is readable once the process has ended.
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        return True


@contextlib.contextmanager
def kernel_process(folder: Path) -> Iterator[KernelProcess]:
    """Hold the process of a folder's kernel open."""
    descriptor = None
    with contextlib.suppress(NoJournal, OSError, ValueError, AttributeError):  # No Linux, no kernel, or no pid of it.
        pid = kernel_of(journal_in(folder))
        if pid is not None:
            descriptor = os.pidfd_open(int(pid))
    try:
        yield KernelProcess(folder, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
