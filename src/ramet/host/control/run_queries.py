"""Queries on a journal for read-only users: rows of trees and runs for listings.

The journal is read while a kernel is running, and without one. A recorded state is compared with reality: a run that is
open in a journal that no kernel holds was interrupted, whatever its last event says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import Damaged, DamagedTree, RametError, StoreFailed, Unknown
from ramet.core.events import Event
from ramet.core.ids import ROOT_NAME
from ramet.core.outcome import Result, Usage
from ramet.core.replay.replay import TreeReplay
from ramet.core.replay.reported_agents import ReportedAgent
from ramet.core.replay.run_replay import RunReplay
from ramet.disk.state_folder import JOURNAL, checked_state_folder
from ramet.host.control.limit_use import LimitUse, ReservedAmounts
from ramet.host.journal.journal import TREES, tree_document
from ramet.host.journal.stored_events import PAGE, decode_stored, location_of, replay_tree, stored_events
from ramet.host.session_ids import root_of
from ramet.store.contract import Store
from ramet.store.sqlite.database_lock import is_locked
from ramet.store.sqlite.store import SqliteStore

EMPTY: Final[Mapping[str, datetime]] = MappingProxyType({})
NO_SAMPLES: Final[Mapping[str, SandboxUsage]] = MappingProxyType({})
INTERRUPTED = "interrupted"  #: active, in a process that has ended
PATIENCE_S = 2.0  #: wait for a kernel that is stopped or blocked: then the recorded state is used
LOOK_S = 1.0  #: interval at which a follower of a journal checks that its kernel still exists


class NoJournal(RametError):
    """An error for a working directory without a journal."""


class OpenCall(Struct, frozen=True, kw_only=True):
    """A tool call that was begun and has no recorded answer."""

    call_id: str
    tool: str


class Question(Struct, frozen=True, kw_only=True):
    """A pending approval."""

    approval_id: str
    tool: str
    question: str
    args: dict[str, Any] = {}  #: bounded for display


class RunSandbox(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The process of a run: the newest one, also after its end."""

    backend: str
    level: str
    memory_limit_mb: int | float | None = None
    memory_mb: float | None = None  #: that it uses, while it is frozen, or the feed of changes is read
    cpu_s: float | None = None  #: that it has used, while the feed of changes is read


class SandboxUsage(NamedTuple):
    """The memory and the processor time of a process, as they were measured."""

    memory_mb: float
    cpu_s: float


class RunRow(Struct, frozen=True, kw_only=True):
    """A run, computed from the events of its tree."""

    id: str
    root: str
    path: str
    agent: str
    depth: int
    parent: str | None
    state: str  #: of its lifecycle, `interrupted`, or the status with which it ended
    is_over: bool
    born: datetime | None
    ended: datetime | None
    description: str
    model: str
    usage: Usage
    usage_subtree: Usage
    children: tuple[str, ...]
    calls: tuple[OpenCall, ...]
    unread: int
    approvals: tuple[Question, ...]
    result: Result | None
    agent_path: str = ""  #: of the agent of a server whose tree it is in: team and name
    ports: dict[str, int] = {}  #: of its policy, by name, while it lives
    #: person, limit, pause, quota, room, child, slot, mail, model or tool; empty if it works, or no process has it
    waits_for: str = ""
    waits_until: datetime | None = None  #: the stated end of that wait
    last_event_at: datetime | None = None  #: of its newest event, or of a newer part of a reply that streams
    context_tokens: int = 0  #: input tokens of its newest request to a model
    context_window: int = 0  #: the most that its model accepts; 0: unknown
    frozen_mb: float | None = None  #: MiB that its frozen process holds while it is paused; None: none is frozen
    reported_agents: tuple[ReportedAgent, ...] = ()  #: that its program runs by itself, in its sandbox
    limits: dict[str, LimitUse] = {}  #: by name, as far as they are set: usd, tokens, model_calls, …, seconds
    sandbox: RunSandbox | None = None  #: None: it works in the process of the kernel

    @property
    def shown_path(self) -> str:
        """The path for people: the path of a server's agent in place of `main`, which begins every tree."""
        return self.agent_path + self.path.removeprefix(ROOT_NAME) if self.agent_path else self.path

    def seconds(self, now: datetime) -> float:
        """Return the run's age in seconds; after its end, its duration."""
        return 0.0 if self.born is None else ((self.ended or now) - self.born).total_seconds()


def journal_in(working_dir: pathlib.Path) -> pathlib.Path:
    """Return the path of a working directory's journal. Raises NoJournal if there is none, InvalidValue for a link."""
    path = checked_state_folder(working_dir) / JOURNAL
    if not path.is_file():
        raise NoJournal(f"there is no journal in {working_dir}: no run was recorded there")
    return path


def kernel_of(journal: pathlib.Path) -> str | None:
    """Return the pid of the kernel that holds this journal now, or None.

    The pid is "unknown" if the lock file, which names it, was removed.
    """
    pid = _pid_in(journal.with_name(journal.name + ".lock"))
    return "unknown" if pid is None and is_locked(journal) else pid


