"""Mail between the runs of a tree, and the notices of their ends."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.mailbox import Kind, Mail
from ramet.core.equal_mail import NOT_DELIVERED, RecentMail, checked_window, with_asker
from ramet.core.errors import BudgetExceeded, MailRefused, SpawnRefused
from ramet.core.events import MailPushed
from ramet.core.ids import RunId
from ramet.core.lifecycle import TERMINAL_STATES, Fact, State
from ramet.core.outcome import Result
from ramet.spawn.grants import check_room_below
from ramet.spawn.lifecycle.supervisor import MAX_WAKES, Supervisor
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.tools.agents.report_framing import notification, watch_notice
from ramet.tools.decisions import RequestKind


@dataclass(kw_only=True, slots=True)
class MailRequest:
    """A request that a mail brings: its id is the mail's."""

    kind: RequestKind
    call: str = ""  #: the call of the sender that waits for the answer
    id: str = ""


class MailRouter:
    """A router of mail: delivers mail, sets the sender, resumes finished runs, refuses undeliverable mail."""

    def __init__(self, register: RunRegistry, supervisor: Supervisor) -> None:
        self._register, self._supervisor = register, supervisor
        supervisor.on_end.append(self.report_end_to_all)
        supervisor.on_idle = self.report_idle
        self._mail_numbers = itertools.count(1)

    def continue_numbering(self, number: int) -> None:
        """Number new mail after `number`.

        A number of another process was already seen, and would be taken for that mail.
        """
        self._mail_numbers = itertools.count(number + 1)

    def deliver(
        self,
        run: Run,
        text: str,
        *,
        sender: str,
        kind: Kind,
        request_id: str = "",
        notify: str = "",
        dedupe_s: float | None = None,
        request: MailRequest | None = None,
    ) -> str:
        """Put mail into a run's mailbox, and return what happens with it; `request_id` is that of `CurrentCall`.

        The run whose id is `notify` is notified once, when this run is idle or has ended afterwards. With `dedupe_s`, a
        message that equals one of the same sender, less than `dedupe_s` seconds old, is not delivered. `request` gets
        the id of the mail, before the mail is recorded. Raises
        MailRefused if the run cannot accept mail, and InvalidValue if `dedupe_s` is not a valid time.
        """
        window_s = checked_window(dedupe_s)
        if run.state is State.STOPPED:
            raise MailRefused(run.info.path, "it was stopped, and a stopped run is not resumed")
        if run.state is State.EXPIRED:
            raise MailRefused(run.info.path, "it finished too long ago; its history is no longer stored")
        if not run.agent.takes_prompt:
            raise MailRefused(run.info.path, "it is a function and reads no mail")
        if window_s is not None and run.recent_mail is not None:
            duplicate = run.recent_mail.find(sender, text, run.context.clock.now(), window_s)
            if duplicate is not None:
                duplicate_text = f"the same message as {duplicate.id} less than {window_s:g} s ago"
                idle_hint = " You receive no idle notice for this message." if notify else ""
                return f"{NOT_DELIVERED}: {run.info.path} got {duplicate_text}.{idle_hint}"
        mail = Mail(id=f"mail-{next(self._mail_numbers)}", sender=sender, text=text, kind=kind)
        if request is not None:
            request.id = mail.id
        if kind == "user" or run.info.path.startswith(f"{sender}/"):
            run.wake_count = (
                0  # A message from above: only messages that agents send each other on their own are bounded.
            )
        if run.state is State.ENDED:
            if run.wake_count >= MAX_WAKES:
                raise MailRefused(run.info.path, f"it was resumed {MAX_WAKES} times without a message from above")
            run.context.mailbox.check_capacity(mail)  # Before anything changes.
            self._resume_finished(run)
            run.wake_count += 1
            self._push(run, mail, request_id, notify, request)
            self._supervisor.apply_fact(run, Fact.RESUMED)
            return f"{run.info.path} had finished; it continues with your message in the background."
        idle = run.awaits_prompt or (run.state is State.IDLE and run.wake_count < MAX_WAKES)
        self._push(run, mail, request_id, notify, request)
        self._supervisor.wake_or_end(run)
        return f"Delivered to {run.info.path}; it reads it {'now' if idle else 'at its next step'}."

    def report_end(self, run: Run) -> None:
        """Notify the parent of a background run that it ended, or else the nearest living run above."""
        if run.background and run.result is not None and (ancestor := self._notified_ancestor(run)) is not None:
            text = notification(run.result, run=run.info.id, name=run.name, path=run.info.path)
            self.notify(ancestor, text, mail_id=f"end:{run.info.id}:{run.activations}", sender=run.info.path)

    def report_watch(self, run: Run, mail_id: str, finding: str) -> None:
        """Notify the nearest living run above of what a watch found about a run: of each finding once."""
        if (ancestor := self._notified_ancestor(run)) is not None:
            text = watch_notice(finding, run=run.info.id, name=run.name, path=run.info.path)
            self.notify(ancestor, text, mail_id=mail_id, sender=run.info.path)

    def notify(self, run: Run, text: str, *, mail_id: str, sender: str) -> None:
        """Notify a living run: once for each id."""
        if run.is_living and run.context.mailbox.closed_reason is None:
            self._push(run, Mail(id=mail_id, sender=sender, text=text, kind="notice"))
            self._supervisor.wake_or_end(run)

    def await_idle(self, run: Run, mail_id: str, asker_id: str) -> None:
        """Register a run to be notified once another run is idle.

        Until then the registered run does not end, unless the other run may wait for its end: then neither would end.
        This is the case if the asker is below the other run. It is also the case if the other run awaits a run that
        must be notified when a run above it is idle. If two runs wait for each other to be idle, both become idle, so
        that both are notified.
        """
        run.awaiting_idle = with_asker(run.awaiting_idle, mail_id, asker_id)
        asker = self._register.runs.get(RunId(asker_id))
        if asker is None or not asker.is_living or asker.info.path.startswith(f"{run.info.path}/"):
            return
        if not self.awaits_end(run, asker):
            asker.waits_for_idle.add(run.info.id)

    def awaits_end(self, run: Run, of: Run) -> bool:
        """Return whether a run cannot be idle before another run has ended."""
        pending, visited_states = [(run, False)], set[tuple[str, bool]]()
        while pending:
            each, must_end = pending.pop()
            if must_end and each is of:
                return True
            if (each.info.id, must_end) in visited_states or not each.is_living:
                continue
            visited_states.add((each.info.id, must_end))
            pending += [(child, True) for child in each.attached_children() if must_end or not child.background]
            pending += [(awaited_run, True) for awaited_run in each.waits_for]
            idle_runs = [self._register.runs.get(RunId(id)) for id in each.waits_for_idle] if must_end else []
            pending += [(other, False) for other in idle_runs if other is not None]
        return False

    def report_idle(self, run: Run, result: Result) -> None:
        """Notify the living runs that asked for it, once each, that a run is idle or has ended, with its outcome."""
        idle_watchers, run.awaiting_idle = run.awaiting_idle, {}
        for mail_id, asker_id in idle_watchers.items():
            asker = self._register.runs.get(RunId(asker_id))
            if asker is not None:
                asker.waits_for_idle.discard(run.info.id)
            if asker is None or not asker.is_living or asker.context.mailbox.closed_reason is not None:
                continue
            if run.state not in TERMINAL_STATES or not run.background or asker is not self._living_ancestor(run):
                text = notification(result, run=run.info.id, name=run.name, path=run.info.path)
                self._push(asker, Mail(id=f"idle:{mail_id}", sender=run.info.path, text=text, kind="notice"))
            self._supervisor.wake_or_end(
                asker
            )  # Also if the notice of its end, which reports the same, did not wake it.

    def report_end_to_all(self, run: Run) -> None:
        """Notify every run that must be notified of an end."""
        self.report_end(run)
        if run.awaiting_idle and run.result is not None:
            self.report_idle(run, run.result)

    def _living_ancestor(self, run: Run) -> Run | None:
        """Return the nearest run above that lives and accepts mail."""
        ancestor = run.parent
        while ancestor is not None and (
            ancestor.state in TERMINAL_STATES or ancestor.context.mailbox.closed_reason is not None
        ):
            ancestor = ancestor.parent
        return ancestor

    def _notified_ancestor(self, run: Run) -> Run | None:
        """Return the nearest run above that lives and accepts mail, if notices are of use to it."""
        ancestor = self._living_ancestor(run)
        is_useful = ancestor is not None and ancestor.state is not State.STOPPING and ancestor.agent.function is None
        return ancestor if is_useful else None

    def _push(
        self, run: Run, mail: Mail, request_id: str = "", notify: str = "", request: MailRequest | None = None
    ) -> None:
        if run.context.mailbox.push(mail):
            if notify:
                self.await_idle(run, mail.id, notify)
            run.context.emit(
                MailPushed,
                mail_id=mail.id,
                sender=mail.sender,
                kind=mail.kind,
                text=mail.text,
                asked=request_id,
                notify=notify,
                request=request.kind if request is not None else "",
                waits=request.call if request is not None else "",
            )
            if mail.kind in ("user", "agent"):
                run.recent_mail = run.recent_mail or RecentMail()
                run.recent_mail.add(mail.id, mail.sender, mail.text, run.context.clock.now())

    def _resume_finished(self, run: Run) -> None:
        """Resume a finished run with the rest of its limits.

        Raises MailRefused, having changed nothing, if it cannot be resumed.
        """
        ancestor = run.parent
        while ancestor is not None and not ancestor.is_living:
            if ancestor.own_budget is not None:
                raise MailRefused(run.info.path, f"{ancestor.info.path}, whose budget it shared, has ended")
            ancestor = ancestor.parent
        if ancestor is None:
            raise MailRefused(run.info.path, "its tree has ended")
        if not run.context.cwd.is_dir():
            raise MailRefused(run.info.path, f"the folder that it worked in no longer exists: {run.context.cwd}")
        try:
            check_room_below(ancestor)
            slot = self._register.admission.admit_nowait(ancestor, run.admission_slot.share)
        except SpawnRefused as refusal:
            raise MailRefused(run.info.path, str(refusal)) from refusal
        if run.own_budget is None:
            run.context.budget = ancestor.context.budget
        elif run.own_budget.parent is not None:  # The budget of a detached run was given to it permanently.
            try:
                run.own_budget.reopen(ancestor.context.budget)
            except BudgetExceeded as refusal:
                self._register.admission.release(slot)
                raise MailRefused(run.info.path, str(refusal)) from refusal
        run.admission_slot, run.background = slot, True
        run.context.abort = AbortController(ancestor.context.abort)
        run.context.record = run.activity.record  # It was fenced off at its end.
        run.reactivate()
        self._register.reopen(run, ancestor)
        run.context.mailbox.reopen()
