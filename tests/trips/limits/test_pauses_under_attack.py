"""Pauses by a person against work that resists them: cuts that are handled, ending runs, births for an idle root."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from ramet import AgentRuntime, Limits, Policy, ScriptedModel, Session, SpawnLimits, SpawnRequest, Status
from ramet.concurrency.clock import FakeClock
from ramet.core.events import RunPaused
from ramet.models.scripted.dialogue import Call
from ramet.tools.context import current
from tests.support.waiting import eventually
from tests.trips.kits.pausing import paused, pausing, states
from tests.trips.kits.sessions import Gate, answers, async_tool, of_kind, open_tree_of, run_of, session_events

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize("way", ["returns", "raises"])
async def test_a_tool_that_handles_its_cut_does_not_end_the_session(way: str) -> None:
    """What follows the call is not cancelled, not even if the next tool cancels itself."""
    began = asyncio.Event()

    async def patient() -> str:
        """Wait, and answer a cancellation."""
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if way == "raises":
                raise ValueError("cut") from None
        return "in part"

    async def cancelled() -> str:
        """Cancel itself."""
        raise asyncio.CancelledError

    model = ScriptedModel([Call("patient"), Call("cancelled"), "done"])
    async with Session(model, [async_tool(patient), async_tool(cancelled)], spawn=False) as session:
        turn = asyncio.create_task(session.ask("go"))
        await began.wait()
        await session.handle().pause(now=True)
        await paused(session)
        await session.handle().resume()
        result = await turn
        assert (result.status, result.value) == (Status.COMPLETED, "done")
        first, second = answers(session.messages).values()
        assert first == "in part" if way == "returns" else "cut off by a pause" in first
        assert "cancelled itself" in second


async def test_a_tool_that_waits_for_its_own_child_is_not_cut() -> None:
    """Its run waits, like one whose tool is `Agent`."""

    async def delegate() -> str:
        """Let a child do it."""
        child = await current().tree.spawn(current(), SpawnRequest(prompt="dig", name="digger", mode="fresh"))  # type: ignore[union-attr]  # a session has a tree
        return str((await child.result()).value)

    gate = Gate()
    model = ScriptedModel({"go": [Call("delegate"), "done"], "dig": [Call("gate"), "dug"]})
    async with Session(model, [async_tool(delegate), gate.tool]) as session:
        turn = asyncio.create_task(session.ask("go"))
        await gate.entered.wait()
        await session.handle().pause(now=True)
        await paused(session, "main/digger")
        await session.handle().resume()
        assert (await turn).value == "done"
        assert list(answers(session.messages).values()) == ["dug"]


async def test_a_pause_does_not_cut_what_a_stop_already_ends() -> None:
    """The call's own cleanup is cancelled once."""
    began, cleaning, may_end, log = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()

    async def careful() -> str:
        """Clean up after a cancellation."""
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaning.set()
            await may_end.wait()
            log.append("cleaned")
        return ""

    async with Session(ScriptedModel([Call("careful"), "done"]), [async_tool(careful)], spawn=False) as session:
        turn = asyncio.create_task(session.ask("go"))
        await began.wait()
        stop = asyncio.create_task(session.cancel())
        await cleaning.wait()
        await session.handle().pause(now=True)
        may_end.set()
        await stop
        assert (await turn).status is Status.CANCELLED
        assert log == ["cleaned"]


async def test_a_cut_reaches_a_request_whose_reservation_is_being_recorded() -> None:
    """It is not sent while the run is paused, and counts once."""
    recording, recorded = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(["done"])
    async with Session(model, spawn=False, limits=Limits(model_calls=2)) as session:

        async def durable() -> None:
            recording.set()
            await recorded.wait()

        session.context.durable = durable
        turn = asyncio.create_task(session.ask("go"))
        await recording.wait()
        pause = asyncio.create_task(session.handle().pause(now=True))
        await paused(session)
        recorded.set()
        await pause
        assert not model.requests
        await session.handle().resume()
        assert (await turn).value == "done"
        assert (len(model.requests), session.context.usage.model_calls) == (1, 1)


