"""The replayed state of one run: everything that it needs to continue, and how it is now."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ramet.core.equal_mail import RecentMail
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BudgetRefused,
    LimitPaused,
    LimitsRaised,
    ModelAsked,
    QuotaReached,
    RunPaused,
    RunSpawned,
    SandboxStarted,
    ToolStarted,
)
from ramet.core.outcome import NO_USAGE, Result, Usage
from ramet.core.replay.codec import StoredMessage
from ramet.core.replay.reported_agents import ReportedAgent

ROOM = "room"  #: why a run waits whose spawn needs the end of another run


class UnreadMail(NamedTuple):
    """A message that was accepted and not read."""

    id: str
    sender: str
    kind: str
    text: str


class Placement(NamedTuple):
    """The backend, the isolation level and the limit of memory of a run's process."""

    backend: str
    level: str
    memory_limit_mb: int | float | None


@dataclass
class ActiveTime:
    """A counter of active time, from each `start` to the last event `observe` before the next `start` or `stop`.

    Time that no event covers is unknown. Clocks of two processes are never compared.
    """

    _earlier_s: float = 0.0
    _started_at: datetime | None = None
    _last_seen_at: datetime | None = None

    @property
    def seconds(self) -> float:
        """The lower bound of the active time in seconds."""
        if self._started_at is None or self._last_seen_at is None:
            return self._earlier_s
        return self._earlier_s + max(0.0, (self._last_seen_at - self._started_at).total_seconds())

    def start(self, at: datetime | None, *, anew: bool = False) -> None:
        """Start counting when a process starts to work on the run.

        With `anew`, the time counted before is dropped.
        """
        self._earlier_s, self._started_at, self._last_seen_at = 0.0 if anew else self.seconds, at, at

    def stop(self, at: datetime | None) -> None:
        """Count until this time, and no further before the next `start`."""
        self.observe(at)
        self._earlier_s, self._started_at = self.seconds, None

    def shift(self, by_s: float) -> None:
        """Adjust for a clock that was set by `by_s` seconds."""
        delta = timedelta(seconds=by_s)
        if self._started_at is not None and self._last_seen_at is not None:
            self._started_at, self._last_seen_at = self._started_at + delta, self._last_seen_at + delta

    def observe(self, at: datetime | None) -> None:
        """Record that the run was active at this time."""
        self._last_seen_at = at


