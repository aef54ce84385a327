"""Three kernels on one PostgreSQL. The one with the trees is killed: the time until the others have taken over."""

from __future__ import annotations

import asyncio
import sys
import time

import psycopg

from benchmarks.cost import Figures
from benchmarks.machine import ROOT
from benchmarks.measures.recovery import ABOUT, lines
from ramet import Agent, AgentRuntime
from ramet.store.contract import Entry
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server

EVENTS = 40  #: of each tree: a conversation of nine tool calls
_CALL = "import asyncio, sys; from {module} import {role}; asyncio.run({role}(*sys.argv[1:]))"


async def measure(trees: int = 200) -> Figures:
    """Return the seconds from SIGKILL to the first and to the last tree that two other kernels have resumed."""
    return await measured("benchmarks.measures.takeover", trees)


async def measured(module: str, trees: int) -> Figures:
    """Measure a takeover of what a module's `hold` has by its `adopt`, each in its own process."""
    server = Server()
    kernels: list[asyncio.subprocess.Process] = []
    try:
        holder = await _start(module, "hold", server.dsn, str(trees))
        kernels.append(holder)
        await _read_line(holder)
        others = [await _start(module, "adopt", server.dsn, name) for name in ("two", "three")]
        kernels += others
        for each in others:
            await _read_line(each)
        await _wait_until_all_watch(server.dsn, 1 + len(others))
        taken: list[float] = []
        hearing = [asyncio.ensure_future(_collect_times(each, taken)) for each in others]
        began = time.monotonic()
        holder.kill()
        while len(taken) < trees:  # noqa: ASYNC110 - two processes say it
            await asyncio.sleep(0.01)
        for task in hearing:
            task.cancel()
        await asyncio.wait(hearing)
        return {"takeover_s": max(taken) - began, "heard_s": min(taken) - began}
    finally:
        for process in kernels:
            if process.returncode is None:
                process.kill()
            await process.wait()
        server.stop()


async def hold(dsn: str, trees: str) -> None:
    """Hold so many idle trees until this process is killed."""
    store = await PostgresStore(dsn, kernel="one").open()
    for number in range(int(trees)):
        root = f"run-{number:016x}"
        for seq, line in enumerate(lines(root, EVENTS), 1):
            store.append(Entry(root, root, seq, line[0], line[1]))
        await store.put("tree", root, ABOUT, tree=root)
    say("ready")
    await asyncio.Event().wait()


async def adopt(dsn: str, name: str) -> None:
    """Take over trees of dead kernels until this process is killed, and print each time."""
    async with AgentRuntime(store=PostgresStore(dsn, kernel=name)) as runtime:
        await runtime.adopt(lambda _: say(time.monotonic()), agents=[Agent(name="worker", model="offline")])
        say("ready")
        await asyncio.Event().wait()


async def _wait_until_all_watch(dsn: str, kernels: int) -> None:
    """Wait until each kernel waits for the lock of another, so that their start disturbs no measurement."""
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute(query).fetchone() != (kernels,):  # noqa: ASYNC110 - it is another server's state
            await asyncio.sleep(0.01)


async def _start(module: str, role: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CALL.format(module=module, role=role),
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


async def _read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def _collect_times(process: asyncio.subprocess.Process, taken: list[float]) -> None:
    while line := await _read_line(process):
        taken.append(float(line))


def say(value: object) -> None:
    """Print a line for the process that measures."""
    print(value, flush=True)


if __name__ == "__main__":
    print(asyncio.run(measure()))
