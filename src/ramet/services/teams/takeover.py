"""The teams of this kernel, among all teams of one store: those that it created, and those that it has taken over.

One write moves a complete team with all its agents to another kernel. Only one kernel can make that write, and the
previous kernel cannot write the team any more. A single kernel has all teams.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import Damaged
from ramet.services.errors import TakenOver
from ramet.services.teams.recovery import Recovery, log_errors
from ramet.services.teams.tables import AgentRow, Rows, TeamRow, TeamTables
from ramet.services.teams.team_state import TeamState
from ramet.store.contract import Store

_log = logging.getLogger("ramet.services")


@dataclass(frozen=True)
class Takeover:
    """The takeover of teams, and of their agents. `pending` are the teams whose agents are being opened."""

    kernel: str
    store: Store
    tables: TeamTables
    team_states: dict[str, TeamState]
    recovery: Recovery
    clock: Clock
    on_lost: Callable[[TeamState], None]  #: called with each team that another kernel has taken over
    pending: set[str] = field(default_factory=set)
    logged_errors: set[str] = field(default_factory=set)  #: the logged errors of unreadable rows

    async def __call__(self, *, begins: bool = False) -> list[str]:
        """Take every team that no other living kernel has, open its agents, and return the taken teams.

        Teams that went to another kernel while this one was unreachable are dropped first. An unreadable row is logged,
        and left unchanged. An unreadable team stays where it was, with its agents. The part of an unreadable agent
        stays held, and its team is taken without it. If this kernel `begins`, and is the only one, Damaged is raised,
        and nothing has changed: the operator can repair the row.
        """
        live_kernels = {each.name for each in await self.store.kernels() if each.alive and each.name != self.kernel}
        own_states = [each for each in self.team_states.values() if self.tables.holds(each.row)]
        agents = await self.tables.agents()  # First: an agent's team is recorded before the agent, and as long.
        teams = await self.tables.teams()
        errors = [*teams.errors.values(), *agents.errors.values()]
        if errors and begins and not live_kernels:
            raise errors[0]
        self._log_damaged(errors)
        self._drop_lost_teams(own_states, teams)
        free = [row for row in teams.readable_rows if row.id not in self.team_states and row.kernel not in live_kernels]
        random.shuffle(free)  # Concurrent kernels begin at different teams.
        agents_by_team = _group_by_team(agents.readable_rows)
        await self._remove_orphaned_agents(agents.readable_rows, teams)
        taken_ids = []
        try:
            for row in free:
                self.pending.add(row.id)  # Before its kernel is recorded: others may read that at once.
                if await self._take_over_team(row, agents_by_team.get(row.id, ())):
                    taken_ids.append(row.id)
                else:
                    self.pending.discard(row.id)
            await self._open(taken_ids, agents_by_team, agents.errors.keys())
        finally:
            self.pending.difference_update(row.id for row in free)
        return taken_ids

    def _log_damaged(self, errors: Iterable[Damaged]) -> None:
        """Log each unreadable row once."""
        for text in map(str, errors):
            if text not in self.logged_errors:
                self.logged_errors.add(text)
                _log.error("%s; it is not changed, and must be repaired by hand", text)

    def _drop_lost_teams(self, own_states: Iterable[TeamState], teams: Rows[TeamRow]) -> None:
        """Drop the teams of this kernel that another kernel has by now, or has removed.

        `mine` are the teams that were this kernel's before the rows were read.
        """
        kernels = {**dict.fromkeys(teams.errors, self.kernel), **{row.id: row.kernel for row in teams.readable_rows}}
        for team_state in own_states:
            is_gone = team_state.id not in kernels and team_state.deleting is None
            if self.team_states.get(team_state.id) is team_state and (
                is_gone or kernels.get(team_state.id, self.kernel) != self.kernel
            ):
                _log.warning("team %s is owned by another kernel now", team_state.label)
                del self.team_states[team_state.id]
                self.tables.drop(team_state.row)
                self.on_lost(team_state)

    async def _take_over_team(self, row: TeamRow, agents: Sequence[AgentRow]) -> bool:
        owned_row = replace(row, kernel=self.kernel)
        # Also for a team of this kernel: another kernel may have taken it over since it was read.
        if not await self.tables.take_over(owned_row, agents, row.kernel):
            return False
        if owned_row != row:
            _log.info("team %s is taken over from kernel %r", row.name or row.id, row.kernel)
        self.team_states[row.id] = TeamState(owned_row, self.tables, self.clock)
        return True

    async def _open(
        self, teams: list[str], agents_by_team: Mapping[str, list[AgentRow]], damaged_ids: Collection[str]
    ) -> None:
        agents = [agent for team in teams for agent in agents_by_team.get(team, ())]
        await self.recovery(teams, agents, damaged_ids)
        for id in teams:
            if id in self.team_states and self.team_states[id].is_deleting:
                with suppress(TakenOver):
                    await self.team_states.pop(id).remove()

    async def _remove_orphaned_agents(self, agents: Iterable[AgentRow], teams: Rows[TeamRow]) -> None:
        """Remove everything of an agent whose team was removed before it: no other code would find it."""
        known_teams = {*teams.errors, *(row.id for row in teams.readable_rows)}
        for agent in agents:
            if agent.team not in known_teams:
                self.tables.hold(agent)
                with log_errors(f"the leftovers of agent {agent.path} ({agent.id}) of a removed team"):
                    await self.recovery.lifecycle.remove_records(agent)


def _group_by_team(agents: Iterable[AgentRow]) -> dict[str, list[AgentRow]]:
    groups: dict[str, list[AgentRow]] = {}
    for each in agents:
        groups.setdefault(each.team, []).append(each)
    return groups
