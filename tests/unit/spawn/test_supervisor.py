"""Tests of `spawn/lifecycle/supervisor.py`: every effect of a fact is carried out, and the first failure is raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from ramet import Session
from ramet.core.errors import StoreFailed
from ramet.core.events import Event
from ramet.core.lifecycle import Fact, State
from ramet.core.outcome import Status
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.lifecycle import stop
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.run import Run, TurnResult
from tests.trips.kits.sessions import open_tree_of, run_of


@pytest.fixture
async def idle_root() -> AsyncIterator[tuple[Supervisor, Run]]:
    """Yield the supervisor and the root of a session between two turns."""
    session = Session(ScriptedModel(["ok"]))
    await session.ask("Go.")
    yield open_tree_of(session).tree.supervisor, run_of(session, "main")
    await session.close()


def fail_with(words: str) -> StoreFailed:
    return StoreFailed("journal.db", words)


async def test_a_failed_effect_is_raised_after_the_other_effects(idle_root: tuple[Supervisor, Run]) -> None:
    """A run whose state cannot be recorded is aborted all the same, and the failure is raised."""
    supervisor, run = idle_root
    record = run.context.record

    def refuse(event: Event) -> Event:
        raise fail_with("the disk is full")

    run.context.record = refuse
    with pytest.raises(StoreFailed, match="the disk is full"):
        supervisor.apply_fact(run, Fact.STOP_ASKED, "enough")
    run.context.record = record

    assert run.state is State.STOPPING
    assert run.context.abort.reason == "enough"


async def test_the_first_of_several_failures_is_raised(idle_root: tuple[Supervisor, Run]) -> None:
    """A run whose end can be neither recorded nor reported refuses mail and frees its slot."""
    supervisor, run = idle_root
    runs = list[Run]()

    def refuse(event: Event) -> Event:
        raise fail_with("the first")

    def fail_too(run: Run) -> None:
        runs.append(run)
        raise fail_with("the second")

    run.turn.verdict = TurnResult(Status.COMPLETED)
    run.context.record, supervisor.on_end = refuse, [fail_too]
    with pytest.raises(StoreFailed, match="the first"):
        supervisor.apply_fact(run, Fact.FINISHED)
    supervisor.on_end = []

    assert runs == [run]
    assert run.context.mailbox.closed_reason == "it has finished"
    assert not run.admission_slot.is_held


async def test_a_thread_that_a_task_leaves_during_the_grace_is_named() -> None:
    """The task has ended by then, so nothing else says that something of the run is still working."""
    loop = asyncio.get_running_loop()
    never, late = loop.create_future(), loop.create_future()
    first = stopped_run("main/1", {1: SimpleNamespace(thread=never, tool="slow")})
    second = stopped_run("main/2", {})
    loop.call_soon(second.context.orphaned_threads.__setitem__, 2, SimpleNamespace(thread=late, tool="Bash"))

    assert await stop._left_running([first, second], 0.01) == ["main/1: slow", "main/2: Bash"]


def stopped_run(path: str, threads: dict[int, Any]) -> Any:
    """Return what is asked of a stopped run whose task has ended."""
    return SimpleNamespace(
        info=SimpleNamespace(path=path), context=SimpleNamespace(orphaned_threads=threads), task=None
    )
