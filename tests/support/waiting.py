"""Waiting for what is about to be true, and looking at processes that are not our children."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import Callable

_PAUSE_S = 0.002  #: between two looks
_SHARE = 4  #: so many times what a look took is waited until the next one,
_LONGEST_S = 0.1  #: and at most this


async def eventually(condition: Callable[[], object], *, within_s: float = 180) -> None:
    """Return once `condition` holds; a test that waits in vain fails after a minute, or `within_s`.

    A look that costs much, as one at all processes of the machine does, is taken less often: what is waited for needs
    the processor as well.
    """
    async with asyncio.timeout(within_s):
        began = time.thread_time()
        while not condition():
            await asyncio.sleep(min(max(_PAUSE_S, _SHARE * (time.thread_time() - began)), _LONGEST_S))
            began = time.thread_time()


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
