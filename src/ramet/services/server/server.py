"""A server: the runtime of one folder, the three services on it, and their HTTP interface.

Everything is in `<dir>/.ramet`, for its user only: `serve.sock`, `operator-token`, the journal, agents' folders,
bundles and images. Agents of an earlier server, however it ended, are available again under the same ids and keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, RametError, StoreFailed
from ramet.disk.installation import missing_extra
from ramet.disk.state_folder import checked_state_folder, ensure_folder, state_folder
from ramet.host.dynamic.registry import Registries
from ramet.host.retention.janitor import RetentionJob
from ramet.host.runtime import AgentRuntime
from ramet.host.sandbox.sandboxes import BackendName
from ramet.host.schedules.scheduler import AgentScheduler
from ramet.isolation.contract import Backend
from ramet.services.agent_types.conversation_log import COMMAND_TURN, FUNCTION_TURN
from ramet.services.agent_types.llm.restart import USED
from ramet.services.agent_types.llm.settings import MODEL
from ramet.services.agent_types.registry import create_default_types
from ramet.services.contract import AgentType
from ramet.services.http.connections import Bounds, HttpServer
from ramet.services.http.sockets import reachable_address, tcp_listener, unix_listener
from ramet.services.idempotency.ledger import Ledger
from ramet.services.operator.metrics import Metrics
from ramet.services.operator.service import KernelViews
from ramet.services.packaging.bundles.requirements import Installs
from ramet.services.packaging.contract import BundleLimits
from ramet.services.packaging.service import PackagingService
from ramet.services.rules import Rules
from ramet.services.server.initial_teams import reserve
from ramet.services.server.operator_token import TOKEN, operator_token
from ramet.services.teams.service import AgentSpawnerService
from ramet.services.teams.tables import TeamTables
from ramet.services.turns.log import CHUNKS_KIND, REQUEST_KIND, TurnLog
from ramet.services.turns.queue import TurnLimits
from ramet.services.turns.service import AgentService
from ramet.store.contract import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ramet.services.cluster.membership import Kernels
    from ramet.services.packaging.runtime_image.pod_images import PodImages

SOCKET = "serve.sock"
SHARED = "postgres"  #: the store that several kernels may share
PATIENCE_S = 10.0  #: seconds to wait for turns that end with their kernel
#: Seconds for requests that a leaving kernel still answers: the client of one that is cut cannot know what was done.
_ANSWERS_S = 20.0

_log = logging.getLogger("ramet.serve")


class Server:
    """A server of a folder, running from `start` to `stop`, or between `async with`. Clients connect to
    `listen_address`.

    `types` are the agent types by their names; the default is the installed types. `teams` are reserved at the start,
    each with its amounts, unless they exist. `rules` limit the use of this host by agents, `talk` limits conversations,
    and `bundles` limits uploads. Without `installs`, no packages are installed for images. `pod_images` are the images
    from which the `backend` starts its sandboxes; they are pushed when they are made. `public_metrics` need no key.

    `runtime` are further options of `AgentRuntime`. Agents of a server do not see its `user_dir`. Without a `token`,
    the operator's key is generated, and stored in the folder.
    """

    def __init__(
        self,
        dir: str | os.PathLike[str],
        *,
        socket: str | os.PathLike[str] | None = None,
        listen: tuple[str, int] | None = None,
        backend: BackendName | Backend | None = None,
        types: Mapping[str, AgentType] | None = None,
        token: str | None = None,
        teams: Mapping[str, Mapping[str, float]] | None = None,
        rules: Rules | None = None,
        talk: TurnLimits | None = None,
        bundles: BundleLimits | None = None,
        installs: Installs | None = None,
        pod_images: PodImages | None = None,
        bounds: Bounds | None = None,
        public_metrics: bool = False,
        address: str | None = None,
        **runtime: Any,
    ) -> None:
        if socket is not None and listen is not None:
            raise InvalidValue("listen", f"{listen[0]}:{listen[1]}", "either a socket or an address")
        self.dir = pathlib.Path(dir).absolute()
        self.folder = state_folder(self.dir)
        self._socket = pathlib.Path(socket) if socket is not None else self.folder / SOCKET
        self._listen, self._bounds, self._given_token = listen, bounds, token
        self._types, self._teams = types, teams or {}
        self._rules, self._talk = rules or Rules(), talk or TurnLimits()
        self._bundles, self._installs, self._pod_images = bundles, installs, pod_images
        self._public_metrics = public_metrics
        self._address = address
        self.runtime = AgentRuntime(self.dir, backend=backend, user_texts=False, **runtime)
        journal = self.runtime.journal
        if journal is not None and isinstance(journal.retention_job, RetentionJob):
            journal.retention_job.find_needed_roots = lambda: TeamTables(journal.store).needed_trees()
        self._rules.check_backend(_name_of(backend))
        self.runtime.gateway.accepted_models = self._rules.models
        self.operator = ""
        self.is_draining = False  #: whether it accepts no new work
        self._leaves_turns = False
        self.store_loss = asyncio.Event()  #: set when the store is permanently lost: the process must end
        self.store_error: StoreFailed | None = None  #: the reason of that loss
        #: wraps the application, for paths in addition to those of the API; called at the start
        self.wrap_application: Callable[[ASGIApp], ASGIApp] = lambda application: application
        self.kernels: Kernels | None = None  #: set if several kernels may share the store
        self._leave_stack: AsyncExitStack | None = None
        self._rest_stack: AsyncExitStack | None = None

    async def start(self) -> Self:
        """Resume the agents and trees of an earlier server, and then serve requests. Idempotent.

        Raises InvalidValue for an address in use and for an invalid token, MissingExtra, StoreInUse for a folder that
        another kernel has, Damaged. Nothing is left open then.
        """
        if self._leave_stack is not None:
            return self
        async with AsyncExitStack() as drain_stack, AsyncExitStack() as stop_stack:
            _take(self.folder)
            for name in ("agents", "packaging"):
                ensure_folder(self.folder / name)
            # First: a start that fails here has changed nothing. Clients that connect meanwhile wait.
            self.listener = unix_listener(self._socket) if self._listen is None else tcp_listener(*self._listen)
            stop_stack.callback(self.listener.close)
            self.operator = operator_token(self.folder / TOKEN, self._given_token)
            await drain_stack.enter_async_context(self.runtime)
            store = await self.runtime.open_store()
            self.store_loss.clear()
            drain_stack.callback(store.on_loss(self._on_store_loss))
            is_shared = store.name == SHARED
            packaging = await drain_stack.enter_async_context(self._packaging(store if is_shared else None))
            types = create_default_types() if self._types is None else self._types
            self.spawner = AgentSpawnerService(
                self.runtime,
                types,
                packaging,
                self.folder / "agents",
                self.operator,
                rules=self._rules,
            )
            metrics = Metrics(self.runtime, self.spawner.agents, is_public=self._public_metrics)
            drain_stack.push_async_callback(metrics.stop)
            metrics.start()  # before trees are resumed
            log_of = partial(TurnLog, store) if is_shared else None
            clock = self.runtime.clock
            self.agents = AgentService(
                self.spawner.agents.authorize, types, clock=clock, limits=self._talk, log_of=log_of
            )
            self.spawner.on_resumed = self.agents.restore
            self.spawner.before_removal = partial(_forget, store, self.runtime.dynamic.registries)
            if is_shared:
                with _check_extra():
                    from ramet.services.cluster.directory import LocalOwnership
                    from ramet.services.cluster.membership import Kernels
                assert self.runtime.journal is not None, "it has a store"
                local = LocalOwnership(self.spawner, self.runtime.journal, lambda: self.is_draining)
                self.kernels = Kernels(store, self.operator, local)
                stop_stack.push_async_callback(self.kernels.close)
                await self.kernels.open()
            await self.spawner.open()
            drain_stack.push_async_callback(self.spawner.drain)
            self._scheduler = scheduler = AgentScheduler(self.runtime)
            stop_stack.push_async_callback(scheduler.close)
            await scheduler.start()
            await reserve(self._teams, self.spawner, self.operator)
            self._http_server = http = self._http(packaging, scheduler, metrics)
            stop_stack.push_async_callback(http.stop)
            stop_stack.callback(self._parts.streams.end)
            stop_stack.push_async_callback(self._end_turns)
            stop_stack.callback(http.end)
            await http.start()
            if self.kernels is not None:
                await self.kernels.announce(self._address or reachable_address(self.listen_address))
            self._leave_stack, self._rest_stack = drain_stack.pop_all(), stop_stack.pop_all()
        _log.info("serving %s at %s", self.dir, self.listen_address)
        return self

    @property
    def listen_address(self) -> str:
        """The path of its socket, or its address as a URL."""
        return self.listener.address

    async def drain(self) -> None:
        """Hand all work to the other kernels of the store, also in the middle of turns. The caller ends the process.

        No new work is accepted from the beginning. Turns of agents that cannot continue elsewhere are waited for, and
        so are functions of schedules. Work that takes too long ends here, and is logged. Without another kernel, the
        next kernel that starts continues the work. Idempotent.
        """
        if self.is_draining:
            return
        self.is_draining = True
        assert self.kernels is not None, "its store is shared"
        assert self.runtime.journal is not None, "it has a store"
        await asyncio.gather(self.agents.drain(PATIENCE_S), self._scheduler.leave(PATIENCE_S))
        with contextlib.suppress(RametError):  # Clients without an answer look up the new kernel.
            await self.kernels.drain()
        self._parts.streams.move()
        was_all_answered = await self._http_server.stop(_ANSWERS_S)
        await self._put_on_record()
        await self.kernels.close()
        if not was_all_answered:  # As after a kill: unanswered requests may have been executed.
            return
        with contextlib.suppress(RametError):
            await self.runtime.journal.store.close()  # This ends its registration as a kernel, and informs the others.

    async def settle(self, *, ends_process: bool = False) -> None:
        """Stop serving: end the turns, and record everything. Agents stay open, for `stop` or the next server.

        A process that ends now, in any way, leaves every agent resumable. With `ends_process`, turns that continue at
        the next start are not ended, as if the process were killed. Idempotent.
        """
        if self._rest_stack is None:
            return
        self._leaves_turns = ends_process
        resting, self._rest_stack = self._rest_stack, None
        await run_shielded(resting.aclose())
        await self._put_on_record()

    async def terminate(self) -> None:
        """End the server's resources on this machine, except files: sandboxes, control groups, sockets.

        The process then exits. Call only after `settle` or `drain`. The event loop is blocked from here on, so that
        no run records its end.
        """
        if self.runtime.journal is not None and self.runtime.journal.control_socket is not None:
            await self.runtime.journal.control_socket.stop()
        if self._rest_stack is not None:  # After `drain`.
            self.listener.close()
        self.runtime.sandboxes.terminate()

    async def stop(self) -> None:
        """Rest, close every agent, and leave nothing running; idempotent. The records of agents stay."""
        await self.settle()
        if self._leave_stack is not None:
            leave_stack, self._leave_stack = self._leave_stack, None
            await run_shielded(leave_stack.aclose())

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ---- internal

    async def _is_elsewhere(self, tree: str) -> bool:
        """Return whether another living kernel has a tree."""
        if self.kernels is None or self.runtime.journal is None:
            return False
        owner = await self.runtime.journal.store.owner_of(tree)
        return owner is not None and owner.alive and owner.name != self.runtime.journal.store.kernel

    async def _end_turns(self) -> None:
        await self.agents.close("the server stops", leaves_turns=self._leaves_turns)

    async def _put_on_record(self) -> None:
        """Wait until all events of the trees are recorded, and notifications that have not failed are delivered."""
        for tree in self.runtime.trees.values():
            if tree.recorder.durable is not None:
                with contextlib.suppress(RametError):  # The error cannot be handled here.
                    await tree.recorder.durable()
        if self.runtime.notifier is not None:
            await self.runtime.notifier.stop()

    def _on_store_loss(self, error: StoreFailed) -> None:
        self.store_error = error
        self.store_loss.set()

    def _unready(self) -> str:
        if self.is_draining:
            return "it is shutting down and accepts no new work"
        if self.runtime.is_fenced:
            return "its store can write nothing more, or is owned by another kernel"
        return "its store is unavailable; the server tries to reconnect" if self.runtime.is_away else ""

    def _packaging(self, shared: Store | None) -> PackagingService:
        pods = self._pod_images
        packaging = PackagingService(
            self.folder / "packaging",
            limits=self._bundles,
            installs=self._installs,
            push=pods.image if pods is not None else None,
            store=shared,
        )
        if pods is not None:
            pods.store = packaging
        return packaging

    def _http(self, packaging: PackagingService, scheduler: AgentScheduler, metrics: Metrics) -> HttpServer:
        with _check_extra():
            from ramet.services.http.application import Application
            from ramet.services.http.body_budget import BodyBudget
            from ramet.services.http.dependencies import AppDependencies
        assert self.runtime.journal is not None, "it has a folder"
        views = KernelViews(
            self.runtime,
            self.runtime.journal,
            scheduler,
            self._rules,
            self._is_elsewhere,
            self.spawner.agents.paths_by_run,
        )
        bounds, largest = self._bounds or Bounds(), self._talk.body_bytes
        self._parts = AppDependencies(
            bodies=BodyBudget(
                total_bytes=max(bounds.body_bytes, 2 * largest), share_bytes=max(bounds.team_body_bytes, largest)
            ),
            spawner=self.spawner,
            agents=self.agents,
            packaging=packaging,
            views=views,
            metrics=metrics,
            ledger=Ledger(self.runtime.journal.store, self.runtime.clock),
            rules=self._rules,
            message_bytes=self._talk.body_bytes,
            router=self.kernels.router if self.kernels is not None else None,
            unready=self._unready,
        )
        metrics.open_streams = self._parts.streams.__len__
        return HttpServer(self.wrap_application(Application(self._parts)), self.listener, self._bounds)


def _name_of(backend: BackendName | Backend | None) -> str:
    """Return the name of the backend of a runtime's sandboxes; the default is bwrap."""
    return "bwrap" if backend is None else backend if isinstance(backend, str) else backend.name


async def _forget(store: Store, registries: Registries, agent: str) -> None:
    """Remove all that an agent's type and conversation stored for a removed agent, and its states."""
    await registries.remove_state(agent)
    for kind in (REQUEST_KIND, CHUNKS_KIND, FUNCTION_TURN, COMMAND_TURN):
        for each in await store.list(kind, prefix=f"{agent}/"):
            await store.delete(kind, each.key)
    for kind in (MODEL, USED):
        await store.delete(kind, agent)


@contextlib.contextmanager
def _check_extra() -> Iterator[None]:
    """Raise MissingExtra if an import in the block fails because the extra `server` is not installed."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("starlette"):
            raise
        raise missing_extra("serving over HTTP", "server") from None


def _take(folder: pathlib.Path) -> None:
    """Create a folder in which no other user can put a socket or a key. Raises InvalidValue."""
    try:
        checked_state_folder(folder.parent)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidValue("dir", str(folder), f"a folder, or a place for one ({problem.strerror})") from None
