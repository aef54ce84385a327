"""The one inbox of a tree: questions for a person, from runs at any depth, answered by id.

A question shows the run that asks (path and depth), its subject, and its deadline. Only host code holds the inbox: no
tool and no message of an agent reaches it. Consent can therefore not be relayed, and an answer is valid for one
question, once. A denial, a deadline, a closed inbox or a failing approver denies that one call. The run that asked
continues, and its siblings are not affected. A run that waits here holds no slot. Runs that pause at limits are listed
and answered here, too: see `ramet.spawn.limits.limit_answers`.

The id of a question is computed from the run, the call, the tool and the arguments. A process that resumes after a kill
asks the same question under the same id, with the original deadline. An answered question is not asked again. A call
whose arguments have changed is another question.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Aborted, InvalidValue, Unknown
from ramet.core.events import ApprovalAnswered, ApprovalAsked, Event
from ramet.core.ids import CallId, Path, RunId
from ramet.core.outcome import NO_USAGE, Usage
from ramet.core.replay.paused_limits import PausedLimit, describe_pause
from ramet.core.replay.run_replay import RunReplay
from ramet.host.argument_preview import MAX_TEXT, preview, shorten
from ramet.host.run_grants import RunGrants, describe_grant
from ramet.spawn.limits.limit_answers import LimitAnswers, LimitEntry
from ramet.tools.context import CurrentCall, ToolUseContext, current_call
from ramet.tools.decisions import Approval

DEADLINE_S = 600.0
#: Recorded reasons that name the decider, and contain nothing that a model could follow.
BY_HOOK, BY_APPROVER, BY_GRANT = "by a hook", "by the approver", "by an earlier answer for this run"
APPROVER_FAILED = "the approver failed"
WITHDRAWN = "its asker waits no more"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """A pending question, or a run that waits at a limit.

    `args` are bounded for display; a shortened text states its length.
    """

    id: str
    run: RunId
    path: Path
    agent: str
    depth: int
    tool: str
    question: str
    args: dict[str, Any]
    asked_at: datetime
    deadline: datetime | None
    kind: str = "question"  #: or limit
    limit: PausedLimit | None = None  #: where it waits, and what an approval adds
    usage: Usage = NO_USAGE  #: of the run and all runs below it, so far
    for_run: str = ""  #: later calls of the run that the same answer can allow; "": none


class ApprovalAnswer(NamedTuple):
    """An answer to a question."""

    is_allowed: bool
    reason: str = ""


#: Raises InvalidValue for a text that is no answer to a question which asks for one.
CheckAnswer = Callable[[str], object]
#: Records an event of the run that asked.
EmitEvent = Callable[..., Event]


class _PendingEntry(NamedTuple):
    """A question that was asked in this process."""

    entry: Pending
    future: asyncio.Future[ApprovalAnswer]
    emit: EmitEvent
    check: CheckAnswer | None = None


class _RestoredEntry(NamedTuple):
    """A question that another process asked."""

    entry: Pending
    future: asyncio.Future[ApprovalAnswer]
    answer: ApprovalAnswer | None  #: the recorded answer
    still_waits: Callable[[], bool]
    emit: EmitEvent


class HeldMessages(Protocol):
    """Messages of other sessions that wait until a person lets them through."""

    def entries(self) -> list[Pending]:
        """Return the held messages."""

    def answer(self, id: str, allowed: bool, reason: str) -> bool:
        """Deliver or refuse a held message, and record that; return False if there is none of this id."""


#: Answers at once, in place of a person. Only True approves; a synchronous approver is called in a thread.
Approver = Callable[[Pending], bool | Awaitable[bool]]


class Inbox:
    """The pending questions of a tree. `ask` is the `Approve` of every context of the tree."""

    __slots__ = (
        "_approver",
        "_clock",
        "_close_reason",
        "_grants",
        "_is_unattended",
        "_mint",
        "_pending_entries",
        "_recording_ids",
        "_restored_entries",
        "_timeout_s",
        "_used_ids",
        "held_messages",
        "limits",
    )

    def __init__(
        self,
        *,
        mint: Callable[[], str],
        clock: Clock,
        timeout_s: float | None = DEADLINE_S,
        approver: Approver | None = None,
        unattended: bool = False,
    ) -> None:
        """Configure the inbox. `mint` creates ids for questions outside of calls.

        `unattended` denies at once each question that neither a hook nor `approver` decides.
        """
        if timeout_s is not None and (not math.isfinite(timeout_s) or timeout_s <= 0):
            raise InvalidValue("timeout_s", timeout_s, "seconds above 0, or None")
        self._mint, self._clock, self._timeout_s = mint, clock, timeout_s
        self._approver, self._is_unattended = approver, unattended
        self._pending_entries: dict[str, _PendingEntry] = {}
        self._restored_entries: dict[str, _RestoredEntry] = {}  #: not asked here yet
        self._used_ids: set[str] = set()  #: ids: an answer is valid for one question, even if call ids are reused
        self._recording_ids: set[str] = set()  #: ids: the answer is being recorded
        self._grants = RunGrants()
        self._close_reason: str | None = None
        self.held_messages: HeldMessages | None = None  #: of other sessions to the root; None: there are none
        self.limits: LimitAnswers | None = None  #: of the tree; None: the inbox has questions only

    @property
    def pending(self) -> tuple[Pending, ...]:
        """The pending questions, and the runs that wait at limits, oldest first."""
        restored_entries = [each.entry for each in self._restored_entries.values() if self._can_be_answered(each)]
        held = self.held_messages.entries() if self.held_messages is not None else ()
        questions = (*restored_entries, *(each.entry for each in self._pending_entries.values()), *held)
        if self.limits is None:
            return questions
        costed = [replace(each, usage=self.limits.usage_of(each.run)) for each in questions]
        return tuple(sorted([*costed, *map(_limit_entry, self.limits.entries())], key=lambda each: each.asked_at))

    def find_run(self, approval_id: str) -> RunId | None:
        """Return the run that a pending entry is about, also for a limit that was raised by its id; None if unknown."""
        question = next((each.run for each in self.pending if each.id == approval_id), None)
        return question if question is not None or self.limits is None else self.limits.find_run(approval_id)

    def answer(self, approval_id: str, allowed: bool, reason: str = "", *, for_run: bool = False) -> None:
        """Answer one question, or raise a limit by what its entry says; denied, the requests there are refused.

        With `for_run`, the answer also allows the later calls of the run that the entry names in its `for_run`.
        Raises InvalidValue if it names none, or for a denial.

        Raises Unknown if the question is not (or no longer) pending: a second answer changes nothing. A limit that was
        raised by this id is not raised again. Raises BudgetExceeded if the scope above a limit has not that much free.
        Raises InvalidValue if the question asks for a text, as a form does, and the reason is none; then it stays.

        The answer is appended to the journal before this returns: any process that resumes the run has it.
        """
        if not isinstance(allowed, bool):
            raise InvalidValue("allowed", allowed, "True or False")
        if not isinstance(for_run, bool) or (for_run and not allowed):
            raise InvalidValue("for_run", for_run, "True or False, and True only with allowed")
        if for_run:
            self._check_for_run(approval_id)
        pending = self._pending_entries.get(approval_id)
        if pending is not None and allowed and pending.check is not None:
            pending.check(reason)  # Otherwise the question stays.
        question: _PendingEntry | _RestoredEntry | None = self._pending_entries.pop(approval_id, None)
        restored_entry = self._restored_entries.get(approval_id)
        if question is None and restored_entry is not None and self._can_be_answered(restored_entry):
            question = restored_entry
        held = self.held_messages
        if question is None and held is not None and held.answer(approval_id, allowed, reason[:MAX_TEXT]):
            return None
        if question is None and self.limits is not None and self.limits.find_run(approval_id) is not None:
            return self.limits.approve(approval_id) if allowed else self.limits.deny(approval_id, reason)
        if question is None:
            raise Unknown("approval", str(approval_id), tuple(each.id for each in self.pending))
        question.emit(
            ApprovalAnswered, approval_id=approval_id, allowed=allowed, reason=reason[:MAX_TEXT], for_run=for_run
        )
        if for_run:
            entry = question.entry
            self._grants.add(entry.run, entry.tool, entry.question, entry.args)
        self._recording_ids.add(approval_id)
        question.future.set_result(ApprovalAnswer(allowed, reason))

    def close(self, reason: str = "the session ended") -> None:
        """Deny all pending questions, and all questions that are asked from now on."""
        self._close_reason = reason
        futures = [
            *(each.future for each in self._pending_entries.values()),
            *(each.future for each in self._restored_entries.values()),
        ]
        for future in futures:
            if not future.done():
                future.set_result(ApprovalAnswer(False, reason))
        self._pending_entries.clear()

    def restore(self, replay: RunReplay, still_waits: Callable[[CallId], bool], emit: EmitEvent) -> None:
        """Restore the recorded questions of a run: they can be answered from now on, and the run asks them again.

        `still_waits` returns whether the question of a call is still to be asked; `emit` records an event of the run.
        """
        self._used_ids.update(replay.past_approvals)
        for grant in replay.grants:
            self._grants.add(RunId(grant.run), grant.tool, grant.question, grant.args)
        for question in replay.approvals.values():
            call = CallId(question.call_id or "")
            if not call or question.at is None:
                continue  # No call asks this question again under this id.
            entry = Pending(
                id=question.approval_id,
                run=RunId(question.run),
                path=Path(question.path),
                agent=question.agent,
                depth=question.depth,
                tool=question.tool,
                question=question.question,
                args=question.args,
                asked_at=question.at,
                deadline=self._deadline(question.at),
                for_run=question.for_run,
            )
            future = asyncio.get_running_loop().create_future()
            recorded = replay.approval_answers.get(entry.id)
            answer = ApprovalAnswer(recorded.allowed, recorded.reason) if recorded is not None else None
            self._restored_entries[entry.id] = _RestoredEntry(entry, future, answer, partial(still_waits, call), emit)

    def withdraw_restored(self, run: RunId) -> None:
        """Close the restored questions of a run, which it will not ask again. Their ids and answers are used up."""
        for id, each in list(self._restored_entries.items()):
            if each.entry.run == run:
                del self._restored_entries[id]
                self._used_ids.add(id)
                if each.answer is None and not each.future.done():
                    each.emit(ApprovalAnswered, approval_id=id, allowed=False, reason=WITHDRAWN)

    async def ask(
        self,
        context: ToolUseContext,
        *,
        tool: str,
        question: str,
        args: dict[str, Any],
        check: CheckAnswer | None = None,
        can_be_for_run: bool = False,
    ) -> Approval:
        """Return an approval only if a PermissionRequest hook, the approver or a person approves before the deadline.

        A denial has the reason that was given for it. With `check`, an approval has a text, too: what a person wrote.
        With `can_be_for_run`, an answer that a person gave for the whole run counts, and this one may be given so.

        Raises Aborted if the run is stopped; the question then leaves the inbox. So it does if this is cancelled.
        """
        context.abort.raise_if_aborted()
        call = current_call.get(None)
        call = call if call is not None and call.context is context else None
        approval_id = self._id_of(call, tool, args)
        restored_entry = self._restored_entries.get(approval_id)
        if restored_entry is not None and restored_entry.answer is not None:
            del self._restored_entries[approval_id]
            return _approval(restored_entry.answer)
        can_be_for_run = can_be_for_run and call is not None and check is None
        is_granted = can_be_for_run and self._grants.covers(context.run.id, tool, question, args)
        decision = await self._decided_at_once(context, tool, question, args, is_granted=is_granted)
        restored_entry = self._restored_entries.pop(approval_id, None)
        if restored_entry is None:
            for_run = describe_grant(tool, question, args) if can_be_for_run else ""
            entry = self._entry(approval_id, context, tool, question, args, for_run)
            future: asyncio.Future[ApprovalAnswer] = asyncio.get_running_loop().create_future()
        else:
            entry, future = restored_entry.entry, restored_entry.future
        answer = ApprovalAnswer(False, WITHDRAWN)
        if decision is None and not future.done():  # Before the question is announced, so that its readers can answer.
            self._pending_entries[entry.id] = _PendingEntry(entry, future, context.emit, check)
        try:
            if restored_entry is None:  # Otherwise it was announced and is recorded.
                context.emit(
                    ApprovalAsked,
                    approval_id=entry.id,
                    tool=entry.tool,
                    question=entry.question,
                    args=entry.args,
                    for_run=entry.for_run,
                    call_id=call.call_id if call is not None else None,
                )
            answer = future.result() if future.done() else decision or await self._wait(context, entry, future)
            return _approval(answer, has_text=check is not None)
        except Aborted:
            answer = ApprovalAnswer(False, "the run was stopped")
            raise
        finally:
            self._pending_entries.pop(entry.id, None)
            if entry.id in self._recording_ids:
                self._recording_ids.remove(entry.id)
            else:
                context.emit(
                    ApprovalAnswered, approval_id=entry.id, allowed=answer.is_allowed, reason=answer.reason[:MAX_TEXT]
                )

    def _check_for_run(self, approval_id: str) -> None:
        entry = next((each for each in self.pending if each.id == approval_id), None)
        if entry is not None and not entry.for_run:
            raise InvalidValue("for_run", True, "False: this can be allowed only once")

    def _entry(
        self, id: str, context: ToolUseContext, tool: str, question: str, args: dict[str, Any], for_run: str
    ) -> Pending:
        now = self._clock.now()
        return Pending(
            id=id,
            run=context.run.id,
            path=context.run.path,
            agent=context.run.agent,
            depth=context.run.depth,
            tool=tool[:200],
            question=shorten(question),
            args=preview(args),
            asked_at=now,
            deadline=self._deadline(now),
            for_run=for_run,
        )

    def _deadline(self, asked_at: datetime) -> datetime | None:
        return None if self._timeout_s is None else asked_at + timedelta(seconds=self._timeout_s)

    def _id_of(self, call: CurrentCall | None, tool: str, args: dict[str, Any]) -> str:
        """Return the id of a question: equal for equal questions about one call in every process; used ids are skipped.

        Outside of calls, each question gets a new id.
        """
        if call is None or not call.call_id:
            return self._mint()
        content = repr((call.context.run.id, call.call_id, call.step_id, tool, args)).encode(
            "utf-8", "backslashreplace"
        )
        count = 0
        while (id := hashlib.sha256(b"%d %s" % (count, content)).hexdigest()[:16]) in self._used_ids:
            count += 1
        self._used_ids.add(id)
        return id

    def _can_be_answered(self, restored_entry: _RestoredEntry) -> bool:
        deadline = restored_entry.entry.deadline
        in_time = deadline is None or self._clock.now() < deadline
        return (
            restored_entry.answer is None
            and not restored_entry.future.done()
            and in_time
            and restored_entry.still_waits()
        )

    async def _decided_at_once(
        self, context: ToolUseContext, tool: str, question: str, args: dict[str, Any], *, is_granted: bool
    ) -> ApprovalAnswer | None:
        """Return a decision that needs no waiting: closed inbox, hook, an earlier answer for the run, unattended.

        Return None if a person or approver decides.
        """
        hooks = context.hooks
        if self._close_reason is None and hooks is not None and hooks.listens("PermissionRequest"):
            payload = {"tool_name": tool, "tool_input": args, "question": question}
            decision = await hooks.fire("PermissionRequest", context, payload, matcher=tool)
            if decision.verdict != "ask":
                return ApprovalAnswer(decision.verdict == "allow", decision.reason or BY_HOOK)
        if self._close_reason is not None:
            return ApprovalAnswer(False, self._close_reason)
        if is_granted:
            return ApprovalAnswer(True, BY_GRANT)
        if self._is_unattended and self._approver is None:
            return ApprovalAnswer(False, "no person is available to answer")
        return None

    async def _wait(
        self, context: ToolUseContext, entry: Pending, future: asyncio.Future[ApprovalAnswer]
    ) -> ApprovalAnswer:
        remaining_s = (entry.deadline - self._clock.now()).total_seconds() if entry.deadline is not None else None
        if remaining_s is not None and remaining_s <= 0:  # It passed while no process was running.
            return ApprovalAnswer(False, f"no answer within {self._timeout_s:g} s")
        context.person_waits += 1
        context.slot.begin_wait()
        try:
            return await wait_with_timeout(
                self._first(entry, future), clock=self._clock, seconds=remaining_s, abort=context.abort
            )
        except TimeoutError:
            if future.done():  # Answered in the same moment: the answer was accepted, so it counts.
                return future.result()
            return ApprovalAnswer(False, f"no answer within {self._timeout_s:g} s")
        finally:
            context.person_waits -= 1
            context.slot.end_wait()

    async def _first(self, entry: Pending, future: asyncio.Future[ApprovalAnswer]) -> ApprovalAnswer:
        """Wait for the approver's answer or an answer by id, whichever comes first."""
        if self._approver is None:
            return await asyncio.shield(future)
        approver_task = asyncio.ensure_future(_ask_approver(self._approver, entry))
        try:
            await asyncio.wait({approver_task, future}, return_when=asyncio.FIRST_COMPLETED)
            return future.result() if future.done() else approver_task.result()
        finally:
            approver_task.cancel()
            await asyncio.wait({approver_task})


