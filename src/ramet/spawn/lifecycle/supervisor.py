"""The supervisor of runs from their first turn to their end.

It executes the lifecycle table, and owns the tasks of the runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Unpack

from langchain_core.messages import BaseMessage, HumanMessage

from ramet.concurrency.cuts import WorkCut
from ramet.core.errors import RametError, StoreFailed
from ramet.core.events import RunEnded, RunResumed, StateChanged, TimeStarted, TurnEnded, TurnStarted
from ramet.core.lifecycle import TERMINAL_STATES, Effect, Fact, Next, State, next_after, step
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.spawn.lifecycle.run_results import recorded_form, reported_result, result_of
from ramet.spawn.lifecycle.stop import StopOptions, stop_all, wait_for_ends
from ramet.spawn.lifecycle.time_stops import TimeStops
from ramet.spawn.lifecycle.tree_pauses import TreePauses
from ramet.spawn.lifecycle.turn import record_interrupted, repair_history, run_turn, start_hook_messages
from ramet.spawn.lifecycle.worktree_end import leave_worktree
from ramet.spawn.masking import masked_text
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run, TurnResult
from ramet.spawn.sandbox.adoption import terminate_orphan
from ramet.spawn.sandbox.mcp_servers.tree_servers import TreeServers
from ramet.spawn.verdict import cancelled_result
from ramet.tools.context import current_call
from ramet.tools.run_info import StopReceipt

_log = logging.getLogger("ramet.supervisor")
#: The number of times that a notice may wake an idle run before a user sends a new message.
MAX_WAKES = 10
#: Seconds that a stop waits for sandboxes of earlier kernels that are ended with it.
ORPHAN_END_S = 10.0


class Supervisor:
    """The only class that starts, stops and ends the runs of a tree."""

    def __init__(self, register: RunRegistry) -> None:
        self._register = register
        self._services = register.services
        self.time_stops = TimeStops(register.services.clock, self.restart_deadline)
        self.pauses = TreePauses(register, self.apply_fact)
        self.tree_servers = TreeServers(register)
        self.on_end: list[Callable[[Run], None]] = []  #: called in order with every run that ended
        self.on_idle: Callable[[Run, Result], None] = lambda _, __: None  #: called with idle runs that are awaited
        self._orphan_ends = set[asyncio.Future[None]]()  #: sandboxes of an earlier kernel that are being ended
        self._effect_handlers: dict[Effect, Callable[[Run, str], None]] = {
            Effect.RECORD_STATE: self._record_state,
            Effect.RELEASE_SLOT: lambda run, _: run.context.slot.release(),
            Effect.START_TURN: lambda run, _: self.start_turn(run),
            Effect.ABORT: lambda run, why: run.context.abort.abort(why or "its run ended"),
            Effect.REFUND: self._refund,
            Effect.CLOSE_MAIL: self._close_mail,
            Effect.REOPEN_MAIL: lambda run, _: run.context.mailbox.reopen(),
            Effect.RELEASE: self._release,
            Effect.RECORD_END: self._record_end,
            Effect.NOTIFY: self._notify_of_end,
            Effect.FORGET: lambda run, _: register.forget(run),
        }

    # ---- facts and their effects

    def apply_fact(self, run: Run, fact: Fact, why: str = "") -> None:
        """Move a run in its lifecycle, and execute the effects of the table in order.

        Facts after an end have no effect.
        """
        was_paused = run.state is State.PAUSED
        run.state, effects = step(run.state, fact)
        failed: Exception | None = None
        for effect in effects:
            try:
                self._effect_handlers[effect](run, why)
            except Exception as error:  # The rest must still happen: others wait for it.
                failed = failed or error
        self.time_stops.follow(run, was_paused=was_paused)
        for report in self._register.on_state:
            report()
        if failed is not None:
            raise failed

    def _record_state(self, run: Run, why: str) -> None:
        run.context.emit(StateChanged, state=run.state.value, why=masked_text(run, why) if why else "")

    def _close_mail(self, run: Run, _: str) -> None:
        run.context.mailbox.close("it was stopped" if run.state is State.STOPPED else "it has finished")

    def _release(self, run: Run, _: str) -> None:
        self.pauses.forget(run)
        for old in self._register.finish(run):
            self.apply_fact(old, Fact.EXPIRED)

    def _refund(self, run: Run, _: str) -> None:
        if run.own_budget is not None:
            run.own_budget.close()

    def _record_end(self, run: Run, _: str) -> None:
        verdict = run.turn.verdict
        assert verdict is not None, "a run ends with a verdict"
        result = result_of(run, verdict)
        run.context.emit(RunEnded, result=recorded_form(run, result))
        run.context.record = lambda event: event  # Late events of a task that ignores cancelling are dropped.
        run.conclude(result)
        self._services.after(lambda failure: self._announce(run, result, failure), run.is_awaited)

    def _notify_of_end(self, run: Run, _: str) -> None:
        for notify in self.on_end:
            notify(run)
        if self._services.placement is not None and self.tree_servers.end_with(run):  # Its turn was cut off.
            self._services.placement.run_in_background(self.tree_servers.close())

    def _announce(self, run: Run, result: Result, failure: RametError | None) -> None:
        """Report a recorded end; if the end cannot be recorded, report that failure instead."""
        result = reported_result(result, failure)
        if run.result is not None:  # It was not resumed meanwhile.
            run.announce(result)
        run.report_turn(result, run.turn.on_result)  # Otherwise the waiter of the cut-off turn would wait forever.

    # ---- turns

    def prompt(self, run: Run, message: BaseMessage | None = None) -> None:
        """Begin the first turn of a root, or the next turn of an idle one, with a user's message."""
        if message is not None:
            run.pending.append(message)
        run.wake_count, run.turn.woken_by_mail = 0, False
        self._register.loop_is_ending = False
        if run.state is State.IDLE:
            self.apply_fact(run, Fact.WOKEN)
        else:
            self.start_turn(run)

    def start_turn(self, run: Run) -> None:
        """Begin a turn in a task of its own, with the pending messages; the run's mail is read in it."""
        messages, run.pending = run.pending, []
        if run.pending_change is not None:
            change, run.pending_change = run.pending_change, None
            change()
        run.turns += 1
        run.turn.spawns_before = run.spawn_count
        run.failed_spawns = 0
        run.turn.spawn_requests.clear()
        run.context.final_refusal = run.turn.stop_result = None
        run.turn_began_at = len(run.context.history)
        self._watch_time(run)
        self.time_stops.update(run)
        run.task = asyncio.create_task(self._turn(run, messages), name=run.info.path, context=context_without_call())
        run.task.add_done_callback(lambda task: self._end_unstarted_turn(run, messages) if task.cancelled() else None)

    def _watch_time(self, run: Run) -> None:
        if run.limits.seconds is not None and run.deadline is None:
            run.time_started_at = self._services.clock.monotonic() - run.earlier_elapsed_s
            run.deadline = asyncio.create_task(self._time_out(run, run.limits.seconds), context=context_without_call())

    def restart_deadline(self, run: Run) -> None:
        """Watch the time of a run by its present limit, from when it began."""
        if run.deadline is not None and run.limits.seconds is not None:
            run.deadline.cancel()
            run.deadline = asyncio.create_task(self._time_out(run, run.limits.seconds), context=context_without_call())

    def resume_idle(self, run: Run) -> None:
        """Continue with a run that another process left between two turns."""
        if not run.persistent:
            self._watch_time(run)
            if run.deadline is not None:  # No turn begins, whose record would say so.
                run.context.emit(TimeStarted)
        self.wake_or_end(run)

    def resume_turn(self, run: Run, *, began: bool) -> None:
        """Continue a run in the middle of a turn that another process began, or before its first turn."""
        run.turn.resumes = began
        if began:
            run.turns -= 1  # It is the same turn.
        else:
            self.start_turn(run)
            return
        at, final_refusal, spawns_before = run.turn_began_at, run.context.final_refusal, run.turn.spawns_before
        self.start_turn(run)
        run.turn_began_at, run.context.final_refusal, run.turn.spawns_before = at, final_refusal, spawns_before

    def end(self, run: Run) -> None:
        """End a run with its verdict, before it was active here."""
        self._terminate_orphan(run)
        self._end(run)

    def _terminate_orphan(self, run: Run) -> None:
        """Terminate a sandbox of an earlier kernel that this run did not continue with."""
        if run.sandbox.inherited_calls is not None:
            run.sandbox.inherited_calls.close()
            run.sandbox.inherited_calls = None
        end_future = terminate_orphan(run, self._services.placement)
        if end_future is not None:
            self._orphan_ends.add(end_future)
            end_future.add_done_callback(self._orphan_ends.discard)

    def _end_unstarted_turn(self, run: Run, messages: list[BaseMessage]) -> None:
        """End a turn whose task was cancelled before its first line, so that no code in it could do so."""
        reason = run.context.abort.reason or "it was stopped before it began"
        run.turn.resumes = False
        record_interrupted(run, messages)
        repair_history(run)  # It may be in the middle of a turn that another process had begun.
        self._finish_turn(run, run.turn.stop_result or cancelled_result(run, Status.CANCELLED, reason))

    async def _turn(self, run: Run, messages: list[BaseMessage]) -> None:
        try:
            await self._run_whole_turn(run, messages)
        except Exception as bug:  # A bug of ramet, or of git: a waiter must not wait forever.
            _log.exception("the turn of %s could not be ended", run.info.path)
            error = ErrorInfo(type=type(bug).__name__, message=str(bug))
            run.turn.verdict = TurnResult(
                Status.FAILED, error=error, partial=run.turn.verdict.partial if run.turn.verdict else ""
            )
            await self._stop_all(run.attached_children(), "its parent failed")
            if run.is_living:
                self._end(run)
            if run.result is None:
                run.announce(result_of(run, run.turn.verdict))

    async def _run_whole_turn(self, run: Run, messages: list[BaseMessage]) -> None:
        async def begin() -> None:
            await self._acquire_slot(run)
            self.apply_fact(run, Fact.BEGAN)
            if run.turn.resumes:
                run.context.emit(RunResumed, turn=run.turns, cut=tuple(run.context.interrupted_calls))
            else:
                run.context.emit(TurnStarted, turn=run.turns)
            # A brief that is not recorded yet is sent together with the texts of hooks.
            is_first = bool(messages) if run.turn.resumes else run.turns == 1
            if is_first and run.context.hooks is not None:
                messages.extend(await start_hook_messages(run))

        verdict = await run_turn(run, messages, begin, self._services, self._register.admission.recheck_queue)
        if verdict.status is Status.CANCELLED and run.turn.stop_result is None and not run.context.abort.aborted:
            self._register.loop_is_ending = True  # No code of ramet cancelled it: the event loop is ending.
        run.activity.streamed_text.clear()
        run.turn.resumes = False
        if verdict.status is not Status.COMPLETED:
            repair_history(run)
            ends_run = self._is_end_of_run(run, verdict) and run.state is not State.STOPPING
            if ends_run and run.children:
                await self._stop_all(run.attached_children(), f"its parent ended: {verdict.status}")
        if run.state is State.STOPPING:
            await _wait_for_child_sandboxes(run)
        if self._is_end_of_run(run, verdict) and self.tree_servers.end_with(run):
            await self.tree_servers.close()
        if run.worktree is not None and self._is_end_of_run(run, verdict):
            run.context.mailbox.close("it is finishing")  # Mail must not wake it while its folder is removed.
            await leave_worktree(run, self._services.git)
        self._finish_turn(run, verdict)

    async def _acquire_slot(self, run: Run) -> None:
        """Take the slot for a turn, when no pause covers the run. Its sandbox may be active: its requests wait then."""
        while True:
            if self.pauses and run.sandbox.replay is None:
                await self.pauses.wait_to_begin(run)
            with suppress(WorkCut), run.pauses.slot_line.cuttable():  # A pause takes it out of the line.
                await run.context.slot.acquire()
                if not (self.pauses and run.sandbox.replay is None and self.pauses.covers(run.context)):
                    return
                run.context.slot.release()

    def _finish_turn(self, run: Run, verdict: TurnResult) -> None:
        """Decide whether the run ends, becomes idle, or begins its next turn.

        There is no await in between, so no mail can be missed.
        """
        self._terminate_orphan(run)
        if run.state in TERMINAL_STATES:
            return  # It was fenced off before it ended.
        run.turn.verdict = verdict
        if run.state is not State.STOPPING:  # Its end, which follows now, reports the same about the turn.
            run.context.emit(TurnEnded, turn=run.turns, status=str(verdict.status), usage=run.context.usage)
        run.drop_deadline(keep=not run.persistent)
        if self._is_end_of_run(run, verdict):
            return self._leave_and_end(run)
        self.apply_fact(run, Fact.TURN_OVER)
        if not (
            run.turn.woken_by_mail and run.context.mailbox.has("user")
        ):  # A prompt that came during it is unanswered.
            result, waiter = result_of(run, verdict), run.turn.on_result  # A later waiter waits for the next turn.
            self._services.after(lambda failure: run.report_turn(reported_result(result, failure), waiter), True)
        self.wake_or_end(run)

    def _is_end_of_run(self, run: Run, verdict: TurnResult) -> bool:
        is_stopped = run.state is State.STOPPING or run.context.abort.aborted
        return is_stopped or _next_after(run, verdict) is Next.END

    def wake_or_end(self, run: Run) -> None:
        """Wake an idle run that has mail, or end it if nothing can come any more.

        Mail also wakes a session that has had no prompt, but a notice does not: the session has no task to continue
        with.
        """
        if self._register.loop_is_ending:
            return
        if run.awaits_prompt and any(each.kind != "notice" for each in run.context.mailbox.unread):
            if run.agent.initial_prompt and not run.pending:
                run.pending.append(HumanMessage(content=run.agent.initial_prompt))
            run.turn.woken_by_mail = True
            self.start_turn(run)
        if run.state is not State.IDLE:
            return
        match _next_after(run, run.turn.verdict):
            case Next.WAKE:
                run.wake_count, run.turn.woken_by_mail = run.wake_count + 1, True
                self.apply_fact(run, Fact.WOKEN)
            case Next.END if run.context.mailbox.closed_reason is None or not self._has_to_leave(run):
                self._leave_and_end(run)
            case Next.REST if run.awaiting_idle and run.turn.verdict is not None:
                self.on_idle(run, result_of(run, run.turn.verdict))

    def _leave_and_end(self, run: Run) -> None:
        if not self._has_to_leave(run):
            return self._end(run)
        run.context.mailbox.close("it is finishing")
        run.task = asyncio.create_task(self._end_after_leaving(run), name=run.info.path)

    def _has_to_leave(self, run: Run) -> bool:
        """Return whether something that takes time has to end before the run does."""
        return run.worktree is not None or self.tree_servers.end_with(run)

    async def _end_after_leaving(self, run: Run) -> None:
        if self.tree_servers.end_with(run):
            await self.tree_servers.close()
        await leave_worktree(run, self._services.git)
        if run.is_living:
            self._end(run)

    def _end(self, run: Run) -> None:
        assert run.turn.verdict is not None
        run.drop_deadline()
        was_stopped = run.turn.verdict.status in (Status.CANCELLED, Status.TIMEOUT)
        why = masked_text(run, run.turn.verdict.error.message) if run.turn.verdict.error else ""
        self.apply_fact(run, Fact.CUT_OFF if was_stopped else Fact.FINISHED, why)
        if run.parent is not None:
            self.wake_or_end(run.parent)

    # ---- stopping

    async def stop(
        self, run: Run, reason: str, status: Status = Status.CANCELLED, *, error_type: str = "Aborted"
    ) -> StopReceipt:
        """Stop a run and all runs below it, and wait until they have ended. `left` names threads that remain."""
        if not run.is_living:
            return StopReceipt(())
        return await self._stop_all([run], reason, status, error_type=error_type)

    async def stop_tree(self, reason: str) -> StopReceipt:
        """Stop every run of the tree, including runs that may outlive their parents."""
        return await self._stop_all(self._top_runs(), reason)

    async def close(self, reason: str) -> None:
        """Close the tree in order: active runs are stopped; an idle root ends with the result of its last turn."""
        root = self._register.root
        if root is not None and root.persistent and root.state is State.IDLE:
            root.wake_count = MAX_WAKES  # Runs that end now must not wake it.
            await self._stop_all(
                [run for run in self._top_runs() if run is not root] + root.attached_children(), reason
            )
            if root.state is State.IDLE:
                await self._end_after_leaving(root)
        await self.stop_tree(reason)

    def _top_runs(self) -> list[Run]:
        """Return the living runs that no living run stops together with itself."""
        return [
            run for run in self._register.living() if run.parent is None or run.detached or not run.parent.is_living
        ]

    async def interrupt(self, run: Run, reason: str, *, error_type: str = "Aborted") -> None:
        """End the turn of a session's root, not the root.

        The history stays valid, and the root accepts the next prompt.
        """
        task = run.task
        if task is None or task.done() or task is asyncio.current_task():
            return
        interruption = run.turn.stop_result = cancelled_result(run, Status.CANCELLED, reason, error_type=error_type)
        task.cancel()  # Before its children end, or it would continue with their results.
        await self._stop_all([each for each in run.attached_children() if not each.background], reason)
        await wait_for_ends([run], self._services.grace_s)
        if run.turn.stop_result is interruption:  # No one stopped it permanently meanwhile.
            run.turn.stop_result = None
        if self._services.durable is not None:  # The waiter of the turn is notified before a next turn begins.
            with suppress(StoreFailed):
                await self._services.durable()

    async def _stop_all(
        self, tops: list[Run], reason: str, status: Status = Status.CANCELLED, **options: Unpack[StopOptions]
    ) -> StopReceipt:
        receipt = await stop_all(
            tops,
            reason,
            status,
            tell=self.apply_fact,
            end=self._end_after_leaving,
            grace_s=self._services.grace_s,
            **options,
        )
        if self._orphan_ends:
            await asyncio.wait(self._orphan_ends, timeout=ORPHAN_END_S)
        return receipt

    async def _time_out(self, run: Run, seconds: float) -> None:
        await self._services.clock.sleep(max(0.0, run.time_started_at + seconds - self._services.clock.monotonic()))
        if run.time_stopped_at is not None:
            return  # It is watched again when its time goes on.
        run.deadline = None
        ancestor = run.expired_ancestor()
        if ancestor is not None:  # Its own deadline may come a moment later.
            ancestor.drop_deadline()
            run = ancestor
        reason = f"its time of {run.limits.seconds:g} s is over"
        if run.persistent:
            run.turn.stop_result = cancelled_result(run, Status.TIMEOUT, reason, scope=run.info.path)
            if run.task is not None:
                run.task.cancel()
            await self._stop_all(run.attached_children(), f"its parent ended: {reason}", out_of_time=run)
        else:
            await self.stop(run, reason, Status.TIMEOUT)


def _next_after(run: Run, verdict: TurnResult | None) -> Next:
    mailbox = run.context.mailbox
    return next_after(
        verdict.status if verdict is not None else None,
        is_session=run.persistent,
        has_mail=mailbox.has_waking_mail,
        has_user_mail=mailbox.has("user"),
        can_wake=run.wake_count < MAX_WAKES,
        is_expecting=bool(run.attached_children() or run.waits_for_idle),
    )


async def _wait_for_child_sandboxes(run: Run) -> None:
    """Wait for the ends of the sandboxed children.

    A caller that is notified of the run's end must find no process of its children; they are being stopped too.
    """
    children = run.children.values()
    child_ends = [each.recorded_end() for each in children if each.grant is not None and not each.detached]
    if child_ends:
        with suppress(asyncio.CancelledError):  # Cancelled again: the time to wait is over.
            await asyncio.wait(child_ends)


def context_without_call() -> contextvars.Context:
    """Return a context without a current call, for a new task.

    The call that started a run is not the call in which the run works.
    """
    context = contextvars.copy_context()
    context.run(current_call.set, None)
    return context
