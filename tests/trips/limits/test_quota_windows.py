"""A provider says when its quota comes back: runs wait until then, visibly, without a slot and without time."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel

from ramet import Agent, AgentRuntime, Limits, Policy, Session
from ramet.concurrency.clock import FakeClock
from ramet.core.events import ModelAsked, ModelRetried, QuotaReached, StateChanged, TimeStarted, TimeStopped
from ramet.core.lifecycle import State
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.core.replay.replay import TreeReplay
from ramet.host.control.run_queries import RunRow, rows_of
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.model import Call, Fail, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.spawn_request import SpawnRequest
from tests.support.providers import Provider, provider
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.sessions import Gate, has_no_reservation, of_kind, open_tree_of, run_of, session_events
from tests.trips.limits.test_resumed_time_limits import CLOCKS
from tests.trips.recovery.test_resume import MakeStore, lost_runtime, make_store

__all__ = ["backend", "make_store"]

TWO_HOURS_S = 7200.0
PATIENT = RetryPolicy(max_wait_s=None)


@asynccontextmanager
async def patient_runtime(clock: FakeClock, **settings: Any) -> AsyncIterator[AgentRuntime]:
    """Provide a runtime that waits for every window."""
    async with AgentRuntime(clock=clock, retry=PATIENT, grace_s=0.05, **settings) as runtime:
        yield runtime


def row_of(session: Session, path: str) -> RunRow:
    """Return the row of a run, from the recorded events of its tree."""
    replay = TreeReplay().apply_all(session_events(session))
    return next(row for row in rows_of(replay, is_active=True) if row.path == path)


def in_window(session: Session, path: str = "main") -> bool:
    return bool(session.runs()) and row_of(session, path).waits_for == "quota"


async def test_a_run_waits_for_its_quota_without_slot_reservation_and_time() -> None:
    """Two hours are none of its 100 s. Another run works meanwhile, although only one may work at once."""
    clock, gate = FakeClock(), Gate()
    model = ScriptedModel([Fail(429, retry_after_s=TWO_HOURS_S), "There."])
    other = Agent(name="other", model=ScriptedModel([[Call("gate")], "Done."], model_name="other"))
    async with patient_runtime(clock) as runtime:
        limits, one_at_once = Limits(seconds=100, model_calls=5), SpawnLimits(running=1)
        session = Session(model, [gate.tool], runtime=runtime, limits=limits, spawn_limits=one_at_once)
        turn = asyncio.create_task(session.ask("Look."))
        await eventually(lambda: in_window(session))
        root = run_of(session, "main")
        assert not root.context.slot.is_held
        assert has_no_reservation(session)
        assert root.seconds_left(clock.monotonic()) == 100
        row = row_of(session, "main")
        assert (row.state, row.waits_until) == ("waiting", clock.now() + timedelta(seconds=TWO_HOURS_S))

        child = await session.spawn(SpawnRequest(prompt="Look.", mode="fresh", agent=other))
        await gate.entered.wait()
        await clock.advance(10)
        gate.open.set()
        assert (await child.result()).value == "Done."

        await clock.advance(TWO_HOURS_S - 11)
        assert len(model.requests) == 1
        await clock.advance(1)
        result = await turn
        assert (result.value, result.usage.model_calls) == ("There.", 2)
        kinds = (QuotaReached, TimeStopped, TimeStarted, ModelAsked, ModelRetried, StateChanged)
        told = [event for event in session_events(session) if isinstance(event, kinds) and event.path == "main"]
        assert [type(event).__name__ for event in told[:5]] == [
            "ModelAsked", "ModelRetried", "QuotaReached", "StateChanged", "TimeStopped"
        ]  # fmt: skip
        assert row_of(session, "main").waits_for == "mail"
        await session.close()


@pytest.mark.parametrize("way", ["interrupt", "cancel", "close"])
async def test_an_end_ends_the_wait_at_once(way: str) -> None:
    """The clock does not move. Nothing is held afterwards, and nobody else waits behind the run."""
    clock = FakeClock()
    model = ScriptedModel([Fail(429, retry_after_s=TWO_HOURS_S), "There."])
    async with patient_runtime(clock) as runtime:
        session = Session(model, runtime=runtime)
        turn = asyncio.create_task(session.ask("Look."))
        await eventually(lambda: in_window(session))
        await getattr(session, way)()
        assert (await turn).status is Status.CANCELLED
        assert has_no_reservation(session)
        if way == "interrupt":
            assert not in_window(session)
            second = asyncio.create_task(session.ask("Again."))
            await eventually(lambda: in_window(session))
            await clock.advance(TWO_HOURS_S)
            assert (await second).value == "There."


async def test_a_longer_wait_than_allowed_fails_at_once_and_says_when_to_come_back() -> None:
    """Five minutes are waited for by default."""
    async with AgentRuntime(clock=FakeClock()) as runtime:
        session = Session(ScriptedModel([Fail(429, retry_after_s=TWO_HOURS_S)]), runtime=runtime)
        result = await session.ask("Look.")
    assert result.status is Status.FAILED
    assert result.error is not None
    assert "answers again in 7200 s, at 2026-01-01 02:00:00 UTC, and max_wait_s is 300" in result.error.message


async def test_a_run_that_is_killed_in_a_window_waits_for_its_rest_elsewhere(make_store: MakeStore) -> None:
    """Half an hour of two hours passes before the kill; the next kernel sends nothing for 90 minutes of its clock."""
    clock, first = FakeClock(CLOCKS[1]), Gate("first")
    model = ScriptedModel([[Call("first")], Fail(429, retry_after_s=TWO_HOURS_S)], clock=clock)
    async with lost_runtime(make_store(), clock, retry=PATIENT) as runtime:
        agent = Agent(name="slow", model=model)
        handle = await runtime.spawn(agent, "go", tools=[first.tool], limits=Limits(seconds=100))
        await first.entered.wait()
        await clock.advance(60)
        first.open.set()
        await eventually(lambda: handle.run.time_stopped_at is not None)
        await clock.advance(1800)

    clock, model = FakeClock(CLOCKS[1] + timedelta(seconds=1860)), ScriptedModel(["There."])
    async with patient_runtime(clock, store=make_store()) as runtime:
        [handle] = await runtime.resume(llm=model, tools=[first.tool])
        await eventually(lambda: handle.run.time_stopped_at is not None)
        await clock.advance(5399)
        assert model.requests == []
        assert handle.run.seconds_left(clock.monotonic()) == 40
        await clock.advance(1)
        assert (await handle.result()).value == "There."


@pytest.mark.parametrize("start", [CLOCKS[0], CLOCKS[1] - timedelta(days=30)], ids=["a day on", "a month back"])
async def test_a_clock_that_was_set_makes_no_wait_longer(start: datetime) -> None:
    """The next kernel's clock differs: the rest of a window is at most the whole window."""
    store, clock = MemoryStore(), FakeClock(CLOCKS[1])
    async with lost_runtime(store, clock, retry=PATIENT) as runtime:
        agent = Agent(name="slow", model=ScriptedModel([Fail(429, retry_after_s=TWO_HOURS_S)]))
        handle = await runtime.spawn(agent, "go", limits=Limits(seconds=100))
        await eventually(lambda: handle.run.time_stopped_at is not None)

    clock, model = FakeClock(start), ScriptedModel(["There."])
    async with patient_runtime(clock, store=store) as runtime:
        [handle] = await runtime.resume(llm=model)
        if start < CLOCKS[1]:
            await eventually(lambda: handle.run.time_stopped_at is not None)
            await clock.advance(TWO_HOURS_S)
        assert (await handle.result()).value == "There."


