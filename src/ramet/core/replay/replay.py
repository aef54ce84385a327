"""Replay of a journal: applies the events of a tree in order and computes the state of every run.

`TreeReplay.apply` applies one event after the other. It decides nothing, and it keeps everything that a run needs to
continue: conversations as data, started calls, unread mail, unanswered questions, and every move of the budget in
order. The same events always lead to the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ramet.core.budget import Amount
from ramet.core.equal_mail import RecentMail, with_asker
from ramet.core.errors import InvalidValue
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BudgetRefused,
    ClockStepped,
    Compacted,
    Event,
    MailDelivered,
    MailPushed,
    MessageDiscarded,
    MessageRecorded,
    ModelAsked,
    ModelCharged,
    RunEnded,
    RunResumed,
    RunRetried,
    RunSpawned,
    SandboxStarted,
    StateChanged,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from ramet.core.outcome import NO_USAGE, Result, Usage
from ramet.core.policy import rights
from ramet.core.replay.active_time import ActiveTime
from ramet.core.replay.codec import ReplayMessage, StoredMessage, insert_tool_result, parse_stored_message

#: Events that only an active run causes. The kernel that reports them started or resumed the run's turn.
EXECUTION_EVENTS = (MessageRecorded, ReplayMessage, ModelAsked, ToolStarted, ToolEnded, SandboxStarted)
OPEN, SPENT, CLOSED = "open", "spent", "closed"


class LedgerEntry(NamedTuple):
    """A move of a budget: a scope opened or closed by a run's spawn or end, or usage by the run."""

    run: str
    kind: str
    usage: Usage = NO_USAGE


class UnreadMail(NamedTuple):
    """A message that was accepted and not read."""

    id: str
    sender: str
    kind: str
    text: str


