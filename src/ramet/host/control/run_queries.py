"""What a journal says of trees and runs, for those who only look: rows for listings, whoever lists them.

It is read beside a running kernel and without one. A state is held against reality: what is open in a journal that no
kernel holds was interrupted, whatever was written last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import AsyncGenerator, Callable, Collection
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from ramet.core.errors import Damaged, DamagedTree, RametError, StoreFailed, Unknown
from ramet.core.events import Event, RunEnded
from ramet.core.ids import ROOT_NAME
from ramet.core.outcome import Result, Usage
from ramet.core.replay.replay import RunReplay, TreeReplay
from ramet.disk.state_folder import JOURNAL, checked_state_folder
from ramet.host.journal.journal import PAGE, TREES, said_of
from ramet.host.journal.stored_events import decoded, location_of
from ramet.store.contract import Store, StoredEvent
from ramet.store.sqlite.database_lock import is_locked
from ramet.store.sqlite.store import SqliteStore

INTERRUPTED = "interrupted"  #: at work, in a process that is gone
PATIENCE_S = 2.0  #: with a kernel that is stopped, or busy in code that does not wait: then the journal's word stands
LOOK_S = 1.0  #: how often who follows a journal looks whether its kernel is still there


class NoJournal(RametError):
    """Nothing is on record in a working directory."""


class OpenCall(Struct, frozen=True, kw_only=True):
    """A tool call that was begun and has no answer on record."""

    call_id: str
    tool: str


class Question(Struct, frozen=True, kw_only=True):
    """An approval that waits."""

    approval_id: str
    tool: str
    question: str
    args: dict[str, Any] = {}  #: bounded for showing


class RunRow(Struct, frozen=True, kw_only=True):
    """One run as its tree's events tell it."""

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

    @property
    def shown_path(self) -> str:
        """The path for people: that of a server's agent in place of `main`, which begins every tree."""
        return self.agent_path + self.path.removeprefix(ROOT_NAME) if self.agent_path else self.path

    def seconds(self, now: datetime) -> float:
        """How long it has lived, or did."""
        return 0.0 if self.born is None else ((self.ended or now) - self.born).total_seconds()


class Kernel(NamedTuple):
    """Holder of a journal; `pid` is "unknown" where the lock file, which says it, was removed."""

    pid: str


def journal_in(working_dir: pathlib.Path) -> pathlib.Path:
    """Where the journal of a working directory is. Raises NoJournal if there is none, InvalidValue for a link."""
    path = checked_state_folder(working_dir) / JOURNAL
    if not path.is_file():
        raise NoJournal(f"there is no journal in {working_dir}: no agent has worked there on record")
    return path


def kernel_of(journal: pathlib.Path) -> Kernel | None:
    """The kernel that holds this journal now, or None."""
    pid = _pid_in(journal.with_name(journal.name + ".lock"))
    if pid is None and is_locked(journal):
        pid = "unknown"
    return None if pid is None else Kernel(pid)


def _pid_in(lock_file: pathlib.Path) -> str | None:
    """The pid in a lock file that is held; None for one that nobody holds."""
    try:
        lock = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        said = os.pread(lock, 20, 0).strip()
        if not said:
            return None  # Whoever let go of it left it empty. To try the lock would disturb one that begins.
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return said.decode("ascii", "replace")
        return None
    finally:
        os.close(lock)


