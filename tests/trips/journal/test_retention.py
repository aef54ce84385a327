"""How long a tree stays on record: its time, a word that it is to be kept, and never what lives."""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
from datetime import timedelta

import pytest

from ramet import AgentRuntime, Policy
from ramet.cli.main import main
from ramet.concurrency.clock import SystemClock
from ramet.core.errors import Expired, InvalidValue, Unknown
from ramet.host.journal.journal import TREES
from ramet.host.retention.janitor import RetentionJob
from ramet.host.retention.sweep import EXPIRED
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.contract import CreateTeam, SpawnAgent, SpawnedAgent
from ramet.services.server.server import Server
from ramet.store.sqlite.store import SqliteStore
from tests.support.serving import short_folder
from tests.support.waiting import eventually
from tests.support.warm import warm
from tests.trips.agents import scheduled
from tests.trips.kits.terminal import Done, environment, ramet

__all__ = ["warm"]  # a fixture is used by its name
pytestmark = pytest.mark.usefixtures("warm")

KERNEL = """
import asyncio, pathlib, sys
from ramet import AgentRuntime

async def work(folder):
    while not (pathlib.Path(folder) / "go").exists():
        await asyncio.sleep(0.01)
    return "worked"

async def main():
    async with AgentRuntime(sys.argv[1], keep_results_seconds=0) as runtime:
        handle = await runtime.spawn(work, args=(sys.argv[1],))
        await handle.run.context.settled()
        print(handle.id, flush=True)
        await handle.result()

if __name__ == "__main__":
    asyncio.run(main())
"""


class Later(SystemClock):
    """The system's clock, so many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._ahead = timedelta(seconds=seconds)

    def now(self):  # type: ignore[no-untyped-def]  # as its base
        """What it will be."""
        return super().now() + self._ahead


async def waits_for_ever() -> None:
    """Live until cancelled."""
    await asyncio.Event().wait()


async def ended(runtime: AgentRuntime, **more: object) -> str:
    """A tree that has ended, and is known to be over."""
    handle = await runtime.spawn(scheduled.note, **more)  # type: ignore[arg-type]  # what `spawn` takes
    assert (await handle.result()).value == "noted note"
    return handle.id


async def collected(runtime: AgentRuntime) -> list[str]:
    """What the kernel's own care removes now."""
    assert runtime.journal is not None
    assert isinstance(runtime.journal.retention_job, RetentionJob)
    return await runtime.journal.retention_job.run_once()


async def test_a_result_is_there_for_its_time_and_then_says_that_this_is_over(tmp_path: pathlib.Path) -> None:
    """By the next kernel, which removes journal, folders and transcripts when it begins; not a moment earlier."""
    async with AgentRuntime(tmp_path, keep_results_seconds=3600, backend="local") as runtime:
        run = await ended(runtime, policy=Policy())
        longer = await ended(runtime, keep_results_seconds=7200)
        assert (await runtime.result(run)).value == "noted note"
    assert [each.id for each in RunFolders(tmp_path).list()] == [run]

    async with AgentRuntime(tmp_path, clock=Later(3000)) as runtime:
        assert (await runtime.result(run)).value == "noted note"
        assert await collected(runtime) == []
        living = await runtime.spawn(waits_for_ever, keep_results_seconds=0)
        await living.run.context.wait_persisted()

    async with AgentRuntime(tmp_path, clock=Later(3700)) as runtime:
        store = (await _opened(runtime)).store
        await eventually(lambda: not RunFolders(tmp_path).list())
        with pytest.raises(Expired, match="kept for 3600") as refusal:
            await runtime.result(run)
        assert (await runtime.result(longer)).value == "noted note"
        async with asyncio.timeout(180):
            while {each.key for each in await store.list(TREES)} != {longer}:  # noqa: ASYNC110 - the kernel is at it
                await asyncio.sleep(0.005)
        assert await store.read(tree=run) == []
        assert {each.key for each in await store.list(EXPIRED)} == {run, living.id}

    assert (refusal.value.run, refusal.value.keep_s) == (run, 3600)
    assert len(list((tmp_path / ".ramet" / "transcripts").glob("*/main.jsonl"))) == 1


async def _opened(runtime: AgentRuntime):  # type: ignore[no-untyped-def]  # what the runtime has
    assert runtime.journal is not None
    await runtime.journal.open()
    return runtime.journal


async def test_what_lives_or_is_kept_is_not_removed(tmp_path: pathlib.Path) -> None:
    """However short its time is; a tree that is kept no longer goes with the next look."""
    async with AgentRuntime(tmp_path, keep_results_seconds=0) as runtime:
        living = await runtime.spawn(waits_for_ever)
        await living.run.context.wait_persisted()
        kept = await runtime.spawn(scheduled.note)
        await runtime.retain(kept.id)
        await kept.result()
        gone = await ended(runtime)
        journal = await _opened(runtime)
        async with asyncio.timeout(180):
            while gone not in await collected(runtime):
                pass

        assert {each.key for each in await journal.store.list(TREES)} == {living.id, kept.id}
        assert (await runtime.result(kept.id)).value == "noted note"
        with pytest.raises(Expired):
            await runtime.result(gone)
        await runtime.retain(kept.id, on=False)
        with pytest.raises(Expired):  # Whether or not it was removed by now.
            await runtime.result(kept.id)
        assert await collected(runtime) == [kept.id]
        with pytest.raises(Unknown):
            await runtime.retain(kept.id)
        assert living.view().state == "running"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "7d"])
