"""How long a tree stays recorded: its retention time, the mark to keep it, and the exemption of active trees."""

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
from tests.support.turns import chunks_of
from tests.support.waiting import eventually
from tests.trips.agents import scheduled
from tests.trips.kits.terminal import CommandOutput, environment, ramet

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
        await handle.run.context.wait_persisted()
        print(handle.id, flush=True)
        await handle.result()

if __name__ == "__main__":
    asyncio.run(main())
"""


class AheadClock(SystemClock):
    """The system's clock, a number of seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._ahead = timedelta(seconds=seconds)

    def now(self):  # type: ignore[no-untyped-def]  # as its base
        """Return the later time."""
        return super().now() + self._ahead


async def waits_for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def run_to_end(runtime: AgentRuntime, **more: object) -> str:
    """Return the id of a tree that has run to its end."""
    handle = await runtime.spawn(scheduled.note, **more)  # type: ignore[arg-type]  # what `spawn` takes
    assert (await handle.result()).value == "noted note"
    return handle.id


async def collect(runtime: AgentRuntime) -> list[str]:
    """Return the trees that the kernel's retention job removes now."""
    assert runtime.journal is not None
    assert isinstance(runtime.journal.retention_job, RetentionJob)
    return await runtime.journal.retention_job.run_once()


async def test_a_result_expires_after_its_retention_time(tmp_path: pathlib.Path) -> None:
    """A later kernel removes events, folders and transcripts of the tree at its start.

    The result then raises Expired.
    """
    async with AgentRuntime(tmp_path, keep_results_seconds=3600, backend="local") as runtime:
        run = await run_to_end(runtime, policy=Policy())
        longer = await run_to_end(runtime, keep_results_seconds=7200)
        assert (await runtime.result(run)).value == "noted note"
    assert [each.id for each in RunFolders(tmp_path).list()] == [run]

    async with AgentRuntime(tmp_path, clock=AheadClock(3000)) as runtime:
        assert (await runtime.result(run)).value == "noted note"
        assert await collect(runtime) == []
        living = await runtime.spawn(waits_for_ever, keep_results_seconds=0)
        await living.run.context.wait_persisted()

    async with AgentRuntime(tmp_path, clock=AheadClock(3700)) as runtime:
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


async def test_active_and_kept_trees_are_not_removed(tmp_path: pathlib.Path) -> None:
    """Both stay with a retention time of 0; a tree that is no longer kept is removed at the next collection."""
    async with AgentRuntime(tmp_path, keep_results_seconds=0) as runtime:
        living = await runtime.spawn(waits_for_ever)
        await living.run.context.wait_persisted()
        retained_run = await runtime.spawn(scheduled.note)
        await runtime.retain(retained_run.id)
        await retained_run.result()
        collectable = await run_to_end(runtime)
        journal = await _opened(runtime)
        async with asyncio.timeout(180):
            while collectable not in await collect(runtime):
                pass

        assert {each.key for each in await journal.store.list(TREES)} == {living.id, retained_run.id}
        assert (await runtime.result(retained_run.id)).value == "noted note"
        with pytest.raises(Expired):
            await runtime.result(collectable)
        await runtime.retain(retained_run.id, on=False)
        with pytest.raises(Expired):  # Whether or not it was removed by now.
            await runtime.result(retained_run.id)
        assert await collect(runtime) == [retained_run.id]
        with pytest.raises(Unknown):
            await runtime.retain(retained_run.id)
        assert living.view().state == "running"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "7d"])
async def test_an_invalid_retention_time_is_refused(tmp_path: pathlib.Path, seconds: float) -> None:
    """The constructor raises InvalidValue for a negative, infinite or non-numeric time."""
    with pytest.raises(InvalidValue, match="keep_results_seconds"):
        AgentRuntime(tmp_path, keep_results_seconds=seconds)


async def run_command(folder: pathlib.Path, *args: str) -> CommandOutput:
    """Run a command on the folder."""
    return await ramet(*args, "--dir", str(folder))