def _limit_entry(entry: LimitEntry) -> Pending:
    info = entry.run.info
    assert entry.pause.at is not None, "a recorded pause has its time"
    return Pending(
        id=entry.id,
        run=info.id,
        path=info.path,
        agent=info.agent,
        depth=info.depth,
        tool="",
        question=describe_pause(entry.limit),
        args={},
        asked_at=entry.pause.at,
        deadline=None,
        kind="limit",
        limit=entry.limit,
        usage=entry.run.subtree,
    )


async def _ask_approver(approver: Approver, entry: Pending) -> ApprovalAnswer:
    """Return the approver's answer; an approver that fails denies."""
    try:
        if inspect.iscoroutinefunction(approver):
            result = await approver(entry)
        else:
            result = await in_thread(lambda: approver(entry), name="ramet-approver")
            if inspect.isawaitable(result):
                result = await result
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return ApprovalAnswer(False, f"{APPROVER_FAILED}: {type(error).__name__}: {error}")
    return ApprovalAnswer(result is True, BY_APPROVER)


def _approval(answer: ApprovalAnswer, *, has_text: bool = False) -> Approval:
    """Return an answer as the model may read it: the text of an error of the host's code is only recorded."""
    if answer.is_allowed and has_text and answer.reason not in (BY_HOOK, BY_APPROVER):
        return Approval(True, answer.reason)
    if answer.is_allowed or answer.reason in (BY_HOOK, BY_APPROVER):
        return Approval(answer.is_allowed)
    reason = APPROVER_FAILED if answer.reason.startswith(APPROVER_FAILED) else answer.reason
    return Approval(False, reason[:MAX_TEXT])
