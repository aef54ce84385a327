"""The AgentSpawnerService: teams that reserve resources, and agents that are started and ended in them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import pathlib
import secrets as chance
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, Self

import msgspec
from msgspec.structs import replace

from ramet.concurrency.cancel import is_being_cancelled
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Aborted, Conflict, InvalidValue, NotYours, RametError, SpawnRefused
from ramet.core.ids import checked_name
from ramet.core.team import resources
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import (
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
    SupplyValues,
    TeamInfo,
)
from ramet.services.errors import TakenOver
from ramet.services.rules import Rules
from ramet.services.teams import keys
from ramet.services.teams.agent_lifecycle import AgentLifecycle
from ramet.services.teams.agents import AgentEntry, AgentTable, has_failed
from ramet.services.teams.delegation import Owners
from ramet.services.teams.failed_agents import checked_keep_failed
from ramet.services.teams.recovery import Recovery
from ramet.services.teams.secret_values import strip_secrets
from ramet.services.teams.tables import TEAM, AgentRow, TeamRow, TeamTables
from ramet.services.teams.takeover import Takeover
from ramet.services.teams.team_state import TeamState
from ramet.services.teams.validation import (
    Checks,
    check_notes,
    checked_defaults,
    checked_wait,
    copy_json,
    reservation_of,
)

_log = logging.getLogger("ramet.services")
Entropy = Callable[[int], bytes]


class _Opened(NamedTuple):
    """The objects that exist between `open` and `close`."""

    books: TeamTables
    lives: AgentLifecycle
    takeover: Takeover


class AgentSpawnerService:
    """The teams and agents of one server. `roster` is the table of its agents for other services.

    `folder` has one folder for each agent. `operator` is the key that opens everything, and the only key that creates
    teams. `rules` limit the use of this host by agents. `secrets` and `env_vars` are values for the policies of agents
    that a killed server left, because values are not recorded. Variables are named as `path:NAME`.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        types: Mapping[str, AgentType],
        images: ImageStore,
        folder: pathlib.Path,
        operator: str,
        *,
        rules: Rules | None = None,
        secrets: Mapping[str, str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        entropy: Callable[[int], bytes] = chance.token_bytes,
    ) -> None:
        self.roster = AgentTable(operator, runtime.clock)
        self._owners = Owners(self.roster, runtime.clock, entropy)
        self._rules = rules or Rules()
        self._checks = Checks(runtime, types, images, folder, self._rules)
        self._runtime, self._folder, self._entropy = runtime, folder, entropy
        self._secrets, self._env_vars = secrets or {}, env_vars or {}
        self._rooms: dict[str, TeamState] = {}
        self._coming: dict[str, AgentRow] = {}  #: agents that are being spawned
        self._opened: _Opened | None = None
        #: called with each agent that is resumed, before clients can find it
        self.taken_up: Callable[[AgentEntry], Awaitable[None]] = _nobody
        #: called with the id of each agent that is removed permanently, before its row is removed
        self.forgetting: Callable[[str], Awaitable[None]] | None = None
        self._beginning, self._taking_over = asyncio.Lock(), asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the service, with all teams and agents that an earlier server left. Idempotent.

        A running agent is opened again under the same id, path and keys. An agent whose values are missing waits for
        them. An agent that cannot be opened is failed, with the error. If no other kernel is alive, unreadable records
        raise Damaged, and nothing has changed.
        """
        async with self._beginning:
            if self._opened is None:
                await self._begin()

    async def _begin(self) -> None:
        store, clock = await self._runtime.open_store(), self._runtime.clock
        books, rooms = TeamTables(store), dict[str, TeamState]()
        lives = AgentLifecycle(self.roster, rooms, books, self._folder, self._runtime, self._rules.failed_agents)
        lives.forgetting = self.forgetting or lives.forgetting
        recovery = Recovery(lives, rooms, books, self._checks, self._secrets, self._env_vars, self.taken_up)
        await in_thread(self._runtime.sandboxes.remove_leftovers, name="ramet-leftovers")

        async def teams() -> list[str]:
            return [each.key for each in await store.list(TEAM)]  # An unreadable team keeps its reservation, too.

        await self._runtime.sandboxes.keep(teams)
        takeover = Takeover(store.kernel, store, books, rooms, recovery, clock, lives.lose)
        try:
            await takeover(begins=True)
        except BaseException:
            await run_shielded(lives.close_all("the server could not begin"))
            raise
        await self._configure(rooms)
        await self._runtime.sandboxes.warm()
        self._rooms, self._opened = rooms, _Opened(books, lives, takeover)

    async def take_over(self) -> None:
        """Take over the teams of dead kernels of the same store. Each team is taken over by one of the living kernels.

        Teams that went to another kernel while this one was unreachable are dropped here. Returns when the taken teams
        are open. Errors are left for the next call, which follows when kernels start or end.
        """
        if self._opened is None:
            return
        async with self._taking_over:
            before = set(self._rooms)
            await self._now.takeover()
            await self._configure({id: room for id, room in self._rooms.items() if id not in before})
        await self._runtime.sandboxes.reap()

    async def _configure(self, rooms: Mapping[str, TeamState]) -> None:
        """Send the backend the configuration of teams of an earlier server.

        A configuration that is now refused is logged.
        """
        for id, room in rooms.items():
            try:
                await self._runtime.sandboxes.configure_team(id, room.config)
            except RametError as problem:
                _log.warning("team %s: its configuration did not reach the backend: %s", room.label, problem)

    @property
    def teams(self) -> Collection[str]:
        """The ids of all teams of this server."""
        return self._rooms.keys()

    def is_taking_up(self, team: str) -> bool:
        """Return whether a team, or any team for "", is being taken over, and its agents are not all open."""
        coming = self._opened.takeover.coming if self._opened is not None else set[str]()
        return bool(coming) if not team else team in coming

    def has_team(self, team: str) -> bool:
        """Return whether a team is here by its id or name, and all its agents are open."""
        found = self._find(team)
        return found is not None and not self.is_taking_up(found.id)

    async def close(self) -> None:
        """End every agent and wait until all have ended; teams stay. Idempotent."""
        if self._opened is None:
            return
        lives, self._opened = self._opened.lives, None
        await _call_off(*self._rooms.values())
        ends = [lives.end(each, "the server stopped") for each in self.roster]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.error("an agent was not ended in good order: %s", outcome)
        await lives.join()

    async def leave(self) -> None:
        """Close every agent and keep its record, so that a later server can resume it; teams stay. Idempotent."""
        if self._opened is None:
            return
        lives, self._opened = self._opened.lives, None
        await _call_off(*self._rooms.values())
        await lives.close_all("the server stopped")

    # ---- teams

    async def create_team(self, asked: CreateTeam, key: str, entropy: Entropy | None = None) -> CreatedTeam:
        """Reserve a team, with the operator's key. The team's own key is returned only here.

        Raises InvalidValue, NotYours. With an `entropy`, id and key are derived from it.
        """
        entropy = entropy or self._entropy
        if not self.roster.is_operator(key):
            raise NotYours("team", asked.name)
        total = resources("resources", asked.resources)
        if asked.name and any(asked.name in (each.id, each.label) for each in self._rooms.values()):
            raise _name_taken(asked.name)
        config = copy_json("config", asked.config)
        self._runtime.sandboxes.check_team(msgspec.json.decode(config))
        own = keys.new_key("team", entropy)
        row = TeamRow(
            id=_team_id(entropy),
            name=checked_name("name", asked.name) if asked.name else "",
            key=keys.hash_of(own),
            resources=total,
            held={},
            spent={},
            labels=dict(asked.labels),
            config=config,
            defaults=checked_defaults(asked.defaults, total),
            created_at=self._runtime.clock.now(),
            kernel=self._now.takeover.kernel,
        )
        room = TeamState(row, self._now.books, self._runtime.clock)
        self._rooms[room.id] = room  # At once, so that no other team takes its name.
        try:
            await room.found()
            await self._runtime.sandboxes.configure_team(room.id, room.config)
            if (reservation := reservation_of(row.id, total)) is not None:
                await self._runtime.sandboxes.reserve(reservation)
        except Conflict:
            del self._rooms[room.id]
            raise _name_taken(asked.name) from None
        except BaseException:
            del self._rooms[room.id]
            await run_shielded(self._undone(room))
            raise
        return CreatedTeam(self._info(room), own)

    async def created_team(self, key: str, entropy: Entropy) -> CreatedTeam | None:
        """Return the team that was made from an `entropy`, of any kernel; None if there is none. Raises NotYours."""
        if not self.roster.is_operator(key):
            raise NotYours("team", "")
        room = self._rooms.get(_team_id(entropy))
        if room is None and (row := await self._now.books.team(_team_id(entropy))) is not None:
            room = TeamState(row, self._now.books, self._runtime.clock)
        return None if room is None else CreatedTeam(self._info(room), keys.new_key("team", entropy))

    async def get_team(self, team: str, key: str) -> TeamInfo:
        """Return the resources of a team: total, held and free; `team` is its id or its name. Raises NotYours."""
        return self._info(self._room(team, key))

    async def list_teams(self, key: str) -> list[TeamInfo]:
        """Return the teams that a key opens: all teams for the operator's key, one team for a team's key."""
        return [self._info(each) for each in self._rooms_of(key)]

    async def reserved(self, name: str) -> Mapping[str, float] | None:
        """Return the resources of the team of that name, of any kernel; None if there is none."""
        found = await self._now.books.named(name)
        return found.resources if found is not None else None

    async def delete_team(self, team: str, key: str) -> None:
        """End all agents of a team, including those being spawned, wait until all have ended, and remove the team.

        A caller that stops waiting does not stop the deletion. Raises NotYours, also after the removal.
        """
        room = self._room(team, key)
        if room.deleting is None or has_failed(room.deleting):
            room.deleting = self._now.lives.begin(self._delete(room, self._now))
        await asyncio.shield(room.deleting)

    # ---- agents

    async def spawn_agent(self, asked: SpawnAgent, key: str, entropy: Entropy | None = None) -> SpawnedAgent:
        """Start an agent in a team, with the team's key. The nonce is returned only here.

        With an `entropy`, the agent's id and nonce are derived from it.

        Raises NotYours, InvalidValue, Unknown, OverCapacity, SpawnRefused; Aborted if the team was deleted meanwhile;
        and the errors of the agent's type. After any error, including a cancellation, nothing of the agent is left.
        """
        room = self._room(asked.team, key)
        if room.deleting is not None:
            raise NotYours("team", asked.team)
        lives = self._now.lives
        birth = lives.begin(self._spawn(room, asked, lives, entropy or self._entropy))
        room.spawning.add(birth)
        birth.add_done_callback(room.spawning.discard)
        try:
            return await asyncio.shield(birth)
        except asyncio.CancelledError:
            if not is_being_cancelled():
                if self._rooms.get(room.id) is not room and room.deleting is None:
                    raise TakenOver("team", room.label) from None
                why = f"team {room.label!r} is being deleted" if room.deleting is not None else "the server stops"
                raise Aborted(why) from None
            birth.cancel()
            await run_shielded(self._unwanted(birth, lives))
            raise

    def spawned_agent(self, team: str, key: str, entropy: Entropy) -> SpawnedAgent | None:
        """Return the agent of a team that was made from an `entropy`; None if there is none. Raises NotYours."""
        room, id = self._room(team, key), _agent_id(entropy)
        living = next((each for each in self.roster.of(room.id) if each.id == id), None)
        return None if living is None else SpawnedAgent(living.info(), keys.new_key("agent", entropy))

    async def kill_agent(self, agent: str, key: str) -> None:
        """End an agent and all below it, wait until all have ended, and remove the agent.

        Raises NotYours, also after that.
        """
        await self._now.lives.end(self.roster.admit(agent, key, "kill"), "it was killed")

    async def get_agent(self, agent: str, key: str) -> AgentInfo:
        """Return the description and state of an agent. A narrower key does not see paths of this host.

        Raises NotYours.
        """
        living, held, _ = self.roster.admitted(agent, key, "info")
        return living.info() if held.id == keys.OWNER else replace(living.info(), kept=[])

    async def supply_values(self, agent: str, key: str, asked: SupplyValues) -> AgentInfo:
        """Resume an agent that waits for values which are not recorded, with its owner's key or the operator's.

        Raises NotYours, InvalidValue, TakenOver, and the errors of its type; the agent then continues to wait. A caller
        that stops waiting does not stop the resumption.
        """
        living, lives = self._owners.owned(agent, key), self._now.lives
        check = partial(self._owners.owned, agent, key)
        resumed = lives.begin(self._now.takeover.recovery.resume(living, asked, check))
        return (await asyncio.shield(resumed)).info()

    async def list_agents(self, asked: ListAgents, key: str) -> list[AgentInfo]:
        """Return the agents of a team, for its key, or of all teams for the operator's; the oldest first.

        Raises NotYours.
        """
        if asked.team:
            rooms = [self._room(asked.team, key)]
        elif not (rooms := self._rooms_of(key)) and not self.roster.is_operator(key):
            raise NotYours("team", asked.team)
        found = [each.info() for room in rooms for each in self.roster.of(room.id)]
        found.sort(key=lambda each: (each.created_at, each.path))
        return [each for each in found if _is_asked_for(each, asked)]

    # ---- keys

    def knows_key(self, key: str, agent: str = "") -> bool:
        """Return whether a key opens anything here. The key of `agent`, which is requested, is checked first."""
        return self.roster.is_operator(key) or self.roster.knows_key(key, agent) or bool(self._rooms_of(key))

    def owner_of(self, key: str) -> str:
        """Return the owner of a key: "" for the operator, else the id of its team.

        For an unknown key, return its hash.
        """
        if self.roster.is_operator(key):
            return ""
        return next((room.id for room in self._rooms_of(key)), "") or self.roster.team_of(key) or keys.hash_of(key)

    async def delegate(self, agent: str, key: str, asked: Delegate, entropy: Entropy | None = None) -> DelegatedKey:
        """Make a narrower key, or transfer the ownership, which invalidates every older key.

        Raises NotYours, InvalidValue. With an `entropy`, the key is derived from it; a key that was made from it before
        is returned again.
        """
        return await self._owners.delegate(agent, key, asked, entropy)

    async def revoke(self, agent: str, key: str, key_id: str) -> None:
        """Revoke a narrower key, and all keys that it made. Raises NotYours, Unknown."""
        await self._owners.revoke(agent, key, key_id)

    async def rotate(self, agent: str, key: str, entropy: Entropy | None = None) -> str:
        """Make a new key for the owner. The old key is invalid, narrower keys stay. Raises NotYours.

        With an `entropy`, the key is derived from it; a key that was made from it before is returned again.
        """
        return await self._owners.rotate(agent, key, entropy)

    # ---- what agents need

    def users_of_image(self, image: str) -> list[str]:
        """Return the paths of live agents that were spawned from an image, and of agents being spawned."""
        living = [each.row for each in self.roster if each.state not in ("failed", "ended")]
        return sorted({each.path for each in (*living, *self._coming.values()) if each.image == image})

    def users_of_bundle(self, bundle: str) -> list[str]:
        """Return the paths of live agents that have a bundle loaded. A bundle of an image is needed by the image."""
        living = [each for each in self.roster if each.state not in ("failed", "ended")]
        return sorted(each.row.path for each in living if bundle in each.needs)

    async def users_elsewhere(self, *, image: str = "", bundle: str = "") -> list[str]:
        """Return the paths of live agents of other kernels that use an image or a bundle, as far as recorded."""
        others = [row for row in await self._now.books.others(self._rooms) if row.state not in ("failed", "ended")]
        return sorted({row.path for row in others if (image and row.image == image) or bundle in row.bundles})

    # ---- how an agent comes

    async def _spawn(self, room: TeamState, asked: SpawnAgent, lives: AgentLifecycle, entropy: Entropy) -> SpawnedAgent:
        wait_s, name = checked_wait(asked.wait_s), checked_name("name", asked.name)
        check_notes(asked.labels, asked.metadata)
        nonce = keys.new_key("agent", entropy)
        row = AgentRow(
            id=_agent_id(entropy),
            team=room.id,
            name=name,
            path=f"{room.label}/{name}",
            agent_type=asked.agent_type,
            spawn_info=copy_json("spawn_info", asked.spawn_info),
            transport_format=self._checks.transport_format(asked),
            image=asked.image,
            policy=asked.policy,
            limits=room.defaults | asked.limits,
            env=dict(asked.env),
            labels=dict(asked.labels),
            metadata=dict(asked.metadata),
            keys=keys.Keyring(owner=keys.hash_of(nonce)),
            state="starting",
            created_at=self._runtime.clock.now(),
            keep_failed_s=checked_keep_failed(asked.keep_failed_s, self._rules.keep_failed_s),
        )
        room.take_name(name)
        self._coming[row.id] = row
        try:
            checked = await self._checks(row, room.team.total)
            await room.admit(row.id, checked.need, wait_s)
            await self._check_server(room, row.id)
            living = await lives.bear(room, strip_secrets(replace(row, policy=checked.policy)), checked)
        except BaseException:
            room.names.discard(name)
            raise
        finally:
            del self._coming[row.id]
        return SpawnedAgent(living.info(), nonce)

    async def _check_server(self, room: TeamState, agent: str) -> None:
        """Free the part of an agent that its team admitted, if the server has no room for it.

        Raises SpawnRefused then.
        """
        most, now = self._rules.agents, sum(len(each.team.held) for each in self._rooms.values())
        if most is not None and now > most:
            await room.release(agent, {})
            raise SpawnRefused("agents", f"this server has {most} agents in all, as many as it may", free=0)

    async def _unwanted(self, birth: asyncio.Task[SpawnedAgent], lives: AgentLifecycle) -> None:
        """Wait for a spawn whose caller has gone, and end the agent: no client has its key."""
        await asyncio.wait({birth})
        if not birth.cancelled() and birth.exception() is None:
            for living in self.roster:
                if living.id == birth.result().agent.id:
                    await lives.end(living, "whoever asked for it has gone")

    async def _undone(self, room: TeamState) -> None:
        await self._runtime.sandboxes.disband(room.id)
        await room.remove()

    async def _delete(self, room: TeamState, now: _Opened) -> None:
        await room.write()  # Doomed from now on, even if this server ends.
        await _call_off(room)
        await asyncio.gather(*(now.lives.end(each, "its team was deleted") for each in self.roster.of(room.id)))
        for row in await now.books.left_in(room.id):  # The agents of spawns that could not be undone.
            await now.lives.forget(room, row, None)
        await self._runtime.sandboxes.disband(room.id)
        await room.remove()
        del self._rooms[room.id]

    # ----

    @property
    def _now(self) -> _Opened:
        if self._opened is None:
            raise Aborted("the server is not open")
        return self._opened

    def _info(self, room: TeamState) -> TeamInfo:
        return room.info(self._runtime.sandboxes.together)

    def _room(self, team: str, key: str) -> TeamState:
        """Return the team of that id or name, if the key opens it.

        Raises NotYours, which is the same for every reason.
        """
        room = self._find(team)
        fits = keys.key_matches(key, room.key if room is not None else "0" * 64)
        if not (self.roster.is_operator(key) or fits) or room is None:
            raise NotYours("team", team)
        return room

    def _find(self, team: str) -> TeamState | None:
        return self._rooms.get(team) or next((each for each in self._rooms.values() if each.label == team), None)

    def _rooms_of(self, key: str) -> list[TeamState]:
        operator, hash = self.roster.is_operator(key), keys.hash_of(key)
        return [each for each in self._rooms.values() if hmac.compare_digest(hash, each.key) or operator]


def _team_id(entropy: Entropy) -> str:
    return f"team-{entropy(8).hex()}"


def _agent_id(entropy: Entropy) -> str:
    return f"agent-{entropy(8).hex()}"


async def _nobody(living: AgentEntry) -> None:
    """Do nothing."""


def _name_taken(name: str) -> InvalidValue:
    return InvalidValue("name", name, "a name that no other team has")


async def _call_off(*rooms: TeamState) -> None:
    """Cancel all pending spawns, and wait until they have ended."""
    births = [birth for room in rooms for birth in room.spawning]
    for birth in births:
        birth.cancel()
    if births:
        await asyncio.wait(births)


def _is_asked_for(agent: AgentInfo, asked: ListAgents) -> bool:
    return (
        (not asked.state or agent.state == asked.state)
        and all(agent.labels.get(name) == value for name, value in asked.labels.items())
        and (not asked.under or f"{agent.path}/".startswith(f"{asked.under.rstrip('/')}/"))
    )
