"""Waiting for conditions that become true, and a look at processes that are not children of this one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pathlib
import time
from collections.abc import Callable

_PAUSE_S = 0.002  #: between two looks
_SHARE = 4  #: so many times what a look took is waited until the next one,
_LONGEST_S = 0.1  #: and at most this


async def eventually(condition: Callable[[], object], *, within_s: float = 180) -> None:
    """Return once `condition` holds; a test that waits in vain fails after three minutes, or `within_s`.

    A costly condition, such as one about all processes of the machine, is evaluated less often: the awaited work needs
    the processor as well. The condition may be asynchronous, such as a question to a server.
    """
    async with asyncio.timeout(within_s):
        began = time.thread_time()
        while not (await found if inspect.isawaitable(found := condition()) else found):
            await asyncio.sleep(min(max(_PAUSE_S, _SHARE * (time.thread_time() - began)), _LONGEST_S))
            began = time.thread_time()


def alive(pid: int) -> bool:
    """Return whether a process still runs; a process that only waits to be reaped does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    return False


def pid_in(file: pathlib.Path) -> Callable[[], int]:
    """Return a condition for `eventually`: the pid that a shell wrote into `file`, 0 until its line is whole."""

    def read() -> int:
        with contextlib.suppress(FileNotFoundError):
            text = file.read_text()
            if text.endswith("\n"):
                return int(text)
        return 0

    return read
