"""Time in which a killed kernel's 50 agents end, which ignore SIGTERM and leave their sessions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cost import Figures
from benchmarks.machine import ROOT

KERNEL = """
import asyncio
from benchmarks.agents import hostile
from ramet import AgentRuntime, Policy

async def main():
    async with AgentRuntime(backend=%r) as runtime:
        here = 0
        def hear(text):
            nonlocal here
            here += text.count("here")
        for _ in range(50):
            await runtime.start_agent(hostile, Policy(memory_mb=64, pids=8), on_stdout=hear)
        while here < 50:
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def measure(backend: str = "bwrap") -> Figures:
    """Return the milliseconds until no process of the kernel is left."""
    kernel = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs here
        [sys.executable, "-c", KERNEL % backend], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert kernel.stdout is not None
    line = await asyncio.to_thread(kernel.stdout.readline)
    assert line == b"ready\n", line
    doomed = _descendants_of(kernel.pid)
    os.kill(kernel.pid, signal.SIGKILL)
    began = time.perf_counter()
    while any(_is_alive(pid) for pid in doomed):  # noqa: ASYNC110 - they are processes
        await asyncio.sleep(0.002)
    took = time.perf_counter() - began
    kernel.wait()
    kernel.stdout.close()
    return {"until_gone_ms": took * 1e3, "processes": len(doomed)}


def _descendants_of(pid: int) -> list[int]:
    """Return every process below one."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                parents[int(each.name)] = int(each.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, pending = [], [pid]
    while pending:
        above = pending.pop()
        below = [child for child, parent in parents.items() if parent == above]
        found += below
        pending += below
    return found


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