def _pid_in(lock_file: pathlib.Path) -> str | None:
    """Return the pid in a held lock file; None if no process holds the lock."""
    try:
        lock = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        content = os.pread(lock, 20, 0).strip()
        if not content:
            return None  # The last holder left it empty. Trying the lock would disturb a kernel that begins.
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return content.decode("ascii", "replace")
        return None
    finally:
        os.close(lock)


class JournalReader:
    """A reader of a journal. Enter it to open it; `live_roots` are trees that live in a kernel,
    None: all open trees.
    """

    def __init__(
        self,
        store: Store,
        live_roots: Collection[str] | None = None,
        *,
        is_alone: Callable[[], bool] = lambda: False,
        streaming: Mapping[str, datetime] = EMPTY,
    ) -> None:
        """Set `is_alone`, which returns whether no process writes to the journal now.

        `streaming` are the times of the newest parts of replies, by run, of which no event tells.
        """
        self.store, self._live_roots, self._is_alone, self._streaming = store, live_roots, is_alone, streaming
        self.damage_by_root: dict[str, Damaged] = {}  #: why trees were skipped, by their roots; "" for the journal

    async def __aenter__(self) -> JournalReader:
        await self.store.open()
        if (loss := getattr(self.store, "loss", None)) is not None:
            self.damage_by_root[""] = loss
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    async def trees(self, *, ended: bool = False) -> list[str]:
        """Return the roots of trees that may live, or with `ended` of all, in the order of their spawns.

        A tree whose document cannot be read is skipped, and is then in `damage_by_root`. A tree that was set aside is
        left out.
        """
        entries, set_aside = list[tuple[str, str]](), set[str]()
        for each in await self.store.list(TREES):
            try:
                about = tree_document(each, location_of(self.store))
            except DamagedTree as problem:
                self.damage_by_root[each.key] = problem
                continue
            if about.get("set_aside"):
                set_aside.add(each.key)
            elif ended or not about.get("over"):
                entries.append((str(about.get("began", "")), each.key))
        entries.sort(key=lambda each: each[0])  # Older kernels did not record when; their trees come first.
        roots = [root for _, root in entries]
        return [root for root in await self._with_events(roots) if root not in set_aside] if ended else roots

    async def _with_events(self, known_roots: list[str]) -> list[str]:
        """Return every tree that has events, in the order of their spawns; the known ones if a table cannot be read."""
        roots, cursor = dict[str, None](), 0
        try:
            while page := await self.store.read(cursor, limit=PAGE):
                roots |= dict.fromkeys(each.tree for each in page)
                cursor = page[-1].cursor
        except (Damaged, StoreFailed):
            roots |= dict.fromkeys(known_roots)  # A reader of such a tree gets the error.
        return list(roots)

    async def rows_of_all(self, *, ended: bool = False) -> list[RunRow]:
        """Return the runs of all trees, in the order of their spawns.

        Trees that cannot be read are then in `damage_by_root`.
        """
        rows = list[RunRow]()
        for root in await self.trees(ended=ended):
            try:
                rows += await self.rows(root)
            except DamagedTree as problem:
                self.damage_by_root[root] = problem
        return rows

    async def tree_of(self, run: str) -> str:
        """Return the root of the tree that a run belongs to.

        Raises Unknown; for the id of a session it names the session's root.
        """
        stored = await self.store.read(run=run, limit=1)
        if not stored:
            root, _ = await root_of(self.store, run)
            known = [root] if root else [each.key for each in await self.store.list(TREES)][-20:]
            raise Unknown("run", run, tuple(known))
        return stored[0].tree

    async def rows(self, root: str) -> list[RunRow]:
        """Return every run of a tree, in the order of their spawns. Raises DamagedTree."""
        return rows_of(await self.replay(root), is_active=self.is_active(root), streaming=self._streaming)

    async def replay(self, root: str) -> TreeReplay:
        """Return the recorded state of a tree. Raises DamagedTree."""
        return await replay_tree(self.store, root)

    async def events(self, root: str, *, run: str | None = None, after: int = 0) -> AsyncGenerator[Event]:
        """Yield the recorded events of a tree, or of one run of it, in order. Raises DamagedTree."""
        async for each in stored_events(self.store, root, run=run, after=after):
            yield decode_stored(self.store, each)

    async def follow(self, root: str, *, run: str | None = None) -> AsyncGenerator[Event]:
        """Yield recorded events, then new ones, until the run or tree is over, or no kernel is active in the tree."""
        replay, cursor = TreeReplay(), 0
        while True:
            is_alone, head = self._is_alone(), await self.store.head()  # Before reading: no event is missed.
            async for each in stored_events(self.store, root, after=cursor):
                cursor, event = each.cursor, decode_stored(self.store, each)
                replay.apply(event)
                if run is None or event.run == run:
                    yield event
            is_over = replay.runs[run].is_over if run in replay.runs else bool(replay.runs) and replay.is_over
            if is_over or is_alone or not self.is_active(root):
                return
            await self.store.wait(head, timeout_s=LOOK_S)

    def is_active(self, root: str) -> bool:
        """Return whether a kernel has this tree active."""
        return self._live_roots is None or root in self._live_roots


