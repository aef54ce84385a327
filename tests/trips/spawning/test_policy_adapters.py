"""A policy adapter decides about every spawn: its answer narrows or refuses, and is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

import ramet
from ramet.core.errors import InvalidValue, PolicyAdapterFailed, SpawnRefused
from ramet.core.events import PolicyDecided, RunSpawned, SandboxStarted, StateChanged
from ramet.core.limits import Limits
from ramet.host.observability.counters import Counts
from ramet.host.policy_adapters import Allow, Narrow, PolicyAnswer, PolicyRequest, Refuse
from ramet.models.scripted.model import ScriptedModel
from ramet.services.agent_types.registry import create_default_types
from ramet.spawn.birth import policy_decisions
from ramet.store.sqlite.store import SqliteStore
from tests.support.serving import serving
from tests.support.waiting import eventually
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import BACKENDS, backend
from tests.trips.kits.sessions import answers, of_kind, session_events, specialist_call
from tests.trips.teams.test_agent_types import OURS, agent_spec, function, read_to_end, request_body

__all__ = ["backend"]

PARENT_POLICY = ramet.Policy(
    allow_sub_agents=True, memory_mb=1024, cpu_cores=8, allowed_endpoints=("docs.example.org:443",)
)
Answers = Callable[[PolicyRequest], Awaitable[PolicyAnswer]]


class Adapter:
    """An adapter that answers by a function and keeps the requests."""

    name = "house rules"

    def __init__(self, answers: Answers | None = None) -> None:
        self.requests: list[PolicyRequest] = []
        self._answers = answers

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        self.requests.append(request)
        return Allow() if self._answers is None else await self._answers(request)


def adapter_for(agent: str, answer: Any) -> Adapter:
    """Return an adapter with one answer for agents of that name, which allows all others."""

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        return answer if request.agent == agent else Allow()

    return Adapter(answers)


@contextlib.asynccontextmanager
async def runtime(adapter: Any, folder: pathlib.Path, **options: Any) -> AsyncIterator[ramet.AgentRuntime]:
    """A started runtime with an adapter."""
    async with ramet.AgentRuntime(folder, policy_adapter=adapter, **options) as runtime:
        yield runtime


def decisions(runtime: ramet.AgentRuntime) -> list[PolicyDecided]:
    """Return every recorded decision of the open trees."""
    return [each for tree in runtime.trees.values() for each in of_kind(tree.recorder.recent_events, PolicyDecided)]


# --- children of a session


async def test_a_refused_child_is_not_spawned(tmp_path: pathlib.Path) -> None:
    """The model reads the reason, the refusal is recorded for its parent, and nothing is held."""
    model = ScriptedModel([specialist_call("Look.", "scout", subagent_type="general-purpose"), "I do it myself."])
    adapter = adapter_for("general-purpose", Refuse("no helpers on Fridays"))
    async with runtime(adapter, tmp_path) as host, ramet.Session(model, runtime=host) as session:
        result = await session.ask("Go.")
        events = session_events(session)
        (report,) = answers(session.messages).values()

    assert result.value == "I do it myself."
    assert "no helpers on Fridays" in report
    assert "policy adapter house rules" in report
    assert [each.path for each in of_kind(events, RunSpawned)] == ["main"]
    root, child = of_kind(events, PolicyDecided)
    assert (root.verdict, root.path, root.child) == ("allow", "main", session.runs()[0].agent)
    assert (child.verdict, child.path, child.child, child.reason, child.failed) == (
        "refuse",
        "main",
        "general-purpose",
        "no helpers on Fridays",
        False,
    )
    assert child.call_id
    assert result.usage.agents == 0


async def test_an_adapter_sees_parent_and_child_of_a_spawn(tmp_path: pathlib.Path) -> None:
    """The request is plain data that JSON can hold, so an adapter can ask another service."""
    model = ScriptedModel({"Look": ["done"], "": [specialist_call("Look.", "scout"), "ok"]})
    adapter = Adapter()
    async with runtime(adapter, tmp_path) as host, ramet.Session(model, runtime=host) as session:
        await session.ask("Go.")
        root = session.id

    first, second = adapter.requests
    assert (first.depth, first.parent, first.root, first.inherited, first.granted) == (0, "", "", None, None)
    assert (second.agent, second.name, second.prompt, second.mode) == ("general-purpose", "scout", "Look.", "fresh")
    assert (second.root, second.parent, second.parent_path, second.depth) == (root, root, "main", 1)
    assert "SendMessage" in second.tools
    assert msgspec.json.decode(msgspec.json.encode(second), type=PolicyRequest) == second


async def test_an_adapter_narrows_the_limits_of_a_child(tmp_path: pathlib.Path) -> None:
    """The child gets the smaller of both limits, and the answer is recorded."""
    model = ScriptedModel({"Look": ["done"], "": [specialist_call("Look.", "scout"), "ok"]})
    adapter = adapter_for("general-purpose", Narrow(limits=Limits(model_calls=2, seconds=60), reason="small helpers"))
    async with runtime(adapter, tmp_path) as host, ramet.Session(model, runtime=host) as session:
        await session.ask("Go.")
        child = session.handle("scout").run
        decision = of_kind(session_events(session), PolicyDecided)[-1]

    assert (child.limits.model_calls, child.limits.seconds) == (2, 60)
    assert (decision.verdict, decision.reason) == ("narrow", "small helpers")
    assert decision.limits == {"model_calls": 2, "seconds": 60}


async def test_a_run_that_an_adapter_gives_a_policy_works_in_a_sandbox(backend: Any, tmp_path: pathlib.Path) -> None:
    """The host could not enforce the policy on a run without a sandbox."""
    adapter = adapter_for("working_directory", Narrow(policy=ramet.Policy(memory_mb=128)))
    async with runtime(adapter, tmp_path, backend=backend) as host:
        handle = await host.spawn(agents.working_directory)
        result = await handle.result()

    assert result.status == "completed", result.error
    assert handle.run.grant is not None
    assert handle.run.grant.memory_mb == 128
    assert result.value != str(pathlib.Path.cwd())


# --- sandboxes


async def test_an_adapter_removes_the_network_from_one_type(backend: Any, tmp_path: pathlib.Path) -> None:
    """A sandboxed child has no endpoint, although it asks for one that its parent has."""
    adapter = adapter_for("echo", Narrow(policy=ramet.Policy(network="disabled"), reason="no network"))
    async with runtime(adapter, tmp_path, backend=backend) as host:
        handle = await host.spawn(
            agents.spawn, args=(agents.echo, {"allowed_endpoints": ["docs.example.org:443"]}), policy=PARENT_POLICY
        )
        recorder = host.trees[handle.run.info.id].recorder
        result = await handle.result()
        births = {each.path: each.birth for each in of_kind(recorder.recent_events, RunSpawned)}
        decisions = of_kind(recorder.recent_events, PolicyDecided)

    assert result.value["status"] == "completed", result.value
    assert list(births["main"]["grant"]["allowed_endpoints"]) == ["docs.example.org:443"]
    assert list(births["main/1"]["grant"]["allowed_endpoints"]) == []
    assert births["main/1"]["narrowed"] == {"network": "disabled"}
    assert [(each.child, each.verdict) for each in decisions] == [("spawn", "allow"), ("echo", "narrow")]
    child = adapter.requests[1]
    assert child.inherited is not None
    assert child.granted is not None
    assert child.inherited["allowed_endpoints"] == child.granted["allowed_endpoints"] == ["docs.example.org:443"]
    assert child.asked == {"network": "allow_list", "allowed_endpoints": ["docs.example.org:443"]}


async def test_an_answer_never_widens_a_grant(backend: Any, tmp_path: pathlib.Path) -> None:
    """A run gets the same grant with and without an answer that is wider."""
    wide = ramet.Policy(
        memory_mb=4096,
        allowed_endpoints=("*",),
        readonly_mounts=("/usr",),
        writable_mounts=("/srv",),
        allowed_env_vars=("HOME",),
        allow_sub_agents=True,
        isolation=ramet.Isolation.L0,
        max_sub_agents=1000,
        retry_count=9,
    )
    adapter = adapter_for("echo", Narrow(policy=wide))
    async with runtime(adapter, tmp_path, backend=backend) as host:
        handle = await host.spawn(agents.echo, policy=ramet.Policy(memory_mb=128))
        await handle.result()
        plain = await host.spawn(agents.working_directory, policy=ramet.Policy(memory_mb=128))
        await plain.result()

    assert handle.run.grant == plain.run.grant


async def test_a_guest_reads_which_adapter_refused(backend: Any, tmp_path: pathlib.Path) -> None:
    """A function in a sandbox catches SpawnRefused after a refusal and after an invalid answer."""
    kinds = iter([Refuse("no"), None])

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        return next(kinds) if request.agent == "echo" else Allow()  # type: ignore[return-value]  # None is no answer

    async with runtime(Adapter(answers), tmp_path, backend=backend) as host:
        handle = await host.spawn(agents.spawn_one_by_one, args=(2,), policy=PARENT_POLICY)
        recorder = host.trees[handle.run.info.id].recorder
        result = await handle.result()
        decisions = of_kind(recorder.recent_events, PolicyDecided)[1:]

    assert result.value == ["policy adapter house rules"] * 2
    assert [(each.verdict, each.failed) for each in decisions] == [("refuse", False), ("refuse", True)]


async def test_refused_spawns_of_a_run_are_bounded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of refused spawns does not fill the journal, and does not keep the adapter busy."""
    monkeypatch.setattr(policy_decisions, "MAX_FAILED_SPAWNS", 10)
    adapter = adapter_for("echo", Refuse("no"))
    async with runtime(adapter, tmp_path, backend=BACKENDS[-1]) as host:
        handle = await host.spawn(agents.spawn_one_by_one, args=(30,), policy=PARENT_POLICY)
        recorder = host.trees[handle.run.info.id].recorder
        result = await handle.result()

    assert result.value == ["policy adapter house rules"] * 10 + ["policy adapter"] * 20
    assert len(adapter.requests) == 11
    assert len(of_kind(recorder.recent_events, PolicyDecided)) == 11