async def test_a_time_that_is_none_is_refused(tmp_path: pathlib.Path, seconds: float) -> None:
    """Before anything is begun."""
    with pytest.raises(InvalidValue, match="keep_results_seconds"):
        AgentRuntime(tmp_path, keep_results_seconds=seconds)


async def on(folder: pathlib.Path, *args: str) -> Done:
    """A command on the folder."""
    return await ramet(*args, "--dir", str(folder))


async def test_a_tree_is_kept_from_the_command_line_beside_a_kernel_and_without_one(tmp_path: pathlib.Path) -> None:
    """Killed with its time over: only what nobody keeps is removed, and nothing that can be gone on with."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    program = (sys.executable, str(tmp_path / "kernel.py"), str(tmp_path))
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE, env=environment(None))
    assert process.stdout is not None
    try:
        run = (await process.stdout.readline()).decode().strip()
        beside = await on(tmp_path, "keep", run, "--json")
        unknown = await on(tmp_path, "keep", "run-of-nobody")
    finally:
        process.kill()
        await process.communicate()
    assert (beside.status, json.loads(beside.out)) == (0, {"tree": run, "kept": True})
    assert (unknown.status, unknown.err.count("\n")) == (2, 1)
    interrupted = await on(tmp_path, "gc", "--older-than", "0")
    (tmp_path / "go").touch()
    resumed = await on(tmp_path, "resume", "--quiet")
    kept = await on(tmp_path, "gc", "--older-than", "0")
    off = await on(tmp_path, "keep", run, "--off")
    dry = await on(tmp_path, "gc", "--dry-run")
    removed = await on(tmp_path, "gc")

    assert (interrupted.out, kept.out, resumed.out) == ("", "", "worked\n")
    assert off.out == f"{run} is no longer kept\n"
    assert dry.out.startswith(run)
    assert removed.out.startswith(run)
    store = await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
    try:
        assert (await store.read(), await store.list(TREES)) == ([], [])
    finally:
        await store.close()
    async with AgentRuntime(tmp_path) as runtime:
        with pytest.raises(Expired):
            await runtime.result(run)


def test_what_agents_of_a_server_go_on_from_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is stopped leaves trees that are over; with them its agents would be gone."""
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Hello"}]}).encode()

    async def first(folder: pathlib.Path) -> SpawnedAgent:
        async with Server(folder) as server:
            team = await server.spawner.create_team(CreateTeam(resources={"agents": 2}), server.operator)
            asked = [SpawnAgent(team=team.team.id, name=name, agent_type="llm") for name in ("stays", "goes")]
            agents = [await server.spawner.spawn_agent(each, team.key) for each in asked]
            for each in agents:
                async for _ in server.agents.turn(each.agent.id, each.nonce, body).read():
                    pass
            await server.spawner.kill_agent(agents[1].agent.id, agents[1].nonce)
            return agents[0]

    async def later(folder: pathlib.Path, agent: SpawnedAgent) -> tuple[str, list[str]]:
        async with Server(folder) as server:
            said = await server.agents.history(agent.agent.id, agent.nonce)
            return server.agents.info(agent.agent.id, agent.nonce).state, [each["role"] for each in said]

    with short_folder() as folder:
        stays = asyncio.run(first(folder))
        assert main(["gc", "--older-than", "0", "--json", "--dir", str(folder)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1
        assert asyncio.run(later(folder, stays)) == ("idle", ["user", "assistant"])


async def test_a_kernel_keeps_the_conversations_that_agents_go_on_from() -> None:
    """As `gc` does: trees are kept for no time, and that of an agent is over, since its server was closed."""
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "remember seven"}]}).encode()
    with short_folder() as folder:
        async with Server(folder, keep_results_seconds=0) as server:
            team = await server.spawner.create_team(CreateTeam(resources={"agents": 1}), server.operator)
            agent = await server.spawner.spawn_agent(
                SpawnAgent(team=team.team.id, name="stays", agent_type="llm"), team.key
            )
            async for _ in server.agents.turn(agent.agent.id, agent.nonce, body).read():
                pass

        async with Server(folder, keep_results_seconds=0) as server:
            await collected(server.runtime)
            said = await server.agents.history(agent.agent.id, agent.nonce)
            assert [each["role"] for each in said] == ["user", "assistant"]


async def test_what_a_tree_left_with_another_kernel_goes_there(tmp_path: pathlib.Path) -> None:
    """One kernel removes the tree; each that had a part in it removes what is in its own folder, once it looks."""
    store = await SqliteStore(tmp_path / "journal.db").open()
    async with AgentRuntime(tmp_path / "one", store=store, backend="local", keep_results_seconds=10) as runtime:
        removed, kept = [await ended(runtime, policy=Policy()) for _ in range(2)]
        folders = RunFolders(tmp_path / "one")
        folders.find(kept).keep()
        transcripts = tmp_path / "one" / ".ramet" / "transcripts"
        clocks = SystemClock(), Later(20)
        one, two = [
            RetentionJob(store, (), clock, tmp_path / name, tmp_path / name / ".ramet" / "transcripts")
            for name, clock in zip(("one", "two"), clocks, strict=True)
        ]
        gone: list[str] = []
        async with asyncio.timeout(10):
            while len(gone) < 2:  # until it is noted that both are over
                gone += await two.run_once()
        assert set(gone) == {removed, kept}
        assert len(list(transcripts.glob("*/main.jsonl"))) == 2
        assert await one.run_once() == []

        assert [each.name for each in folders.root.iterdir()] == [kept]
        assert [each.name for each in transcripts.iterdir() if each.is_dir()] == []
