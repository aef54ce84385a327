"""Waiting for what is about to be true, and looking at processes that are not our children."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import Callable


async def eventually(condition: Callable[[], object], *, within_s: float = 60) -> None:
    """Return once `condition` holds; a test that waits in vain fails after a minute, or `within_s`."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process, too
            await asyncio.sleep(0.002)


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be reaped by whoever adopted it does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    return False


def pid_in(file: pathlib.Path) -> Callable[[], int]:
    """A condition for `eventually`: the pid that a shell wrote into `file`, 0 until its line is whole."""

    def read() -> int:
        with contextlib.suppress(FileNotFoundError):
            text = file.read_text()
            if text.endswith("\n"):
                return int(text)
        return 0

    return read
