"""Processes that a test started and that are still there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
from typing import Final, NamedTuple

#: Pauses in seconds, five in all, in which processes that were killed already end.
PAUSES_S = (0.01, 0.02, 0.05, 0.1, *[0.2] * 24)
#: Helpers that Python's own multiprocessing starts for the whole life of a process.
_PYTHON_HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


class Process(NamedTuple):
    """A process, by its id and the time of its start: ids are used again."""

    pid: int
    start: str


def descendants() -> set[Process]:
    """Return the living processes below this one; none where there is no /proc."""
    found: set[Process] = set()
    pids = _children(os.getpid())
    while pids:
        pid = pids.pop()
        if (process := _living(pid)) is not None:
            found.add(process)
            pids += _children(pid)
    return found


async def new_descendants(before: set[Process]) -> list[str]:
    """Return the processes below this one that were not there before, once they had time to end."""
    left = _new(before)
    for pause_s in PAUSES_S:
        if not left:
            break
        await asyncio.sleep(pause_s)
        left = _new(before)
    return left


def _new(before: set[Process]) -> list[str]:
    commands = {process.pid: _command(process.pid) for process in descendants() - before}
    return [
        f"process {pid}: {command}"
        for pid, command in sorted(commands.items())
        if not any(helper in command for helper in _PYTHON_HELPERS)
    ]


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, file.read_text().split())
    return pids


def _living(pid: int) -> Process | None:
    """Return a process that is there and runs: neither gone, nor waiting to be reaped."""
    with contextlib.suppress(OSError, IndexError):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return Process(pid, fields[19]) if fields[0] not in ("Z", "X") else None
    return None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        argv = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(argv).decode(errors="replace").strip()[:200]
    return ""
