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

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import Aborted, Conflict, InvalidValue, NotYours, RametError
from ramet.core.ids import checked_name
from ramet.core.team import resources
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import (
    AgentInfo,
    AgentType,
    CreatedTeam,
    CreateTeam,
    ImageStore,
    ListAgents,
    SpawnAgent,
    SpawnedAgent,
    SupplyValues,
    TeamInfo,
)
from ramet.services.rules import Rules
from ramet.services.teams import keys
from ramet.services.teams.agent_lifecycle import AgentLifecycle
from ramet.services.teams.agent_spawns import AgentSpawns, Entropy, cancel_spawns
from ramet.services.teams.agents import AgentEntry, AgentTable, has_failed
from ramet.services.teams.delegation import Owners
from ramet.services.teams.recovery import Recovery
from ramet.services.teams.tables import TEAM, AgentRow, TeamRow, TeamTables
from ramet.services.teams.takeover import Takeover
from ramet.services.teams.team_state import TeamState
from ramet.services.teams.validation import (
    Checks,
    checked_defaults,
    copy_json,
    reservation_of,
)

_log = logging.getLogger("ramet.services")


class _OpenParts(NamedTuple):
    """The objects that exist between `open` and `close`."""

    tables: TeamTables
    lifecycle: AgentLifecycle
    takeover: Takeover
    spawns: AgentSpawns