async def test_spawns_that_wait_for_an_answer_cannot_exceed_a_limit(tmp_path: pathlib.Path) -> None:
    """Room that was free for two spawns may be taken when their answers arrive."""
    together = asyncio.Barrier(2)

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        if request.depth:
            await together.wait()
        return Allow()

    may = ramet.Policy(allow_sub_agents=True, max_sub_agents=1, memory_mb=1024, cpu_cores=4)
    async with runtime(Adapter(answers), tmp_path, backend=BACKENDS[-1]) as host:
        handle = await host.spawn(agents.nap, args=(600,), policy=may)
        context = handle.run.context
        assert context.tree is not None
        await eventually(lambda: handle.run.state == "running")
        outcomes = await asyncio.gather(
            *(context.tree.spawn(context, ramet.SpawnRequest(agent=agents.echo)) for _ in range(2)),
            return_exceptions=True,
        )
        await handle.cancel("enough")

    (refusal,) = [each for each in outcomes if isinstance(each, BaseException)]
    assert isinstance(refusal, SpawnRefused)
    assert refusal.limit == "policy.max_sub_agents"


# --- roots


async def test_a_refused_root_is_not_spawned(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A function or a conversation that is refused leaves no tree open, and its session id stays free."""
    adapter = adapter_for("echo", Refuse("not here"))
    async with runtime(adapter, tmp_path) as host:
        with pytest.raises(SpawnRefused, match="not here") as refusal:
            await host.spawn(agents.echo)
        assert not host.trees
        talker = ramet.Agent(name="echo", description="Talks.")
        with pytest.raises(SpawnRefused, match="not here"):
            async with ramet.Session(ScriptedModel([]), agent=talker, runtime=host, session_id="one"):
                pass
        session = ramet.Session(ScriptedModel(["hello"]), runtime=host, session_id="one")
        async with session:
            assert (await session.ask("Hi.")).value == "hello"

    assert refusal.value.limit == "policy adapter house rules"
    assert "house rules" in caplog.text


async def test_a_resumed_conversation_keeps_its_narrowed_grant(tmp_path: pathlib.Path) -> None:
    """The adapter is asked at spawns only, so another process keeps the first answer."""
    adapter = adapter_for("talker", Narrow(policy=ramet.Policy(memory_mb=300, network="disabled")))
    talker = ramet.Agent(name="talker", description="Talks.")
    policy = ramet.Policy(memory_mb=512, allowed_endpoints=("docs.example.org:443",))
    async with runtime(adapter, tmp_path) as host:
        session = ramet.Session(
            ScriptedModel([]), agent=talker, runtime=host, session_id="one", root_policy=policy, cwd=tmp_path
        )
        async with session:
            first = session.handle(session.id).run.grant
    other = Adapter()
    async with runtime(other, tmp_path) as host:
        resumed_session = await ramet.Session.resume(
            "one", ScriptedModel([]), agents=[talker], runtime=host, cwd=tmp_path
        )
        async with resumed_session:
            run = resumed_session.handle(resumed_session.id).run

    assert first is not None
    assert (first.memory_mb, first.allowed_endpoints) == (300, ())
    assert run.grant == first
    assert run.policy_ceiling == ramet.Policy(memory_mb=300, network="disabled")
    assert not other.requests


# --- no answer


async def raise_error(request: PolicyRequest) -> PolicyAnswer:
    raise OSError("policy.internal:8181 refused the connection")


async def call_sys_exit(request: PolicyRequest) -> PolicyAnswer:
    raise SystemExit(3)


async def never_answer(request: PolicyRequest) -> PolicyAnswer:
    await asyncio.Event().wait()
    return Allow()


async def answer_wrong_type(request: PolicyRequest) -> PolicyAnswer:
    return True  # type: ignore[return-value]  # that is the point


async def values(request: PolicyRequest) -> PolicyAnswer:
    return Narrow(policy=ramet.Policy(env_vars={"TOKEN": "hunter2"}))


async def no_reason(request: PolicyRequest) -> PolicyAnswer:
    return Refuse(None)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("answers", [raise_error, call_sys_exit, never_answer, answer_wrong_type, values, no_reason])
async def test_no_answer_is_a_refusal(
    answers: Answers, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets a typed error. The log has the cause, and neither the cause nor a value reaches an agent."""
    async with runtime(Adapter(answers), tmp_path, policy_timeout_s=0.2) as host:
        with pytest.raises(PolicyAdapterFailed, match="no answer") as failure:
            await host.spawn(agents.echo)
        assert not host.trees

    assert failure.value.limit == "policy adapter house rules"
    assert "policy.internal" not in str(failure.value)
    assert "hunter2" not in str(failure.value) + caplog.text
    assert answers is not raise_error or "policy.internal" in caplog.text


async def test_an_adapter_call_that_never_ends_does_not_block_spawns(tmp_path: pathlib.Path) -> None:
    """The runtime abandons the call. After 64 such calls, the adapter is not asked any more until they have ended."""
    end_event = asyncio.Event()

    async def deaf(request: PolicyRequest) -> PolicyAnswer:
        while not end_event.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end_event.wait()
        return Allow()

    adapter = Adapter(deaf)
    async with runtime(adapter, tmp_path, policy_timeout_s=0.01) as host:
        for _ in range(70):
            with pytest.raises(PolicyAdapterFailed):
                await host.spawn(agents.echo)
        assert len(adapter.requests) == 64
        end_event.set()
        for _ in range(3):  # turns of the event loop in which the calls end
            await asyncio.sleep(0)

        assert (await (await host.spawn(agents.echo, args=(1,))).result()).status == "completed"


async def test_refusals_of_roots_and_children_are_counted(tmp_path: pathlib.Path) -> None:
    """The counters of a server show each refused spawn by the limit that refused it."""
    adapter = adapter_for("echo", Refuse("not here"))
    async with runtime(adapter, tmp_path) as host:
        counts = host.telemetry.counts = Counts(host.clock.now)
        with pytest.raises(SpawnRefused):
            await host.spawn(agents.echo)
        assert counts.spawn_refusals == {"policy adapter house rules": 1}
        await (await host.spawn(agents.spawn, args=(agents.echo, {}), policy=PARENT_POLICY)).result()

    assert counts.spawn_refusals == {"policy adapter house rules": 2}


async def test_a_cancelled_tree_does_not_wait_for_its_adapter(tmp_path: pathlib.Path) -> None:
    """The parent is cancelled while the adapter is asked, and its child never starts."""

    async def answers(request: PolicyRequest) -> PolicyAnswer:
        return await never_answer(request) if request.depth else Allow()

    model = ScriptedModel([specialist_call("Look.", "scout"), "unreached"])
    adapter = Adapter(answers)
    async with runtime(adapter, tmp_path, policy_timeout_s=3600) as host, ramet.Session(model, runtime=host) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: len(adapter.requests) == 2)
        receipt = await session.cancel()
        result = await turn
        events = session_events(session)

    assert not receipt.left
    assert result.status == "cancelled"
    assert len(of_kind(events, RunSpawned)) == 1
    assert of_kind(events, StateChanged)
    assert not of_kind(events, SandboxStarted)


