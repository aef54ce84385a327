"""A handle: wait, follow, write, stop, in any order and as often as one likes."""

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
from ramet.tools.context import SpawnRequest
from tests.trips.kits.sessions import Gate, fresh, kept, of_kind


async def events_of(handle: Handle) -> list[Event]:
    async with aclosing(handle.events()) as events:
        return [event async for event in events]


async def worker(session: Session, name: str = "worker") -> Handle:
    return await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name=name))


async def test_it_says_whose_it_is() -> None:
    """Id, name, path and state, while it lives and afterwards."""
    gate = Gate()
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"]}), [gate.tool]) as session:
        handle = await worker(session)
        await gate.entered.wait()

        assert (handle.name, handle.path, handle.background) == ("worker", "main/worker", False)
        assert (handle.view().state, handle.view().id) == ("running", handle.id)
        gate.open.set()
        await handle.result()
        assert handle.view().state == "completed"


async def test_a_run_can_be_followed_from_its_birth_to_its_end() -> None:
    """Its own events only, its children's not; the first is its birth, the last its end."""
    model = ScriptedModel({"below": ["found"], "toil": [fresh("below", "lower"), "done"]})
    async with Session(model) as session:
        handle = await worker(session)

        events = await events_of(handle)

        assert isinstance(events[0], RunSpawned)
        assert isinstance(events[-1], RunEnded)
        assert {event.path for event in events} == {"main/worker"}
        assert events == [event for event in kept(session) if event.path == "main/worker"]


async def test_a_late_follower_gets_all_of_it() -> None:
    """After the end there is nothing to wait for: the record, then the end of the iteration."""
    async with Session(ScriptedModel({"toil": ["done"]})) as session:
        handle = await worker(session)
        await handle.result()

        assert await events_of(handle) == of_path(session, "main/worker")


def of_path(session: Session, path: str) -> list[Event]:
    return [event for event in kept(session) if event.path == path]


async def test_a_follower_of_a_resumed_run_sees_its_new_life() -> None:
    """Mail takes a finished run up again: who follows then gets both lives, to the second end."""
    async with Session(ScriptedModel({"toil": ["first", "second"], "": ["noted"]})) as session:
        handle = await worker(session)
        await handle.result()
        handle.send("again")

        events = await events_of(handle)

        assert [event.result.value for event in of_kind(events, RunEnded)] == ["first", "second"]


async def test_leaving_a_handle_does_nothing_to_its_run() -> None:
    """Letting go, or giving up the wait, is not a cancel."""
    gate = Gate()
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"]}), [gate.tool]) as session:
        handle = await worker(session)
        waiting = asyncio.create_task(handle.result())
        await gate.entered.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        again = session.handle("worker")
        del handle

        gate.open.set()

        assert (await again.result()).value == "done"


async def test_a_result_can_be_had_again_and_again() -> None:
    """The same one, also by a handle that was made from the id."""
    async with Session(ScriptedModel({"toil": ["done"]})) as session:
        handle = await worker(session)

        first, second = await handle.result(), await session.handle(handle.id).result()

        assert first == second
        assert (first.status, first.exit_code, first.text) == (Status.COMPLETED, 0, "done")


async def test_a_run_of_any_tree_can_be_had_from_the_runtime() -> None:
    """By id, whatever session it belongs to."""
    async with AgentRuntime() as runtime, Session(ScriptedModel({"toil": ["done"]}), runtime=runtime) as session:
        handle = await worker(session)

        assert (await runtime.get(handle.id).result()).value == "done"


async def test_a_user_s_word_by_handle() -> None:
    """It is not framed as another agent's: it is a user's."""
    gate = Gate()
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"]}), [gate.tool]) as session:
        handle = await worker(session)
        await gate.entered.wait()

        handle.send("and be brief")

        gate.open.set()
        await handle.result()
        run = session._opened.tree.register.find("worker")
        assert [str(each.text) for each in run.context.history if each.type == "human"] == ["toil", "and be brief"]


async def test_what_was_cancelled_is_over_for_good() -> None:
    """A result, no mail, and the same from every handle."""
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
