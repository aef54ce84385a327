"""Calls to MCP servers that a killed kernel interrupted: which begin again, and how often."""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
from collections import Counter

import ramet
from ramet.agent.history.pairing import INTERRUPTED
from ramet.core.outcome import Status
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.programs.repeating_kernel import agents

backend = usual_backend
ROOT = pathlib.Path(__file__).parents[3]


def calls_in(folder: pathlib.Path) -> Counter[str]:
    """Return how often each call reached a server of an agent."""
    counts = Counter[str]()
    for file in folder.rglob("calls"):
        counts |= Counter(file.read_text().splitlines())  # A file that a run left is there twice.
    return counts


async def test_repeatable_calls_begin_again_after_each_kill_of_their_kernel(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """The entry of a server decides; an answer on record, or a call that has not begun, is not repeated.

    Hooks see the arguments of the model again, and a call that begins again counts again for the limits. It begins once
    for each resume: not again after a pause.
    """
    command = (sys.executable, "-m", "tests.trips.programs.repeating_kernel", str(tmp_path), backend)
    first = {"note listed!": 1, "again listed!": 1, "again silent!": 1, "again limited!": 1, "again paused!": 1}
    kernel = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert kernel.stdout is not None
        runs = json.loads(await asyncio.wait_for(kernel.stdout.readline(), 180))
        await eventually(lambda: calls_in(tmp_path) == first)
    finally:
        kernel.kill()
        await kernel.wait()
    kernel = await asyncio.create_subprocess_exec(*command, runs["listed"], cwd=ROOT)
    try:
        await eventually(lambda: calls_in(tmp_path) == {**first, "again listed!": 2})
    finally:
        kernel.kill()
        await kernel.wait()

    async with ramet.AgentRuntime(tmp_path, backend=backend) as runtime:
        handles = {each.run.info.id: each for each in await runtime.resume(agents=agents())}
        await eventually(lambda: calls_in(tmp_path)["again paused!"] == 2)
        paused = handles[runs["paused"]]
        await paused.pause(now=True)
        await eventually(lambda: paused.run.sandbox.current is None)
        await paused.resume()
        ended = {name: await handles[run].result() for name, run in runs.items()}
        contexts = {name: handles[run].run.context for name, run in runs.items()}
    results = {
        name: [each.text for each in context.history if each.type == "tool"] for name, context in contexts.items()
    }

    assert calls_in(tmp_path) == {**first, "again listed!": 3, "again paused!": 2}
    assert results["listed"] == ["note 1", "again 3", INTERRUPTED]
    assert results["silent"] == results["paused"] == [INTERRUPTED]
    assert "tool_calls" in results["limited"][0]
    assert {name for name, each in ended.items() if each.status is not Status.COMPLETED} == {"limited"}
    used = {name: each.usage.tool_calls for name, each in contexts.items()}
    assert used == {"listed": 4, "silent": 1, "limited": 1, "paused": 2}
