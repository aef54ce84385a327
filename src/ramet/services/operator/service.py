"""The operator's view of the server's kernel: what goes on in it, and a hand on that. Nobody else's key opens it."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.core.errors import Gone, InvalidValue, MailRefused, NotYours, Unknown
from ramet.host.approvals import Pending
from ramet.host.control.operator import OperatorControl
from ramet.host.control.run_queries import RunRow
from ramet.host.journal.journal import Journal
from ramet.host.runtime import AgentRuntime
from ramet.host.scheduler.scheduler import AgentScheduler
from ramet.services.operator.contract import Approval, ApprovalPage, KeptTree, Paging, Sent, Stopped
from ramet.services.operator.runs import AgentPaths, IsElsewhere, RunViews, checked_limit
from ramet.services.operator.safety import GateViews
from ramet.services.operator.schedules import ScheduleViews
from ramet.services.operator.sessions import SessionViews
from ramet.services.operator.states import StateViews
from ramet.services.rules import Rules
from ramet.services.teams.agents import AgentTable

MOST_REASON = 10_000  #: characters
STOPPED = "stopped by the operator"


class KernelViews:
    """The kernel of a runtime at work: its runs, questions, schedules, safety gates, and what agents wrote down."""

    def __init__(
        self,
        runtime: AgentRuntime,
        journal: Journal,
        scheduler: AgentScheduler,
        rules: Rules,
        is_elsewhere: IsElsewhere | None = None,
        agent_paths: AgentPaths = lambda: {},
    ) -> None:
        """`journal` is that of the runtime, and open. `is_elsewhere` is whether a tree is at work in another kernel."""
        self._steering = OperatorControl(journal.users, journal.store)
        self.runs = RunViews(journal, self._steering, is_elsewhere or _nowhere, agent_paths)
        self.schedules = ScheduleViews(scheduler, rules)
        self.gates = GateViews(journal)
        self.sessions = SessionViews(journal, runtime.working_dir, is_elsewhere or _nowhere)
        self.states = StateViews(runtime.dynamic.registries, journal, self.runs)

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> Sent:
        """A user's word for a run. Raises InvalidValue, Unknown, MailRefused: also for one that only is on record."""
        try:
            return Sent(mail=await self._steering.send(run, text, dedupe_s))
        except Unknown:
            row = await self.runs.run(run)
            raise MailRefused(row.path, _where(row)) from None

    async def stop(self, run: str, reason: str) -> Stopped:
        """End a run and all below it, and wait until they are gone. Raises Unknown, InvalidValue.

        Gone is raised for one that is on record, and was ended before, or is at work in no kernel.
        """
        if len(reason) > MOST_REASON:
            raise InvalidValue("reason", reason, f"text of at most {MOST_REASON} characters")
        try:
            receipt = await self._steering.stop(run, reason or STOPPED)
        except Unknown:
            row = await self.runs.run(run)
            raise Gone(f"run {run!r} is not at work: {_where(row)}") from None
        return Stopped(stopped=list(receipt.stopped), left=list(receipt.left))

    async def read_file(self, run: str, path: str) -> bytes:
        """The content of a file of a run at work.

        Raises Unknown, Gone for a run that is not at work or works in no sandbox, InvalidValue, OutputTooLarge.
        """
        try:
            return await self._steering.read_file(run, path)
        except Unknown as problem:
            if problem.kind == "file":
                raise
            row = await self.runs.run(run)
            raise Gone(f"run {run!r} is not at work: {_where(row)}") from None

    async def keep(self, run: str, on: bool) -> KeptTree:
        """Keep the tree of a run on record whatever its time is, or no longer. Raises Unknown."""
        await self.runs.tree_of(run)  # It is on record by then, if it is at work.
        return KeptTree(tree=await self._steering.keep(run, on), kept=on)

    async def approvals(self, asked: Paging) -> ApprovalPage:
        """The questions that wait for a person, the oldest first. Raises InvalidValue."""
        return paged([_shown(each) for each in self._steering.approvals()], asked)

    async def answer(self, approval: str, allowed: bool, reason: str) -> None:
        """A person's word on a question, once. Raises Unknown for one that does not wait (any more), InvalidValue."""
        if len(reason) > MOST_REASON:
            raise InvalidValue("reason", reason, f"text of at most {MOST_REASON} characters")
        await self._steering.answer(approval, allowed, reason)


class OperatorsView:
    """The way to a kernel's views."""

    def __init__(self, roster: AgentTable, views: KernelViews) -> None:
        self._roster, self._views = roster, views

    def open(self, key: str, kind: str, name: str = "") -> KernelViews:
        """The views, for the operator's key; others are told that there is nothing of that name. Raises NotYours."""
        if not self._roster.is_operator(key):
            raise NotYours(kind, name)
        if "\0" in name:  # Nothing has such a name, and not every store can look for it.
            raise Unknown(kind, name)
        return self._views


async def _nowhere(tree: str) -> bool:
    return False


def paged(waiting: Sequence[Approval], asked: Paging) -> ApprovalPage:
    """A page of questions. Raises InvalidValue."""
    most, ids = checked_limit(asked.limit), [each.id for each in waiting]
    begin = ids.index(asked.after) + 1 if asked.after in ids else 0
    page = waiting[begin : begin + most]
    return ApprovalPage(approvals=page, more=page[-1].id if ids[begin + most :] else "")


def _where(row: RunRow) -> str:
    """Why a run that is on record cannot be reached."""
    if row.is_over:
        return f"it has ended ({row.state}), and this server does not have it any more"
    return "it was interrupted with the process that it was in, and nobody has gone on with it"


def _shown(pending: Pending) -> Approval:
    return Approval(
        id=pending.id,
        run=pending.run,
        path=pending.path,
        agent=pending.agent,
        depth=pending.depth,
        tool=pending.tool,
        question=pending.question,
        args=pending.args,
        asked_at=pending.asked_at,
        deadline=pending.deadline,
    )