# --- what is no adapter


class Blocking:
    name = "blocking"

    def decide(self, request: PolicyRequest) -> PolicyAnswer:
        return Allow()


class Nameless:
    name = ""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        return Allow()


@pytest.mark.parametrize(
    "adapter", [Blocking(), Nameless(), object(), "house rules"], ids=lambda each: type(each).__name__
)
def test_an_invalid_adapter_is_refused_with_the_runtime(adapter: Any) -> None:
    """A `decide` that is not async would block the event loop."""
    with pytest.raises(InvalidValue) as refusal:
        ramet.AgentRuntime(policy_adapter=adapter)

    assert refusal.value.field == "policy_adapter"
    assert "async def decide" in refusal.value.accepted


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), "10", True])
def test_an_invalid_policy_timeout_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidValue, match="policy_timeout_s"):
        ramet.AgentRuntime(policy_adapter=Adapter(), policy_timeout_s=seconds)


# --- over HTTP


async def test_an_adapter_can_refuse_an_agent_of_a_server(tmp_path: pathlib.Path) -> None:
    """The server answers 409 with the adapter and its reason. The name and the place in the team stay free."""
    adapter = adapter_for("helper", Refuse("no helpers on Fridays"))
    async with serving(tmp_path, policy_adapter=adapter, types=create_default_types()) as echo_server:
        team = await echo_server.team(agents=1)
        body = {"team": team[0], "name": "bob", "agent_type": "llm", "spawn_info": {"model": "offline"}}
        for _ in range(2):
            response = await echo_server.ask("POST", "/v1/agents", team[1], json={**body, "name": "helper"})
            assert response.status_code == 409, response.text
            assert response.json()["limit"] == "policy adapter house rules"
            assert "no helpers on Fridays" in response.json()["detail"]
        created_agent = await echo_server.ask("POST", "/v1/agents", team[1], json=body)
        assert created_agent.status_code == 201, created_agent.text


