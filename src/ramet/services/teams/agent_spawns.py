"""Spawns of agents in teams: checked, admitted, started; undone if their callers disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ramet.concurrency.cancel import is_being_cancelled
from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import Aborted, SpawnRefused
from ramet.core.ids import checked_name
from ramet.services.contract import SpawnAgent, SpawnedAgent
from ramet.services.errors import TakenOver
from ramet.services.rules import Rules
from ramet.services.teams import keys
from ramet.services.teams.agent_lifecycle import AgentLifecycle
from ramet.services.teams.agents import AgentTable
from ramet.services.teams.failed_agents import checked_keep_failed
from ramet.services.teams.secret_values import strip_secrets
from ramet.services.teams.tables import AgentRow
from ramet.services.teams.team_state import TeamState
from ramet.services.teams.validation import Checks, check_notes, checked_wait, copy_json

Entropy = Callable[[int], bytes]


@dataclass(frozen=True)
class AgentSpawns:
    """The spawns of one server's agents."""

    agents: AgentTable
    team_states: Mapping[str, TeamState]
    lifecycle: AgentLifecycle
    checks: Checks
    rules: Rules
    clock: Clock
    spawning_rows: dict[str, AgentRow]  #: the rows of agents that are being spawned

    async def spawn(self, team_state: TeamState, request: SpawnAgent, entropy: Entropy) -> SpawnedAgent:
        """Spawn an agent in a team, for a caller that the team's key allows it; id and nonce come from `entropy`.

        Raises as `AgentSpawnerService.spawn_agent` does. A cancellation ends the agent.
        """
        spawn_task = self.lifecycle.begin(self._spawn(team_state, request, entropy))
        team_state.spawning.add(spawn_task)
        spawn_task.add_done_callback(team_state.spawning.discard)
        try:
            return await asyncio.shield(spawn_task)
        except asyncio.CancelledError:
            if not is_being_cancelled():
                if self.team_states.get(team_state.id) is not team_state and team_state.deleting is None:
                    raise TakenOver("team", team_state.label) from None
                reason = (
                    f"team {team_state.label!r} is being deleted"
                    if team_state.deleting is not None
                    else "the server stops"
                )
                raise Aborted(reason) from None
            spawn_task.cancel()
            await run_shielded(self._end_unclaimed(spawn_task))
            raise

    def find(self, team_state: TeamState, entropy: Entropy) -> SpawnedAgent | None:
        """Return the agent of a team that was made from an `entropy`; None if there is none."""
        id = _agent_id(entropy)
        entry = next((each for each in self.agents.of_team(team_state.id) if each.id == id), None)
        return None if entry is None else SpawnedAgent(entry.info(), keys.new_key("agent", entropy))

    async def _spawn(self, team_state: TeamState, request: SpawnAgent, entropy: Entropy) -> SpawnedAgent:
        wait_s, name = checked_wait(request.wait_s), checked_name("name", request.name)
        check_notes(request.labels, request.metadata)
        nonce = keys.new_key("agent", entropy)
        row = AgentRow(
            id=_agent_id(entropy),
            team=team_state.id,
            name=name,
            path=f"{team_state.label}/{name}",
            agent_type=request.agent_type,
            spawn_info=copy_json("spawn_info", request.spawn_info),
            transport_format=self.checks.transport_format(request),
            image=request.image,
            policy=request.policy,
            limits=team_state.defaults | request.limits,
            env=dict(request.env),
            labels=dict(request.labels),
            metadata=dict(request.metadata),
            keys=keys.Keyring(owner=keys.hash_of(nonce)),
            state="starting",
            created_at=self.clock.now(),
            keep_failed_s=checked_keep_failed(request.keep_failed_s, self.rules.keep_failed_s),
        )
        team_state.reserve_name(name)
        self.spawning_rows[row.id] = row
        try:
            plan = await self.checks(row, team_state.team.total)
            await team_state.admit(row.id, plan.need, wait_s)
            await self._check_agent_limit(team_state, row.id)
            entry = await self.lifecycle.start(team_state, strip_secrets(replace(row, policy=plan.policy)), plan)
        except BaseException:
            team_state.names.discard(name)
            raise
        finally:
            del self.spawning_rows[row.id]
        return SpawnedAgent(entry.info(), nonce)

    async def _check_agent_limit(self, team_state: TeamState, agent: str) -> None:
        """Free the part of an agent that its team admitted, if the server has no room for it.

        Raises SpawnRefused then.
        """
        limit, count = self.rules.agents, sum(len(each.team.holdings) for each in self.team_states.values())
        if limit is not None and count > limit:
            await team_state.release(agent, {})
            raise SpawnRefused("agents", f"this server has {limit} agents in all, which is its limit", free=0)

    async def _end_unclaimed(self, spawn_task: asyncio.Task[SpawnedAgent]) -> None:
        """Wait for a spawn whose caller has gone, and end the agent: no client has its key."""
        await asyncio.wait({spawn_task})
        if not spawn_task.cancelled() and spawn_task.exception() is None:
            for entry in self.agents:
                if entry.id == spawn_task.result().agent.id:
                    await self.lifecycle.end(entry, "its client has disconnected")


async def cancel_spawns(*team_states: TeamState) -> None:
    """Cancel all pending spawns, and wait until they have ended."""
    tasks = [task for team_state in team_states for task in team_state.spawning]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _agent_id(entropy: Entropy) -> str:
    return f"agent-{entropy(8).hex()}"
