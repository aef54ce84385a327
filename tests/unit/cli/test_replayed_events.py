"""Events replayed with their pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from ramet.cli.operate.logs import LONGEST_PAUSE_S, with_pauses
from ramet.cli.render.progress import line_of
from ramet.cli.render.tree_model import TreeModel
from ramet.concurrency.clock import FakeClock
from ramet.core.events import Event, MailPushed, MessageRecorded, RunResumed
from tests.unit.cli.story import TreeEventWriter, active_story, hostile_story


async def stream(events: list[Event]) -> AsyncGenerator[Event]:
    """Yield events one after the other."""
    for event in events:
        yield event


class FastClock(FakeClock):
    """A clock whose sleeps end at once and are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Note the pause."""
        self.pauses.append(round(seconds, 3))
        await asyncio.sleep(0)


@pytest.mark.parametrize(("speed", "pauses"), [(1.0, [1.5, 0.0, 2.5]), (5.0, [0.3, 0.0, 0.5]), (0.0, [])])
async def test_pauses_are_divided_by_the_speed(speed: float, pauses: list[float]) -> None:
    """Speed 0 has no pauses; a clock that went back makes none."""
    writer, clock = TreeEventWriter(), FastClock()
    for second in (0.0, 1.5, 0.5, 3.0):
        writer.add(RunResumed, "main", second, turn=1)

    repeated_events = [event async for event in with_pauses(stream(writer.events), speed, clock)]

    assert (repeated_events, clock.pauses) == (writer.events, pauses)


async def test_pauses_are_bounded() -> None:
    """A tree may have slept for days, and a speed may be almost zero."""
    writer, clock = TreeEventWriter(), FastClock()
    for second in (0.0, 1e6):
        writer.add(RunResumed, "main", second, turn=1)

    assert len([event async for event in with_pauses(stream(writer.events), 1e-300, clock)]) == 2
    assert clock.pauses == [LONGEST_PAUSE_S]


def lines(writer: TreeEventWriter) -> list[str]:
    """Return the lines of a story."""
    picture, lines = TreeModel(), []
    for event in writer.events:
        picture.apply(event)
        if (line := line_of(event, picture)) is not None:
            lines.append(line)
    return lines


def test_recorded_events_become_lines_with_their_times() -> None:
    """Starts, calls, answers, messages and resumes have a line each."""
    writer = active_story()
    writer.add(MessageRecorded, "main", 3, message={"type": "ai", "content": [{"type": "text", "text": "It is late."}]})
    writer.add(MessageRecorded, "main", 3, message={"type": "tool", "content": "told by its call"})
    writer.add(MailPushed, "main", 4, mail_id="m", sender="user", kind="user", text="Hurry\nup")
    writer.add(RunResumed, "main", 5, turn=1, cut=("c1",))

    assert lines(writer)[:2] == [
        "2026-11-20 12:00:00 main: started general-purpose",
        "2026-11-20 12:00:00 main/logs: started explore: Search the logs for errors",
    ]
    assert lines(writer)[-3:] == [
        "2026-11-20 12:00:03 main: replies: It is late.",
        "2026-11-20 12:00:04 main: message from user: Hurry up",
        "2026-11-20 12:00:05 main: resumed in another process, 1 call interrupted",
    ]


def test_no_line_controls_the_terminal() -> None:
    """Names, messages and errors may be hostile."""
    writer = hostile_story()
    bad = "\x1b[2J\x1b]0;owned\x07red\u202e\r\nsecond"
    writer.add(MessageRecorded, "main", 1, message={"type": "ai", "content": bad})
    writer.add(MessageRecorded, "main", 1, message={"type": 5, "content": {"no": "text"}})
    writer.add(MailPushed, "main", 1, mail_id="m", sender=bad, kind="user", text=bad)

    assert not [line for line in lines(writer) if {"\x1b", "\x07", "\n", "\r", "\u202e"} & set(line)]
