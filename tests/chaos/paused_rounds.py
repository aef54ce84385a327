"""Round of kills of a tree that its owner pauses once and lets go on: nothing is asked while the pause is on record."""

from __future__ import annotations

import json
import pathlib
import random
import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.core import events
from ramet.core.events import Event
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.run_replay import RunReplay
from ramet.models.scripted.dialogue import Call
from tests.chaos.checks import check, lines, read_events, the_tree
from tests.chaos.deadly import Kill
from tests.chaos.kernels import inheriting_orphans, start
from tests.chaos.limited_rounds import CountingProvider, counting_provider, ended
from tests.chaos.paused import ANSWERED, ASKED, HALVES, REQUESTS, found, script

TRIPS = ("host", "talk", "host", "outliving")
PHASES = ("before", "acked", "after")
#: A kill while the tree is paused, or around the records of a pause.
MOMENTS = (None, *(Kill(phase, kind, 1) for kind in ("run_paused", "pause_ended") for phase in PHASES))
#: The moment after the kernel has killed a process. No write of the store is of this kind.
PROCESS_KILLED = Kill("after", "process_killed", 1)
#: The answer of a call that was under way when its process ended, or that a pause cut.
_CUT_OFF = re.compile(r"This call was interrupted before it gave a result\.|note was cut off")
_NUMBER = re.compile(r", note \d+ here$")


