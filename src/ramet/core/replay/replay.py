"""Replay of a journal: applies the events of a tree in order and computes the state of every run.

`TreeReplay.apply` applies one event after the other. It decides nothing, and it keeps everything that a run needs to
continue: conversations as data, started calls, unread mail, unanswered questions, and every move of the budget in
order. The same events always lead to the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from ramet.core.equal_mail import RecentMail, with_asker
from ramet.core.errors import InvalidValue
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BudgetRefused,
    ClockStepped,
    Compacted,
    Event,
    LimitPaused,
    LimitsRaised,
    MailDelivered,
    MailPushed,
    MessageRecorded,
    ModelAsked,
    ModelCharged,
    MonitorEnded,
    MonitorStarted,
    MovedToBackground,
    PauseEnded,
    QuotaReached,
    RequestAnswered,
    RunEnded,
    RunLooping,
    RunPaused,
    RunResumed,
    RunRetried,
    RunSpawned,
    SandboxFrozen,
    SandboxGivenUp,
    SandboxStarted,
    StateChanged,
    SubAgentReported,
    TimeStarted,
    TimeStopped,
    ToolEnded,
    ToolsLoaded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from ramet.core.limits import RESOURCES, Amount
from ramet.core.outcome import NO_USAGE, Usage
from ramet.core.policy import rights
from ramet.core.policy.session_access import INBOUND_MESSAGE
from ramet.core.replay.codec import (
    ReplayEvent,
    ReplayMessage,
    ReplayToolEnd,
    insert_tool_result,
    parse_stored_message,
)
from ramet.core.replay.reported_agents import apply_report, end_reported
from ramet.core.replay.request_replay import PeerRequestsReplay
from ramet.core.replay.run_replay import ROOM, ActiveTime, Placement, RunReplay, UnreadMail
from ramet.core.tool_names import EXIT_PLAN_MODE

#: Events that only an active run causes. The kernel that reports them started or resumed the run's turn.
EXECUTION_EVENTS = frozenset(
    {MessageRecorded, ReplayMessage, ModelAsked, ToolStarted, ToolEnded, ReplayToolEnd, SandboxStarted}
)
OPEN, SPENT, CLOSED, RAISED = "open", "spent", "closed", "raised"
ONE_TOOL_CALL = Usage(tool_calls=1)


class LedgerEntry(Struct):
    """A move of a budget: a scope opened or closed by a run's spawn or end, usage by the run, or raised limits.

    Consecutive usage of one run is one entry, whose usage grows.
    """

    run: str
    kind: str
    usage: Usage = NO_USAGE
    raised: dict[str, int | float] = {}


class TreeReplay:
    """The replayed state of a tree. Runs are in the order of their spawns."""

    def __init__(self) -> None:
        self.runs: dict[str, RunReplay] = {}
        self.ledger: list[LedgerEntry] = []
        self.mail_requests: set[str] = set()  #: requests of sandboxes that led to mail
        self.peer_requests = PeerRequestsReplay()
        self.seq = 0
        self._runs_by_call: dict[tuple[str, str], RunReplay] = {}  #: runs by the calls, of runs, that wait for them

    def apply_all(self, events: Iterable[Event | ReplayEvent]) -> TreeReplay:
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
        """Record the number of a skipped event: one of `ramet.core.replay.codec.IGNORED_TAGS`."""
        self.seq = max(self.seq, seq)

    def apply(self, event: Event | ReplayEvent) -> None:
        """Apply one event.

        An event of a run whose spawn is not recorded is ignored.
        """
        if event.seq > self.seq:
            self.seq = event.seq
        if isinstance(event, RunSpawned):
            return self._apply_spawn(event)
        if isinstance(event, ClockStepped):  # Concerns all runs, whichever run noticed it first.
            for each in self.runs.values():
                each.active_time.shift(event.by_s)
            return
        run = self.runs.get(event.run)
        if run is None:
            return
        if event.at is not None:
            run.last_event_at = event.at
        if event.told and not isinstance(event, MailDelivered | ModelCharged):  # These belong to the next event.
            run.recorded_reports = event.told
        if type(event) in EXECUTION_EVENTS:
            run.active_time.observe(event.at)
        match event:
            case MessageRecorded() | ReplayMessage():
                self._apply_message(run, event)
            case ToolStarted():
                if event.call_id is not None:
                    started = run.started_calls.get(event.call_id)
                    # With the same step, the call was counted; in a sandbox it begins again as another step.
                    if started is None or started.step_id != event.step_id:
                        run.started_calls[event.call_id] = event
                        self._spend(run, ONE_TOOL_CALL)
                run.count_step(event.step_id)
                run.limit_pause = None
            case ToolEnded() | ReplayToolEnd():
                if self._runs_by_call:
                    self._runs_by_call.pop((run.id, event.call_id or ""), None)
                if event.call_id is not None and event.call_id not in run.started_calls:
                    run.unstarted_calls.add(event.call_id)
            case ModelAsked():
                run.model_requests[event.step_id] = event
                run.count_step(event.step_id)
                run.limit_pause = None
                run.quota = None
            case ModelCharged():
                run.model_requests.pop(event.step_id, None)
                self._spend(run, event.usage)
            case QuotaReached():
                run.quota = event
            case BudgetRefused():
                run.apply_refusal(event)
            case LimitPaused():
                run.limit_pause = event
            case RunLooping():
                run.looping_call = event.call_id or ""
            case RunPaused():
                run.pause = event
            case MovedToBackground():
                run.reports_by_notice = True
            case PauseEnded():
                run.pause = None
            case LimitsRaised():
                run.raised.append(event)
                if amounts := {name: more for name, more in event.add.items() if name in RESOURCES}:
                    self.ledger.append(LedgerEntry(run.id, RAISED, raised=amounts))
            case StateChanged():
                if run.result is not None:  # Its conversation was reopened.
                    self._reopen_run(run)
                run.state, run.waits_for_room, run.frozen_mb = event.state, event.why == ROOM, None
                run.is_in_turn = run.is_in_turn and event.state != "idle"
            case TurnStarted() | RunResumed():
                end_reported(run.reported_agents, event.at)
                run.frozen_mb = None
                keeps_sandbox = isinstance(event, RunResumed) and not run.is_rewound
                run.sandbox = run.sandbox if keeps_sandbox else None
                run.attempt_began_at, run.is_retried = len(run.conversation), False
                if isinstance(event, TurnStarted):
                    run.spawns_before_turn = run.spawns
                    run.wakes += event.turn > 1  # Until a prompt is recorded in this turn.
                    run.turn_began_at, run.attempt, run.replies = len(run.conversation), 1, 0
                    run.objections = 0
                    run.exhausted_resource, run.refusal = "", None
                    run.limit_pause = run.limit_denial = run.quota = None
                else:
                    self._charge_open_requests(run)  # The resuming kernel has counted these; readers must, too.
                run.turn, run.is_in_turn, run.state = event.turn, True, "running"
                if run.result is not None:
                    self._reopen_run(run)
                is_session = isinstance(event, TurnStarted) and run.spawn_event.birth.get("persistent", False)
                run.active_time.start(event.at, anew=is_session)  # Each turn of a session has its own time limit.
            case SubAgentReported():
                apply_report(run.reported_agents, event)
            case TurnEnded():
                end_reported(run.reported_agents, event.at)
                self._close_approvals(run, None)  # Its calls are over: none of their answers is for a later one.
                run.turn_status = event.status
                run.is_in_turn, run.state, run.limit_pause = False, "idle", None
            case TimeStopped():
                run.active_time.stop(event.at)
            case TimeStarted():
                run.active_time.start(event.at)
            case SandboxStarted():
                run.sandbox, run.was_sandboxed, run.is_given_up = (event if event.sandbox else None), True, False
                run.recorded_reports = run.recorded_reports if event.adopted else 0
                run.ports, run.placement = _ports(event.policy), _placement(event)
            case SandboxFrozen():
                run.frozen_mb = event.memory_mb
            case SandboxGivenUp():
                run.is_given_up = True
            case RunRetried():
                run.sandbox, run.is_retried, run.attempt = None, True, event.attempt + 1
            case MailPushed():
                if event.asked:
                    self.mail_requests.add(event.asked)
                if run.result is not None and event.kind not in ("notice", "note"):
                    self._reopen_run(run)
                    run.state = "idle"  # Its next turn has not begun.
                if event.kind == "user" or run.spawn_event.path.startswith(f"{event.sender}/"):
                    run.wakes = 0
                if event.request:
                    sender = next((id for id, each in self.runs.items() if each.spawn_event.path == event.sender), "")
                    self.peer_requests.push(event, sender)
                if event.notify:
                    run.awaiting_idle = with_asker(run.awaiting_idle, event.mail_id, event.notify)
                run.mail_ids.append(event.mail_id)
                if event.kind in ("user", "agent") and event.at is not None:
                    run.recent_mail = run.recent_mail or RecentMail()
                    run.recent_mail.add(event.mail_id, event.sender, event.text, event.at)
                run.unread[event.mail_id] = UnreadMail(event.mail_id, event.sender, event.kind, event.text)
            case MonitorStarted():
                run.monitors[event.monitor], run.monitor_count = event.asked, run.monitor_count + 1
            case MonitorEnded():
                run.monitors.pop(event.monitor, None)
            case RequestAnswered():
                self.peer_requests.answer(event)
            case MailDelivered():
                mail = run.unread.pop(event.mail_id, None)
                if mail is not None:
                    run.delivering[mail.id] = mail
            case Compacted():
                run.context_tokens = event.after_tokens
                if event.kept:
                    previous = run.conversation
                    run.conversation = [
                        previous[each] if isinstance(each, int) else parse_stored_message(each) for each in event.kept
                    ]
                    run.attempt_began_at = _first_remaining(event.kept, run.attempt_began_at)
                    run.turn_began_at = _first_remaining(event.kept, run.turn_began_at)
            case ToolsLoaded():
                run.loaded_tools += event.tools
            case ApprovalAsked(tool=tool, call_id=None) if tool == INBOUND_MESSAGE:
                run.held_messages[event.approval_id] = event
            case ApprovalAnswered() if event.approval_id in run.held_messages:
                del run.held_messages[event.approval_id]
                run.answered_messages.append(event.approval_id)
            case ApprovalAsked():
                run.approvals[event.approval_id] = event
            case ApprovalAnswered():
                question = run.approvals.get(event.approval_id)
                if question is not None and question.tool == EXIT_PLAN_MODE and event.allowed:
                    run.is_plan_approved, run.approved_plan_call = True, question.call_id
                if question is not None and question.for_run and event.allowed and event.for_run:
                    run.grants.append(question)
                if question is not None and question.call_id:  # Its call has not run yet and needs the answer.
                    run.approval_answers[event.approval_id] = event
                else:
                    run.approvals.pop(event.approval_id, None)
            case RunEnded():
                end_reported(run.reported_agents, event.at)
                self._charge_open_requests(run)
                run.result, run.state, run.is_in_turn, run.sandbox = event.result, "ended", False, None
                run.ended_at = event.at
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
        if run.model_requests:
            self._spend(run, run.reservation)
            run.model_requests.clear()

    def _apply_spawn(self, event: RunSpawned) -> None:
        run = self.runs[event.run] = RunReplay(
            spawn_event=event, ancestor_id=event.parent or "", last_event_at=event.at
        )
        parent = self.runs.get(event.parent or "")
        shared = event.birth.get("shared", 0)  # A fork's conversation begins with this many messages of its parent's.
        run.conversation = [
            *(parent.conversation[:shared] if parent is not None else ()),
            *map(parse_stored_message, event.birth.get("answers", ())),
        ]
        if parent is not None:
            self._runs_by_call[parent.id, event.parent_call or ""] = run
            parent.spawns += 1
            parent.waits_for_room = False
            parent.limit_pause = None
            parent.subtree_usage = parent.subtree
        self.ledger.append(LedgerEntry(event.run, OPEN))
        if parent is not None:
            self._spend(parent, Usage(agents=1), is_own=False)

    def _reopen_run(self, run: RunReplay) -> None:
        """Reopen the scope of a run that had ended and was resumed."""
        run.result, run.ended_at, run.active_time = None, None, ActiveTime()
        run.reports_by_notice = bool(run.ancestor_id)
        run.generation += 1
        ancestor = self.runs.get(run.ancestor_id)
        while ancestor is not None and ancestor.is_over:
            ancestor = self.runs.get(ancestor.ancestor_id)
        run.ancestor_id = ancestor.id if ancestor is not None else run.ancestor_id
        self.ledger.append(LedgerEntry(run.id, OPEN))

    def _apply_message(self, run: RunReplay, event: MessageRecorded | ReplayMessage) -> None:
        message = parse_stored_message(event.message) if isinstance(event.message, dict) else event.message
        run.is_briefed = True
        if run.is_retried:  # Not earlier: a process that ends before this point resumes with the failed attempt.
            del run.conversation[run.attempt_began_at :]
            run.started_calls.clear()
            run.unstarted_calls.clear()
            run.is_retried, run.replies, run.objections = False, 0, 0
        if event.step_id is not None:
            run.count_step(event.step_id)
            run.reply_step, run.exhausted_resource, run.replies = event.step_id, event.exhausted, run.replies + 1
            run.model_requests.pop(event.step_id, None)
        if event.usage is not None:
            self._spend(run, event.usage)
            run.context_tokens = event.usage.input_tokens
        if message.kind == "tool":
            call_id = event.call_id or str(message.call_id)
            # The call of such a child was cut off, or it would have ended.
            child = self._runs_by_call.pop((run.id, call_id), None) if self._runs_by_call else None
            if child is not None:
                child.reports_by_notice = not child.is_over and child.state != "stopping"
            run.started_calls.pop(call_id, None)
            run.unstarted_calls.discard(call_id)
            if run.approvals:
                self._close_approvals(run, call_id)
            if (
                insert_tool_result(run.conversation, message) <= run.attempt_began_at
            ):  # The answer is to an earlier call.
                run.attempt_began_at += 1
            return
        if run.delivering and message.kind == "human":
            run.delivering.pop(next(iter(run.delivering)))
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
        last, before = self.ledger[-1], run.usage
        if is_own:
            run.usage = before + usage if before is not NO_USAGE else usage
        if last.kind != SPENT or last.run != run.id:
            self.ledger.append(LedgerEntry(run.id, SPENT, usage))
        elif is_own and last.usage is before:  # No other run has spent anything: both are one sum.
            last.usage = run.usage
        else:
            last.usage = last.usage + usage
        ancestor: RunReplay | None = run
        while ancestor is not None:
            if ancestor.subtree_usage is not None:
                ancestor.subtree_usage = ancestor.subtree_usage + usage
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


def _placement(event: SandboxStarted) -> Placement:
    """Return where a process was started."""
    memory_mb = event.policy.get("memory_mb")
    is_number = isinstance(memory_mb, int | float) and not isinstance(memory_mb, bool)
    return Placement(event.backend, event.level, memory_mb if is_number else None)


def _first_remaining(messages: Sequence[int | dict[str, Any]], began_at: int) -> int:
    """Return the index, in the result of a compaction, of the first kept message from `began_at` on."""
    return next((at for at, each in enumerate(messages) if isinstance(each, int) and each >= began_at), len(messages))
