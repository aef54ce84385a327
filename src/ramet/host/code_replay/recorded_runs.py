"""The record of a tree, as a replay needs it: the steps of each run, and the answers to what a run asks for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.core.events import (
    BudgetRefused,
    Event,
    MailDelivered,
    MailPushed,
    MessageRecorded,
    ModelAsked,
    MovedToBackground,
    RunEnded,
    RunSpawned,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from ramet.core.limits import RESOURCES
from ramet.core.outcome import Result, Status

#: Steps of a tree that a replay takes into memory, as `ramet show` takes those of a tree.
MAX_STEPS: Final = 1_000_000
#: Resources of a budget that a request to a model reserves.
_OF_REQUESTS: Final = frozenset(RESOURCES) - {"tool_calls", "agents"}

#: Beginnings of the ids of mail that replayed runs send: messages and notices.
_SENT_AGAIN: Final = ("mail-", "end:", "idle:")

StepKind = Literal["start", "message", "turn end", "end"]


class Step(NamedTuple):
    """Step of a run: what it is, and its content by name, which another run of the code must have as well."""

    seq: int  #: number of its event
    number: int  #: of the step in its run, from 1
    kind: StepKind
    title: str
    content: Mapping[str, Any]


class Reply(NamedTuple):
    """The recorded reply of a model; the event has its message and its usage."""

    event: MessageRecorded


@dataclass
class Refusal:
    """The recorded refusal of a budget, in place of a request. A last answer follows it, and then its event."""

    resource: str
    event: BudgetRefused | None = None


class NoReply(NamedTuple):
    """A request that has no recorded reply: it failed, or its run was ended meanwhile."""


RequestOutcome = Reply | Refusal | NoReply


class Input(NamedTuple):
    """Something that comes from outside of the replayed runs: a prompt of the root's user, or mail."""

    seq: int
    run: str
    message: Mapping[str, Any] | None = None  #: a prompt
    mail: MailPushed | None = None


