"""spawn/lifecycle/supervisor.py: what follows from a fact is done to the end, and a failure of it is raised."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ramet import Session
from ramet.core.errors import StoreFailed
from ramet.core.events import Event
from ramet.core.lifecycle import Fact, State
from ramet.core.outcome import Status
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.run import Run, TurnResult
from tests.trips.kits.sessions import opened, run_of


@pytest.fixture
async def resting() -> AsyncIterator[tuple[Supervisor, Run]]:
    """The root of a session between two turns, and its supervisor."""
    session = Session(ScriptedModel(["ok"]))
    await session.ask("Go.")
    yield opened(session).tree.supervisor, run_of(session, "main")
    await session.close()


def fail_with(words: str) -> StoreFailed:
    return StoreFailed("journal.db", words)


async def test_an_effect_that_fails_is_raised_behind_the_others(resting: tuple[Supervisor, Run]) -> None:
    """A run whose state cannot be put on record is told to stop all the same, and the failure is raised."""
    supervisor, run = resting
    record = run.context.record

    def refuse(event: Event) -> Event:
        raise fail_with("the disk is full")

    run.context.record = refuse
    with pytest.raises(StoreFailed, match="the disk is full"):
        supervisor.apply_fact(run, Fact.STOP_ASKED, "enough")
    run.context.record = record

    assert run.state is State.STOPPING
    assert run.context.abort.reason == "enough"


async def test_of_several_failures_the_first_is_raised(resting: tuple[Supervisor, Run]) -> None:
    """The end of a run can neither be put on record nor told of: its mail is refused, its place is free."""
    supervisor, run = resting
    told = list[Run]()

    def refuse(event: Event) -> Event:
        raise fail_with("the first")

    def fail_too(ended: Run) -> None:
        told.append(ended)
        raise fail_with("the second")

    run.verdict = TurnResult(Status.COMPLETED)
    run.context.record, supervisor.on_end = refuse, fail_too
    with pytest.raises(StoreFailed, match="the first"):
        supervisor.apply_fact(run, Fact.FINISHED)
    supervisor.on_end = lambda _: None

    assert told == [run]
    assert run.context.mailbox.closed_reason == "it has finished"
    assert not run.admission_slot.is_held
