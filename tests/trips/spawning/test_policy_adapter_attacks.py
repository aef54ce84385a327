"""Attempts to spawn without an answer of the policy adapter, or with an answer about something else."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

import ramet
from ramet.core.errors import PolicyAdapterFailed, RametError, StoreFailed
from ramet.core.events import RunSpawned
from ramet.host.policy_adapters import Allow, PolicyAnswer, PolicyRequest, Refuse
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.birth import policy_decisions
from ramet.tools.workspace import workspace_tools
from tests.support.waiting import eventually
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import BACKENDS
from tests.trips.kits.sessions import of_kind, session_events, specialist_call
from tests.trips.spawning.test_policy_adapters import PARENT_POLICY, Adapter, runtime


class Slow(Adapter):
    """An adapter that allows everything, once the test lets it answer."""

    def __init__(self) -> None:
        super().__init__(self._allow)
        self.may_answer = asyncio.Event()

    async def _allow(self, request: PolicyRequest) -> PolicyAnswer:
        await self.may_answer.wait()
        return Allow()


# --- what happens while it is asked


@pytest.mark.parametrize("kind", ["function", "sandboxed", "session"])
@pytest.mark.parametrize("end", ["stop", "fence"])
async def test_a_runtime_that_stopped_while_its_adapter_was_asked_spawns_nothing(
    kind: str, end: str, tmp_path: pathlib.Path
) -> None:
    """`stop` has returned, or another kernel owns the journal: the answer comes too late."""
    calls: list[str] = []

    def work() -> None:
        calls.append("born")

    adapter, model = Slow(), ScriptedModel(["born"])
    async with runtime(adapter, tmp_path, backend="local") as host:
        if kind == "session":
            starting = asyncio.create_task(ramet.Session(model, runtime=host).start())
        else:
            policy = ramet.Policy() if kind == "sandboxed" else None
            starting = asyncio.create_task(host.spawn(work, policy=policy))  # type: ignore[arg-type]  # either is awaited
        await eventually(lambda: adapter.requests)
        if end == "stop":
            await host.stop()
        else:
            host._trees.fence(StoreFailed("journal", "another kernel has it"))
        adapter.may_answer.set()
        with pytest.raises(RametError, match=r"was stopped|another kernel"):
            await starting
        assert not host.trees

    assert not calls


async def test_a_session_closed_while_its_adapter_is_asked_leaves_no_agent(tmp_path: pathlib.Path) -> None:
    """Others use the runtime, too, so it would not end a run that was spawned after the close."""
    adapter = Slow()
    async with runtime(adapter, tmp_path) as host:
        session = ramet.Session(ScriptedModel(["hello"]), runtime=host)
        answer = asyncio.create_task(session.ask("Hi."))
        await eventually(lambda: adapter.requests)
        await session.close()
        adapter.may_answer.set()
        with pytest.raises(RametError, match="was closed"):
            await answer
        assert not host.trees


async def test_the_spawned_agent_is_the_one_the_adapter_saw(tmp_path: pathlib.Path) -> None:
    """A definition file that changes while the adapter is asked counts from the next spawn on."""
    file = tmp_path / "project" / ".claude" / "agents" / "helper.md"
    file.parent.mkdir(parents=True)

    def write(tools: str) -> None:
        file.write_text(f"---\nname: helper\ndescription: Helps.\ntools: {tools}\n---\nYou have {tools}.\n")

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        if request.depth and not results:
            write("Read, Bash")
            results.append(session.reload())
        return Allow()

    write("Read")
    results: list[bool] = []
    calls = [specialist_call("Look.", each, subagent_type="helper") for each in ("one", "two")]
    model = ScriptedModel({"Go.": [*calls, "done"], "Look.": ["seen"] * 2})
    adapter = Adapter(answers)
    async with runtime(adapter, tmp_path) as host:
        session = ramet.Session(model, tools=workspace_tools(), runtime=host, cwd=file.parents[2], unattended=True)
        async with session:
            await session.ask("Go.")
            spawns = of_kind(session_events(session), RunSpawned)

    assert results == [True]
    assert [each.tools for each in spawns[1:]] == [("Read",), ("Read", "Bash")]
    assert [each.tools for each in adapter.requests[1:]] == [("Read",), ("Read", "Bash")]
    assert "You have Read." in spawns[1].birth["system"][0]


async def test_only_refused_and_failed_spawns_count_for_the_bound(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent spawns that wait for an answer or for room do not count."""
    monkeypatch.setattr(policy_decisions, "MAX_FAILED_SPAWNS", 5)

    async def work() -> str:
        return "done"

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        return Allow() if request.agent != "unwanted" else Refuse("no")

    adapter, model, limits = Adapter(answers), ScriptedModel([]), ramet.Limits(agents=1000)
    async with runtime(adapter, tmp_path) as host, ramet.Session(model, runtime=host, limits=limits) as session:
        spawning = [session.spawn(ramet.SpawnRequest(agent=work)) for _ in range(20)]
        assert [(await (await each).result()).value for each in spawning] == ["done"] * 20
        handles = await asyncio.gather(*(session.spawn(ramet.SpawnRequest(agent=work)) for _ in range(20)))
        assert [(await each.result()).value for each in handles] == ["done"] * 20

        unwanted_agent = ramet.Agent(name="unwanted", function=work)
        detached = ramet.SpawnRequest(agent=work, detached=True)  # It is allowed, and fails: it has no limits.
        adapter.requests.clear()
        for request in [detached, ramet.SpawnRequest(agent=unwanted_agent)] * 4:
            with pytest.raises(RametError):
                await session.spawn(request)
        assert len(adapter.requests) == 5


# --- an adapter that is broken


class Fatal(BaseException):
    """An exception that is not an Exception."""


@pytest.mark.parametrize("error", [Fatal("hunter2"), BaseExceptionGroup("hunter2", [Fatal()]), GeneratorExit()])
async def test_every_exception_of_an_adapter_is_a_refusal(error: BaseException, tmp_path: pathlib.Path) -> None:
    """The refusal holds for a root and for a child of a guest, which reads it and continues."""

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        if request.depth or request.agent == "echo":
            raise error
        return Allow()

    async with runtime(Adapter(answers), tmp_path, backend=BACKENDS[-1]) as host:
        with pytest.raises(PolicyAdapterFailed) as failure:
            await host.spawn(agents.echo)
        handle = await host.spawn(agents.spawn_one_by_one, args=(2,), policy=PARENT_POLICY)
        assert (await handle.result()).value == ["policy adapter house rules"] * 2

    assert "hunter2" not in str(failure.value)


async def test_many_cancelled_spawns_do_not_block_other_spawns(tmp_path: pathlib.Path) -> None:
    """More adapter calls are cancelled in one moment than may hang. These calls do end, so others are admitted."""
    adapter = Slow()
    async with runtime(adapter, tmp_path) as host:
        spawns = [asyncio.create_task(host.spawn(agents.echo)) for _ in range(100)]
        await eventually(lambda: len(adapter.requests) == 100)
        adapter.may_answer.set()
        adapter.may_answer = asyncio.Event()
        other = ramet.Session(ScriptedModel(["hello"]), runtime=host)
        for each in spawns:
            each.cancel()
        await asyncio.gather(*spawns, return_exceptions=True)
        adapter.may_answer.set()
        async with other:
            assert (await other.ask("Hi.")).value == "hello"