async def test_a_failing_adapter_refuses_agents_of_a_server(tmp_path: pathlib.Path) -> None:
    """The client reads a refusal, and only the log has the adapter's error."""
    async with serving(tmp_path, policy_adapter=Adapter(raise_error), types=create_default_types()) as echo_server:
        team = await echo_server.team()
        body = {"team": team[0], "name": "bob", "agent_type": "llm", "spawn_info": {"model": "offline"}}
        response = await echo_server.ask("POST", "/v1/agents", team[1], json=body)

    assert response.status_code == 409, response.text
    assert response.json()["limit"] == "policy adapter house rules"
    assert "policy.internal" not in response.text


async def test_a_served_function_keeps_its_narrowed_grant_after_a_kill(tmp_path: pathlib.Path) -> None:
    """The next kernel gives the function at most what the adapter had allowed."""

    async def narrows(request: PolicyRequest) -> PolicyAnswer:
        return Narrow(policy=ramet.Policy(memory_mb=100, network="disabled"))

    policy = ramet.Policy(memory_mb=200, allowed_endpoints=("docs.example.org:443",))
    start = function("measures_and_waits", policy=policy)

    def runtime_of_a_process() -> ramet.AgentRuntime:
        store = SqliteStore(tmp_path / "journal.db")
        return ramet.AgentRuntime(tmp_path, backend="local", store=store, grace_s=0.1, policy_adapter=Adapter(narrows))

    first = await runtime_of_a_process().start()
    agent = await OURS.open(agent_spec(first, tmp_path / "ada", **start))
    answer = agent.turn(request_body("go"), "openai")
    await anext(answer)
    run = agent.run
    grant = first.get(run).run.grant
    await first.get(run).run.context.wait_persisted()
    await (await first.open_store()).close()  # As if it was killed: nothing more goes on record.
    await first.stop()
    await read_to_end(answer)
    async with runtime_of_a_process() as second:
        second_agent = await OURS.open(agent_spec(second, tmp_path / "eve", **start, run=run))
        await eventually(lambda: any(each.run.grant for each in roots_of(second)))
        grants = [each.run.grant for each in roots_of(second)]
        await second_agent.close("it is over")

    assert grant is not None
    assert (grant.memory_mb, grant.allowed_endpoints) == (100, ())
    assert grants == [grant]


def roots_of(runtime: ramet.AgentRuntime) -> list[Any]:
    """Return handles of the open roots."""
    return [runtime.get(root) for root in runtime.trees]
