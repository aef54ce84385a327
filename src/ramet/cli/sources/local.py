"""A working directory as source: its journal has the past, its kernel performs requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ramet.cli.sources.contract import Change, NewSchedule, Question
from ramet.cli.sources.kernel_process import kernel_process
from ramet.cli.sources.served_paths import with_agent_paths
from ramet.core.errors import Damaged, InvalidValue, RametError, StoreInUse, Unknown
from ramet.core.events import Event
from ramet.core.outcome import Status
from ramet.host.control.run_queries import (
    INTERRUPTED,
    JournalReader,
    NoJournal,
    RunRow,
    journal_in,
    journal_reader,
    kernel_of,
)
from ramet.host.control.socket import (
    Answer,
    EndPause,
    FindPorts,
    FindWorkspace,
    KernelEnded,
    NoKernel,
    Pause,
    RaiseLimits,
    Refused,
    Request,
    Send,
    Stop,
    send_request,
)
from ramet.host.journal.ttl import Keep, set_keep
from ramet.host.safety.inspection import GateEvent, GateEventFilter, GateEventPage, follow, passages
from ramet.host.schedules.view import ScheduleView
from ramet.host.sessions.rows import SessionRow, session_row, sessions
from ramet.isolation.workspace.artifacts import read_file
from ramet.store.sqlite.store import SqliteStore

#: Errors caused by the command line, by their names in the kernel's refusals.
_CALLER_ERRORS: dict[str, type[RametError]] = {kind.__name__: kind for kind in (InvalidValue, Unknown)}


class LocalSource:
    """A `Source`. The journal is opened on first use, so that requests to the kernel alone do not need it."""

    interrupted_hint = "no kernel runs here; ramet resume continues it"

    def __init__(self, dir: Path) -> None:
        self.dir = dir
        self._records: JournalReader | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._records is not None:
            records, self._records = self._records, None
            await records.__aexit__()

    # ---- conversations

    async def sessions(self, limit: int) -> tuple[Sequence[SessionRow], int]:
        return await sessions(await self._journal(), limit)

    async def session(self, id: str, last: int | None = None) -> tuple[SessionRow, Sequence[Mapping[str, Any]]]:
        return await session_row(await self._journal(), id, last)

    async def remove_session(self, id: str) -> str:
        from ramet.host.sessions.trees import remove  # it imports sessions and runs, which no other command needs

        async with JournalReader(SqliteStore(journal_in(self.dir)), ()) as records:
            return await remove(records, self.dir, id)

    # ---- looking

    async def runs(self, *, ended: bool = False) -> list[RunRow]:
        records = await self._journal()
        rows = [row for row in await records.rows_of_all(ended=ended) if ended or not row.is_over]
        return await with_agent_paths(records.store, rows)

    @property
    def damage_errors(self) -> Sequence[Damaged]:
        return tuple(self._records.damage_by_root.values()) if self._records is not None else ()

    async def run(self, id: str) -> RunRow:
        return next(row for row in await self.tree(id) if row.id == id)

    async def root_of(self, run: str) -> str:
        return await (await self._journal()).tree_of(run)

    async def tree(self, run: str) -> list[RunRow]:
        records = await self._journal()
        return await with_agent_paths(records.store, await records.rows(await records.tree_of(run)))

    async def events(self, run: str, *, tree: bool = False, follow: bool = False) -> AsyncGenerator[Event]:
        records = await self._journal()
        read = records.follow if follow else records.events
        async for event in read(await records.tree_of(run), run=None if tree else run):
            yield event

    async def questions(self) -> list[Question]:
        from ramet.cli.sources.local_approvals import list_questions

        return await list_questions(self.dir, await self._journal())

    async def gate_events(self, gate_filter: GateEventFilter, *, after: int, limit: int) -> GateEventPage:
        return await passages((await self._journal()).store, gate_filter, after=after, limit=limit)

    async def follow_gate_events(self, gate_filter: GateEventFilter, *, after: int) -> AsyncGenerator[GateEvent]:
        async with aclosing(follow((await self._journal()).store, gate_filter, after=after)) as events:
            async for each in events:
                yield each

    # ---- steering

    async def send(self, run: str, text: str, dedupe_s: float | None = None) -> dict[str, Any]:
        return await self._ask(Send(run=run, text=text, dedupe_s=dedupe_s), run)

    async def stop(self, run: str, reason: str) -> dict[str, Any]:
        """Stop a run, also if the process ends with it: a thread that cannot be ended is then gone too."""
        with kernel_process(self.dir) as process:
            try:
                outcome = await self._ask(Stop(run=run, reason=reason), run)
            except KernelEnded:
                if await process.has_ended() and (stopped_paths := await self._list_stopped_paths(run)):
                    return {"stopped": stopped_paths, "left": []}
                raise
            return {**outcome, "left": []} if outcome["left"] and await process.has_ended() else outcome

    async def _list_stopped_paths(self, run: str) -> list[str]:
        """Return the paths of a run and of runs below it that were stopped, if the run has ended."""
        rows = await self.tree(run)
        top = next(row for row in rows if row.id == run)
        subtree = [row for row in rows if row.path == top.path or row.path.startswith(f"{top.path}/")]
        stopped_paths = [row.path for row in subtree if row.state == Status.CANCELLED]
        return stopped_paths if top.is_over and top.state == Status.CANCELLED else []

    async def raise_limits(self, run: str, add: Mapping[str, float], key: str) -> dict[str, Any]:
        return await self._ask(RaiseLimits(run=run, add=dict(add), key=key), run)

    async def pause(self, run: str, reason: str, *, now: bool) -> dict[str, Any]:
        return await self._ask(Pause(run=run, reason=reason, now=now), run)

    async def resume(self, run: str) -> dict[str, Any]:
        return await self._ask(EndPause(run=run), run)

    async def read_file(self, run: str, path: str) -> bytes:
        """Read the file here, at the kernel's location: it may be larger than a message to the kernel can be."""
        reply = await self._ask(FindWorkspace(run=run), run)
        return await asyncio.to_thread(read_file, Path(reply["folder"]), path, max_bytes=reply["max_bytes"])

    async def ports(self, run: str) -> dict[str, str]:
        """Return the Unix sockets of the ports of a running run, by their names. Raises Gone, Unknown."""
        sockets: dict[str, str] = await self._ask(FindPorts(run=run), run)
        return sockets

    async def answer(self, approval: str, allowed: bool, reason: str, *, for_run: bool = False) -> dict[str, Any]:
        try:
            return await self._ask(Answer(approval=approval, allowed=allowed, reason=reason, for_run=for_run))
        except (NoKernel, Unknown):
            question = next((each for each in await self._recorded_questions() if each.id == approval), None)
            if question is None or question.state != INTERRUPTED:
                raise
            hint = f"first resume it: ramet resume {question.run}"
            raise NoKernel(f"{question.path} was interrupted; {hint}") from None

    async def _recorded_questions(self) -> list[Question]:
        try:
            return await self.questions()
        except NoJournal:
            return []

    async def keep(self, run: str, on: bool) -> dict[str, Any]:
        """Set the mark here, or let the kernel that holds the journal set it."""
        store = SqliteStore(journal_in(self.dir))
        try:
            await store.open()
        except StoreInUse as in_use:
            try:
                return await send_request(self.dir, Keep(run=run, on=on))
            except NoKernel:
                raise in_use from None
            except Refused as refusal:
                raise (Unknown("run", run) if refusal.kind == Unknown.__name__ else refusal) from None
        try:
            return {"tree": await set_keep(store, run, on), "kept": on}
        finally:
            await store.close()

    # ---- schedules; what they need costs time to import

    async def schedules(self) -> Sequence[ScheduleView]:
        from ramet.cli.sources.local_schedules import list_schedules

        return await list_schedules(await self._journal())

    async def add_schedule(self, new: NewSchedule) -> ScheduleView:
        from ramet.cli.sources.local_schedules import add_schedule

        return await add_schedule(self.dir, new)

    async def change_schedule(self, id: str, change: Change) -> ScheduleView | None:
        from ramet.cli.sources.local_schedules import change_schedule

        journal_in(self.dir)  # Only `add` creates a missing journal.
        return await change_schedule(self.dir, id, change)

    # ---- inside

    async def _journal(self) -> JournalReader:
        if self._records is None:
            try:
                reader = await journal_reader(self.dir)
            except NoJournal as missing:
                raise NoJournal(f"{missing}; --dir names another folder") from None
            self._records = await reader.__aenter__()
        return self._records

    async def _ask(self, request: Request, run: str | None = None) -> dict[str, Any]:
        try:
            return await send_request(self.dir, request)
        except Refused as refusal:
            kind = _CALLER_ERRORS.get(refusal.kind)
            if kind is None:
                raise
            error = kind.__new__(kind)
            error.args = refusal.args  # Only the message was transferred, not the fields.
            raise error from None
        except NoKernel as unreachable:
            raise type(unreachable)(await self._explain_unreachable(str(unreachable), run)) from None

    async def _explain_unreachable(self, reason: str, run: str | None) -> str:
        """Return the reason why no kernel answered, from the run's journal."""
        try:
            pid = kernel_of(journal_in(self.dir))
        except NoJournal:
            return reason
        if pid is not None:
            return f"the kernel in {self.dir} (pid {pid}) has no control socket, or does not answer"
        if run is None:
            return reason
        row = await self.run(run)
        if row.state == INTERRUPTED:
            return f"{reason}: {run} was interrupted; first resume it: ramet resume {run}"
        return f"{reason}: {run} has ended ({row.state})"