@pytest.mark.parametrize("at_limit", [False, True])
async def test_a_birth_that_waited_for_an_idle_root_leaves_it_no_slot(at_limit: bool) -> None:
    """The child has the only slot, whether the birth waited for the end of a pause or for a raise."""
    limits = pausing(agents=1) if at_limit else Limits()
    model = ScriptedModel({"": ["done"]})
    async with Session(model, spawn_limits=SpawnLimits(running=1), limits=limits) as session:
        if at_limit:
            first = await session.spawn(SpawnRequest(prompt="go", mode="fresh"))
            await first.result()
        else:
            await session.handle().pause()
        birth = asyncio.create_task(session.spawn(SpawnRequest(prompt="go", mode="fresh")))
        pauses = run_of(session, "main").pauses
        await eventually(lambda: pauses.waits or pauses.limit_waits)
        if at_limit:
            await session.raise_limits(Limits(agents=1))
        else:
            await session.handle().resume()
        child = await birth
        assert not session.context.slot.is_held
        assert (await child.result()).value == "done"


@pytest.mark.parametrize("is_birth_first", [True, False])
async def test_a_prompt_and_a_birth_wait_for_the_same_pause(is_birth_first: bool) -> None:
    """Both go on, in either order."""
    async with Session(ScriptedModel({"": ["done"]})) as session:
        await session.handle().pause()
        prompt = asyncio.create_task(session.ask("go")) if not is_birth_first else None
        if prompt is not None:
            await paused(session)
        birth = asyncio.create_task(session.spawn(SpawnRequest(prompt="go", mode="fresh")))
        await eventually(lambda: run_of(session, "main").pauses.waits == 1)
        prompt = prompt or asyncio.create_task(session.ask("go"))
        await paused(session)
        await session.handle().resume()
        assert (await prompt).value == "done"
        assert (await (await birth).result()).value == "done"


async def test_a_birth_that_waits_for_the_end_of_a_pause_holds_no_place() -> None:
    """A birth below a paused run leaves the room to others, as one at a limit does. One that found room is done."""
    model = ScriptedModel({"tend the gate": [Call("gate"), "tended"], "": ["done"]})
    shape = SpawnLimits(children=2, runs=3)
    async with Session(model, [Gate().tool], spawn_limits=shape) as session:
        admission = open_tree_of(session).tree.register.admission
        first, second = [await session.spawn(SpawnRequest(prompt="tend the gate", mode="fresh")) for _ in range(2)]
        in_line = asyncio.create_task(session.spawn(SpawnRequest(prompt="go", mode="fresh")))
        await eventually(lambda: admission.queue_length == 1)
        await session.handle().pause()
        for each in (first, second):
            await each.cancel()

        child = await in_line  # It had begun before.
        birth = asyncio.create_task(session.spawn(SpawnRequest(prompt="go", mode="fresh")))
        await eventually(lambda: run_of(session, "main").pauses.waits == 1)
        assert (admission.slot_count, admission.queue_length) == (2, 0)
        assert states(session)[str(child.path)] == "paused"
        await session.handle().resume()
        assert (await child.result()).value == (await (await birth).result()).value == "done"


async def test_no_time_passes_for_a_paused_run_that_waits_for_a_slot() -> None:
    """Its pause takes it out of the line; an hour later it begins."""
    clock, gate = FakeClock(), Gate()
    model = ScriptedModel({"hold": [Call("gate"), "held"], "go": ["done"]})
    async with (
        AgentRuntime(clock=clock, grace_s=0.05) as runtime,
        Session(model, [gate.tool], runtime=runtime, spawn_limits=SpawnLimits(running=1)) as session,
    ):
        holder = await session.spawn(SpawnRequest(prompt="hold", mode="fresh"))
        await gate.entered.wait()
        child = await session.spawn(SpawnRequest(prompt="go", mode="fresh", name="child", limits=Limits(seconds=60)))
        await eventually(lambda: session.context.slot._slots.queue_length == 1)
        await child.pause()
        await paused(session, "main/child")
        await clock.advance(3600)
        gate.open.set()
        assert (await holder.result()).value == "held"
        await child.resume()
        assert (await child.result()).value == "done"


async def test_a_reason_is_masked_in_results_as_on_record(tmp_path: pathlib.Path) -> None:
    """A reason that has a private value of the run shows it nowhere."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        policy = Policy(env_vars={"KEY": SECRET})
        async with Session(ScriptedModel(["done"]), runtime=runtime, root_policy=policy) as session:
            await session.handle().pause(f"because {SECRET}")
            result = await session.ask("go", on_pause="return")
            assert result.error is not None
            assert result.error.message == "by a person: because ***"
            assert [each.reason for each in of_kind(session_events(session), RunPaused)] == ["because ***"]
