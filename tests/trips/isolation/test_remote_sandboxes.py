"""Runs whose sandboxes are on another machine: they leave what any run leaves, and are lost with it, not before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ramet
from ramet.core.outcome import AgentResult
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.agent_types.bundle_operations import LoadBundle
from ramet.services.agent_types.function.type import FunctionInfo
from ramet.services.contract import PLAIN
from ramet.services.packaging.service import PackagingService
from ramet.services.teams.loaded_bundles import AgentShelf
from tests.support.machines import MachineBackend
from tests.support.tars import tar
from tests.trips.agents import isolated as agents
from tests.trips.teams.test_agent_types import FUNCTIONS, OURS, answering, opened, opening, text_of

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[MachineBackend]:
    runs = RunFolders(tmp_path / "work").root
    runs.mkdir(0o700, parents=True)
    backend = MachineBackend(runs)
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture
async def runtime(backend: MachineBackend, tmp_path: Path) -> AsyncIterator[ramet.AgentRuntime]:
    async with ramet.AgentRuntime(working_dir=tmp_path / "work", backend=backend) as runtime:
        yield runtime


async def test_what_a_run_leaves_comes_here(runtime: ramet.AgentRuntime) -> None:
    """Its value, its files, what it printed; and a child's."""
    result = await runtime.run_agent(agent=agents.leave, args=({"a": "A", "b/c": "C"},), policy=ramet.Policy())
    assert (result.status, result.output) == ("completed", 2)
    assert contents(result) == {"a": "A", "b/c": "C"}

    spoken = await runtime.run_agent(agent=agents.speak, args=(["one", "two"],), policy=ramet.Policy())
    assert (spoken.stdout, spoken.stderr) == ("one\n", "two\n")

    nested = await runtime.run_agent(
        agent=agents.level, args=(3, 100), policy=ramet.Policy(allow_sub_agents=True, memory_mb=256)
    )
    assert nested.output["levels"] == 3


def contents(result: AgentResult) -> dict[str, str]:
    """Of its artifacts."""
    return {each.name: Path(each.path or "").read_text() for each in result.artifacts}


async def test_another_attempt_begins_with_nothing_of_the_one_before(runtime: ramet.AgentRuntime) -> None:
    """What an attempt left on its machine does not come into the workspace of the next."""
    policy = ramet.Policy(retry_count=2, retry_delay_seconds=0)

    result = await runtime.run_agent(agent=agents.attempts, args=("left", 3), policy=policy)

    assert result.output == {"attempt": 3, "found": False}, result.error


async def test_a_run_whose_machine_dies_is_lost_and_says_so(
    runtime: ramet.AgentRuntime, backend: MachineBackend
) -> None:
    napping = asyncio.Event()
    handle = await runtime.spawn(agents.nap, args=(3600,), policy=ramet.Policy(), on_output=lambda *_: napping.set())
    await napping.wait()
    (await backend.process()).kill()

    result = await handle.result()

    assert result.status == "lost"
    assert result.error is not None
    assert "machine" in result.error.message


async def test_what_is_loaded_while_a_turn_is_under_way_is_imported_there(
    runtime: ramet.AgentRuntime, tmp_path: Path
) -> None:
    """A bundle put on the shelf of a living agent travels to its sandbox at once."""
    async with PackagingService(tmp_path / "packaging") as packaging:
        bundle = (await packaging.upload(tar({"kit.py": b"WORD = 'loaded'"}))).id
        shelf = AgentShelf("a-1", "", lambda: runtime.sandboxes.folders, packaging, PLAIN, ())
        await shelf.open()
        info = FunctionInfo(function=f"{FUNCTIONS}:waits_for_a_module")
        start = opening(runtime, tmp_path / "ada", info, policy=ramet.Policy(), shelf=shelf)
        async with opened(OURS, start) as agent, answering(agent, "kit") as answer:
            said = ""
            async for chunk in answer:
                before, said = said, said + text_of([chunk])
                if before != said == "waiting ":
                    await agent.control(LoadBundle(bundle))
            assert said == "waiting loaded"
        await shelf.close()


async def test_files_that_cannot_travel_are_a_failure_with_a_reason(runtime: ramet.AgentRuntime) -> None:
    """Never a silent loss."""
    policy = ramet.Policy(workspace_size_mb=2)

    result = await runtime.run_agent(agent=sparse, policy=policy)

    assert result.status == "failed"
    assert result.error is not None
    assert "travel" in result.error.message


def sparse() -> str:
    """Small there, large on its way."""
    for name in range(3):
        with Path(f"sparse-{name}").open("wb") as file:
            file.truncate(2**21)
    return "done"


async def test_what_is_cut_off_keeps_what_it_had_left(runtime: ramet.AgentRuntime) -> None:
    seen = asyncio.Event()
    handle = await runtime.start_agent(agent=write_and_wait, policy=ramet.Policy(), on_stdout=lambda _: seen.set())
    await seen.wait()
    await handle.cancel("enough")

    result = await handle.result()

    assert result.status == "cancelled"
    assert [each.name for each in result.artifacts] == ["left"]


def write_and_wait() -> None:
    """Leave a file, say so, and stay."""
    import time

    Path("left").write_text("left")
    print("written", flush=True)  # noqa: T201
    time.sleep(3600)