def rows_of(
    replay: TreeReplay,
    *,
    is_active: bool,
    streaming: Mapping[str, datetime] = EMPTY,
    samples: Mapping[str, SandboxUsage] = NO_SAMPLES,
) -> list[RunRow]:
    """Return a row for every run of a tree; `is_active` states whether a kernel has the tree active.

    `streaming` are the times of the newest parts of replies, and `samples` the measurements of processes, by run.
    """
    children: dict[str, list[str]] = {}
    reserved = ReservedAmounts(replay.runs).update_all()
    for run in replay.runs.values():
        children.setdefault(run.spawn_event.parent or "", []).append(run.id)
    return [
        row_of(
            run,
            reserved,
            tuple(children.get(run.id, ())),
            is_active=is_active,
            streaming=streaming,
            sample=samples.get(run.id),
        )
        for run in replay.runs.values()
    ]


R = TypeVar("R", bound=RunRow)


def row_of(
    run: RunReplay,
    reserved: ReservedAmounts,
    children: tuple[str, ...] = (),
    *,
    is_active: bool,
    streaming: Mapping[str, datetime] = EMPTY,
    sample: SandboxUsage | None = None,
    kind: type[R] = RunRow,  # type: ignore[assignment]  # the default of R
) -> R:
    """Return the row of a run, of a kind of rows; otherwise as `rows_of`."""
    spawn_event = run.spawn_event
    return kind(
        id=run.id,
        root=spawn_event.root,
        path=spawn_event.path,
        agent=spawn_event.agent,
        depth=spawn_event.depth,
        parent=spawn_event.parent,
        state=str(run.result.status) if run.result is not None else run.state if is_active else INTERRUPTED,
        is_over=run.is_over,
        born=spawn_event.at,
        ended=run.ended_at,
        description=spawn_event.description or spawn_event.prompt[:500],
        model=spawn_event.model,
        usage=run.usage,
        usage_subtree=run.subtree,
        children=children,
        calls=tuple(OpenCall(call_id=id, tool=each.tool) for id, each in run.started_calls.items()),
        unread=len(run.unread_mail()),
        approvals=tuple(
            Question(approval_id=id, tool=each.tool, question=each.question, args=each.args)
            for id, each in (*run.approvals.items(), *(() if run.is_over else run.held_messages.items()))
            if id not in run.approval_answers
        ),
        result=run.result,
        ports={} if run.is_over else run.ports,
        waits_for=run.waits_for if is_active else "",
        waits_until=run.waits_until if is_active else None,
        last_event_at=run.last_event_at if run.is_over else streaming.get(run.id, run.last_event_at),
        context_tokens=run.context_tokens,
        context_window=spawn_event.window,
        frozen_mb=run.frozen_mb if is_active else None,
        reported_agents=tuple(
            each if is_active or each.is_over else replace(each, state=INTERRUPTED)
            for each in run.reported_agents.values()
        ),
        limits=reserved.limits(run),
        sandbox=_sandbox_of(run, sample if is_active and not run.is_over else None, is_active),
    )


def _sandbox_of(run: RunReplay, sample: SandboxUsage | None, is_active: bool) -> RunSandbox | None:
    if run.placement is None:
        return None
    backend, level, limit_mb = run.placement
    memory_mb = run.frozen_mb if is_active else None
    if memory_mb is None and sample is not None:
        memory_mb = sample.memory_mb
    cpu_s = None if sample is None else sample.cpu_s
    return RunSandbox(backend=backend, level=level, memory_limit_mb=limit_mb, memory_mb=memory_mb, cpu_s=cpu_s)


async def journal_reader(working_dir: pathlib.Path) -> JournalReader:
    """Return a reader of a working directory's journal; its writer is not disturbed. Raises NoJournal, StoreFailed."""
    from ramet.host.control.socket import ControlledTrees, NoKernel, send_request

    path = journal_in(working_dir)
    live_roots: Collection[str] | None = ()
    streaming: Mapping[str, datetime] = EMPTY
    if kernel_of(path) is not None:
        live_roots = None
        with contextlib.suppress(NoKernel):  # If the kernel does not answer, open trees count as active in it.
            answer = await send_request(working_dir, ControlledTrees(), patience_s=PATIENCE_S)
            live_roots = answer.get("trees", ())
            streaming = msgspec.convert(answer.get("streaming", {}), dict[str, datetime])
    store = SqliteStore(path, read_only=True)
    return JournalReader(store, live_roots, is_alone=lambda: kernel_of(path) is None, streaming=streaming)
