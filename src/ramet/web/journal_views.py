"""The views of a working directory's journal without a server: recorded runs, and those of a kernel that is at work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from msgspec import convert

from ramet.core.errors import DamagedTree, Unknown
from ramet.core.replay.paused_limits import describe_pause, recorded_pauses
from ramet.core.replay.replay import TreeReplay
from ramet.host.control.operator import OperatorControl
from ramet.host.control.run_queries import JournalReader, journal_in, kernel_of
from ramet.host.control.schedules import ScheduleTable
from ramet.host.control.socket import ListPauses, NoKernel, Refused, send_request
from ramet.host.schedules.view import view_now
from ramet.services.operator.change_feed import ChangeFeed, ChangeMessage, parse_cursor
from ramet.services.operator.changes import ChangeOptions
from ramet.services.operator.contract import Approval, ApprovalPage, Paging, SchedulePage
from ramet.services.operator.records.board_views import BoardViews
from ramet.services.operator.records.diffs import DiffViews
from ramet.services.operator.records.key_list import KeyViews
from ramet.services.operator.records.record_rows import KernelList, KernelRow
from ramet.services.operator.runs import RunViews, checked_limit
from ramet.services.operator.safety import GateViews
from ramet.services.operator.service import paginate
from ramet.services.operator.sessions import SessionViews
from ramet.store.sqlite.store import SqliteStore
from ramet.web.folder_activity import PATIENCE_S, FolderActivity

_EARLY: Final = datetime.min.replace(tzinfo=UTC)


class JournalViews:
    """The views of a folder, between `async with`. Its journal is read only, and its writer is not disturbed."""

    def __init__(self, folder: Path, activity: FolderActivity) -> None:
        """Find the journal. Raises NoJournal."""
        self.folder, self.activity, self.path = folder, activity, journal_in(folder)
        self.inode = self.path.stat().st_ino
        self.store = SqliteStore(self.path, read_only=True)
        steering = OperatorControl((), self.store)  # No run is in this process.
        self.runs = RunViews(self, steering, activity.is_elsewhere)
        self.diffs = DiffViews(self.runs, steering, folder)
        self.sessions = SessionViews(self, folder, activity.is_elsewhere)
        self.gates = GateViews(self)
        self.boards, self.keys = BoardViews(self), KeyViews(self, lambda: datetime.now(UTC))
        self._feed = ChangeFeed(lambda: self.store, activity)

    @property
    def living(self) -> Collection[str]:
        """The roots of active trees."""
        return self.activity.living

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    def kernels(self) -> KernelList:
        """Return the kernel of the folder, by its process, if one is at work."""
        if (pid := kernel_of(self.path)) is None:
            return KernelList([])
        name, trees = f"process {pid}", len(self.activity.living)
        return KernelList([KernelRow(name=name, epoch=0, address="", is_alive=True, trees=trees)])

    async def changes(self, options: ChangeOptions) -> AsyncGenerator[ChangeMessage, None]:
        """Return the messages about changes of all runs, or of a run and all below it. Raises Unknown, InvalidValue."""
        parse_cursor(options.after)
        root, path = await self.runs.place_of(options.run) if options.run else ("", "")
        return self._feed.changes(options, root, path)

    async def approvals(self, request: Paging) -> ApprovalPage:
        """Return the open questions and the runs at limits, the oldest first, also those of interrupted trees.

        Raises InvalidValue.
        """
        reader, approvals = JournalReader(self.store, self.living), list[Approval]()
        paused = await self._pauses() if self.living else []
        for root in await reader.trees():
            try:
                replay = await reader.replay(root)
            except DamagedTree:
                continue
            approvals += _questions(replay)
            if root not in self.living or paused is None:
                approvals += _paused_runs(replay)
        return paginate(sorted([*approvals, *(paused or ())], key=lambda each: each.asked_at), request)

    async def run_of_approval(self, approval: str) -> str:
        """Return the run that waits for an answer. Raises Unknown."""
        reader = JournalReader(self.store, self.living)
        for root in await reader.trees():
            with suppress(DamagedTree):
                replay = await reader.replay(root)
                for each in (*_questions(replay), *_paused_runs(replay)):
                    if each.id == approval:
                        return each.run
        raise Unknown("approval", approval)

    async def schedules(self, request: Paging) -> SchedulePage:
        """Return a page of the schedules, in order of their ids. Raises InvalidValue."""
        limit, reader = checked_limit(request.limit), JournalReader(self.store, self.living)
        records = [
            each for each in await ScheduleTable(self.store).current_records() if each.schedule.id > request.after
        ]
        views = [await view_now(each, reader) for each in records[:limit]]
        return SchedulePage(schedules=views, more=views[-1].id if len(records) > limit else "")

    async def _pauses(self) -> list[Approval] | None:
        """Return the runs that wait at limits in the kernel at work; None if it does not answer."""
        approvals, after = list[Approval](), ""
        try:
            while True:
                page = await send_request(self.folder, ListPauses(after=after), patience_s=PATIENCE_S)
                approvals += convert(page["pauses"], list[Approval])
                if not (after := page["more"]):
                    return approvals
        except (NoKernel, Refused):
            return None


def _questions(replay: TreeReplay) -> list[Approval]:
    """Return the unanswered questions of a tree, and the messages of other sessions that it holds."""
    return [
        Approval(
            id=id,
            run=run.id,
            path=run.spawn_event.path,
            agent=run.spawn_event.agent,
            depth=run.spawn_event.depth,
            tool=each.tool,
            question=each.question,
            args=each.args,
            asked_at=each.at or _EARLY,
            deadline=None,
            usage=run.subtree,
            for_run=each.for_run,
        )
        for run in replay.runs.values()
        for id, each in (*run.approvals.items(), *(() if run.is_over else run.held_messages.items()))
        if id not in run.approval_answers
    ]


def _paused_runs(replay: TreeReplay) -> list[Approval]:
    """Return the runs of a tree that wait at limits."""
    return [
        Approval(
            id=each.id,
            run=each.run.id,
            path=each.run.spawn_event.path,
            agent=each.run.spawn_event.agent,
            depth=each.run.spawn_event.depth,
            tool="",
            question=describe_pause(each.limit),
            args={},
            asked_at=each.pause.at or _EARLY,
            deadline=None,
            kind="limit",
            limit=each.limit,
            usage=each.run.subtree,
        )
        for each in recorded_pauses(replay)
    ]
