"""Runs of a lost kernel, as another kernel reports them: runs that it takes over, and runs that none takes over."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import httpx2
import psycopg
import pytest

from ramet.services.agent_types.llm.settings import MODEL
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.contract import AgentSpec
from ramet.services.contract import RunningAgent as Agent
from ramet.services.rules import Rules
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.postgres_stores import end_session
from tests.support.serving import EchoServer, serving, short_folder
from tests.support.slow_agents import CountingModel
from tests.support.turns import counting
from tests.support.waiting import eventually

__all__ = ["postgres"]  # a fixture is used by its name
TOKEN = "op_both_kernels_have_the_same_one"


class DelayedType(LlmType):
    """An agent type that reopens an agent with an earlier run only when it may."""

    name = "late"

    def __init__(self) -> None:
        super().__init__({"counting": CountingModel()}, default="offline")
        self.go_on = asyncio.Event()

    async def open(self, spec: AgentSpec) -> Agent:
        if spec.run:
            await self.go_on.wait()
        return await super().open(spec)


class TwoKernels(NamedTuple):
    """Kernels one and two, of which the tests lose one, and their stores."""

    one: EchoServer
    two: EchoServer
    stores: list[PostgresStore]
    late: DelayedType


@pytest.fixture
async def two_kernels(postgres: Server) -> AsyncIterator[TwoKernels]:
    schema, late = fresh_schema(), DelayedType()
    async with AsyncExitStack() as stack:
        stores = [PostgresStore(postgres.dsn, schema=schema, kernel=name) for name in ("one", "two")]
        one, two = [
            await stack.enter_async_context(
                serving(
                    stack.enter_context(short_folder()),
                    store=each,
                    types={"late": late},
                    listen=("127.0.0.1", 0),
                    token=TOKEN,
                    rules=Rules(sandboxed=False),
                )
            )
            for each in stores
        ]
        stack.callback(late.go_on.set)
        yield TwoKernels(one, two, stores, late)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


async def is_owned_by(store: PostgresStore, kernel: str, tree: str) -> bool:
    """Return whether the store records the kernel as the owner of the tree."""
    owner = await store.owner_of(tree)
    return owner is not None and owner.name == kernel


GO_ON = asyncio.Event()


async def for_ever() -> None:
    await asyncio.Event().wait()


async def until_it_may() -> str:
    await GO_ON.wait()
    return "done"


async def test_requests_wait_for_a_run_that_is_being_taken_over(two_kernels: TwoKernels, postgres: Server) -> None:
    """A stream of the run's events does not end early, and a stop of the run succeeds after the takeover."""
    one, two, stores, late = two_kernels
    _, key = await one.agent(agent_type="late")
    (agent,) = one.server.spawner.agents
    body = b'{"messages": [{"role": "user", "content": "hello"}]}'
    (await one.ask("POST", f"/v1/agents/{agent.id}/turns", key, content=body)).raise_for_status()
    run = agent.running_agent.run
    with end_session(stores[0], postgres):
        await eventually(lambda: two.server.spawner.is_taking_over(""))
        async with asyncio.timeout(180):
            while not await is_owned_by(stores[1], "two", run):
                pass
        following = asyncio.create_task(two.ask("GET", f"/v1/runs/{run}/events?follow=true", TOKEN))
        stopping = asyncio.create_task(two.ask("POST", f"/v1/runs/{run}/stop", TOKEN, json={}))
        requests = two.server._parts.metrics.requests
        await eventually(lambda: requests.under_way == 2 or following.done() or stopping.done())
        late.go_on.set()
        stop_answer, followed_answer = await stopping, await following

    assert stop_answer.status_code == 200, stop_answer.text
    assert stop_answer.json()["stopped"] == ["main"]
    assert '"type":"run_ended"' in followed_answer.text


async def test_an_agent_without_turns_is_taken_over(two_kernels: TwoKernels, postgres: Server) -> None:
    """The run of an agent is recorded before its spawn is answered, so that the loss of its kernel does not lose it."""
    one, two, stores, late = two_kernels
    late.go_on.set()
    id, key = await one.agent(agent_type="late")
    with end_session(stores[0], postgres):
        await eventually(lambda: two.server.spawner.agents.has(id))
        info = (await two.ask("GET", f"/v1/agents/{id}", key)).json()

    assert (info["state"], info["error"]) == ("idle", None)