async def test_keep_works_with_and_without_a_running_kernel(tmp_path: pathlib.Path) -> None:
    """`gc` removes neither a kept nor an interrupted tree; `keep --off` lets it remove the tree."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    program = (sys.executable, str(tmp_path / "kernel.py"), str(tmp_path))
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE, env=environment(None))
    assert process.stdout is not None
    try:
        run = (await process.stdout.readline()).decode().strip()
        keep_result = await run_command(tmp_path, "keep", run, "--json")
        unknown = await run_command(tmp_path, "keep", "run-of-nobody")
    finally:
        process.kill()
        await process.communicate()
    assert (keep_result.status, json.loads(keep_result.out)) == (0, {"tree": run, "kept": True})
    assert (unknown.status, unknown.err.count("\n")) == (2, 1)
    interrupted = await run_command(tmp_path, "gc", "--older-than", "0")
    (tmp_path / "go").touch()
    resume_result = await run_command(tmp_path, "resume", "--quiet")
    collection = await run_command(tmp_path, "gc", "--older-than", "0")
    off = await run_command(tmp_path, "keep", run, "--off")
    dry = await run_command(tmp_path, "gc", "--dry-run")
    gc_result = await run_command(tmp_path, "gc")

    assert (interrupted.out, collection.out, resume_result.out) == ("", "", "worked\n")
    assert off.out == f"{run} is no longer kept\n"
    assert dry.out.startswith(run)
    assert gc_result.out.startswith(run)
    store = await SqliteStore(tmp_path / ".ramet" / "journal.db").open()
    try:
        assert (await store.read(), await store.list(TREES)) == ([], [])
    finally:
        await store.close()
    async with AgentRuntime(tmp_path) as runtime:
        with pytest.raises(Expired):
            await runtime.result(run)


def test_gc_keeps_the_trees_of_a_stopped_servers_agents(capsys: pytest.CaptureFixture[str]) -> None:
    """Their trees have ended with the server, but the agents continue from them.

    The tree of a killed agent is removed.
    """
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Hello"}]}).encode()

    async def first(folder: pathlib.Path) -> SpawnedAgent:
        async with Server(folder) as server:
            team = await server.spawner.create_team(CreateTeam(resources={"agents": 2}), server.operator)
            requests = [SpawnAgent(team=team.team.id, name=name, agent_type="llm") for name in ("stays", "goes")]
            agents = [await server.spawner.spawn_agent(each, team.key) for each in requests]
            for each in agents:
                async for _ in chunks_of(server.agents.turn(each.agent.id, each.nonce, body)):
                    pass
            await server.spawner.kill_agent(agents[1].agent.id, agents[1].nonce)
            return agents[0]

    async def later(folder: pathlib.Path, agent: SpawnedAgent) -> tuple[str, list[str]]:
        async with Server(folder) as server:
            history = await server.agents.history(agent.agent.id, agent.nonce)
            return server.agents.info(agent.agent.id, agent.nonce).state, [each["role"] for each in history]

    with short_folder() as folder:
        stays = asyncio.run(first(folder))
        assert main(["gc", "--older-than", "0", "--json", "--dir", str(folder)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1
        assert asyncio.run(later(folder, stays)) == ("idle", ["user", "assistant"])


async def test_a_server_keeps_the_trees_of_its_agents() -> None:
    """A server with a retention time of 0 keeps the conversation of an agent over a restart."""
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "remember seven"}]}).encode()
    with short_folder() as folder:
        async with Server(folder, keep_results_seconds=0) as server:
            team = await server.spawner.create_team(CreateTeam(resources={"agents": 1}), server.operator)
            agent = await server.spawner.spawn_agent(
                SpawnAgent(team=team.team.id, name="stays", agent_type="llm"), team.key
            )
            async for _ in chunks_of(server.agents.turn(agent.agent.id, agent.nonce, body)):
                pass

        async with Server(folder, keep_results_seconds=0) as server:
            await collect(server.runtime)
            history = await server.agents.history(agent.agent.id, agent.nonce)
            assert [each["role"] for each in history] == ["user", "assistant"]


async def test_each_kernel_removes_its_own_files_of_a_removed_tree(tmp_path: pathlib.Path) -> None:
    """One kernel removes the tree from the store; the other removes its own folders and transcripts later."""
    store = await SqliteStore(tmp_path / "journal.db").open()
    async with AgentRuntime(tmp_path / "one", store=store, backend="local", keep_results_seconds=10) as runtime:
        removed_root, retained_root = [await run_to_end(runtime, policy=Policy()) for _ in range(2)]
        folders = RunFolders(tmp_path / "one")
        folders.find(retained_root).keep()
        transcripts = tmp_path / "one" / ".ramet" / "transcripts"
        clocks = SystemClock(), AheadClock(20)
        one, two = [
            RetentionJob(store, (), clock, tmp_path / name, tmp_path / name / ".ramet" / "transcripts")
            for name, clock in zip(("one", "two"), clocks, strict=True)
        ]
        removed_roots: list[str] = []
        async with asyncio.timeout(180):
            while len(removed_roots) < 2:  # until it is noted that both are over
                removed_roots += await two.run_once()
        assert set(removed_roots) == {removed_root, retained_root}
        assert len(list(transcripts.glob("*/main.jsonl"))) == 2
        assert await one.run_once() == []

        assert [each.name for each in folders.root.iterdir()] == [retained_root]
        assert [each.name for each in transcripts.iterdir() if each.is_dir()] == []