@dataclass(kw_only=True)
class RunReplay:
    """The replayed state of one run."""

    spawn_event: RunSpawned
    ancestor_id: str = ""  #: id of the run above: its parent, or the living ancestor when it returned
    conversation: list[StoredMessage] = field(default_factory=list)  #: its conversation, each message as it was written
    is_briefed: bool = False  #: a message was recorded in it; the first one is its brief
    state: str = "starting"
    turn: int = 0
    is_in_turn: bool = False  #: a turn began and has not ended
    turn_status: str = "completed"  #: status of the newest turn that ended
    attempt: int = 1  #: of its turn
    turn_began_at: int = 0  #: index into its conversation
    steps: int = 0  #: number of the newest step
    spawns: int = 0
    spawns_before_turn: int = 0  #: spawns before its newest turn
    generation: int = 1
    reports_by_notice: bool = False  #: no caller waits for the call that spawned it: a notice reports its end
    was_sandboxed: bool = False  #: a sandbox was started for it, and may have written to its folder
    wakes: int = 0  #: turns that mail began since the last message from above
    started_calls: dict[str, ToolStarted] = field(default_factory=dict)  #: calls without a recorded answer, by id
    unstarted_calls: set[str] = field(
        default_factory=set
    )  #: calls that ended without having begun, and have no answer yet
    model_requests: dict[str, ModelAsked] = field(
        default_factory=dict
    )  #: requests to its model without a reply, by step
    reply_step: str = ""  #: step of the newest reply
    replies: int = 0  #: replies of its model in its newest turn, at this attempt
    objections: int = 0  #: messages there that asked the run to continue instead of ending
    exhausted_resource: str = ""  #: on a last answer: the resource of its budget that is used up
    refusal: BudgetRefused | None = None  #: the last refusal of a budget in its newest turn
    awaiting_idle: dict[str, str] = field(default_factory=dict)  #: mail ids, and the runs to notify when it is idle
    unread: dict[str, UnreadMail] = field(default_factory=dict)
    mail_ids: list[str] = field(default_factory=list)  #: ids of all mail that it ever received
    recent_mail: RecentMail | None = None  #: None until mail from outside arrives
    approvals: dict[str, ApprovalAsked] = field(default_factory=dict)  #: questions about calls without an answer, by id
    approval_answers: dict[str, ApprovalAnswered] = field(
        default_factory=dict
    )  #: the answers to these questions that came
    past_approvals: list[str] = field(default_factory=list)  #: ids of questions about calls that were answered
    sandbox: SandboxStarted | None = None  #: the newest of its newest turn, if it may have outlived its kernel
    ports: dict[str, int] = field(default_factory=dict)  #: of its newest sandbox, by name
    recorded_reports: int = 0  #: number of the sandbox's reports that are recorded
    usage: Usage = NO_USAGE
    active_time: ActiveTime = field(default_factory=ActiveTime)  #: the part of its time that counts for its limit
    result: Result | None = None
    _delivering: dict[str, UnreadMail] = field(default_factory=dict)
    _is_retried: bool = False  #: an attempt failed, and the next one has recorded nothing yet
    _attempt_began_at: int = 0  #: index into its conversation: a new attempt removes the messages from there on
    _subtree: Usage | None = None  #: None while it has no children: then equal to its own usage

    @property
    def id(self) -> str:
        """The run's id."""
        return self.spawn_event.run

    @property
    def is_over(self) -> bool:
        """True if the run has ended."""
        return self.result is not None

    @property
    def is_rewound(self) -> bool:
        """True if the newest attempt restarted before recorded messages that are not yet removed."""
        return self._is_retried and len(self.conversation) > self._attempt_began_at

    @property
    def has_no_input(self) -> bool:
        """True if the newest turn has begun and no message of it is recorded."""
        return self.is_in_turn and not self.replies and len(self.conversation) == self.turn_began_at

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as data, decoded on each access.

        Raises InvalidValue if a message is not valid.
        """
        return [each.data for each in self.conversation]

    @property
    def subtree(self) -> Usage:
        """The usage of the run and all runs below it."""
        return self.usage if self._subtree is None else self._subtree

    def unread_mail(self) -> list[UnreadMail]:
        """Return mail that is still to be read.

        This includes mail that was taken from the mailbox and never reached the conversation.
        """
        return [*self._delivering.values(), *self.unread.values()]


class TreeReplay:
    """The replayed state of a tree. Runs are in the order of their spawns."""

    def __init__(self) -> None:
        self.runs: dict[str, RunReplay] = {}
        self.ledger: list[LedgerEntry] = []
        self.mail_requests: set[str] = set()  #: requests of sandboxes that led to mail
        self.seq = 0
        self._runs_by_call: dict[tuple[str, str], RunReplay] = {}  #: runs by the calls, of runs, that wait for them

    def apply_all(self, events: Iterable[Event]) -> TreeReplay:
        """Apply events in order; return the replay itself."""
        for event in events:
            self.apply(event)
        return self

    @property
    def root(self) -> RunReplay:
        """The first run."""
        return next(iter(self.runs.values()))

    @property
    def is_over(self) -> bool:
        """True if every run has ended."""
        return all(run.is_over for run in self.runs.values())

    @property
    def newest_mail(self) -> int:
        """The highest number of any mail; 0 if there is none."""
        ids = (mail.rpartition("-") for run in self.runs.values() for mail in run.mail_ids)
        return max((int(number) for kind, _, number in ids if kind == "mail" and number.isdecimal()), default=0)

    def skip(self, seq: int) -> None:
        """Record the number of a skipped event: one of `ramet.core.replay.codec.PASSED_OVER`."""
        self.seq = max(self.seq, seq)

    def apply(self, event: Event) -> None:
        """Apply one event.

        An event of a run whose spawn is not recorded is ignored.
        """
        self.seq = max(self.seq, event.seq)
        if isinstance(event, RunSpawned):
            return self._apply_spawn(event)
        if isinstance(event, ClockStepped):  # Concerns all runs, whichever run noticed it first.
            for each in self.runs.values():
                each.active_time.shift(event.by_s)
            return
        run = self.runs.get(event.run)
        if run is None:
            return
        if event.told and not isinstance(event, MailDelivered | ModelCharged):  # These belong to the next event.
            run.recorded_reports = event.told
        if isinstance(event, EXECUTION_EVENTS):
            run.active_time.observe(event.at)
        match event:
            case MessageRecorded() | ReplayMessage():
                self._apply_message(run, event)
            case ToolStarted():
                if event.call_id is not None and event.call_id not in run.started_calls:
                    run.started_calls[event.call_id] = event
                    self._spend(run, Usage(tool_calls=1))
                run.steps = max(run.steps, _number(event.step_id))
            case ToolEnded():
                self._runs_by_call.pop((run.id, event.call_id or ""), None)
                if event.call_id is not None and event.call_id not in run.started_calls:
                    run.unstarted_calls.add(event.call_id)
            case ModelAsked():
                run.model_requests[event.step_id] = event
                run.steps = max(run.steps, _number(event.step_id))
            case ModelCharged():
                run.model_requests.pop(event.step_id, None)
                self._spend(run, event.usage)
            case BudgetRefused():
                run.refusal = event
            case MessageDiscarded():
                pass  # Its cost is recorded as a separate event.
            case StateChanged():
                if run.result is not None:  # Its conversation was reopened.
                    self._reopen_run(run)
                run.state = event.state
                run.is_in_turn = run.is_in_turn and event.state != "idle"
            case TurnStarted() | RunResumed():
                keeps_sandbox = isinstance(event, RunResumed) and not run.is_rewound
                run.sandbox = run.sandbox if keeps_sandbox else None
                run._attempt_began_at, run._is_retried = len(run.conversation), False
                if isinstance(event, TurnStarted):
                    run.spawns_before_turn = run.spawns
                    run.wakes += event.turn > 1  # Until a prompt is recorded in this turn.
                    run.turn_began_at, run.attempt, run.replies = len(run.conversation), 1, 0
                    run.objections = 0
                    run.exhausted_resource, run.refusal = "", None
                else:
                    self._charge_open_requests(run)  # The resuming kernel has counted these; readers must, too.
                run.turn, run.is_in_turn, run.state = event.turn, True, "running"
                if run.result is not None:
                    self._reopen_run(run)
                is_session = isinstance(event, TurnStarted) and run.spawn_event.birth.get("persistent", False)
                run.active_time.start(event.at, anew=is_session)  # Each turn of a session has its own time limit.
            case TurnEnded():
                run.turn_status = event.status
                run.is_in_turn, run.state = False, "idle"
            case SandboxStarted():
                run.sandbox, run.was_sandboxed = (event if event.sandbox else None), True
                run.recorded_reports = run.recorded_reports if event.adopted else 0
                run.ports = _ports(event.policy)
            case RunRetried():
                run.sandbox, run._is_retried, run.attempt = None, True, event.attempt + 1
            case MailPushed():
                if event.asked:
                    self.mail_requests.add(event.asked)
                if run.result is not None and event.kind not in ("notice", "note"):
                    self._reopen_run(run)
                    run.state = "idle"  # Its next turn has not begun.
                if event.kind == "user" or run.spawn_event.path.startswith(f"{event.sender}/"):
                    run.wakes = 0
                if event.notify:
                    run.awaiting_idle = with_asker(run.awaiting_idle, event.mail_id, event.notify)
                run.mail_ids.append(event.mail_id)
                if event.kind in ("user", "agent") and event.at is not None:
                    run.recent_mail = run.recent_mail or RecentMail()
                    run.recent_mail.add(event.mail_id, event.sender, event.text, event.at)
                run.unread[event.mail_id] = UnreadMail(event.mail_id, event.sender, event.kind, event.text)
            case MailDelivered():
                mail = run.unread.pop(event.mail_id, None)
                if mail is not None:
                    run._delivering[mail.id] = mail
            case Compacted():
                if event.kept:
                    previous = run.conversation
                    run.conversation = [
                        previous[each] if isinstance(each, int) else parse_stored_message(each) for each in event.kept
                    ]
                    run._attempt_began_at = _first_remaining(event.kept, run._attempt_began_at)
                    run.turn_began_at = _first_remaining(event.kept, run.turn_began_at)
            case ApprovalAsked():
                run.approvals[event.approval_id] = event
            case ApprovalAnswered():
                question = run.approvals.get(event.approval_id)
                if question is not None and question.call_id:  # Its call has not run yet and needs the answer.
                    run.approval_answers[event.approval_id] = event
                else:
                    run.approvals.pop(event.approval_id, None)
            case RunEnded():
                self._charge_open_requests(run)
                run.result, run.state, run.is_in_turn, run.sandbox = event.result, "ended", False, None
                self._close_approvals(run, None)
                self.ledger.append(LedgerEntry(run.id, CLOSED))

    def reopen(self) -> None:
        """Reopen the conversation of the root, which has ended.

        The root is then between two turns, and its budget continues to count.
        """
        root = self.root
        if root.result is not None:
            root.turn_status = str(root.result.status)
            self._reopen_run(root)
            root.state = "idle" if root.turn else "starting"

    def close_open(self) -> None:
        """Settle everything that was in progress when a process ended.

        Open requests to a model count with their reserved amounts, because the real amounts are unknown. A turn of a
        session without any recorded message counts as not begun: the caller received no confirmation, and asks again.
        """
        for run in self.runs.values():
            self._charge_open_requests(run)
            birth = run.spawn_event.birth
            is_session = birth.get("persistent") and not birth.get("agent", {}).get("function")
            if is_session and run.has_no_input and run.sandbox is None:
                run.wakes -= run.turn > 1
                run.turn, run.is_in_turn = run.turn - 1, False
                run.state = "idle" if run.turn else "starting"

    def _charge_open_requests(self, run: RunReplay) -> None:
        for request in run.model_requests.values():
            usage = Usage(
                model_calls=request.requests,
                output_tokens=request.reserved_tokens,
                usd=request.reserved_usd,
                estimated=True,
            )
            self._spend(run, usage)
        run.model_requests.clear()

    def _apply_spawn(self, event: RunSpawned) -> None:
        run = self.runs[event.run] = RunReplay(spawn_event=event, ancestor_id=event.parent or "")
        parent = self.runs.get(event.parent or "")
        shared = event.birth.get("shared", 0)  # A fork's conversation begins with this many messages of its parent's.
        run.conversation = [
            *(parent.conversation[:shared] if parent is not None else ()),
            *map(parse_stored_message, event.birth.get("answers", ())),
        ]
        if parent is not None:
            self._runs_by_call[parent.id, event.parent_call or ""] = run
            parent.spawns += 1
            parent._subtree = parent.subtree
        self.ledger.append(LedgerEntry(event.run, OPEN))
        if parent is not None:
            self._spend(parent, Usage(agents=1), is_own=False)

    def _reopen_run(self, run: RunReplay) -> None:
        """Reopen the scope of a run that had ended and was resumed."""
        run.result, run.active_time, run.reports_by_notice = None, ActiveTime(), bool(run.ancestor_id)
        run.generation += 1
        ancestor = self.runs.get(run.ancestor_id)
        while ancestor is not None and ancestor.is_over:
            ancestor = self.runs.get(ancestor.ancestor_id)
        run.ancestor_id = ancestor.id if ancestor is not None else run.ancestor_id
        self.ledger.append(LedgerEntry(run.id, OPEN))

    def _apply_message(self, run: RunReplay, event: MessageRecorded | ReplayMessage) -> None:
        message = parse_stored_message(event.message)
        run.is_briefed = True
        if run._is_retried:  # Not earlier: a process that ends before this point resumes with the failed attempt.
            del run.conversation[run._attempt_began_at :]
            run.started_calls.clear()
            run.unstarted_calls.clear()
            run._is_retried, run.replies, run.objections = False, 0, 0
        if event.step_id is not None:
            run.reply_step, run.exhausted_resource, run.replies = event.step_id, event.exhausted, run.replies + 1
            run.model_requests.pop(event.step_id, None)
            run.steps = max(run.steps, _number(event.step_id))
        if event.usage is not None:
            self._spend(run, event.usage)
        if message.kind == "tool":
            call_id = event.call_id or str(message.call_id)
            child = self._runs_by_call.pop((run.id, call_id), None)  # The call was cut off, or it would have ended.
            if child is not None:
                child.reports_by_notice = not child.is_over and child.state != "stopping"
            run.started_calls.pop(call_id, None)
            run.unstarted_calls.discard(call_id)
            if run.approvals:
                self._close_approvals(run, call_id)
            if (
                insert_tool_result(run.conversation, message) <= run._attempt_began_at
            ):  # The answer is to an earlier call.
                run._attempt_began_at += 1
            return
        if run._delivering and message.kind == "human":
            run._delivering.pop(next(iter(run._delivering)))
        elif message.kind == "human" and run.replies:
            run.objections += 1
        elif message.kind == "human" and len(run.conversation) == run.turn_began_at:
            run.wakes = 0
        run.conversation.append(message)

    def _close_approvals(self, run: RunReplay, call_id: str | None) -> None:
        """Remove approvals that no caller will need again: of an answered call, or of a run that has ended."""
        for id in [id for id, question in run.approvals.items() if call_id in (None, question.call_id)]:
            del run.approvals[id]
            run.approval_answers.pop(id, None)
            run.past_approvals.append(id)

    def _spend(self, run: RunReplay, usage: Usage, *, is_own: bool = True) -> None:
        last = self.ledger[-1] if self.ledger else None
        if last is not None and last.kind == SPENT and last.run == run.id:
            self.ledger[-1] = LedgerEntry(run.id, SPENT, last.usage + usage)
        else:
            self.ledger.append(LedgerEntry(run.id, SPENT, usage))
        if is_own:
            run.usage = run.usage + usage
        ancestor: RunReplay | None = run
        while ancestor is not None:
            if ancestor._subtree is not None:
                ancestor._subtree = ancestor._subtree + usage
            ancestor = self.runs.get(ancestor.ancestor_id)


def amount(usage: Usage) -> Amount:
    """Convert usage to an amount of a budget."""
    return Amount(
        tokens=usage.tokens,
        usd=usage.usd,
        model_calls=usage.model_calls,
        tool_calls=usage.tool_calls,
        agents=usage.agents,
    )


def _ports(policy: dict[str, Any]) -> dict[str, int]:
    """Return the ports that a recorded policy names.

    Return nothing if an older kernel, or another writer, wrote them differently.
    """
    try:
        return rights.ports("ports", policy.get("ports", {}))
    except InvalidValue:
        return {}


def _first_remaining(messages: Sequence[int | dict[str, Any]], began_at: int) -> int:
    """Return the index, in the result of a compaction, of the first kept message from `began_at` on."""
    return next((at for at, each in enumerate(messages) if isinstance(each, int) and each >= began_at), len(messages))


def _number(step_id: str) -> int:
    """Return the number in a step id."""
    tail = step_id.rpartition(":")[2]
    return int(tail) if tail.isdecimal() else 0