async def test_an_agent_keeps_its_changed_model_after_takeover(
    two_kernels: TwoKernels, postgres: Server, tmp_path: pathlib.Path
) -> None:
    """The new kernel asks the model that `set_model` chose; the record of it goes with the agent."""
    one, two, stores, late = two_kernels
    late.go_on.set()
    id, key = await one.agent(agent_type="late")
    change = {"@type": "set_model", "model": "counting"}
    (await one.ask("POST", f"/v1/agents/{id}/control", key, json=change)).raise_for_status()
    with end_session(stores[0], postgres):
        await eventually(lambda: two.server.spawner.agents.has(id))
        answer = await two.ask("POST", f"/v1/agents/{id}/turns?format=openai", key, content=counting(2, 9, tmp_path))
        await two.ask("DELETE", f"/v1/agents/{id}", key)

    assert [f'"content":"{number} "' in answer.text for number in (1, 2)] == [True, True], answer.text
    assert await stores[1].list(MODEL) == []


async def test_streams_of_a_lost_agent_break_without_an_end_event(two_kernels: TwoKernels, postgres: Server) -> None:
    """The former kernel still runs and breaks its streams, so that their readers connect again."""
    one, two, stores, late = two_kernels
    late.go_on.set()
    id, key = await one.agent(agent_type="late")
    run = one.server.spawner.agents.authorize(id, key, "info").entry.running_agent.run
    body = b'{"messages": [{"role": "user", "content": "hello"}]}'
    (await one.ask("POST", f"/v1/agents/{id}/turns", key, content=body)).raise_for_status()
    paths = [f"/v1/runs/{run}/events?follow=true", f"/v1/agents/{id}/events"]
    following = [asyncio.create_task(one.ask("GET", path, TOKEN)) for path in paths]
    await eventually(lambda: len(one.server._parts.streams) == 2)
    with end_session(stores[0], postgres):
        await eventually(lambda: two.server.spawner.agents.has(id))
    for each in following:
        with pytest.raises(httpx2.RemoteProtocolError):
            await each


async def test_a_former_owner_confirms_only_recorded_requests(two_kernels: TwoKernels, postgres: Server) -> None:
    """Each mail, control or stop is in the record of the run, or was answered with 503."""
    one, two, stores, late = two_kernels
    late.go_on.set()
    agents = [await one.agent(agent_type="late") for _ in range(2)]
    runs = [one.server.spawner.agents.authorize(*each, "info").entry.running_agent.run for each in agents]
    bodies = {
        "a word for the agent": (f"/v1/agents/{agents[0][0]}/mail", {"text": "a word for the agent"}),
        "a word for the run": (f"/v1/runs/{runs[0]}/mail", {"text": "a word for the run"}),
        "from now on the model is": (f"/v1/agents/{agents[0][0]}/control", {"@type": "set_model", "model": "offline"}),
        "that is enough": (f"/v1/runs/{runs[1]}/stop", {"reason": "that is enough"}),
    }
    with end_session(stores[0], postgres):
        await eventually(lambda: all(two.server.spawner.agents.has(id) for id, _ in agents))
        asking = [asyncio.create_task(one.ask("POST", path, TOKEN, json=body)) for path, body in bodies.values()]
        requests = one.server._parts.metrics.requests
        await eventually(lambda: requests.under_way == len(asking) or any(each.done() for each in asking))
    answers = await asyncio.gather(*asking)
    record = [each.data.decode() for run in runs for each in await stores[1].read(tree=run)]
    for words, answer in zip(bodies, answers, strict=True):
        assert answer.status_code == 503 or any(words in each for each in record), (words, answer.text)