@dataclass(kw_only=True)
class RunReplay:
    """The replayed state of one run."""

    spawn_event: RunSpawned
    ancestor_id: str = ""  #: id of the run above: its parent, or the living ancestor when it returned
    conversation: list[StoredMessage] = field(default_factory=list)  #: its conversation, each message as it was written
    is_briefed: bool = False  #: a message was recorded in it; the first one is its brief
    state: str = "starting"
    waits_for_room: bool = False  #: it began to wait because a spawn of it found no room
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
    reported_agents: dict[str, ReportedAgent] = field(default_factory=dict)  #: that its program runs by itself, by id
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
    limit_pause: LimitPaused | None = None  #: where it paused last, unless it went on from there
    pause: RunPaused | None = None  #: by a person, not ended yet
    limit_denial: BudgetRefused | None = None  #: the refusal of a person at such a limit, in its newest turn
    raised: list[LimitsRaised] = field(default_factory=list)  #: what was added to its limits
    quota: QuotaReached | None = None  #: the window that its next request to a model waits for
    awaiting_idle: dict[str, str] = field(default_factory=dict)  #: mail ids, and the runs to notify when it is idle
    unread: dict[str, UnreadMail] = field(default_factory=dict)
    mail_ids: list[str] = field(default_factory=list)  #: ids of all mail that it ever received
    recent_mail: RecentMail | None = None  #: None until mail from outside arrives
    monitors: dict[str, str] = field(
        default_factory=dict
    )  #: commands that it monitors, by id, with the request of its sandbox
    monitor_count: int = 0  #: so many were started
    approvals: dict[str, ApprovalAsked] = field(default_factory=dict)  #: questions about calls without an answer, by id
    approval_answers: dict[str, ApprovalAnswered] = field(
        default_factory=dict
    )  #: the answers to these questions that came
    grants: list[ApprovalAsked] = field(default_factory=list)  #: questions that were answered for the whole run
    held_messages: dict[str, ApprovalAsked] = field(default_factory=dict)  #: of other sessions, without an answer
    answered_messages: list[str] = field(default_factory=list)  #: ids of held messages that were answered
    past_approvals: list[str] = field(default_factory=list)  #: ids of questions about calls that were answered
    loaded_tools: list[str] = field(default_factory=list)  #: tools of its MCP servers that its model found
    is_plan_approved: bool = False  #: a person approved the plan that it presented
    approved_plan_call: str | None = None  #: the call that presented this plan
    frozen_mb: float | None = None  #: memory that its frozen process holds, while it is paused
    sandbox: SandboxStarted | None = None  #: the newest of its newest turn, if it may have outlived its kernel
    placement: Placement | None = None  #: of its newest process, also after its end
    is_given_up: bool = False  #: that sandbox was to be ended, because the run paused
    ports: dict[str, int] = field(default_factory=dict)  #: of its newest sandbox, by name
    recorded_reports: int = 0  #: number of the sandbox's reports that are recorded
    usage: Usage = NO_USAGE
    context_tokens: int = 0  #: input tokens of its newest reply, or of its shortened conversation, as far as known
    looping_call: str = ""  #: the call with which a watch found the newest loop
    ended_at: datetime | None = None  #: when it ended; None while it has not
    last_event_at: datetime | None = None  #: of the newest event that a replay applies
    active_time: ActiveTime = field(default_factory=ActiveTime)  #: the part of its time that counts for its limit
    result: Result | None = None
    delivering: dict[str, UnreadMail] = field(default_factory=dict)
    is_retried: bool = False  #: an attempt failed, and the next one has recorded nothing yet
    attempt_began_at: int = 0  #: index into its conversation: a new attempt removes the messages from there on
    subtree_usage: Usage | None = None  #: None while it has no children: then equal to its own usage

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
        return self.is_retried and len(self.conversation) > self.attempt_began_at

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
        return self.usage if self.subtree_usage is None else self.subtree_usage

    @property
    def reservation(self) -> Usage:
        """The reservation of its requests to a model that have no reply yet: what they may cost at most."""
        usage = NO_USAGE
        for each in self.model_requests.values():
            usage += Usage(
                model_calls=each.requests, output_tokens=each.reserved_tokens, usd=each.reserved_usd, estimated=True
            )
        return usage

    @property
    def waits_for(self) -> str:
        """Subject of its wait, empty if it works or has ended.

        It is `person`, `limit`, `pause`, `quota`, `room`, `child` (or another run), `slot`, `mail`, `model` or `tool`.
        """
        if self.is_over:
            return ""
        if any(id not in self.approval_answers for id in self.approvals):
            return "person"
        if self.state == "paused":
            return "limit" if self.limit_pause is not None and self.pause is None else "pause"
        if self.state in ("idle", "starting"):
            awaits_prompt = not self.turn and self.spawn_event.birth.get("persistent", False)
            return "mail" if self.state == "idle" or awaits_prompt else "slot"
        if self.state == "waiting":
            return "quota" if self.quota is not None else ROOM if self.waits_for_room else "child"
        if self.state == "stopping":
            return ""
        return "model" if self.model_requests else "tool" if self.started_calls else ""

    @property
    def waits_until(self) -> datetime | None:
        """The stated end of its wait, if there is one."""
        return self.quota.until if self.quota is not None and self.waits_for == "quota" else None

    def apply_refusal(self, refusal: BudgetRefused) -> None:
        """Note a refusal of a budget; where the run paused, a person refused its request."""
        pause, self.refusal = self.limit_pause, refusal
        if pause is not None and (pause.scope, pause.resource) == (refusal.scope, refusal.resource):
            self.limit_pause, self.limit_denial = None, refusal

    def count_step(self, step_id: str) -> None:
        """Note that a step was begun: its number is at the end of its id."""
        if step_id != self.reply_step:  # Otherwise the reply of this step is counted.
            tail = step_id.rpartition(":")[2]
            if tail.isdecimal():
                self.steps = max(self.steps, int(tail))

    def unread_mail(self) -> list[UnreadMail]:
        """Return mail that is still to be read.

        This includes mail that was taken from the mailbox and never reached the conversation.
        """
        return [*self.delivering.values(), *self.unread.values()]
