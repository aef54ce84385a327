"""Trip B, function → child functions → result, and trip C, an end in the background → notice → the parent wakes."""

from __future__ import annotations

from ramet import Session, SpawnLimits, SpawnRequest
from ramet.core.events import MailPushed
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.context import current
from tests.support.waiting import eventually
from tests.trips.kits.sessions import background_call, of_kind, run_of, session_events
from tests.trips.spawning.test_trip_a import countable, line, lines
from tests.unit.cli.golden import assert_golden


async def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


async def failing(number: int) -> int:
    """Raise an error."""
    raise ValueError(f"{number} is not my number")


async def parent() -> list[object]:
    """Spawn two functions, one after the other, and return their values or errors."""
    context = current()
    assert context.tree is not None
    outcomes: list[object] = []
    for function in (square, failing):
        child = await context.tree.spawn(context, SpawnRequest(agent=function, args=(7,), name=function.__name__))
        result = await child.result()
        outcomes.append(result.value if result.value is not None else result.error and result.error.message)
    return outcomes


async def test_trip_b_matches_its_golden_record() -> None:
    """The record has the spawned children of a function. `RAMET_GOLDEN=write` refreshes it."""
    async with countable() as runtime:
        handle = await runtime.spawn(parent, spawn_limits=SpawnLimits(running=1))
        recorder = next(iter(runtime.trees.values())).recorder
        result = await handle.result()

        record = "".join(line(event) for event in recorder.recent_events)

    assert result.value == [49, "7 is not my number"]
    assert (result.usage_subtree.agents, result.exit_code) == (2, 0)
    assert_golden("trip-b.jsonl", record)


async def test_trip_c_matches_its_golden_record() -> None:
    """A background child's end wakes its idle parent, and mail wakes the child. Each notice comes once."""
    model = ScriptedModel(
        {
            "watch the logs": ["All quiet.", "Now there is a timeout."],
            "Go.": [background_call("watch the logs", "watcher"), "Started.", "Quiet, then.", "Seen."],
        }
    )
    async with Session(model, runtime=countable(), spawn_limits=SpawnLimits(running=1)) as session:
        await session.ask("Go.")
        await eventually(lambda: len(model.requests) == 4 and run_of(session, "main").state == "idle")
        session.handle("watcher").send("Look again.")
        await eventually(lambda: len(model.requests) == 6 and run_of(session, "main").state == "idle")

        record = lines(session)
        notices = [event.mail_id for event in of_kind(session_events(session), MailPushed) if event.kind == "notice"]

    assert len(notices) == len(set(notices)) == 2
    assert_golden("trip-c.jsonl", record)
