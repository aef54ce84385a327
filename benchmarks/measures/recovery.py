"""A kernel that was killed with many open runs: the time from its journal to runs that can continue."""

from __future__ import annotations

import asyncio
import math
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.cost import Cost, Figures
from ramet import Agent, AgentRuntime
from ramet.core.events import (
    Event,
    MessageRecorded,
    RunSpawned,
    StateChanged,
    ToolEnded,
    ToolStarted,
    TurnStarted,
    encode,
)
from ramet.core.outcome import Usage
from ramet.store.contract import Entry
from ramet.store.sqlite.store import SqliteStore

TEXT = "What was found in the file, in a sentence of about a hundred characters, as tools return them. " * 2

#: What is true for a whole tree.
ABOUT = (
    b'{"number":"0","cwd":null,"spawn_limits":{"depth":3,"children":64,"runs":256,"running":16,"when_full":"queue"},'
    b'"session":null,"unattended":false,"omitted_type":"fork","children":null}'
)


async def measure(runs: int = 1_000, events: int = 200) -> Figures:
    """Return the seconds in which `resume` resumes `runs` idle trees of one run with `events` events each."""
    with tempfile.TemporaryDirectory(prefix="ramet-bench-") as folder:
        path = pathlib.Path(folder) / "journal.db"
        await write(path, runs, events)
        async with AgentRuntime(store=SqliteStore(path)) as runtime:
            with Cost() as cost:
                handles = await runtime.resume(agents=[Agent(name="worker", model="offline")])
            assert len(handles) == runs, len(handles)
            assert handles[0].run.context.steps == _calls(events)
            assert events > 1_000 or len(handles[0].run.context.history) > events // 4  # Makes each message an object.
    return {"recovery_s": cost.wall_s, "recovery_cpu_s": cost.cpu_s, "event_us": cost.cpu_s / (runs * events) * 1e6}


async def write(path: pathlib.Path, runs: int, events: int) -> None:
    """Write a journal of idle trees of one run each."""
    store, about = await SqliteStore(path).open(), list[asyncio.Future[object]]()
    for number in range(runs):
        root = f"run-{number:016x}"
        for seq, line in enumerate(lines(root, events), 1):
            ticket = store.append(Entry(root, root, seq, line[0], line[1]))
            if seq % 10_000 == 0:
                await store.durable(ticket)
        about.append(asyncio.ensure_future(store.put("tree", root, ABOUT)))
        await asyncio.sleep(0)
    await asyncio.gather(*about)
    await store.close()


def lines(root: str, events: int) -> Iterator[tuple[str, bytes]]:
    """Yield at least `events` events of an idle tree of one run, with their types."""
    for each in _events(root, _calls(events)):
        yield str(type(each).__struct_config__.tag), encode(each)


def _calls(events: int) -> int:
    """Return the number of calls of tools in so many events: four for each call, and three more."""
    return math.ceil((events - 3) / 4)


def _events(root: str, calls: int) -> Iterator[Event]:
    stamp: dict[str, Any] = {"root": root, "run": root, "path": "main", "agent": "worker"}
    worker = {"name": "worker", "model": "offline"}
    birth: dict[str, Any] = {"agent": worker, "brief": "", "cwd": "/", "persistent": True, "limits": {}}
    yield RunSpawned(**stamp, name="main", birth=birth)
    yield TurnStarted(**stamp, turn=1)
    usage = Usage(model_calls=1, input_tokens=100, output_tokens=10)
    for step in range(1, calls + 1):
        call, step_id = f"call-{step}", f"{root}:{step}"
        reply = {
            "type": "ai",
            "content": "Reading.",
            "tool_calls": [{"name": "Read", "args": {"file_path": "a.txt"}, "id": call}],
        }
        answer = {"type": "tool", "content": TEXT, "tool_call_id": call}
        yield MessageRecorded(**stamp, message=reply, step_id=step_id, usage=usage)
        yield ToolStarted(**stamp, tool="Read", step_id=step_id, call_id=call)
        yield ToolEnded(**stamp, tool="Read", status="ok", preview=TEXT, call_id=call)
        yield MessageRecorded(**stamp, message=answer, call_id=call)
    yield StateChanged(**stamp, state="idle")


if __name__ == "__main__":
    began = time.perf_counter()
    print(asyncio.run(measure()), time.perf_counter() - began)
