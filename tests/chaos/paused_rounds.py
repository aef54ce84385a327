"""Round of kills of a tree that its owner pauses once and lets go on: nothing is asked while the pause is on record."""

from __future__ import annotations

import json
import pathlib
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ramet.core import events
from ramet.core.events import Event
from ramet.core.replay.replay import TreeReplay
from tests.chaos.checks import check, lines, read_events, the_tree
from tests.chaos.deadly import Kill
from tests.chaos.kernels import inheriting_orphans, start
from tests.chaos.limited_rounds import CountingProvider, counting_provider, ended
from tests.chaos.paused import ANSWERED, REQUESTS, SCRIPT, found

TRIPS = ("host",)
#: A kill while the tree is paused, or around the records of a pause.
MOMENTS = (
    None,
    *(Kill(phase, kind, 1) for kind in ("run_paused", "pause_ended") for phase in ("before", "acked", "after")),
)


@dataclass(frozen=True)
class PausedRound:
    """Plan of one round. The number and the seed draw when the owner pauses, always alike."""

    number: int
    seed: int

    @property
    def kill(self) -> Kill | None:
        """Moment of the kill; None is while the tree is paused."""
        return MOMENTS[self.number % len(MOMENTS)]

    @property
    def trip(self) -> str:
        """Name of the trip."""
        return TRIPS[self.number % len(TRIPS)]

    @property
    def on_server(self) -> bool:
        """True if the journal is on PostgreSQL."""
        return (self.number + self.number // len(MOMENTS)) // 2 % 2 == 1

    @property
    def cuts(self) -> bool:
        """True if the owner pauses with `now`."""
        return self.number % 5 == 4

    @property
    def after(self) -> int:
        """Return after how many requests the owner pauses."""
        return random.Random(f"pauses/{self.seed}/{self.number}").randint(1, REQUESTS - 3)

    def prepare(self, folder: pathlib.Path) -> None:
        """Leave the plan for the owner."""
        (folder / "pause after").write_text(str(self.after))
        if self.cuts:
            (folder / "now").touch()
        if self.kill is None:
            (folder / "dies paused").touch()


async def play(this: PausedRound, folder: pathlib.Path, server: Sequence[str]) -> None:
    """Play a round. A failure carries a note with the number and seed that play the round again."""
    this.prepare(folder)
    try:
        async with counting_provider(folder, SCRIPT) as model:
            with inheriting_orphans() as orphans:
                kernel = await start(f"paused {this.trip}", folder, this.kill, server)
                await ended(kernel, orphans, await kernel.end(), (-signal.SIGKILL,))
                before = await read_events(folder, server)
                seen = len(found(folder))
                kernel = await start(f"paused {this.trip}", folder, None, server)
                await ended(kernel, orphans, await kernel.end(), (0,))
        check_found(before, found(folder)[seen:])
        look(folder, await read_events(folder, server), model)
    except BaseException as problem:
        problem.add_note(f"paused round {this.number} of seed {this.seed}: {this.trip}, {this.kill}, {this.after}")
        problem.add_note(f"{lines(folder / 'found')}, {lines(folder / 'deaths')}")
        raise


def check_found(before: dict[str, list[Event]], paused: Sequence[bool]) -> None:
    """Check that the tree was paused in the next kernel exactly if a pause without an end was on record."""
    moving = [each for each in the_tree(before) if isinstance(each, (events.RunPaused, events.PauseEnded))]
    assert list(paused) == [bool(moving) and isinstance(moving[-1], events.RunPaused)]


def look(folder: pathlib.Path, trees: dict[str, list[Event]], model: CountingProvider) -> TreeReplay:
    """Check a tree that has ended: one pause, no request in it, and the answer and replies of an unpaused tree."""
    story = check(folder, trees, [])
    tree_events = the_tree(trees)
    is_paused = False
    for each in tree_events:
        is_paused = isinstance(each, events.RunPaused) or (is_paused and not isinstance(each, events.PauseEnded))
        begins = isinstance(each, events.ModelAsked) or (isinstance(each, events.ToolStarted) and each.tool != "Agent")
        assert not (is_paused and begins), f"while paused: {each}"
    kinds = Counter(type(each) for each in tree_events)
    assert (kinds[events.RunPaused], kinds[events.PauseEnded]) == (1, 1)
    if model.marks:
        assert model.marks["paused"] == model.marks["resumed"], "a request arrived during the pause"
    result = story.root.result
    assert result is not None
    assert (str(result.status), result.value) == ("completed", ANSWERED), f"{result.status}: {result.error}"
    asked = sum(each.requests for each in tree_events if isinstance(each, events.ModelAsked))
    replies = Counter(str(each["type"]) for run in story.runs.values() for each in run.messages)["ai"]
    assert replies == REQUESTS, "each reply of the dialogue is in the conversations once"
    assert model.count <= asked, f"{model.count} requests were seen, {asked} are on record"
    sent = Counter(json.dumps(each["messages"], sort_keys=True) for each in model.bodies)
    assert sum(sent.values()) - len(sent) <= asked - replies, "a request that got its reply was repeated"
    return story
