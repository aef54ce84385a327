"""Three kernels on one PostgreSQL, of which the one with the trees is killed: until the others have taken up all."""

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
    """Seconds from SIGKILL to the first tree, and to the last, that two other kernels have set to work."""
    return await measured("benchmarks.measures.takeover", trees)


async def measured(module: str, trees: int) -> Figures:
    """The same, of whatever a module's `hold` has and its `adopt` goes on with, each in a process of its own."""
    server = Server()
    kernels: list[asyncio.subprocess.Process] = []
    try:
        holder = await _start(module, "hold", server.dsn, str(trees))
        kernels.append(holder)
        await _said(holder)
        others = [await _start(module, "adopt", server.dsn, name) for name in ("two", "three")]
        kernels += others
        for each in others:
            await _said(each)
        await _all_watch(server.dsn, 1 + len(others))
        taken: list[float] = []
        hearing = [asyncio.ensure_future(_hear(each, taken)) for each in others]
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
    """Have so many trees at rest, until killed."""
    store = await PostgresStore(dsn, kernel="one").open()
    for number in range(int(trees)):
        root = f"run-{number:016x}"
        for seq, line in enumerate(lines(root, EVENTS), 1):
            store.append(Entry(root, root, seq, line[0], line[1]))
        await store.put("tree", root, ABOUT, tree=root)
    say("ready")
    await asyncio.Event().wait()


async def adopt(dsn: str, name: str) -> None:
    """Adopt what falls, until killed, and say when."""
    async with AgentRuntime(store=PostgresStore(dsn, kernel=name)) as runtime:
        await runtime.adopt(lambda _: say(time.monotonic()), agents=[Agent(name="worker", model="offline")])
        say("ready")
        await asyncio.Event().wait()


async def _all_watch(dsn: str, kernels: int) -> None:
    """Wait until each of them waits for the lock of another: what follows is not the noise of their beginning."""
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


async def _said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def _hear(process: asyncio.subprocess.Process, taken: list[float]) -> None:
    while said := await _said(process):
        taken.append(float(said))


def say(what: object) -> None:
    """Tell the process that measures."""
    print(what, flush=True)


if __name__ == "__main__":
    print(asyncio.run(measure()))