async def test_all_runs_on_a_model_wait_in_one_line() -> None:
    """Some of 50 children are refused, 50 more come later: after the window one asks alone, then each asks once."""
    clock = FakeClock()
    refusal = Fail(429, retry_after_s=60)
    model = ScriptedModel(lambda _: "Done." if clock.monotonic() >= 60 else refusal)
    async with patient_runtime(clock) as runtime:
        wide = SpawnLimits(children=200, runs=300, running=None)
        session = Session(model, runtime=runtime, spawn_limits=wide, limits=Limits(seconds=100))
        handles = [await session.spawn(SpawnRequest(prompt=f"{each}", mode="fresh")) for each in range(50)]
        await eventually(lambda: len(of_kind(session_events(session), QuotaReached)) == 50)
        sent = len(model.requests)
        handles += [await session.spawn(SpawnRequest(prompt=f"{each}", mode="fresh")) for each in range(50)]
        await eventually(lambda: len(of_kind(session_events(session), QuotaReached)) == 100)
        await clock.advance(59)
        assert len(model.requests) == sent
        await clock.advance(1)
        assert {(await each.result()).value for each in handles} == {"Done."}
        assert len(model.requests) == sent + 100
        await session.close()


HEADERS: list[tuple[str, dict[str, str], float]] = [
    ("openai", {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
    ("openai", {"retry-after": "7200", "x-ratelimit-reset-requests": "1s"}, 7200),
    ("openai", {"retry-after-ms": "30000"}, 30),
    ("anthropic", {"anthropic-ratelimit-tokens-reset": "2026-01-01T00:10:00Z"}, 600),
    ("anthropic", {"retry-after": "Thu, 01 Jan 2026 00:20:00 GMT"}, 1200),
]


@pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("client", "headers", "wait_s"), HEADERS)
async def test_the_clients_of_providers_wait_as_long_as_the_answer_says(
    client: str, headers: dict[str, str], wait_s: float, is_streaming: bool
) -> None:
    """Two HTTP requests are sent: the refused one, and one at the end of the window."""
    clock = FakeClock()
    async with provider([Fail(429), "There."]) as server, patient_runtime(clock) as runtime:
        server.failure_headers = headers
        model = client_of(server, client, disable_streaming=not is_streaming)
        session = Session(model, runtime=runtime, limits=Limits(seconds=10))
        turn = asyncio.create_task(session.ask("Look."))
        await eventually(lambda: in_window(session))
        await clock.advance(wait_s - 1)
        assert server.count == 1
        await clock.advance(1)
        assert (await turn).value == "There."
        assert server.count == 2
        [quota] = of_kind(session_events(session), QuotaReached)
        assert (quota.wait_s, quota.model) == (wait_s, open_tree_of(session).tree.register.find("main").model)
        await session.close()


@pytest.mark.parametrize("client", ["openai", "anthropic"])
async def test_headers_that_mean_nothing_are_passed_over(client: str) -> None:
    """A refused request is repeated after our own waits."""
    clock = FakeClock()
    async with provider([Fail(429), "There."]) as server, patient_runtime(clock) as runtime:
        server.failure_headers = {
            "retry-after": "1e999", "x-ratelimit-reset-requests": "9" * 60 + "d",
            "anthropic-ratelimit-tokens-reset": "9999-99-99T99:99:99Z",
        }  # fmt: skip
        session = Session(client_of(server, client), runtime=runtime)
        turn = asyncio.create_task(session.ask("Look."))
        await eventually(lambda: of_kind(session_events(session), ModelRetried))
        await clock.advance(1)
        assert (await turn).value == "There."
        assert not of_kind(session_events(session), QuotaReached)
        await session.close()


def client_of(server: Provider, name: str, **fields: Any) -> BaseChatModel:
    make: Callable[..., BaseChatModel] = getattr(server, name)
    return make(**fields)


async def test_a_conversation_in_a_sandbox_that_is_killed_in_a_window_waits_for_its_rest(
    tmp_path: pathlib.Path,
) -> None:
    """The sandbox ends with the kernel; the next kernel sends nothing before the window has ended."""
    store, clock = MemoryStore(), FakeClock()
    where: dict[str, Any] = {"working_dir": tmp_path, "backend": "local", "store": store}
    agent = Agent(name="slow", model=ScriptedModel([Fail(429, retry_after_s=TWO_HOURS_S)]))
    async with lost_runtime(clock=clock, retry=PATIENT, **where) as runtime:
        handle = await runtime.spawn(agent, "go", policy=Policy(timeout_seconds=100))
        await eventually(lambda: handle.run.time_stopped_at is not None)

    clock, model = FakeClock(clock.now() + timedelta(hours=1)), ScriptedModel(["There."])
    async with patient_runtime(clock, **where) as runtime:
        [handle] = await runtime.resume(llm=model)
        await eventually(lambda: handle.run.time_stopped_at is not None)
        await clock.advance(3599)
        assert model.requests == []
        await clock.advance(1)
        assert (await handle.result()).value == "There."


async def test_a_conversation_in_a_sandbox_waits_for_its_quota(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """The process stays, slot and time are free, and the turn goes on where it was."""
    clock = FakeClock()
    model = ScriptedModel([Fail(429, retry_after_s=TWO_HOURS_S), "There."])
    async with patient_runtime(clock, working_dir=tmp_path, backend=backend) as runtime:
        session = Session(model, runtime=runtime, root_policy=Policy(timeout_seconds=100), unattended=True)
        turn = asyncio.create_task(session.ask("Look."))
        await eventually(lambda: session.runs() and run_of(session, "main").time_stopped_at is not None)
        root = run_of(session, "main")
        assert not root.context.slot.is_held
        assert has_no_reservation(session)
        assert root.state is State.WAITING
        await clock.advance(TWO_HOURS_S)
        assert (await turn).value == "There."
        assert len(of_kind(session_events(session), TimeStarted)) == 1
        await session.close()
