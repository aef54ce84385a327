"""A server: the runtime of one folder, the three services on it, and HTTP before them.

Everything is in `<dir>/.ramet`, for its user alone: `serve.sock`, `operator-token`, the journal, agents' folders,
bundles and images. Agents that an earlier server left, whatever ended it, are there again under the same ids and keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, MissingExtra, NotYours, RametError
from ramet.disk.state_folder import checked_state_folder, made_folder, state_folder
from ramet.host.dynamic.registry import Registries
from ramet.host.retention.janitor import RetentionJob
from ramet.host.runtime import AgentRuntime
from ramet.host.sandbox.sandboxes import BackendName
from ramet.host.scheduler.scheduler import AgentScheduler
from ramet.isolation.contract import Backend
from ramet.services.agent_types import kept_turns
from ramet.services.agent_types.function import turn_log
from ramet.services.agent_types.llm import model_set, restart
from ramet.services.agent_types.registry import installed
from ramet.services.contract import AgentType
from ramet.services.http.connections import Bounds, HttpServer
from ramet.services.http.sockets import Listener, reached_at, tcp_listener, unix_listener
from ramet.services.idempotency.ledger import Ledger
from ramet.services.operator.metrics import Metrics
from ramet.services.operator.service import KernelViews, OperatorsView
from ramet.services.packaging.bundles.requirements import Installs
from ramet.services.packaging.contract import BundleLimits
from ramet.services.packaging.service import PackagingService
from ramet.services.rules import Rules
from ramet.services.server.initial_teams import reserve
from ramet.services.server.operator_token import TOKEN, operator_token
from ramet.services.teams.needed_trees import needed_trees
from ramet.services.teams.service import AgentSpawnerService
from ramet.services.turns.log import TurnLog, clear
from ramet.services.turns.queue import TurnLimits
from ramet.services.turns.service import AgentService
from ramet.store.contract import Store

if TYPE_CHECKING:
    from ramet.services.cluster.membership import Kernels
    from ramet.services.packaging.runtime_image.pod_images import PodImages

SOCKET = "serve.sock"
SHARED = "postgres"  #: the store that several kernels may have
PATIENCE_S = 10.0  #: with turns that end with their kernel

_log = logging.getLogger("ramet.serve")


class Server:
    """Serves a folder from `start` to `stop`, or between `async with`. `where` is what clients connect to.

    `types` are the agent types by their names; without them those that are installed. `teams` are reserved when it
    starts, each with its amounts, unless they are there. `rules` say what agents may have of this host, `talk` what a
    conversation may take, `bundles` what an upload may; without `installs` no packages are installed for images.
    `pod_images` are those that the `backend` has its sandboxes start from, pushed when they are made.
    `public_metrics` need no key.
    `runtime` are further options of `AgentRuntime`; agents of a server are told nothing of its `user_dir`. An
    operator's `token` that is not given is made, and kept in the folder.
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
        if journal is not None and isinstance(journal.caretaker, RetentionJob):
            journal.caretaker.needed = partial(needed_trees, journal.store)
        self._rules.check_backend(_name_of(backend))
        self.runtime.gateway.accepted = self._rules.models
        self.operator = ""
        self.leaves = False  #: it takes no new work
        self._leaves_turns = False
        self.lost = asyncio.Event()  #: its store is lost for good: all that is left for its process is to end
        self.kernels: Kernels | None = None  #: where there may be several
        self._leaving: AsyncExitStack | None = None
        self._resting: AsyncExitStack | None = None

    async def start(self) -> Self:
        """Take up what was left, and answer from then on. Idempotent.

        Raises InvalidValue for a place where another listens and for a token that is none, MissingExtra, StoreInUse
        for a folder that another kernel has, Damaged. Nothing is left open then.
        """
        if self._leaving is not None:
            return self
        async with AsyncExitStack() as leaving, AsyncExitStack() as resting:
            _take(self.folder)
            for name in ("agents", "packaging"):
                made_folder(self.folder / name)
            # First: whoever is refused here has touched nothing. Clients that come meanwhile wait.
            self.listener = self._listener()
            resting.callback(self.listener.close)
            self.operator = operator_token(self.folder / TOKEN, self._given_token)
            await leaving.enter_async_context(self.runtime)
            store = await self.runtime.open_store()
            self.lost.clear()
            leaving.callback(store.on_loss(lambda _: self.lost.set()))
            is_shared = store.name == SHARED
            packaging = await leaving.enter_async_context(self._packaging(store if is_shared else None))
            types = installed() if self._types is None else self._types
            self.spawner = AgentSpawnerService(
                self.runtime,
                types,
                packaging,
                self.folder / "agents",
                self.operator,
                rules=self._rules,
            )
            metrics = Metrics(self.runtime, self.spawner.roster, is_public=self._public_metrics)
            leaving.push_async_callback(metrics.stop)
            metrics.start()  # before trees are taken up
            log_of = partial(TurnLog, store) if is_shared else None
            clock = self.runtime.clock
            self.agents = AgentService(
                self.spawner.roster.admitted, types, clock=clock, limits=self._talk, log_of=log_of
            )
            self.spawner.taken_up = self.agents.take_up
            self.spawner.forgetting = partial(_forget, store, self.runtime.dynamic.registries)
            if is_shared:
                with _of_extra():
                    from ramet.services.cluster.membership import Kernels
                self.kernels = Kernels(store, self.operator, self, self.spawner.take_over)
                resting.push_async_callback(self.kernels.close)
                await self.kernels.open()
            await self.spawner.open()
            leaving.push_async_callback(self.spawner.leave)
            self._scheduler = scheduler = AgentScheduler(self.runtime)
            resting.push_async_callback(scheduler.close)
            await scheduler.start()
            await reserve(self._teams, self.spawner, self.operator)
            self._http_server = http = self._http(packaging, scheduler, metrics)
            resting.push_async_callback(http.stop)
            resting.callback(self._parts.streams.end)
            resting.push_async_callback(self._end_turns)
            resting.callback(http.end)
            await http.start()
            if self.kernels is not None:
                await self.kernels.announce(self._address or reached_at(self.where))
            self._leaving, self._resting = leaving.pop_all(), resting.pop_all()
        _log.info("serving %s at %s", self.dir, self.where)
        return self

    @property
    def where(self) -> str:
        """The path of its socket, or its address as a URL."""
        return self.listener.where

    async def hand_over(self) -> None:
        """Let the other kernels of the store go on with all there is, in the middle of turns; for who ends the process.

        Takes no new work from the first moment. Turns of agents that cannot go on elsewhere are waited for, and so are
        functions of schedules; those that take too long end here, and that is noted. Where there is no other kernel,
        the next one that begins goes on. Idempotent.
        """
        if self.leaves:
            return
        self.leaves = True
        assert self.kernels is not None, "its store is shared"
        assert self.runtime.journal is not None, "it has a store"
        await asyncio.gather(self.agents.leave(PATIENCE_S), self._scheduler.leave(PATIENCE_S))
        with contextlib.suppress(RametError):  # Who is not answered from now on looks again who has it.
            await self.kernels.leave()
        self._parts.streams.break_off()
        is_all_answered = await self._http_server.stop()
        await self._put_on_record()
        await self.kernels.close()
        if not is_all_answered:  # As if it were killed: nobody is to hold for undone what may have been done.
            return
        with contextlib.suppress(RametError):
            await self.runtime.journal.store.close()  # With it goes its seat: the others hear of that.

    async def rest(self, *, ends_process: bool = False) -> None:
        """Answer no more: end the turns, and have on record all there is. Agents stay, for `stop`, or for who comes.

        A process that ends now, in whatever way, leaves every agent to be gone on with. With `ends_process`, turns that
        go on at the next start are not ended, as if the process were killed. Idempotent.
        """
        if self._resting is None:
            return
        self._leaves_turns = ends_process
        resting, self._resting = self._resting, None
        await run_shielded(resting.aclose())
        await self._put_on_record()

    async def terminate(self) -> None:
        """End what this machine has for it beside files: sandboxes, control groups, sockets; for a process that exits.

        Only after `rest` or `hand_over`. The event loop is blocked from here on, so that no run records its end.
        """
        if self.runtime.journal is not None and self.runtime.journal.door is not None:
            await self.runtime.journal.door.take_down()
        if self._resting is not None:  # It was handed over.
            self.listener.close()
        self.runtime.sandboxes.terminate()

    async def stop(self) -> None:
        """Rest, close every agent, and leave nothing running; idempotent. Agents stay on record."""
        await self.rest()
        if self._leaving is not None:
            leaving, self._leaving = self._leaving, None
            await run_shielded(leaving.aclose())

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ---- for the desk where requests come in

    def has_agent(self, agent: str) -> bool:
        """Whether it has an agent of that id, open."""
        return self.spawner.roster.has(agent)

    def has_team(self, team: str) -> bool:
        """Whether it has a team of that id or name, with all its agents."""
        return self.spawner.has_team(team)

    @property
    def teams(self) -> Collection[str]:
        """The ids of all teams that it has."""
        return self.spawner.teams

    def has_tree(self, tree: str) -> bool:
        """Whether a tree is at work here."""
        return self.runtime.journal is not None and tree in self.runtime.journal.living

    def is_taking_up(self, team: str) -> bool:
        """Whether a team, or any for "", is this kernel's, and its agents are being opened."""
        return self.spawner.is_taking_up(team)

    def knows_key(self, key: str) -> bool:
        """Whether a key opens anything here."""
        return self.spawner.knows_key(key)

    def opens_an_agent(self, key: str) -> bool:
        """Whether this is a key of one of its agents, to talk with."""
        try:
            self.spawner.roster.find(key, "turn")
        except NotYours:
            return False
        return True

    # ---- inside

    async def _is_elsewhere(self, tree: str) -> bool:
        """Whether another kernel, which lives, has a tree."""
        if self.kernels is None or self.runtime.journal is None:
            return False
        owner = await self.runtime.journal.store.owner_of(tree)
        return owner is not None and owner.alive and owner.name != self.runtime.journal.store.kernel

    async def _end_turns(self) -> None:
        await self.agents.close("the server stops", leaves_turns=self._leaves_turns)

    async def _put_on_record(self) -> None:
        """All that was said and done in its trees."""
        for opened in self.runtime.trees.values():
            if opened.recorder.durable is not None:
                with contextlib.suppress(RametError):  # There is nothing that could be done about it here.
                    await opened.recorder.durable()

    def _unready(self) -> str:
        if self.leaves:
            return "it is about to end, and takes no new work"
        if self.runtime.is_fenced:
            return "its store is lost, or another kernel's"
        return "its store is away; it tries to have it back" if self.runtime.is_away else ""

    def _listener(self) -> Listener:
        return unix_listener(self._socket) if self._listen is None else tcp_listener(*self._listen)

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
        with _of_extra():
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
            self.spawner.roster.paths_by_run,
        )
        bounds, largest = self._bounds or Bounds(), self._talk.body_bytes
        self._parts = AppDependencies(
            bodies=BodyBudget(
                total_bytes=max(bounds.body_bytes, 2 * largest), share_bytes=max(bounds.team_body_bytes, largest)
            ),
            spawner=self.spawner,
            agents=self.agents,
            packaging=packaging,
            kernel=OperatorsView(self.spawner.roster, views),
            metrics=metrics,
            ledger=Ledger(self.runtime.journal.store, self.runtime.clock),
            rules=self._rules,
            message_bytes=self._talk.body_bytes,
            desk=self.kernels.desk if self.kernels is not None else None,
            unready=self._unready,
        )
        metrics.open_streams = self._parts.streams.__len__
        return HttpServer(Application(self._parts), self.listener, self._bounds)


def _name_of(backend: BackendName | Backend | None) -> str:
    """The name of the backend that a runtime makes sandboxes by; the default one is bwrap."""
    return "bwrap" if backend is None else backend if isinstance(backend, str) else backend.name


async def _forget(store: Store, registries: Registries, agent: str) -> None:
    """Leave nothing of what its type and its conversation keep of an agent that is gone, nor of its states."""
    await registries.remove_state(agent)
    await clear(store, agent)
    await turn_log.clear(store, agent)
    await kept_turns.clear(store, agent)
    await model_set.clear(store, agent)
    await restart.clear(store, agent)


@contextlib.contextmanager
def _of_extra() -> Iterator[None]:
    """What is imported within is of the extra `server`. Raises MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or not missing.name.startswith("starlette"):
            raise
        raise MissingExtra("serving over HTTP", "server") from None


def _take(folder: pathlib.Path) -> None:
    """Have a folder where nobody else can put a socket or a key of theirs. Raises InvalidValue."""
    try:
        checked_state_folder(folder.parent)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidValue("dir", str(folder), f"a folder, or a place for one ({problem.strerror})") from None