@dataclass(kw_only=True)
class RecordedRun:
    """The record of one run."""

    spawn: RunSpawned
    is_replayed: bool = True  #: False: its recorded result is returned, and nothing of it runs
    steps: list[Step] = field(default_factory=list)
    outcomes: deque[RequestOutcome] = field(default_factory=deque)  #: of its requests to a model, in order
    answers: dict[str, deque[tuple[int, Mapping[str, Any]]]] = field(default_factory=lambda: defaultdict(deque))
    call_starts: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    children: list[RecordedRun] = field(default_factory=list)
    result: Result | None = None
    end_seq: int = 0  #: number of the event of its newest end; 0: it has not ended
    was_moved: bool = False  #: it went on in the background, after its parent had waited for it

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.spawn.run

    @property
    def path(self) -> str:
        """The path of the run."""
        return self.spawn.path

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The definition as data; empty if it is not on record."""
        recipe: Mapping[str, Any] = self.spawn.birth.get("agent", {})
        return recipe

    @property
    def is_function(self) -> bool:
        """Return whether the run is a function or an external program: neither a model nor a composition."""
        function = self.recipe.get("function")
        return "external" in self.recipe or (function is not None and "@composition" not in function)

    @property
    def is_complete(self) -> bool:
        """Return whether the record has the end of the run: otherwise its process was killed, or is at work."""
        return self.end_seq > 0

    @property
    def reason_not_replayed(self) -> str:
        """Return why a child is not replayed; empty if it is."""
        if self.is_function:
            return "it is no model"
        if "mcp" in self.recipe:
            return "it has MCP servers"
        if {"worktree", "clone"} & self.spawn.birth.keys():
            return "it worked in a copy of a repository"
        if self.result is not None and self.result.status is not Status.COMPLETED:
            return f"it ended {self.result.status}"
        return ""


class RecordedRuns:
    """The record of a tree up to its newest event."""

    def __init__(self) -> None:
        self.runs: dict[str, RecordedRun] = {}
        self.inputs: list[Input] = []
        self.newest = 0
        self._count = 0
        self._has_prompt: set[str] = set()  #: runs whose turn has begun, and whose prompt follows

    @classmethod
    async def read(cls, events: AsyncIterable[Event]) -> RecordedRuns:
        """Read the events of a tree. Raises InvalidValue for events without a root, and for too many."""
        record = cls()
        async for event in events:
            try:
                record._take(event)
            except InvalidValue:
                raise
            except (TypeError, AttributeError, KeyError, ValueError) as problem:
                raise InvalidValue("journal", event.run, f"events as ramet records them ({problem})") from None
        if not record.runs or record.root.spawn.parent is not None:
            raise InvalidValue("journal", len(record.runs), "the events of a tree from the spawn of its root")
        record._leave_out()
        return record

    @property
    def root(self) -> RecordedRun:
        """The record of the root."""
        return next(iter(self.runs.values()))

    @property
    def is_over(self) -> bool:
        """Return whether the tree had ended, or its conversation was idle, at the newest event."""
        return self.root.is_complete or (bool(self.root.steps) and self.root.steps[-1].kind == "turn end")

    @property
    def replayed_runs(self) -> list[RecordedRun]:
        """The runs that are replayed, in the order of their spawns."""
        return [each for each in self.runs.values() if each.is_replayed]

    def _take(self, event: Event) -> None:
        self.newest = event.seq
        if isinstance(event, RunSpawned):
            run = self.runs[event.run] = RecordedRun(spawn=event)
            if event.parent in self.runs:
                self.runs[event.parent].children.append(run)
            self._add(run, event.seq, "start", "start", start_content(event))
            return
        known = self.runs.get(event.run)
        if known is None:
            raise InvalidValue("journal", event.run, "events of runs whose spawn is on record")
        self._take_of(known, event)

    def _take_of(self, run: RecordedRun, event: Event) -> None:
        match event:
            case MessageRecorded():
                self._take_message(run, event)
            case TurnStarted():
                self._has_prompt.add(run.id)
            case MailDelivered():
                self._has_prompt.discard(run.id)
            case MailPushed():
                self.inputs.append(Input(event.seq, run.id, mail=event))
            case ModelAsked() if not run.outcomes or not isinstance(run.outcomes[-1], NoReply):
                run.outcomes.append(NoReply())
            case BudgetRefused() if event.resource in _OF_REQUESTS:
                self._take_refusal(run, event)
            case ToolStarted():
                run.call_starts[event.call_id or ""].append(event.seq)
            case MovedToBackground():
                run.was_moved = True
            case TurnEnded():
                self._has_prompt.discard(run.id)
                self._add(run, event.seq, "turn end", "end of the turn", {"status": event.status})
            case RunEnded():
                run.result, run.end_seq = event.result, event.seq
                if not run.spawn.birth.get("persistent"):  # A conversation ends when its owner closes it.
                    self._add(run, event.seq, "end", "end", end_content(event.result))
            case _:
                pass

    def _take_message(self, run: RecordedRun, event: MessageRecorded) -> None:
        message, kind = event.message, event.message.get("type")
        if kind == "ai" and event.step_id is not None:
            if run.outcomes and isinstance(run.outcomes[-1], NoReply):
                run.outcomes.pop()
            if event.exhausted in _OF_REQUESTS:
                run.outcomes.append(Refusal(event.exhausted))
            run.outcomes.append(Reply(event))
        elif kind == "tool":
            run.answers[str(message.get("tool_call_id"))].append((event.seq, message))
        elif kind == "human" and run.id in self._has_prompt:
            if run.spawn.parent is None:
                self.inputs.append(Input(event.seq, run.id, message=message))
            self._has_prompt.discard(run.id)
        self._add(run, event.seq, "message", message_title(message), message_content(message))

    def _take_refusal(self, run: RecordedRun, event: BudgetRefused) -> None:
        """Complete the refusal before the last answer; without such an answer, add it."""
        newest = next((each for each in reversed(run.outcomes) if isinstance(each, Refusal)), None)
        if newest is not None and newest.event is None:
            newest.event = event
        else:
            run.outcomes.append(Refusal(event.resource, event))

    def _add(self, run: RecordedRun, seq: int, kind: StepKind, title: str, content: Mapping[str, Any]) -> None:
        self._count += 1
        if self._count > MAX_STEPS:
            raise InvalidValue("journal", run.spawn.root, f"a tree of at most {MAX_STEPS:,} steps")
        run.steps.append(Step(seq, len(run.steps) + 1, kind, title, content))

    def _leave_out(self) -> None:
        """Leave out what no replayed run does: steps of children that are not replayed, and mail that runs send."""
        for run in self.runs.values():
            parent = self.runs.get(run.spawn.parent or "")
            run.is_replayed = parent is None or (parent.is_replayed and not run.reason_not_replayed)
            if not run.is_replayed:
                del run.steps[1:]
        paths = {each.path for each in self.replayed_runs}
        self.inputs = [
            each
            for each in self.inputs
            if self.runs[each.run].is_replayed
            and (each.mail is None or each.mail.sender not in paths or not _is_sent_again(each.mail))
        ]


def _is_sent_again(mail: MailPushed) -> bool:
    """Return whether a replayed run sends a mail again: a message, or the notice of an end, but no other request."""
    return not mail.request and mail.mail_id.startswith(_SENT_AGAIN)


def start_content(event: RunSpawned) -> dict[str, Any]:
    """Return what is on record of the beginning of a run, and shown to its model.

    The name of a root is left out: it is its caller's.
    """
    content: dict[str, Any] = {} if event.parent is None else {"agent": event.agent, "mode": event.mode}
    if "function" not in event.birth.get("agent", {}):
        content["instructions"] = "\n\n".join(event.birth.get("system", ()))
        content["tools"] = sorted(event.tools)
    return content


def end_content(result: Result) -> dict[str, Any]:
    """Return the end of a run: its status, and its value or its error."""
    error = None if result.error is None else f"{result.error.type}: {result.error.message}"
    return {"status": str(result.status), "value": result.value, "error": error}


def message_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message says, without ids of providers and metadata."""
    content: dict[str, Any] = {"text": message.get("content")}
    if message.get("type") == "tool":
        content["status"] = message.get("status", "success")
    if calls := message.get("tool_calls"):
        content["calls"] = [{"name": each.get("name"), "args": each.get("args")} for each in calls]
    return content


def message_title(message: Mapping[str, Any]) -> str:
    """Return the name of a message, for a reader."""
    match message.get("type"):
        case "ai":
            return "reply of the model"
        case "tool":
            return f"answer of {message.get('name') or 'a tool'}"
        case _:
            return "message to the model"