@dataclass(frozen=True, kw_only=True)
class PausedRound:
    """Plan of one round."""

    name: str
    trip: str
    kill: Kill | None  #: moment of the kill; None is while the tree is paused
    on_server: bool = False  #: the journal is on PostgreSQL
    cuts: bool = False  #: the owner pauses with `now`
    after: int  #: how many requests the owner waits for before the pause

    @classmethod
    def draw(cls, number: int, seed: int) -> PausedRound:
        """Return the plan of a number and a seed, always the same."""
        return cls(
            name=f"paused round {number} of seed {seed}",
            trip=TRIPS[number % len(TRIPS)],
            kill=MOMENTS[number % len(MOMENTS)],
            on_server=(number + number // len(MOMENTS)) // 2 % 2 == 1,
            cuts=number % 5 == 4,
            after=random.Random(f"pauses/{seed}/{number}").randint(1, REQUESTS - 3),  # noqa: S311, RUF100 - dice
        )

    @property
    def may_cut_off(self) -> bool:
        """True if a call may be answered as cut off: its process ends with its kernel, or because of the pause."""
        return self.cuts or self.trip == "talk"

    def prepare(self, folder: pathlib.Path) -> None:
        """Leave the plan for the owner."""
        (folder / "pause after").write_text(str(self.after))
        if self.cuts:
            (folder / "now").touch()
        if self.kill is None:
            (folder / "dies paused").touch()
        elif self.kill == PROCESS_KILLED:
            (folder / "dies after a kill").touch()


async def play(this: PausedRound, folder: pathlib.Path, server: Sequence[str]) -> None:
    """Play a round. A failure carries a note with the plan."""
    this.prepare(folder)
    try:
        async with counting_provider(folder, script(this.trip)) as model:
            with inheriting_orphans() as orphans:
                kernel = await start(f"paused {this.trip}", folder, this.kill, server)
                staying = orphans if this.trip != "outliving" else None
                await ended(kernel, staying, await kernel.end(), (-signal.SIGKILL,))
                before = await read_events(folder, server)
                seen = len(found(folder))
                kernel = await start(f"paused {this.trip}", folder, None, server)
                await ended(kernel, orphans, await kernel.end(), (0,))
        check_found(before, found(folder)[seen:])
        look(this, folder, await read_events(folder, server), model)
    except BaseException as problem:
        problem.add_note(f"{this}")
        problem.add_note(f"{lines(folder / 'found')}, {lines(folder / 'deaths')}")
        raise


def check_found(before: dict[str, list[Event]], paused: Sequence[bool]) -> None:
    """Check that the tree was paused in the next kernel exactly if a pause without an end was on record."""
    moving = [each for each in the_tree(before) if isinstance(each, (events.RunPaused, events.PauseEnded))]
    assert list(paused) == [bool(moving) and isinstance(moving[-1], events.RunPaused)]


def look(this: PausedRound, folder: pathlib.Path, trees: dict[str, list[Event]], model: CountingProvider) -> TreeReplay:
    """Check a tree that has ended: one pause, nothing that begins in it, and the transcripts of an unpaused tree."""
    story = check(folder, trees, [])
    tree_events = the_tree(trees)
    _check_pause(tree_events)
    if model.marks:
        assert model.marks["paused"] == model.marks["resumed"], "a request arrived during the pause"
    result = story.root.result
    assert result is not None
    assert (str(result.status), result.value) == ("completed", ANSWERED), f"{result.status}: {result.error}"
    asked = sum(each.requests for each in tree_events if isinstance(each, events.ModelAsked))
    _check_transcripts(this, story)
    assert model.count <= asked, f"{model.count} requests were seen, {asked} are on record"
    sent = Counter(json.dumps(each["messages"], sort_keys=True) for each in model.bodies)
    assert sum(sent.values()) - len(sent) <= asked - REQUESTS, "a request that got its reply was repeated"
    return story


def _check_pause(tree_events: Sequence[Event]) -> None:
    """Check that in the one pause only calls of replies begin that a sandbox had received before."""
    is_paused = False
    sandboxed, received = set[str](), set[str | None]()
    for each in tree_events:
        is_paused = isinstance(each, events.RunPaused) or (is_paused and not isinstance(each, events.PauseEnded))
        if isinstance(each, events.SandboxStarted):
            sandboxed.add(each.run)
        elif isinstance(each, events.MessageRecorded) and each.run in sandboxed and not is_paused:
            received |= {call["id"] for call in each.message.get("tool_calls", ())}
        begins = isinstance(each, events.ModelAsked | events.ToolStarted) and each.call_id not in received
        assert not (is_paused and begins), f"while paused: {each}"
    kinds = Counter(type(each) for each in tree_events)
    assert (kinds[events.RunPaused], kinds[events.PauseEnded]) == (1, 1)


def _check_transcripts(this: PausedRound, story: TreeReplay) -> None:
    """Check that each run has the transcript of an unpaused tree, but for calls that its kill or pause cut off."""
    asked = {f"tally {half}": f"{half} is tallied" for half in HALVES}
    expected = {ASKED: _expected(this.trip, ASKED, list(asked.values()))}
    for prompt in asked:
        notes = [f"noted {each.args['text']}" for each in script(this.trip)[prompt] if isinstance(each, Call)]  # type: ignore[index, call-overload]  # a mapping
        expected[prompt] = _expected(this.trip, prompt, notes)
    transcripts = {str(run.messages[0]["content"]): _transcript(run) for run in story.runs.values()}
    assert transcripts.keys() == expected.keys()
    for prompt, messages in expected.items():
        shown = transcripts[prompt]
        assert len(shown) == len(messages), shown
        for was, expects in zip(shown, messages, strict=True):
            is_cut = this.may_cut_off and was["type"] == "tool" and _CUT_OFF.match(was["content"])
            assert is_cut or was == expects, f"{was}, not {expects}"


def _expected(trip: str, prompt: str, results: list[str]) -> list[dict[str, Any]]:
    """Return the transcript of a run whose calls have these results."""
    messages: list[dict[str, Any]] = [{"type": "human", "content": prompt}]
    remaining = iter(results)
    for step in script(trip)[prompt]:  # type: ignore[index, call-overload]  # a mapping
        calls = step if isinstance(step, list) else [step] if isinstance(step, Call) else []
        text = step if isinstance(step, str) else ""
        messages.append({"type": "ai", "content": text, "calls": [(each.tool, each.args) for each in calls]})
        messages += ({"type": "tool", "content": next(remaining)} for _ in calls)
    return messages


def _transcript(run: RunReplay) -> list[dict[str, Any]]:
    """Return what a conversation says, without the numbers that the process of a tool counts."""
    transcript = list[dict[str, Any]]()
    for each in run.messages:
        shown = {"type": each["type"], "content": _NUMBER.sub("", str(each["content"]))}
        if each["type"] == "ai":
            shown["calls"] = [(call["name"], call["args"]) for call in each.get("tool_calls", ())]
        transcript.append(shown)
    return transcript