class AgentSpawnerService:
    """The teams and agents of one server. `agents` is the table of its agents, `owners` changes their keys.

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
        self.agents = AgentTable(operator, runtime.clock)
        self.owners = Owners(self.agents, runtime.clock, entropy)
        self._rules = rules or Rules()
        self._checks = Checks(runtime, types, images, folder, self._rules)
        self._runtime, self._folder, self._entropy = runtime, folder, entropy
        self._secrets, self._env_vars = secrets or {}, env_vars or {}
        self._team_states: dict[str, TeamState] = {}
        self._spawning_rows: dict[str, AgentRow] = {}  #: agents that are being spawned
        self._open_parts: _OpenParts | None = None
        #: called with each agent that is resumed, before clients can find it
        self.on_resumed: Callable[[AgentEntry], Awaitable[None]] = _do_nothing
        #: called with the id of each agent that is removed permanently, before its row is removed
        self.before_removal: Callable[[str], Awaitable[None]] = _do_nothing
        self._open_lock, self._takeover_lock = asyncio.Lock(), asyncio.Lock()

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
        async with self._open_lock:
            if self._open_parts is None:
                await self._begin()

    async def _begin(self) -> None:
        store, clock = await self._runtime.open_store(), self._runtime.clock
        tables, team_states = TeamTables(store), dict[str, TeamState]()
        lifecycle = AgentLifecycle(
            self.agents,
            team_states,
            tables,
            self._folder,
            self._runtime,
            self._rules.failed_agents,
            self.before_removal,
        )
        recovery = Recovery(
            lifecycle, team_states, tables, self._checks, self._secrets, self._env_vars, self.on_resumed
        )
        await in_thread(self._runtime.sandboxes.remove_leftovers, name="ramet-leftovers")

        async def teams() -> list[str]:
            return [each.key for each in await store.list(TEAM)]  # An unreadable team keeps its reservation, too.

        await self._runtime.sandboxes.keep(teams)
        takeover = Takeover(store.kernel, store, tables, team_states, recovery, clock, lifecycle.drop_team)
        try:
            await takeover(begins=True)
        except BaseException:
            await run_shielded(lifecycle.close_all("the server could not begin"))
            raise
        await self._configure(team_states)
        await self._runtime.sandboxes.warm()
        spawns = AgentSpawns(self.agents, team_states, lifecycle, self._checks, self._rules, clock, self._spawning_rows)
        self._team_states, self._open_parts = team_states, _OpenParts(tables, lifecycle, takeover, spawns)

    async def take_over(self) -> None:
        """Take over the teams of dead kernels of the same store. Each team is taken over by one of the living kernels.

        Teams that went to another kernel while this one was unreachable are dropped here. Returns when the taken teams
        are open. Errors are left for the next call, which follows when kernels start or end.
        """
        if self._open_parts is None:
            return
        async with self._takeover_lock:
            previous_ids = set(self._team_states)
            await self._parts.takeover()
            await self._configure(
                {id: team_state for id, team_state in self._team_states.items() if id not in previous_ids}
            )
        await self._runtime.sandboxes.reap()

    async def _configure(self, team_states: Mapping[str, TeamState]) -> None:
        """Send the backend the configuration of teams of an earlier server.

        A configuration that is now refused is logged.
        """
        for id, team_state in team_states.items():
            try:
                await self._runtime.sandboxes.configure_team(id, team_state.config)
            except RametError as problem:
                _log.warning("team %s: its configuration did not reach the backend: %s", team_state.label, problem)

    @property
    def teams(self) -> Collection[str]:
        return self._team_states.keys()

    def is_taking_over(self, team: str) -> bool:
        """Return whether a team, or any team for "", is being taken over, and its agents are not all open."""
        pending = self._open_parts.takeover.pending if self._open_parts is not None else set[str]()
        return bool(pending) if not team else team in pending

    def has_team(self, team: str) -> bool:
        """Return whether a team is here by its id or name, and all its agents are open."""
        team_state = self._find(team)
        return team_state is not None and not self.is_taking_over(team_state.id)

    async def close(self) -> None:
        """End every agent and wait until all have ended; teams stay. Idempotent."""
        if self._open_parts is None:
            return
        lifecycle, self._open_parts = self._open_parts.lifecycle, None
        await cancel_spawns(*self._team_states.values())
        ends = [lifecycle.end(each, "the server stopped") for each in self.agents]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.error("an agent could not be ended cleanly: %s", outcome)
        await lifecycle.join()

    async def drain(self) -> None:
        """Close every agent and keep its record, so that a later server can resume it; teams stay. Idempotent."""
        if self._open_parts is None:
            return
        lifecycle, self._open_parts = self._open_parts.lifecycle, None
        await cancel_spawns(*self._team_states.values())
        await lifecycle.close_all("the server stopped")

    # ---- teams

    async def create_team(self, request: CreateTeam, key: str, entropy: Entropy | None = None) -> CreatedTeam:
        """Reserve a team, with the operator's key. The team's own key is returned only here.

        Raises InvalidValue, NotYours. With an `entropy`, id and key are derived from it.
        """
        entropy = entropy or self._entropy
        if not self.agents.is_operator(key):
            raise NotYours("team", request.name)
        total = resources("resources", request.resources)
        if request.name and any(request.name in (each.id, each.label) for each in self._team_states.values()):
            raise _name_taken(request.name)
        config = copy_json("config", request.config)
        self._runtime.sandboxes.check_team(msgspec.json.decode(config))
        team_key = keys.new_key("team", entropy)
        row = TeamRow(
            id=_team_id(entropy),
            name=checked_name("name", request.name) if request.name else "",
            key=keys.hash_of(team_key),
            resources=total,
            held={},
            spent={},
            labels=dict(request.labels),
            config=config,
            defaults=checked_defaults(request.defaults, total),
            created_at=self._runtime.clock.now(),
            kernel=self._parts.takeover.kernel,
        )
        team_state = TeamState(row, self._parts.tables, self._runtime.clock)
        self._team_states[team_state.id] = team_state  # At once, so that no other team takes its name.
        try:
            await team_state.create()
            await self._runtime.sandboxes.configure_team(team_state.id, team_state.config)
            if (reservation := reservation_of(row.id, total)) is not None:
                await self._runtime.sandboxes.reserve(reservation)
        except Conflict:
            del self._team_states[team_state.id]
            raise _name_taken(request.name) from None
        except BaseException:
            del self._team_states[team_state.id]
            await run_shielded(self._undo_create(team_state))
            raise
        return CreatedTeam(self._info(team_state), team_key)

    async def find_created_team(self, key: str, entropy: Entropy) -> CreatedTeam | None:
        """Return the team that was made from an `entropy`, of any kernel; None if there is none. Raises NotYours."""
        if not self.agents.is_operator(key):
            raise NotYours("team", "")
        team_state = self._team_states.get(_team_id(entropy))
        if team_state is None and (row := await self._parts.tables.team(_team_id(entropy))) is not None:
            team_state = TeamState(row, self._parts.tables, self._runtime.clock)
        return None if team_state is None else CreatedTeam(self._info(team_state), keys.new_key("team", entropy))

    async def get_team(self, team: str, key: str) -> TeamInfo:
        """Return the resources of a team: total, held and free; `team` is its id or its name. Raises NotYours."""
        return self._info(self._authorized_team(team, key))

    async def list_teams(self, key: str) -> list[TeamInfo]:
        """Return the teams that a key opens: all teams for the operator's key, one team for a team's key."""
        return [self._info(each) for each in self._teams_of_key(key)]

    async def reserved_resources(self, name: str) -> Mapping[str, float] | None:
        """Return the resources of the team of that name, of any kernel; None if there is none."""
        row = await self._parts.tables.team_by_name(name)
        return row.resources if row is not None else None

    async def delete_team(self, team: str, key: str) -> None:
        """End all agents of a team, including those being spawned, wait until all have ended, and remove the team.

        A caller that stops waiting does not stop the deletion. Raises NotYours, also after the removal.
        """
        team_state = self._authorized_team(team, key)
        if team_state.deleting is None or has_failed(team_state.deleting):
            team_state.deleting = self._parts.lifecycle.begin(self._delete(team_state, self._parts))
        await asyncio.shield(team_state.deleting)

    # ---- agents

    async def spawn_agent(self, request: SpawnAgent, key: str, entropy: Entropy | None = None) -> SpawnedAgent:
        """Start an agent in a team, with the team's key. The nonce is returned only here.

        With an `entropy`, the agent's id and nonce are derived from it.

        Raises NotYours, InvalidValue, Unknown, OverCapacity, SpawnRefused; Aborted if the team was deleted meanwhile;
        and the errors of the agent's type. After any error, including a cancellation, nothing of the agent is left.
        """
        team_state = self._authorized_team(request.team, key)
        if team_state.deleting is not None:
            raise NotYours("team", request.team)
        return await self._parts.spawns.spawn(team_state, request, entropy or self._entropy)

    def find_spawned_agent(self, team: str, key: str, entropy: Entropy) -> SpawnedAgent | None:
        """Return the agent of a team that was made from an `entropy`; None if there is none. Raises NotYours."""
        return self._parts.spawns.find(self._authorized_team(team, key), entropy)

    async def kill_agent(self, agent: str, key: str) -> None:
        """End an agent and all below it, wait until all have ended, and remove the agent.

        Raises NotYours, also after that.
        """
        await self._parts.lifecycle.end(self.agents.authorize(agent, key, "kill").entry, "it was killed")

    async def get_agent(self, agent: str, key: str) -> AgentInfo:
        """Return the description and state of an agent. A narrower key does not see paths of this host.

        Raises NotYours.
        """
        access = self.agents.authorize(agent, key, "info")
        info = access.entry.info()
        return info if access.key.id == keys.OWNER else replace(info, kept=[])

    async def supply_values(self, agent: str, key: str, request: SupplyValues) -> AgentInfo:
        """Resume an agent that waits for values which are not recorded, with its owner's key or the operator's.

        Raises NotYours, InvalidValue, TakenOver, and the errors of its type; the agent then continues to wait. A caller
        that stops waiting does not stop the resumption.
        """
        entry, lifecycle = self.owners.authorize_owner(agent, key), self._parts.lifecycle
        check = partial(self.owners.authorize_owner, agent, key)
        task = lifecycle.begin(self._parts.takeover.recovery.resume(entry, request, check))
        return (await asyncio.shield(task)).info()

    async def list_agents(self, request: ListAgents, key: str) -> list[AgentInfo]:
        """Return the agents of a team, for its key, or of all teams for the operator's; the oldest first.

        Raises NotYours.
        """
        if request.team:
            team_states = [self._authorized_team(request.team, key)]
        elif not (team_states := self._teams_of_key(key)) and not self.agents.is_operator(key):
            raise NotYours("team", request.team)
        agents = [each.info() for team_state in team_states for each in self.agents.of_team(team_state.id)]
        agents.sort(key=lambda each: (each.created_at, each.path))
        return [each for each in agents if _matches(each, request)]

    # ---- keys

    def knows_key(self, key: str, agent: str = "") -> bool:
        """Return whether a key opens anything here. The key of `agent`, which is requested, is checked first."""
        return self.agents.is_operator(key) or self.agents.knows_key(key, agent) or bool(self._teams_of_key(key))

    def owner_of(self, key: str) -> str:
        """Return the owner of a key: "" for the operator, else the id of its team.

        For an unknown key, return its hash.
        """
        if self.agents.is_operator(key):
            return ""
        return (
            next((team_state.id for team_state in self._teams_of_key(key)), "")
            or self.agents.team_of(key)
            or keys.hash_of(key)
        )

    # ---- users of images and bundles

    def users_of_image(self, image: str) -> list[str]:
        """Return the paths of live agents that were spawned from an image, and of agents being spawned."""
        rows = [each.row for each in self.agents if each.state not in ("failed", "ended")]
        return sorted({each.path for each in (*rows, *self._spawning_rows.values()) if each.image == image})

    def users_of_bundle(self, bundle: str) -> list[str]:
        """Return the paths of live agents that have a bundle loaded. A bundle of an image is needed by the image."""
        entries = [each for each in self.agents if each.state not in ("failed", "ended")]
        return sorted(each.row.path for each in entries if bundle in each.required_bundles)

    async def users_elsewhere(self, *, image: str = "", bundle: str = "") -> list[str]:
        """Return the paths of live agents of other kernels that use an image or a bundle, as far as recorded."""
        rows = [
            row
            for row in await self._parts.tables.foreign_agents(self._team_states)
            if row.state not in ("failed", "ended")
        ]
        return sorted({row.path for row in rows if (image and row.image == image) or bundle in row.bundles})

    # ---- start of agents

    async def _undo_create(self, team_state: TeamState) -> None:
        await self._runtime.sandboxes.disband(team_state.id)
        await team_state.remove()

    async def _delete(self, team_state: TeamState, parts: _OpenParts) -> None:
        await team_state.write()  # Doomed from now on, even if this server ends.
        await cancel_spawns(team_state)
        await asyncio.gather(
            *(parts.lifecycle.end(each, "its team was deleted") for each in self.agents.of_team(team_state.id))
        )
        for row in await parts.tables.leftover_agents(team_state.id):  # The agents of spawns that could not be undone.
            await parts.lifecycle.release_and_remove(team_state, row, None)
        await self._runtime.sandboxes.disband(team_state.id)
        await team_state.remove()
        del self._team_states[team_state.id]

    # ----

    @property
    def _parts(self) -> _OpenParts:
        if self._open_parts is None:
            raise Aborted("the server is not open")
        return self._open_parts

    def _info(self, team_state: TeamState) -> TeamInfo:
        return team_state.info(self._runtime.sandboxes.shared_limits)

    def _authorized_team(self, team: str, key: str) -> TeamState:
        """Return the team of that id or name, if the key opens it.

        Raises NotYours, which is the same for every reason.
        """
        team_state = self._find(team)
        fits = keys.key_matches(key, team_state.key if team_state is not None else "0" * 64)
        if not (self.agents.is_operator(key) or fits) or team_state is None:
            raise NotYours("team", team)
        return team_state

    def _find(self, team: str) -> TeamState | None:
        return self._team_states.get(team) or next(
            (each for each in self._team_states.values() if each.label == team), None
        )

    def _teams_of_key(self, key: str) -> list[TeamState]:
        operator, hash = self.agents.is_operator(key), keys.hash_of(key)
        return [each for each in self._team_states.values() if hmac.compare_digest(hash, each.key) or operator]


def _team_id(entropy: Entropy) -> str:
    return f"team-{entropy(8).hex()}"


async def _do_nothing(_: object) -> None:
    """Do nothing."""


def _name_taken(name: str) -> InvalidValue:
    return InvalidValue("name", name, "a name that no other team has")


def _matches(agent: AgentInfo, request: ListAgents) -> bool:
    return (
        (not request.state or agent.state == request.state)
        and all(agent.labels.get(name) == value for name, value in request.labels.items())
        and (not request.under or f"{agent.path}/".startswith(f"{request.under.rstrip('/')}/"))
    )
