"""The owner of each team, agent and run, mostly without asking the store.

An agent belongs to its team permanently. A team or a tree changes its kernel when its kernel is lost or leaves. A
lookup is cached until a kernel joins or leaves, or until a kernel says that it is not the owner.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct

from ramet.core.errors import Damaged, RametError
from ramet.host.control.schedules import ScheduleTable
from ramet.host.journal.journal import Journal
from ramet.services.teams.service import AgentSpawnerService
from ramet.services.teams.tables import AGENT, TEAM, is_readable
from ramet.store.contract import Document, KernelInfo, Store

_log = logging.getLogger("ramet.serve")
_CACHE_SIZE: Final = 100_000
_POLL_S: Final = 0.05


class _Team(Struct):
    id: str
    name: str = ""
    key: str = ""
    kernel: str = ""


class _Agent(Struct):
    team: str


class Owner(NamedTuple):
    """A team or a tree, and the name of the kernel that owns it: "" while no kernel does."""

    id: str
    kernel: str


class LocalOwnership(NamedTuple):
    """The objects that this kernel owns: the teams and agents of `spawner`, and the trees of `journal`."""

    spawner: AgentSpawnerService
    journal: Journal
    is_draining: Callable[[], bool]  #: whether this kernel is about to end, and takes no new work


class Directory:
    """The directory of one store, as the kernel `own_name` sees it. Usable between `open` and `close`."""

    def __init__(self, store: Store, own_name: str) -> None:
        self.me = own_name
        self.kernels: Mapping[str, KernelInfo] = {}
        self._store = store
        self._teams_of = _Cache()  #: teams, by agent
        self._team_ids = _Cache()  #: ids of teams, by name
        self._kernels = _Cache()  #: kernels, by team
        self._trees = _Cache()  #: trees, by run
        self._owners = _Cache()  #: kernels, by tree
        self._schedules = ScheduleTable(store)
        self.by_key = _Cache()  #: kernels, by the hash of an agent's key
        self._unsubscribe: Callable[[], None] = lambda: None
        self._refresh_task: asyncio.Task[None] | None = None
        self._is_stale = False
        self.on_lost: Callable[[str], object] = lambda kernel: None  #: called with each lost kernel, except this one
        #: called after kernels joined or left, once `kernels` is up to date
        self.on_news: Callable[[], None] = lambda: None

    async def open(self) -> None:
        """Read all kernels, and subscribe to changes of them."""
        self._unsubscribe = self._store.on_kernels(self._on_change)
        await self._refresh()

    async def close(self) -> None:
        """End the subscription. Idempotent."""
        self._unsubscribe()
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            await asyncio.wait({self._refresh_task})

    def reachable_kernels(self) -> list[KernelInfo]:
        """Return the other kernels that are alive and have an address."""
        return [each for each in self.kernels.values() if each.alive and each.address and each.name != self.me]

    def is_alive(self, kernel: str) -> bool:
        """Return whether a kernel is alive, as far as this kernel knows."""
        return kernel == self.me or (kernel in self.kernels and self.kernels[kernel].alive)

    # ---- owners

    async def of_agent(self, agent: str) -> Owner | None:
        """Return the team of an agent and the team's kernel; None if the agent does not exist."""
        team = self._teams_of.get(agent)
        if team is None:
            document = await self._store.get(AGENT, agent) if "\0" not in agent else None
            if document is None:
                return None
            team = self._teams_of.put(agent, document.decode(_Agent).team)
        return await self.of_team(team)

    async def of_team(self, team: str) -> Owner | None:
        """Return a team, by its id or name, and its kernel; None if the team does not exist."""
        id = self._team_ids.get(team) or team
        kernel = self._kernels.get(id)
        if kernel is None and "\0" not in id:
            document = await self._store.get(TEAM, id)
            if document is not None:
                kernel = self._kernels.put(id, document.decode(_Team).kernel)
            elif (team_row := await self._team_by_name(team)) is not None:
                id, kernel = self._team_ids.put(team, team_row.id), self._kernels.put(team_row.id, team_row.kernel)
        return None if kernel is None else Owner(id, kernel)

    async def is_gone(self, kind: str, name: str) -> bool:
        """Return whether the store has no agent, or no team, of that id or name. Does not use the cache."""
        if kind == "agent":
            return await self._store.get(AGENT, name) is None
        return await self._store.get(TEAM, name) is None and await self._team_by_name(name) is None

    async def of_run(self, run: str) -> Owner | None:
        """Return the tree of a run, and the tree's kernel; None if the run is not recorded."""
        tree = self._trees.get(run)
        if tree is None:
            events = await self._store.read(run=run, limit=1) if "\0" not in run else []
            if not events:
                return None
            tree = self._trees.put(run, events[0].tree)
        owner = self._owners.get(tree)
        if owner is None:
            kernel = await self._store.owner_of(tree)
            if kernel is None:
                return Owner(tree, "")
            owner = self._owners.put(tree, kernel.name)
        return Owner(tree, owner)

    async def team_of(self, hash: str) -> str:
        """Return the id of the team whose key has this hash; "" if there is none."""
        ids = [each.id for each in await self._all() if hmac.compare_digest(each.key, hash)]
        return next(iter(ids), "")  # Only after all keys were compared.

    async def orphans(self) -> list[str]:
        """Return the teams without a reachable kernel, except teams that no kernel can take over."""
        reachable = {self.me, *(each.name for each in self.reachable_kernels())}
        return [team.id for team, row in await self._rows() if team.kernel not in reachable and is_readable(row)]

    async def is_scheduled(self, tree: str) -> bool:
        """Return whether a tree belongs to a schedule's tick whose end is not recorded.

        Some kernel continues such a tree.
        """
        return any(
            claim.run == tree for schedule in await self._schedules.all() for claim in schedule.record.state.claims
        )

    async def has_left(self, kernel: KernelInfo) -> bool:
        """Return whether a kernel left in order, without unanswered work. Waits until that is known."""
        while True:
            current = next((each for each in await self._store.kernels() if each.name == kernel.name), None)
            if current is None or not current.alive or current.epoch != kernel.epoch:
                return await self._store.has_closed(kernel.name, kernel.epoch)
            if current.address:
                return False
            await asyncio.sleep(_POLL_S)  # The kernel is about to end.

    async def ownership_changed(self, own_teams: Collection[str]) -> bool:
        """Return whether a team has no living kernel, or a team of `own_teams` is deleted or owned
        by another kernel.
        """
        kernels = {each.id: each.kernel for each in await self._all()}
        is_lost = any(kernels.get(each, "") != self.me for each in own_teams)
        return is_lost or not all(map(self.is_alive, kernels.values()))

    def forget(self, owner: Owner) -> None:
        """Remove an outdated owner from the cache."""
        self._kernels.drop(owner.id)
        self._owners.drop(owner.id)
        self._team_ids.drop_value(owner.id)

    async def _team_by_name(self, name: str) -> _Team | None:
        return next((each for each in await self._all() if each.name == name), None) if name else None

    async def _all(self) -> list[_Team]:
        return [team for team, _ in await self._rows()]

    async def _rows(self) -> list[tuple[_Team, Document]]:
        """Return all teams whose document can be read."""
        rows = list[tuple[_Team, Document]]()
        for each in await self._store.list(TEAM):
            with suppress(Damaged):
                rows.append((each.decode(_Team), each))
        return rows

    # ---- changes of the kernels

    def _on_change(self) -> None:
        if self._refresh_task is None or self._refresh_task.done():
            self._refresh_task = asyncio.create_task(self._refresh_until_current(), name="ramet kernels")
        else:
            self._is_stale = True

    async def _refresh_until_current(self) -> None:
        while True:
            self._is_stale = False
            try:
                await self._refresh()
            except RametError as problem:  # The store sends another change once it is available again.
                _log.warning("the other kernels cannot be looked up for now: %s", problem)
            if not self._is_stale:
                return

    async def _refresh(self) -> None:
        previous, self.kernels = self.kernels, {each.name: each for each in await self._store.kernels()}
        for each in previous.values():
            current = self.kernels.get(each.name)
            if each.alive and (current is None or not current.alive or current.epoch != each.epoch):
                self._kernels.drop_value(each.name)
                self._owners.drop_value(each.name)
                self.by_key.drop_value(each.name)
                if each.name != self.me:
                    self.on_lost(each.name)
        self.on_news()


class _Cache:
    """A cache of the newest lookups."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        return self._values.get(key)

    def put(self, key: str, value: str) -> str:
        self._values[key] = value
        if len(self._values) > _CACHE_SIZE:
            self._values.popitem(last=False)
        return value

    def drop(self, key: str) -> None:
        self._values.pop(key, None)

    def drop_value(self, value: str) -> None:
        for key in [key for key, each in self._values.items() if each == value]:
            del self._values[key]
