"""The base of every runtime: owns trees, and all that they share, from its start to its stop."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import secrets
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ramet.agent.definition import Agent
from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.timers import TimerQueue
from ramet.core.arguments import check_instance
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import RunId, run_id
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.disk.state_folder import checked_state_folder, state_folder
from ramet.host.arguments import check_runtime
from ramet.host.control.session_messages import pass_message
from ramet.host.control.socket import ControlSocket
from ramet.host.dynamic.agents import DynamicAgents
from ramet.host.external.program_finder import ProgramFinder
from ramet.host.forwarding.forwarder import Forwarder
from ramet.host.gateway import Gateway
from ramet.host.journal.journal import journal_of
from ramet.host.journal.result_cache import KeptResults
from ramet.host.journal.ttl import checked_keep
from ramet.host.loop_thread import RuntimeLoop
from ramet.host.notifications.notifier import Notifier
from ramet.host.notifications.targets import checked_targets
from ramet.host.observability.audit import Audit
from ramet.host.observability.library_logs import show_logs
from ramet.host.observability.stalls import StallWatch
from ramet.host.observability.telemetry import Telemetry
from ramet.host.policy_adapters.adapter import TIMEOUT_S, PolicyAdapter, PolicyDecider
from ramet.host.recovery.failover import FailoverTask
from ramet.host.recovery.fork_points import recorded_fork_source
from ramet.host.retention.janitor import RetentionJob
from ramet.host.sandbox.sandboxes import BackendName, Sandboxes
from ramet.host.trees.factory import OpenTree, TreeFactory, TreeOptions
from ramet.host.trees.manager import KEPT_TREES, Trees
from ramet.host.trees.project import Project
from ramet.isolation.contract import Backend
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.spawn.handle import Handle
from ramet.spawn.ports import GRACE_S, ForkSource
from ramet.spawn.run import Run
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore

if TYPE_CHECKING:
    from ramet.host.notifications.targets import Notifiable
    from ramet.models.prices import Price
    from ramet.models.rate_limit import RetryPolicy

T = TypeVar("T")
#: The runtimes of this process that have not stopped. An index for lookups; it owns nothing.
active_runtimes: weakref.WeakSet[RuntimeBase] = weakref.WeakSet()


class RuntimeBase:
    """The owner of trees, and of what they share. The services of each tree are created here, and only here."""

    def __init__(
        self,
        working_dir: str | os.PathLike[str] | None = None,
        *,
        transcripts: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        prices: Mapping[str, Price] | None = None,
        retry: RetryPolicy | None = None,
        user_dir: pathlib.Path | None = None,
        user_texts: bool = True,
        home: pathlib.Path | None = None,
        managed_dir: pathlib.Path | None = None,
        plugin_dirs: Sequence[pathlib.Path] = (),
        grace_s: float = GRACE_S,
        backend: BackendName | Backend | None = None,
        store: Store | None = None,
        audit: Audit | None = None,
        notify: Mapping[str, Notifiable] | None = None,
        watch: Watch = NO_WATCH,
        policy_adapter: PolicyAdapter | None = None,
        policy_timeout_s: float = TIMEOUT_S,
        keep_results_seconds: float | None = None,
        keep_folders: FolderLimits | None = None,
        keep_trees: int = KEPT_TREES,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        check_runtime(working_dir, clock, prices, retry, grace_s, store, audit, keep_folders, keep_trees)
        check_instance("watch", watch, Watch, "ramet.Watch")
        show_logs()
        #: absolute; None: nothing is kept on disk, except by a given store
        self.working_dir = pathlib.Path(working_dir).absolute() if working_dir is not None else None
        if transcripts is None and self.working_dir is not None:
            transcripts_dir: pathlib.Path | None = state_folder(self.working_dir) / "transcripts"
        else:
            transcripts_dir = pathlib.Path(transcripts).resolve() if transcripts is not None else None
        self.clock: Clock = clock or SystemClock()
        self._decide = (
            PolicyDecider(policy_adapter, self.clock, timeout_s=policy_timeout_s)
            if policy_adapter is not None
            else None
        )
        #: the way to the models, with their rate limits and prices
        self.gateway = Gateway(self.clock, prices=prices, retry=retry)
        self._forwarder = Forwarder(self.gateway)
        self.user_dir, self.grace_s = user_dir, grace_s
        self._user_texts, self._home, self._plugin_dirs = user_texts, home, tuple(plugin_dirs)
        self._managed_dir = managed_dir
        self._entropy = entropy
        self._loop = RuntimeLoop("this runtime was not started")
        self.telemetry = Telemetry()  #: spans of its trees
        #: the backend in use, and the folders of sandboxed runs
        self.sandboxes = Sandboxes(
            self.working_dir, backend, self.telemetry.traceparent, folder_limits=keep_folders, clock=self.clock
        )
        #: the store of its events, opened when it is first needed; None: nothing is recorded durably
        self.journal = journal_of(self.working_dir, store)
        targets = checked_targets(notify)
        #: of its notifications; None without targets
        self.notifier = Notifier(targets, self.journal, self.clock, entropy=entropy) if targets else None
        self.dynamic = DynamicAgents(self.open_store)  #: agents that agents created
        self._memory: Store | None = None  #: the store of a runtime without a journal, as long as the runtime lives
        if (journal := self.journal) is not None:
            if journal.folder is not None and journal.control_socket is None:
                journal.control_socket = ControlSocket(journal.users, journal.folder, journal.store)
            if not journal.users:
                journal.retention_job = retention_job = RetentionJob(
                    journal.store,
                    journal.living,
                    self.clock,
                    self.working_dir,
                    transcripts_dir,
                    folders=self.sandboxes.folders if self.working_dir is not None else None,
                    can_continue=journal.can_continue,
                )
                if isinstance(journal.control_socket, ControlSocket):
                    journal.control_socket.on_collect = retention_job.sweep
        factory = TreeFactory(
            dynamic=self.dynamic,
            journal=self.journal,
            telemetry=self.telemetry,
            audit=audit,
            notifier=self.notifier,
            results=KeptResults(self.journal, self.clock),
            decide=self._decide,
            pass_message=pass_message,
            gateway=self.gateway,
            forwarder=self._forwarder,
            programs=ProgramFinder(),
            sandboxes=self.sandboxes,
            clock=self.clock,
            transcripts=transcripts_dir,
            user_dir=user_dir,
            user_texts=user_texts,
            home=home,
            plugin_dirs=self._plugin_dirs,
            grace_s=grace_s,
            entropy=entropy,
            keep_s=checked_keep(keep_results_seconds),
            watch=watch,
            timers=TimerQueue(self.clock),
            fork_source=self._fork_source if self.journal is not None else None,
        )
        self._trees = Trees(factory, self.journal, self.clock, keep_trees)
        self._failover: FailoverTask | None = None
        self._running = False
        self.stalls: StallWatch | None = None  #: of its event loop, if one is running

    @property
    def durable(self) -> bool:
        """Return whether another process can resume a run of this runtime."""
        return self.journal is not None and self.journal.store.durable_across_processes

    async def start(self) -> Self:
        """Start the runtime; idempotent."""
        self._running = True
        self._trees.is_stopped = False
        self._loop.use_running_loop()
        active_runtimes.add(self)
        if self.notifier is not None:
            if self.journal is not None:
                await self.open_store()
            self.notifier.start()
        return self

    async def stop(self) -> None:
        """End every agent of every tree and wait until all have ended; idempotent."""
        self._running = False
        self._trees.is_stopped = True
        active_runtimes.discard(self)
        await self.stop_adopting()
        await self._trees.close_all("the runtime stopped")
        if self.notifier is not None:
            await self.notifier.stop()
        await self.sandboxes.close()
        await self._forwarder.close()
        self._trees.fencing_error = None
        if self.journal is not None:
            await self.journal.release(self._trees)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def has_policy_adapter(self) -> bool:
        """Return whether a policy adapter is asked about each spawn."""
        return self._decide is not None

    @property
    def is_fenced(self) -> bool:
        """Return whether the runtime is fenced: it can record nothing more, or another kernel may own its trees.

        A fenced runtime begins nothing more.
        """
        return self._trees.fencing_error is not None

    @property
    def is_away(self) -> bool:
        """Return whether the store is away, and may come back: until then nothing begins."""
        return self.journal is not None and self.journal.store.is_away

    def get_status(self) -> dict[str, Any]:
        """Return the status: `running`, `stopped` or `fenced`, the living runs of each tree, and stalls if watched."""
        state = "stopped" if not self._running else "running" if self._trees.fencing_error is None else "fenced"
        stalls = {} if self.stalls is None else {"stalls": dataclasses.asdict(self.stalls.so_far)}
        return {"state": state, "sessions": self._trees.active_runs(), **stalls}

    def get(self, run: str) -> Handle:
        """Return a handle on any run of this runtime, by id. Raises Unknown."""
        return self._trees.handle(run)

    @property
    def trees(self) -> Mapping[RunId, OpenTree]:
        """The open trees by the id of their root; read only."""
        return self._trees.open_trees()

    async def _fork_source(self, root: str, run: str, at: int | None) -> ForkSource:
        """Return what a fork of a recorded run in the tree of `root` begins with. Raises Unknown, InvalidValue."""
        if self.journal is None:
            raise InvalidValue("fork_of", run, "no run: without a journal, runs are not recorded")
        await self.open_store()
        with suppress(Unknown):
            await self.get(run).run.context.wait_persisted()
        return await recorded_fork_source(self.journal, self.dynamic.registries, root, run, at)

    def mint(self) -> RunId:
        """Return an id for a root that will be spawned, for a caller that records the id before calling `spawn`."""
        return run_id(self._entropy(8))

    @property
    def is_reachable(self) -> bool:
        """Return whether the runtime's event loop runs in this thread, or, if no loop runs here, elsewhere."""
        return self._loop.is_reachable

    def call_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this runtime's event loop, from a thread without a loop, and wait for its result."""
        return self._loop.call(work)

    async def open_store(self) -> Store:
        """Return the journal's store, open; without a journal, a store in memory that ends with the runtime."""
        if self.journal is not None:
            self.journal.users.add(self._trees)  # Another runtime that stops must not close the store.
            await self.journal.open()
            return self.journal.store
        if self._memory is None:
            self._memory = await MemoryStore().open()
        return self._memory

    async def stop_adopting(self) -> None:
        """Stop adopting; the adopted trees continue. Idempotent."""
        adoption, self._failover = self._failover, None
        if adoption is not None:
            await adoption.stop()

    def open_project(self, folder: pathlib.Path | None, call: Sequence[Agent] = ()) -> Project:
        """Read a folder's definitions and settings, and those texts of the user that this runtime gives to its agents.

        Raises Unreadable or InvalidValue for settings that cannot be understood.
        """
        return Project.open(
            folder,
            user_dir=self.user_dir,
            user_texts=self._user_texts,
            home=self._home if self._user_texts else None,
            managed_dir=self._managed_dir,
            plugin_dirs=self._plugin_dirs,
            call=call,
        )

    def open_tree(self, plan: TreeOptions) -> OpenTree:
        """Open a tree without a root, with services of its own.

        Raises RametError once the runtime was stopped, StoreFailed once its journal may belong to another kernel, and
        InvalidValue if an entry of its state folder leads outside.
        """
        if self.working_dir is not None:
            checked_state_folder(self.working_dir)
        opened = self._trees.open(plan)
        if self.journal is not None:
            self.journal.users.add(self._trees)
        return opened

    def check_open(self) -> None:
        """Raise RametError once the runtime was stopped, and StoreFailed once its journal may belong to another kernel.

        A caller that has waited checks again before a root is spawned: only from the spawn on does `stop` end its tree.
        """
        self._trees.check_open()

    @property
    def finished_trees(self) -> int:
        """The number of ended trees whose runs can still be looked up here by their ids."""
        return self._trees.finished_count

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own a tree from now on."""
        active_runtimes.add(self)
        with suppress(RuntimeError):  # The runtime is only constructed here, and works in a loop that begins later.
            self._loop.use_running_loop()
        self._trees.keep(opened, root)

    async def close_tree(self, root: RunId, reason: str) -> None:
        """End a tree, wait until the tree has ended, and end its readers.

        Cancelling the wait does not stop the closing.
        """
        await self._trees.close(root, reason)

    def _close_with(self, root: Run, last: Run | None = None) -> None:
        """Close a tree when its last run has ended.

        Until then the callback keeps this runtime alive without other references.
        """

        def over(_: object) -> None:
            living_run = self._trees.close_if_idle(root.info.id)
            if living_run is not None:  # The tree outlives its root: check again when that run has ended.
                self._close_with(root, living_run)

        (last or root).recorded_end().add_done_callback(over)