async def test_a_run_without_a_new_owner_is_reported_at_once(
    two_kernels: TwoKernels, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of no team and no schedule is shown as interrupted; its stop gets 410, not 503."""
    one, two, stores, _ = two_kernels
    assert two.server.kernels is not None
    for each in (two.server.kernels.router, two.server.kernels.router._fan_out):
        monkeypatch.setattr(each, "_wait_s", 3_600.0)  # A request that waits for an owner waits in vain.
    run = (await one.server.runtime.spawn(for_ever)).id
    await one.server.runtime.get(run).run.context.wait_persisted()
    with end_session(stores[0], postgres):
        await eventually(lambda: not two.server.kernels.directory.is_alive("one"))  # type: ignore[union-attr]
        async with asyncio.timeout(180):
            info = (await two.ask("GET", f"/v1/runs/{run}", TOKEN)).json()
            stop_answer = await two.ask("POST", f"/v1/runs/{run}/stop", TOKEN, json={})
            answer = await two.ask("POST", f"/v1/runs/{run}/keep", TOKEN, json={"on": True})

    assert info["state"] == "interrupted"
    assert (stop_answer.status_code, answer.status_code) == (410, 200), stop_answer.text
    assert "it was not resumed" in stop_answer.json()["detail"]


async def test_a_kernel_without_its_store_is_not_ready(two_kernels: TwoKernels, postgres: Server) -> None:
    """`/readyz` answers 503 until the kernel has its store again, so that a load balancer asks the others."""
    one, two, stores, _ = two_kernels

    async def ready(kernel: EchoServer) -> int:
        return (await kernel.ask("GET", "/readyz")).status_code

    assert await ready(one) == 200
    with end_session(stores[0], postgres):
        await eventually(lambda: stores[0].is_away)
        assert [await ready(each) for each in (one, two)] == [503, 200]
    await eventually(lambda: not stores[0].is_away)
    assert await ready(one) == 200
    assert stores[0]._open is not None
    stores[0]._open._session_monitor.stop()  # It is a write that notices it first.
    with end_session(stores[0], postgres):
        writing = asyncio.create_task(stores[0].put("note", "one", b"-"))
        await eventually(lambda: stores[0].is_away)
        assert await ready(one) == 503
    await writing
    assert await ready(one) == 200


async def trigger_schedule(kernel: EchoServer, function: str, *, repeatable: bool = False) -> str:
    """Return the id of a schedule that runs a function of this module now."""
    body = {"agent": f"{__name__}:{function}", "every_s": 3600, "repeatable": repeatable, "in_process": True}
    id = str((await kernel.ask("POST", "/v1/schedules", TOKEN, json=body)).raise_for_status().json()["id"])
    (await kernel.ask("POST", f"/v1/schedules/{id}/trigger", TOKEN)).raise_for_status()
    return id


async def find_active_kernel(kernels: TwoKernels) -> tuple[EchoServer, PostgresStore, EchoServer]:
    """Return the kernel that began the triggered run, its store, and the other kernel."""
    await eventually(lambda: kernels.one.server.runtime.trees or kernels.two.server.runtime.trees)
    if kernels.one.server.runtime.trees:
        return kernels.one, kernels.stores[0], kernels.two
    return kernels.two, kernels.stores[1], kernels.one


async def newest_result(kernel: EchoServer, schedule: str) -> tuple[str, str]:
    """Return the status and the text of the newest tick of the schedule."""
    answer = (await kernel.ask("GET", f"/v1/schedules/{schedule}/results", TOKEN)).raise_for_status().json()
    return answer["results"][-1]["status"], answer["results"][-1].get("text", "")


async def test_a_stop_waits_for_the_takeover_of_a_schedules_run(
    two_kernels: TwoKernels, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop of the run before its takeover is answered after it, and not with 410."""
    schedule = await trigger_schedule(two_kernels.one, "for_ever", repeatable=True)
    first, store, second = await find_active_kernel(two_kernels)
    takeover = second.server._scheduler._loop._dispatcher
    find, find_called, may_find = takeover._find, asyncio.Event(), asyncio.Event()

    async def late(*claim: Any) -> Any:
        find_called.set()
        await may_find.wait()
        return await find(*claim)

    monkeypatch.setattr(takeover, "_find", late)
    (run,) = first.server.runtime.trees
    await first.server.runtime.get(run).run.context.wait_persisted()
    name = "one" if first is two_kernels.one else "two"
    with end_session(store, postgres):
        await asyncio.wait_for(find_called.wait(), 180)
        await eventually(lambda: not second.server.kernels.directory.is_alive(name))  # type: ignore[union-attr]
        stopping = asyncio.create_task(second.ask("POST", f"/v1/runs/{run}/stop", TOKEN, json={}))
        requests = second.server._parts.metrics.requests
        await eventually(lambda: requests.under_way == 1 or stopping.done())
        may_find.set()
        stop_answer = await stopping

    assert stop_answer.status_code == 200, stop_answer.text
    async with asyncio.timeout(180):
        while (result := await newest_result(second, schedule))[0] == "running":
            pass
    assert result == ("cancelled", "")


async def test_a_leaving_scheduler_waits_for_functions_and_begins_no_other(two_kernels: TwoKernels) -> None:
    """Later ticks are left to the other kernels."""
    short = await trigger_schedule(two_kernels.one, "until_it_may")
    first, _, second = await find_active_kernel(two_kernels)
    leaving = asyncio.create_task(first.server._scheduler.leave(60))
    GO_ON.set()
    await leaving
    await trigger_schedule(first, "for_ever")

    assert await newest_result(second, short) == ("completed", "done")
    assert not first.server.runtime.trees


async def test_a_leaving_kernel_cancels_functions_that_do_not_end(
    two_kernels: TwoKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of the tick is cancelled, not lost."""
    long = await trigger_schedule(two_kernels.one, "for_ever")
    first, _, second = await find_active_kernel(two_kernels)
    monkeypatch.setattr("ramet.services.server.server.PATIENCE_S", 0.1)
    await first.server.drain()

    assert await newest_result(second, long) == ("cancelled", "")
