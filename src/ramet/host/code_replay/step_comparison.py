"""The comparison of the steps of code with recorded ones, up to the first difference."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from ramet.core.events import Event, MessageRecorded, RunEnded, RunSpawned, TurnEnded
from ramet.host.code_replay.recorded_runs import (
    RecordedRun,
    RecordedRuns,
    Step,
    StepKind,
    end_content,
    message_content,
    message_title,
    start_content,
)
from ramet.host.code_replay.step_gate import StepGate

_log = logging.getLogger("ramet.code_replay")
NOTHING = "(nothing)"


class Difference(Struct, frozen=True, kw_only=True):
    """The first step in which code differs from a journal."""

    path: str  #: of the run
    step: int  #: number of the step in its run, from 1
    event: int  #: number of its event in the journal; 0: the journal has no such step
    what: str
    recorded: str
    code: str


class _Made(NamedTuple):
    kind: StepKind
    title: str
    content: Mapping[str, Any]


class StepComparison:
    """A comparison of a replayed tree with its record. `ended` is done at the first difference, or at the record's end.

    It is told of every event of the replayed tree, and of what its runs ask for.
    """

    def __init__(self, record: RecordedRuns, folders: Mapping[str, str]) -> None:
        self._record, self._folders = record, folders
        self._positions = Counter[str]()
        self.gate = StepGate(step.seq for run in record.runs.values() for step in run.steps)
        self.ended: asyncio.Future[Difference | None] = asyncio.get_running_loop().create_future()
        self.steps = 0

    def take(self, event: Event) -> None:
        """Compare an event of the replayed tree."""
        run = self._record.runs.get(event.run)
        if run is None or self.ended.done():
            return
        try:
            if (made := _step_of(event)) is not None:
                self._compare(run, made)
        except Exception as error:  # The listener of a tree must not lose it.
            _log.debug("the comparison failed", exc_info=True)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def end(self, difference: Difference | None = None) -> None:
        """End with a difference, or without one where the record ends."""
        if not self.ended.done():
            self.ended.set_result(difference)

    def next_step(self, run: RecordedRun) -> Step | None:
        """Return the recorded step that a run must do next; None after its last one."""
        position = self._positions[run.id]
        return run.steps[position] if position < len(run.steps) else None

    def differ(self, run: RecordedRun, step: Step | None, what: str, recorded: object, code: object) -> None:
        """End with a difference at a step, or behind the last one of a run."""
        self.end(
            Difference(
                path=run.path,
                step=step.number if step is not None else len(run.steps) + 1,
                event=step.seq if step is not None else 0,
                what=what,
                recorded=as_text(recorded),
                code=as_text(code),
            )
        )

    def differ_at_standstill(self, seconds: float) -> None:
        """End with the first recorded step that did not happen."""
        missing = self.gate.first_missing
        for run in self._record.runs.values():
            for step in run.steps:
                if step.seq == missing:
                    self.differ(run, step, f"{step.title}: missing", shown(step), f"nothing more in {seconds:g} s")
                    return
        self.end()

    def mark_start(self, child: RecordedRun) -> None:
        """Note the start of a child that is not replayed."""
        self._advance(child, child.steps[0])

    def end_of_record(self, run: RecordedRun, what: str) -> None:
        """Note that code goes on where the record of a run has no more.

        It differs if the run had ended. Otherwise the run waits, and the others do what is on record of them.
        """
        if (step := self.next_step(run)) is not None:
            self.differ(run, step, f"{step.title}: another step", shown(step), what)
        elif run.is_complete and not run.spawn.birth.get("persistent"):
            self.differ(run, None, "one more step", NOTHING, what)
        elif run.steps and run.steps[-1].kind == "turn end":
            self.differ(run, None, "one more step", NOTHING, what)

    def _compare(self, run: RecordedRun, made: _Made) -> None:
        step = self.next_step(run)
        if step is None:
            self.end_of_record(run, f"{made.title}: {as_text(made.content)}")
            return
        if made.kind in ("end", "turn end") and (absent := self._absent_child(run, step)) is not None:
            self.differ(absent, absent.steps[0], f"{absent.steps[0].title}: missing", shown(absent.steps[0]), NOTHING)
            return
        if (made.kind, made.title) != (step.kind, step.title):
            self.differ(run, step, "another step", shown(step), f"{made.title}: {as_text(made.content)}")
            return
        for name, recorded in step.content.items():
            if (found := made.content.get(name)) != recorded and self._here(recorded) != found:
                self.differ(run, step, f"{step.title}: {name}", recorded, found)
                return
        self._advance(run, step)

    def _advance(self, run: RecordedRun, step: Step) -> None:
        self._positions[run.id] += 1
        self.steps += 1
        self.gate.mark(step.seq)
        if self.gate.first_missing is None:
            self.end()

    def _absent_child(self, run: RecordedRun, step: Step) -> RecordedRun | None:
        """Return the first child that started before a recorded step and has not started now."""
        starts = (each for each in run.children if each.steps[0].seq < step.seq)
        return next((each for each in starts if not self._positions[each.id]), None)

    def _here(self, value: Any) -> Any:
        """Return a recorded text with the folders of this run in place of the recorded ones."""
        if isinstance(value, str):
            for recorded, here in self._folders.items():
                value = value.replace(recorded, here)
        return value


def _step_of(event: Event) -> _Made | None:
    match event:
        case RunSpawned():
            return _Made("start", "start", start_content(event))
        case MessageRecorded():
            return _Made("message", message_title(event.message), message_content(event.message))
        case TurnEnded():
            return _Made("turn end", "end of the turn", {"status": event.status})
        case RunEnded():
            return _Made("end", "end", end_content(event.result))
        case _:
            return None


def shown(step: Step) -> str:
    """Return a step as text: its title and its content."""
    return f"{step.title}: {as_text(step.content)}"


def as_text(value: object) -> str:
    """Return a value as text: a text unchanged, the only text of a mapping, anything else as JSON."""
    if isinstance(value, Mapping):
        value = {name: each for name, each in value.items() if each not in (None, "", [])}
        if "text" in value and isinstance(value["text"], str) and "calls" not in value:
            return value["text"]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
