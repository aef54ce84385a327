"""The operator's view and control of the server's kernel. Only the operator's key opens it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import convert

from ramet.core.errors import Gone, InvalidValue, MailRefused, Unknown
from ramet.core.limits import limits_from
from ramet.host.control.operator import OperatorControl
from ramet.host.control.run_queries import RunRow
from ramet.host.journal.journal import Journal
from ramet.host.journal.ttl import set_keep
from ramet.host.runtime import AgentRuntime
from ramet.host.sandbox.workspace_files import file_of
from ramet.host.schedules.scheduler import AgentScheduler
from ramet.services.operator.change_feed import ChangeFeed, ChangeMessage, parse_cursor
from ramet.services.operator.changes import ChangeOptions
from ramet.services.operator.contract import (
    Approval,
    ApprovalPage,
    ForkedRun,
    ForkRun,
    KeptTree,
    Paging,
    PausedRuns,
    PauseRun,
    RaisedLimits,
    RaiseLimits,
    Sent,
    Stopped,
)
from ramet.services.operator.kernel_activity import KernelActivity
from ramet.services.operator.records.board_views import BoardViews
from ramet.services.operator.records.diffs import DiffViews
from ramet.services.operator.records.kernel_list import list_kernels
from ramet.services.operator.records.key_list import KeyViews
from ramet.services.operator.records.record_rows import KernelList
from ramet.services.operator.runs import AgentPaths, IsElsewhere, RunViews, checked_limit
from ramet.services.operator.safety import GateViews
from ramet.services.operator.schedules import ScheduleViews
from ramet.services.operator.sessions import SessionViews
from ramet.services.operator.states import StateViews
from ramet.services.rules import Rules

MOST_REASON = 10_000  #: characters
STOPPED = "stopped by the operator"


class KernelViews:
    """The views of a running kernel: its runs, questions, schedules, safety gates, sessions, and agents' states."""

    def __init__(
        self,
        runtime: AgentRuntime,
        journal: Journal,
        scheduler: AgentScheduler,
        rules: Rules,
        is_elsewhere: IsElsewhere,
        agent_paths: AgentPaths,
    ) -> None:
        """Use `journal`, the open journal of the runtime. `is_elsewhere` returns whether another kernel runs a tree."""
        self._store, self._runtime, self._rules = journal.store, runtime, rules
        self._steering = OperatorControl(journal.users, journal.store)
        activity = KernelActivity(journal, self._steering, is_elsewhere, agent_paths)
        self.runs = RunViews(journal, self._steering, is_elsewhere, agent_paths, activity.samples)
        self.feed = ChangeFeed(lambda: journal.store, activity)
        self.scheduler, self.schedules = scheduler, ScheduleViews(scheduler, rules)
        self.gates = GateViews(journal)
        self.sessions = SessionViews(journal, runtime.working_dir, is_elsewhere)
        self.diffs = DiffViews(self.runs, self._steering, runtime.working_dir)
        self.boards, self.keys = BoardViews(journal), KeyViews(journal, runtime.clock.now)
        self._started = runtime.clock.now()
        self.states = StateViews(runtime.dynamic.registries, journal, self.runs)

    async def kernels(self) -> KernelList:
        """Return the kernels of the store; of this one also when it began, and what is at work."""
        return await list_kernels(self._store, self._steering, self._started)

    async def changes(self, options: ChangeOptions) -> AsyncGenerator[ChangeMessage, None]:
        """Return the messages about changes of all runs, or of a run and all below it. Raises Unknown, InvalidValue."""
        parse_cursor(options.after)
        root, path = await self.runs.place_of(options.run) if options.run else ("", "")
        return self.feed.changes(options, root, path)

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> Sent:
        """Send a user's message to a run.

        Raises InvalidValue, Unknown, MailRefused, also for a run that is only recorded.
        """
        try:
            return Sent(mail=await self._steering.send(run, text, dedupe_s))
        except Unknown:
            row = await self.runs.run(run)
            raise MailRefused(row.path, _unreachable_reason(row)) from None

    async def stop(self, run: str, reason: str) -> Stopped:
        """End a run and all below it, and wait until all have ended. Raises Unknown, InvalidValue.

        Raises Gone for a recorded run that has ended before, or that no kernel runs.
        """
        if len(reason) > MOST_REASON:
            raise InvalidValue("reason", reason, f"text of at most {MOST_REASON} characters")
        try:
            receipt = await self._steering.stop(run, reason or STOPPED)
        except Unknown:
            raise await self._gone(run) from None
        return Stopped(stopped=list(receipt.stopped), left=list(receipt.left))

    async def fork(self, run: str, request: ForkRun, root: str, *, may_exist: bool = False) -> ForkedRun:
        """Start a tree with the messages of a run, and return its root, which has the id `root` if that is not empty.

        With `may_exist`, a root of that id that is recorded is returned. Raises Unknown, InvalidValue, SpawnRefused,
        and DefinitionMissing for a model or tool that this server does not have.
        """
        if may_exist and await self._store.read(run=root, limit=1):
            return ForkedRun(run=root)
        replay = (await self.runs.replay(run)).runs[run]
        spawn_event = replay.spawn_event
        self._rules.check_model("run", spawn_event.model)
        self._rules.check_tools("run", spawn_event.tools)
        needs_sandbox = replay.was_sandboxed or bool(spawn_event.tools)
        policy = self._rules.policy_of(request.policy, needs_sandbox=needs_sandbox)
        self._rules.grant_of(policy)
        handle = await self._runtime.fork(
            run,
            request.prompt,
            at=request.at,
            llm=self._model_of(run),
            limits=limits_from(request.limits),
            branch=request.branch,
            policy=policy,
            root=root,
        )
        await handle.run.context.wait_persisted()
        return ForkedRun(run=handle.id)

    def _model_of(self, run: str) -> Any:
        """Return the model of an active run if it is an object, which its record cannot name."""
        with suppress(Unknown):
            model = self._steering.find(run).run.agent.model
            return None if isinstance(model, str) else model
        return None

    async def raise_limits(self, run: str, request: RaiseLimits) -> RaisedLimits:
        """Add to the limits of a run.

        Raises Unknown, InvalidValue, BudgetExceeded, and Gone for a run that is not active.
        """
        try:
            limits = await self._steering.raise_limits(run, limits_from(request.add), request.key)
        except Unknown:
            raise await self._gone(run) from None
        return RaisedLimits(run=run, limits=limits.as_data())

    async def pause(self, run: str, request: PauseRun) -> PausedRuns:
        """Pause a run and all below it.

        Raises Unknown, InvalidValue, and Gone for a run that is not active.
        """
        try:
            receipt = await self._steering.pause(run, request.reason, now=request.now)
        except Unknown:
            raise await self._gone(run) from None
        return PausedRuns(paused=list(receipt.paused), working=list(receipt.working))

    async def resume(self, run: str) -> None:
        """End the pause of a run.

        Raises Unknown, InvalidValue, and Gone for a run that is not active.
        """
        try:
            await self._steering.resume(run)
        except Unknown:
            raise await self._gone(run) from None

    async def read_file(self, run: str, path: str) -> bytes:
        """Return the content of a file of a running run.

        Raises Unknown, Gone for a run that is not running or has no sandbox, InvalidValue, OutputTooLarge.
        """
        try:
            return await file_of((await self._steering.reach(run)).run, path)
        except Unknown as problem:
            if problem.kind == "file":
                raise
            raise await self._gone(run) from None

    async def _gone(self, run: str) -> Gone:
        return Gone(f"run {run!r} is not active: {_unreachable_reason(await self.runs.run(run))}")

    async def keep(self, run: str, on: bool) -> KeptTree:
        """Exempt the tree of a run from retention, or end the exemption. Raises Unknown."""
        await self.runs.tree_of(run)  # Then it is recorded, if it is running.
        return KeptTree(tree=await set_keep(self._store, run, on), kept=on)

    async def approvals(self, request: Paging) -> ApprovalPage:
        """Return the questions and the limits that wait for a person, the oldest first. Raises InvalidValue."""
        return paginate(convert(self._steering.approvals(), list[Approval], from_attributes=True), request)

    async def answer(self, approval: str, allowed: bool, reason: str, *, for_run: bool = False) -> None:
        """Send a person's answer to a question, or to a run that waits at a limit, once.

        With `for_run`, it also allows the later calls of the run that the question names in its `for_run`.

        Raises Unknown for a question that does not wait (any more), InvalidValue, and BudgetExceeded if the scope above
        a limit has not enough.
        """
        if len(reason) > MOST_REASON:
            raise InvalidValue("reason", reason, f"text of at most {MOST_REASON} characters")
        await self._steering.answer(approval, allowed, reason, for_run=for_run)


def paginate(approvals: Sequence[Approval], request: Paging) -> ApprovalPage:
    """Return a page of questions. Raises InvalidValue."""
    limit, ids = checked_limit(request.limit), [each.id for each in approvals]
    start = ids.index(request.after) + 1 if request.after in ids else 0
    page = approvals[start : start + limit]
    return ApprovalPage(approvals=page, more=page[-1].id if ids[start + limit :] else "")


def _unreachable_reason(row: RunRow) -> str:
    """Return why a recorded run cannot be reached."""
    if row.is_over:
        return f"it has ended ({row.state}), and this server does not have it any more"
    return "it was interrupted with the process that it was in, and it was not resumed"
