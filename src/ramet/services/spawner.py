"""The AgentSpawnerService: teams that reserve resources, and agents that are started and ended in them.

An agent is on record from before it starts until after it is gone, and holds its part of the team for all of that time:
whatever fails, is cancelled or is killed on the way, there is no agent without its part and no part without its agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import pathlib
import secrets as chance
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from ramet.concurrency.cancel import is_being_cancelled
from ramet.concurrency.deadline import to_its_end
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Aborted, InvalidValue, NotYours, RametError
from ramet.core.ids import checked_name
from ramet.core.outcome import ErrorInfo
from ramet.core.team import resources
from ramet.host.runtime import AgentRuntime
from ramet.isolation import trees
from ramet.services import keys
from ramet.services.books import AgentRow, Books, TeamRow
from ramet.services.checking import Checked, Checks, checked_wait, with_values, without_values
from ramet.services.contract import (
    RIGHTS,
    AgentInfo,
    AgentType,
    CreatedTeam,
    CreateTeam,
    Delegate,
    DelegatedKey,
    ImageStore,
    ListAgents,
    SpawnAgent,
    SpawnedAgent,
    TeamInfo,
)
from ramet.services.rooms import Room
from ramet.services.roster import Admitted, Departed, Living, Roster

T = TypeVar("T")
_log = logging.getLogger("ramet.services")
_AT_A_TIME = 8  #: agents that are opened again at the same time


class AgentSpawnerService:
    """Teams and agents of one server. `roster` is where others find its agents.

    `folder` has one folder for each agent; `operator` is the key that opens everything, and the only one that makes
    teams. `secrets` are values of those that policies of agents name which a killed server left: they are not on
    record.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        types: Mapping[str, AgentType],
        images: ImageStore,
        folder: pathlib.Path,
        operator: str,
        *,
        secrets: Mapping[str, str] | None = None,
        entropy: Callable[[int], bytes] = chance.token_bytes,
    ) -> None:
        self.roster = Roster(operator, runtime.clock)
        self._runtime, self._folder, self._entropy = runtime, folder, entropy
        self._checks = Checks(runtime, types, images, folder)
        self._secrets = secrets or {}
        self._rooms: dict[str, Room] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opened: Books | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin, with all teams and agents that an earlier server left. Idempotent.

        An agent that lived is opened again under the same id, path and keys; one that cannot be is failed, and says
        why. Raises Damaged for what cannot be read, and has changed nothing then.
        """
        if self._opened is not None:
            return
        books = Books(await self._runtime.open_store())
        teams, agents = await books.teams(), await books.agents()
        self._opened = books
        try:
            await self._recover(teams, agents)
        except BaseException:
            await to_its_end(self.close())
            raise

    async def close(self) -> None:
        """End every agent and wait until they are gone; teams stay. Idempotent."""
        if self._opened is None:
            return
        await self._call_off(*self._rooms.values())
        for outcome in await asyncio.gather(
            *(self._ended(each, "the server stopped") for each in self.roster), return_exceptions=True
        ):
            if isinstance(outcome, BaseException):
                _log.error("an agent was not ended in good order: %s", outcome)
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._opened = None
        self._rooms.clear()

    # ---- teams

    async def create_team(self, asked: CreateTeam, key: str) -> CreatedTeam:
        """Reserve a team, with the operator's key; its own is told this once. Raises InvalidValue, NotYours."""
        if not self.roster.is_operator(key):
            raise NotYours("team", asked.name)
        total = resources("resources", asked.resources)
        if asked.name and any(asked.name in (each.id, each.label) for each in self._rooms.values()):
            raise InvalidValue("name", asked.name, "a name that no other team has")
        own = keys.new_key("team", self._entropy)
        row = TeamRow(
            id=f"team-{self._entropy(8).hex()}",
            name=checked_name("name", asked.name) if asked.name else "",
            key=keys.hash_of(own),
            resources=total,
            held={},
            spent={},
            labels=dict(asked.labels),
            config=asked.config.copy(),
            created_at=self._runtime.clock.now(),
        )
        room = Room(row, self._books, self._runtime.clock)
        self._rooms[room.id] = room  # At once: nobody else may take its name.
        try:
            await room.write()
        except BaseException:
            del self._rooms[room.id]
            await to_its_end(room.remove())
            raise
        return CreatedTeam(room.info(), own)

    async def get_team(self, team: str, key: str) -> TeamInfo:
        """What a team has, holds and has left; `team` is its id or its name. Raises NotYours."""
        return self._room(team, key).info()

    async def list_teams(self, key: str) -> list[TeamInfo]:
        """The teams that a key opens: the operator's all, a team's that one."""
        return [each.info() for each in self._rooms_of(key)]

    async def delete_team(self, team: str, key: str) -> None:
        """End all agents of a team, those being born as well, wait until they are gone, and forget it.

        Whoever gives up waiting does not stop that. Raises NotYours, also once it is gone.
        """
        room = self._room(team, key)
        if room.deleting is None:
            room.deleting = self._task(self._delete(room))
        await asyncio.shield(room.deleting)

    # ---- agents

    async def spawn_agent(self, asked: SpawnAgent, key: str) -> SpawnedAgent:
        """Start an agent in a team, with the team's key; the nonce is told this once.

        Raises NotYours, InvalidValue, Unknown, OverCapacity, Aborted if the team was deleted meanwhile, and what the
        agent's type could not do. Whatever is raised, a cancel as well, nothing of the agent is left.
        """
        room = self._room(asked.team, key)
        if room.deleting is not None:
            raise NotYours("team", asked.team)
        birth = self._task(self._spawn(room, asked))
        room.spawning.add(birth)
        birth.add_done_callback(room.spawning.discard)
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            if not is_being_cancelled():
                raise Aborted(f"team {room.label!r} is being deleted") from None
            birth.cancel()
            await to_its_end(self._unwanted(birth))
            raise

    async def kill_agent(self, agent: str, key: str) -> None:
        """End an agent and all below it, wait until they are gone, and forget it. Raises NotYours, also after that."""
        await self._ended(self.roster.admit(agent, key, "kill"), "it was killed")

    async def get_agent(self, agent: str, key: str) -> AgentInfo:
        """What an agent is and does. Raises NotYours."""
        return self.roster.admit(agent, key, "info").info()

    async def list_agents(self, asked: ListAgents, key: str) -> list[AgentInfo]:
        """The agents of a team, for its key, or of all teams for the operator's. Raises NotYours."""
        if asked.team:
            rooms = [self._room(asked.team, key)]
        elif not (rooms := self._rooms_of(key)) and not self.roster.is_operator(key):
            raise NotYours("team", asked.team)
        found = [each.info() for room in rooms for each in self.roster.of(room.id)]
        return [each for each in found if _is_asked_for(each, asked)]

    # ---- keys

    async def delegate(self, agent: str, key: str, asked: Delegate) -> DelegatedKey:
        """A narrower key, or the ownership, by which every older key dies. Raises NotYours, InvalidValue."""
        new = keys.new_key("agent", self._entropy)
        if asked.owner and (asked.rights or asked.seconds is not None):
            raise InvalidValue("owner", True, "neither rights nor seconds: an owner has all, for good")
        if asked.owner:
            await self._change_keys(agent, key, lambda _, ring: keys.transfer(ring, keys.hash_of(new)), owner=True)
            return DelegatedKey(keys.OWNER, new, RIGHTS)
        id = f"key-{self._entropy(8).hex()}"
        ring = await self._change_keys(
            agent,
            key,
            lambda by, ring: keys.delegate(
                ring,
                id=id,
                hash=keys.hash_of(new),
                rights=asked.rights,
                seconds=asked.seconds,
                by=by,
                now=self._runtime.clock.now(),
            ),
        )
        return DelegatedKey(id, new, next(each.rights for each in ring.delegated if each.id == id))

    async def revoke(self, agent: str, key: str, key_id: str) -> None:
        """Let a narrower key open nothing any more, nor those that it made. Raises NotYours, Unknown."""
        await self._change_keys(agent, key, lambda by, ring: keys.revoke(ring, key_id, by=by))

    async def rotate(self, agent: str, key: str) -> str:
        """Another key for the owner; the old one is dead, narrower ones stay. Raises NotYours."""
        new = keys.new_key("agent", self._entropy)
        await self._change_keys(agent, key, lambda _, ring: keys.rotate(ring, keys.hash_of(new)), owner=True)
        return new

    async def _change_keys(
        self, agent: str, key: str, step: Callable[[str, keys.Keyring], keys.Keyring], *, owner: bool = False
    ) -> keys.Keyring:
        """Change who may do what, by a key that still may when it is its turn: of two owners one was first."""
        async with self._admitted(agent, key, owner=owner).living.changing:
            admitted = self._admitted(agent, key, owner=owner)
            row = admitted.living.row
            ring = step(admitted.key.id, row.keys)
            await admitted.living.write(replace(row, keys=ring))
            return ring

    def _admitted(self, agent: str, key: str, *, owner: bool) -> Admitted:
        admitted = self.roster.admitted(agent, key, "delegate")
        if (owner and admitted.key.id != keys.OWNER) or admitted.living.ending is not None:
            raise NotYours("agent", agent)
        return admitted

    # ---- how an agent comes

    async def _spawn(self, room: Room, asked: SpawnAgent) -> SpawnedAgent:
        wait_s, name = checked_wait(asked.wait_s), checked_name("name", asked.name)
        nonce = keys.new_key("agent", self._entropy)
        row = AgentRow(
            id=f"agent-{self._entropy(8).hex()}",
            team=room.id,
            name=name,
            path=f"{room.label}/{name}",
            agent_type=asked.agent_type,
            spawn_info=asked.spawn_info.copy() if isinstance(asked.spawn_info, Raw) else Raw(asked.spawn_info),
            transport_format=self._checks.transport_format(asked),
            image=asked.image,
            policy=asked.policy,
            limits=dict(asked.limits),
            env=dict(asked.env),
            labels=dict(asked.labels),
            metadata=dict(asked.metadata),
            keys=keys.Keyring(owner=keys.hash_of(nonce)),
            state="starting",
            created_at=self._runtime.clock.now(),
        )
        room.take_name(name)
        try:
            checked = await self._checks(row, room.team.total)
            await room.admit(row.id, checked.need, wait_s)
            try:
                living = await self._born(room, replace(row, policy=without_values(row.policy)), checked)
            except BaseException:
                await to_its_end(self._forget(room, row, {}))
                raise
        except BaseException:
            room.names.discard(name)
            raise
        return SpawnedAgent(living.info(), nonce)

    async def _born(self, room: Room, row: AgentRow, checked: Checked) -> Living:
        """Open an agent that has been let in; it is on record before."""
        await room.write(row)
        living = await self._open(row, checked)
        try:
            async with living.changing:
                await living.write(living.as_row())
        except BaseException:
            await to_its_end(_closed(living, "it could not be put on record"))
            raise
        self._admit(living)
        return living

    async def _open(self, row: AgentRow, checked: Checked) -> Living:
        await to_its_end(
            in_thread(lambda: checked.opening.folder.mkdir(0o700, parents=True, exist_ok=True), name="ramet-folder")
        )
        served = await checked.type.open(checked.opening)
        return Living(replace(row, state="idle"), served, checked.opening, self._books)

    def _admit(self, living: Living) -> None:
        """Know an agent from now on, and hear of its end."""
        self.roster.add(living)

        def over(ended: asyncio.Future[ErrorInfo | None]) -> None:
            if living.ending is None and self._opened is not None:
                living.failing = self._task(self._fail(living, _error_of(ended)))

        living.served.ended.add_done_callback(over)

    async def _unwanted(self, birth: asyncio.Task[SpawnedAgent]) -> None:
        """See a birth off whose asker has gone: nobody has the key of what was born all the same."""
        await asyncio.wait({birth})
        if not birth.cancelled() and birth.exception() is None:
            for living in self.roster:
                if living.id == birth.result().agent.id:
                    await self._ended(living, "whoever asked for it has gone")

    # ---- how an agent goes

    async def _fail(self, living: Living, error: ErrorInfo | None) -> None:
        """An agent ended by itself: it holds nothing any more, and stays to be looked at."""
        living.state, living.error = ("ended" if error is None else "failed"), error
        used = await _closed(living, "it ended")
        async with living.changing:
            living.row = living.as_row()
            await self._release(living, used, living.row)

    def _ended(self, living: Living, reason: str) -> asyncio.Future[None]:
        """End an agent, once; whoever gives up waiting for it does not stop that."""
        if living.ending is None:
            living.ending = self._task(self._end(living, reason))
        return asyncio.shield(living.ending)

    async def _end(self, living: Living, reason: str) -> None:
        if living.failing is not None:
            await asyncio.wait({living.failing})
        living.state = "ended"
        used = await _closed(living, reason)
        self.roster.remove(living)
        async with living.changing:
            if (room := self._rooms.get(living.row.team)) is not None:
                room.names.discard(living.row.name)
                await self._forget(room, living.row, used)

    async def _forget(self, room: Room, row: AgentRow, used: Mapping[str, float] | None) -> None:
        """Leave nothing of an agent that is gone; its row goes last, so that a later server finds what is left."""
        await self._release_of(room, row.id, used)
        await to_its_end(in_thread(lambda: _remove(self._folder, row.id), name="ramet-folder"))
        await self._books.remove(row)

    async def _release(self, living: Living, used: Mapping[str, float] | None, *rows: AgentRow) -> None:
        await self._release_of(self._rooms[living.row.team], living.id, used, *rows)

    async def _release_of(self, room: Room, agent: str, used: Mapping[str, float] | None, *rows: AgentRow) -> None:
        """Free what an agent held. What is not known of its use counts as used: no more than was reserved is spent."""
        await room.release(agent, room.team.held.get(agent, {}) if used is None else used, *rows)

    async def _delete(self, room: Room) -> None:
        await room.write()  # Doomed from now on, whatever becomes of this server.
        await self._call_off(room)
        await asyncio.gather(*(self._ended(each, "its team was deleted") for each in self.roster.of(room.id)))
        await room.remove()
        del self._rooms[room.id]

    async def _call_off(self, *rooms: Room) -> None:
        """End all births under way, and wait for that."""
        births = [birth for room in rooms for birth in room.spawning]
        for birth in births:
            birth.cancel()
        if births:
            await asyncio.wait(births)

    # ---- what an earlier server left

    async def _recover(self, teams: list[TeamRow], agents: list[AgentRow]) -> None:
        self._rooms = {row.id: Room(row, self._books, self._runtime.clock) for row in teams}
        doomed = {row.id for row in teams if row.doomed}
        turn = asyncio.Semaphore(_AT_A_TIME)
        known = {row.id for row in agents}
        for room in self._rooms.values():
            for agent in room.team.held.keys() - known:
                await room.release(agent, {})
        async with asyncio.TaskGroup() as group:
            for row in sorted(agents, key=lambda row: (row.created_at, row.id)):
                group.create_task(self._recover_one(row, doomed, turn))
        for id in doomed:
            await self._rooms[id].remove()
            del self._rooms[id]

    async def _recover_one(self, row: AgentRow, doomed: set[str], turn: asyncio.Semaphore) -> None:
        """Go on with an agent; or remove what is left of one that was being started, or ended."""
        room = self._rooms.get(row.team)
        if room is None:
            await self._books.remove(row)
            return
        is_over = row.state in ("failed", "ended")
        if room.id in doomed or row.state == "starting" or (row.id not in room.team.held and not is_over):
            await self._forget(room, row, None if row.run else {})
            return
        room.take_name(row.name)
        if is_over:
            error = row.error or ErrorInfo(type="Gone", message="it had ended")
            self.roster.add(Living(row, Departed(row.run, error), None, self._books))
            return
        async with turn:
            try:
                asked = replace(row, policy=with_values(row.policy, self._secrets))
                checked = await self._checks(asked, room.team.total)
                living = await self._open(row, checked)
            except Exception as problem:
                _log.warning("agent %s (%s) cannot be gone on with: %s", row.path, row.id, problem)
                error = ErrorInfo(type=type(problem).__name__, message=str(problem))
                row = replace(row, state="failed", error=error)
                self.roster.add(Living(row, Departed(row.run, error), None, self._books))
                await self._release_of(room, row.id, None if row.run else {}, row)
                return
            self._admit(living)
            await living.keep()

    # ----

    @property
    def _books(self) -> Books:
        if self._opened is None:
            raise RametError("the services are not open")
        return self._opened

    def _room(self, team: str, key: str) -> Room:
        """The team of that id or name, for whoever has its key. Raises NotYours, which is the same for every reason."""
        room = self._rooms.get(team) or next((each for each in self._rooms.values() if each.label == team), None)
        fits = keys.opens(key, room.key if room is not None else "0" * 64)
        if not (self.roster.is_operator(key) or fits) or room is None:
            raise NotYours("team", team)
        return room

    def _rooms_of(self, key: str) -> list[Room]:
        operator, hash = self.roster.is_operator(key), keys.hash_of(key)
        return [each for each in self._rooms.values() if hmac.compare_digest(hash, each.key) or operator]

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _closed(living: Living, reason: str) -> Mapping[str, float] | None:
    """End an agent; returns what it used for good, None if that cannot be told. What goes wrong stops nobody."""
    try:
        await living.served.close(reason)
    except Exception:
        _log.exception("agent %s (%s) was not closed in good order", living.row.path, living.id)
    try:
        return dict(living.served.spent())
    except Exception:
        _log.exception("agent %s (%s) does not say what it used", living.row.path, living.id)
        return None


def _error_of(ended: asyncio.Future[ErrorInfo | None]) -> ErrorInfo | None:
    if ended.cancelled():
        return ErrorInfo(type="Aborted", message="it was cancelled")
    if (problem := ended.exception()) is not None:
        return ErrorInfo(type=type(problem).__name__, message=str(problem))
    return ended.result()


def _is_asked_for(agent: AgentInfo, asked: ListAgents) -> bool:
    return (
        (not asked.state or agent.state == asked.state)
        and all(agent.labels.get(name) == value for name, value in asked.labels.items())
        and (not asked.under or f"{agent.path}/".startswith(f"{asked.under.rstrip('/')}/"))
    )


def _make(folder: pathlib.Path) -> None:
    folder.mkdir(0o700, parents=True, exist_ok=True)


def _remove(folder: pathlib.Path, name: str) -> None:
    """Remove what an agent had on disk, whatever it made of it. Nothing there is no error."""
    with contextlib.suppress(FileNotFoundError), trees.opened(folder) as parent:
        trees.remove(parent, name)