class JournalReader:
    """A journal, to be read. Enter it to open it; `held` are trees that live in a kernel, None: all that are open."""

    def __init__(
        self,
        store: Store,
        held: Collection[str] | None = None,
        *,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_alone` says whether nobody writes to it now."""
        self.store, self._held, self._is_alone = store, held, is_alone
        self.damaged: dict[str, Damaged] = {}  #: why trees were passed over, by their roots; "" of the journal

    async def __aenter__(self) -> JournalReader:
        await self.store.open()
        if (loss := getattr(self.store, "loss", None)) is not None:
            self.damaged[""] = loss
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    async def trees(self, *, ended: bool = False) -> list[str]:
        """Ids of the roots of trees that may live, or with `ended` of all, in the order of their births.

        A tree whose document cannot be read is passed over, and is in `damaged` then. A tree that was set aside is not
        among them.
        """
        said, aside = list[tuple[str, str]](), set[str]()
        for each in await self.store.list(TREES):
            try:
                about = said_of(each, location_of(self.store))
            except DamagedTree as problem:
                self.damaged[each.key] = problem
                continue
            if about.get("set_aside"):
                aside.add(each.key)
            elif ended or not about.get("over"):
                said.append((str(about.get("began", "")), each.key))
        said.sort(key=lambda each: each[0])  # Older kernels did not say when; theirs come first.
        known = [root for _, root in said]
        return [root for root in await self._with_events(known) if root not in aside] if ended else known

    async def _with_events(self, known: list[str]) -> list[str]:
        """Every tree that has events, in the order of their births; the known ones where a table cannot be read."""
        found, cursor = dict[str, None](), 0
        try:
            while page := await self.store.read(cursor, limit=PAGE):
                found |= dict.fromkeys(each.tree for each in page)
                cursor = page[-1].cursor
        except (Damaged, StoreFailed):
            found |= dict.fromkeys(known)  # Who reads one of them is told.
        return list(found)

    async def rows_of_all(self, *, ended: bool = False) -> list[RunRow]:
        """The runs of all trees, in the order of their births. Trees that cannot be read are in `damaged` then."""
        rows = list[RunRow]()
        for root in await self.trees(ended=ended):
            try:
                rows += await self.rows(root)
            except DamagedTree as problem:
                self.damaged[root] = problem
        return rows

    async def tree_of(self, run: str) -> str:
        """The root of the tree that a run belongs to. Raises Unknown."""
        found = await self.store.read(run=run, limit=1)
        if not found:
            raise Unknown("run", run, tuple(await self.trees())[-20:])
        return found[0].tree

    async def rows(self, root: str) -> list[RunRow]:
        """Every run of a tree, in the order of their births. Raises DamagedTree."""
        telling = TreeFold()
        async for event in self.events(root):
            telling.tell(event)
        return telling.rows(self.lives(root))

    async def events(self, root: str, *, run: str | None = None, after: int = 0) -> AsyncGenerator[Event]:
        """What is on record of a tree, or one run of it, in order. Raises DamagedTree."""
        async for each in self._stored(root, run, after):
            yield decoded(self.store, each)

    async def follow(self, root: str, *, run: str | None = None) -> AsyncGenerator[Event]:
        """The same, and then what comes: until the run is over, or all of the tree, or no kernel is at work in it."""
        telling, cursor = TreeFold(), 0
        while True:
            is_alone, head = self._is_alone(), await self.store.head()  # Before it is read: nothing is passed over.
            async for each in self._stored(root, None, cursor):
                cursor, event = each.cursor, decoded(self.store, each)
                telling.tell(event)
                if run is None or event.run == run:
                    yield event
            if telling.is_over(run) or is_alone or not self.lives(root):
                return
            await self.store.wait(head, timeout_s=LOOK_S)

    def lives(self, root: str) -> bool:
        """Whether a kernel has this tree at work."""
        return self._held is None or root in self._held

    async def _stored(self, root: str, run: str | None, after: int) -> AsyncGenerator[StoredEvent]:
        while page := await self.store.read(after, tree=root, run=run, limit=PAGE):
            for each in page:
                yield each
            after = page[-1].cursor


class TreeFold:
    """A tree's story with the times at which its runs ended."""

    def __init__(self) -> None:
        self.story = TreeReplay()
        self._ended: dict[str, datetime | None] = {}

    def tell(self, event: Event) -> None:
        """Take in the next event."""
        self.story.tell(event)
        if isinstance(event, RunEnded):
            self._ended[event.run] = event.at

    def is_over(self, run: str | None = None) -> bool:
        """Whether this run has ended; without one, everybody."""
        if run is not None and run in self.story.runs:
            return self.story.runs[run].is_over
        return bool(self.story.runs) and self.story.is_over

    def rows(self, lives: bool) -> list[RunRow]:
        """Every run; `lives` says whether a kernel has the tree at work."""
        children: dict[str, list[str]] = {}
        for run in self.story.runs.values():
            children.setdefault(run.born.parent or "", []).append(run.id)
        return [self._row(run, tuple(children.get(run.id, ())), lives) for run in self.story.runs.values()]

    def _row(self, run: RunReplay, children: tuple[str, ...], lives: bool) -> RunRow:
        born = run.born
        return RunRow(
            id=run.id,
            root=born.root,
            path=born.path,
            agent=born.agent,
            depth=born.depth,
            parent=born.parent,
            state=str(run.result.status) if run.result is not None else run.state if lives else INTERRUPTED,
            is_over=run.is_over,
            born=born.at,
            ended=self._ended.get(run.id) if run.is_over else None,
            description=born.description or born.prompt[:500],
            model=born.model,
            usage=run.usage,
            usage_subtree=run.subtree,
            children=children,
            calls=tuple(OpenCall(call_id=id, tool=each.tool) for id, each in run.begun.items()),
            unread=len(run.left_unread()),
            approvals=tuple(
                Question(approval_id=id, tool=each.tool, question=each.question, args=each.args)
                for id, each in run.approvals.items()
            ),
            result=run.result,
            ports={} if run.is_over else run.ports,
        )


async def records_of(working_dir: pathlib.Path) -> JournalReader:
    """The journal of a working directory, to be read beside whoever writes it. Raises NoJournal, StoreFailed."""
    from ramet.host.control.socket import ControlledTrees, NoKernel, send_request

    path = journal_in(working_dir)
    held: Collection[str] | None = ()
    if kernel_of(path) is not None:
        held = None
        with contextlib.suppress(NoKernel):  # A kernel that nobody can ask: what is open is taken to be at work in it.
            held = (await send_request(working_dir, ControlledTrees(), patience_s=PATIENCE_S)).get("trees", ())
    return JournalReader(SqliteStore(path, read_only=True), held, is_alone=lambda: kernel_of(path) is None)
