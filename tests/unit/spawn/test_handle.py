"""Tests of `Handle`: wait, follow, send and cancel, in any order and repeatedly."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from ramet.core.errors import MailRefused
from ramet.core.events import Event, RunEnded, RunSpawned
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.spawn.handle import Handle
from ramet.tools.spawn_request import SpawnRequest
from tests.trips.kits.sessions import Gate, of_kind, session_events, specialist_call


async def events_of(handle: Handle) -> list[Event]:
    async with aclosing(handle.events()) as events:
        return [event async for event in events]


async def worker(session: Session, name: str = "worker") -> Handle:
    return await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name=name))


async def test_a_handle_shows_id_name_path_and_state_of_its_run() -> None:
    """The handle shows them while the run works and after its end."""
    gate = Gate()
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"]}), [gate.tool]) as session:
        handle = await worker(session)
        await gate.entered.wait()

        assert (handle.name, handle.path, handle.background) == ("worker", "main/worker", False)
        assert (handle.view().state, handle.view().id) == ("running", handle.id)
        gate.open.set()
        await handle.result()
        assert handle.view().state == "completed"


async def test_events_of_a_handle_run_from_spawn_to_end() -> None:
    """The events are those of the run alone, without its children's, from RunSpawned to RunEnded."""
    model = ScriptedModel({"below": ["found"], "toil": [specialist_call("below", "lower"), "done"]})
    async with Session(model) as session:
        handle = await worker(session)

        events = await events_of(handle)

        assert isinstance(events[0], RunSpawned)
        assert isinstance(events[-1], RunEnded)
        assert {event.path for event in events} == {"main/worker"}
        assert events == [event for event in session_events(session) if event.path == "main/worker"]


async def test_a_follower_after_the_end_gets_all_events() -> None:
    """The iteration yields the recorded events, then ends."""
    async with Session(ScriptedModel({"toil": ["done"]})) as session:
        handle = await worker(session)
        await handle.result()

        assert await events_of(handle) == recorded_events(session, "main/worker")


def recorded_events(session: Session, path: str) -> list[Event]:
    return [event for event in session_events(session) if event.path == path]


async def test_a_follower_of_a_resumed_run_sees_both_turns() -> None:
    """Mail resumes a finished run; a new follower gets the events up to its second end."""
    async with Session(ScriptedModel({"toil": ["first", "second"], "": ["noted"]})) as session:
        handle = await worker(session)
        await handle.result()
        handle.send("again")

        events = await events_of(handle)

        assert [event.result.value for event in of_kind(events, RunEnded)] == ["first", "second"]


async def test_dropping_a_handle_does_not_cancel_its_run() -> None:
    """A run continues when its handle is dropped, or when a wait for its result is cancelled."""
    gate = Gate()
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"]}), [gate.tool]) as session:
        handle = await worker(session)
        waiting = asyncio.create_task(handle.result())
        await gate.entered.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        same_handle = session.handle("worker")
        del handle

        gate.open.set()

        assert (await same_handle.result()).value == "done"


async def test_a_result_can_be_read_repeatedly() -> None:
    """A handle that was made from the id returns an equal result."""
    async with Session(ScriptedModel({"toil": ["done"]})) as session:
        handle = await worker(session)

        first, second = await handle.result(), await session.handle(handle.id).result()

        assert first == second
        assert (first.status, first.exit_code, first.text) == (Status.COMPLETED, 0, "done")


async def test_the_runtime_finds_a_run_of_any_tree_by_its_id() -> None:
    """`AgentRuntime.get` takes the id of a run of any session."""
    async with AgentRuntime() as runtime, Session(ScriptedModel({"toil": ["done"]}), runtime=runtime) as session:
        handle = await worker(session)

        assert (await runtime.get(handle.id).result()).value == "done"


async def test_a_message_sent_by_handle_is_a_users_message() -> None:
    """The message is not framed as another agent's."""
    gate = Gate()
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"]}), [gate.tool]) as session:
        handle = await worker(session)
        await gate.entered.wait()

        handle.send("and be brief")

        gate.open.set()
        await handle.result()
        run = session._open_tree.tree.register.find("worker")
        assert [str(each.text) for each in run.context.history if each.type == "human"] == ["toil", "and be brief"]


async def test_a_cancelled_run_has_a_result_and_accepts_no_mail() -> None:
    """Another handle of the run shows CANCELLED too."""
    gate = Gate()
    async with Session(
        ScriptedModel({"toil": [Call("gate"), "x"]}), [gate.tool], runtime=AgentRuntime(grace_s=1)
    ) as session:
        handle = await worker(session)
        await gate.entered.wait()

        receipt = await handle.cancel("enough")

        assert receipt == (("main/worker",), ())
        assert (await session.handle(handle.id).result()).status is Status.CANCELLED
        with pytest.raises(MailRefused):
            handle.send("come back")
