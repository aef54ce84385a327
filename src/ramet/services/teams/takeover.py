"""Which teams are this kernel's, of all on one store: those that it made, and those that it has taken over.

A team changes hands whole, with all its agents, by one write that only one kernel can make, and that whoever had it
before can make no more. Where there is one kernel, all teams are its own.
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
from ramet.services.teams.recovery import Recovery, noted
from ramet.services.teams.tables import AgentRow, Rows, TeamRow, TeamTables
from ramet.services.teams.team_state import TeamState
from ramet.store.contract import Store

_log = logging.getLogger("ramet.services")


@dataclass(frozen=True)
class Takeover:
    """Takes teams, and goes on with their agents. `coming` are those whose agents are being opened."""

    kernel: str
    store: Store
    books: TeamTables
    rooms: dict[str, TeamState]
    recovery: Recovery
    clock: Clock
    lost: Callable[[TeamState], None]  #: told of each team that another kernel has taken over
    coming: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)  #: of rows that cannot be read, what was logged

    async def __call__(self, *, begins: bool = False) -> list[str]:
        """Take every team that no other living kernel has, and return them once all their agents were opened.

        Those that went to another kernel while this one could not be reached are let go of first. A row that cannot be
        read is logged, and left as it is: a team stays where it was, with its agents; what an agent holds of a team
        stays held, and the team is taken without it. To a kernel that `begins`, and is the only one, Damaged is raised,
        and nothing has changed: somebody is there to mend it.
        """
        living = {each.name for each in await self.store.kernels() if each.alive and each.name != self.kernel}
        mine = [each for each in self.rooms.values() if self.books.holds(each.row)]
        agents = await self.books.agents()  # First: an agent's team is on record before it, and as long.
        teams = await self.books.teams()
        damaged = [*teams.damaged.values(), *agents.damaged.values()]
        if damaged and begins and not living:
            raise damaged[0]
        self._tell(damaged)
        self._lose(mine, teams)
        free = [row for row in teams.whole if row.id not in self.rooms and row.kernel not in living]
        random.shuffle(free)  # Kernels that do the same at the same time begin at different ones.
        of = _by_team(agents.whole)
        await self._forget(agents.whole, teams)
        taken = []
        try:
            for row in free:
                self.coming.add(row.id)  # Before it is on record whose it is: others may read that at once.
                if await self._take(row, of.get(row.id, ())):
                    taken.append(row.id)
                else:
                    self.coming.discard(row.id)
            await self._open(taken, of, agents.damaged.keys())
        finally:
            self.coming.difference_update(row.id for row in free)
        return taken

    def _tell(self, damaged: Iterable[Damaged]) -> None:
        """Log what cannot be read, each once."""
        for words in map(str, damaged):
            if words not in self.told:
                self.told.add(words)
                _log.error("%s; it is left as it is, for somebody to mend", words)

    def _lose(self, mine: Iterable[TeamState], teams: Rows[TeamRow]) -> None:
        """Let go of what was this kernel's before it read who has which team, and is another's, or was ended there."""
        kernels = {**dict.fromkeys(teams.damaged, self.kernel), **{row.id: row.kernel for row in teams.whole}}
        for room in mine:
            is_gone = room.id not in kernels and room.deleting is None
            if self.rooms.get(room.id) is room and (is_gone or kernels.get(room.id, self.kernel) != self.kernel):
                _log.warning("team %s is another kernel's now", room.label)
                del self.rooms[room.id]
                self.books.lose(room.row)
                self.lost(room)

    async def _take(self, row: TeamRow, agents: Sequence[AgentRow]) -> bool:
        mine = replace(row, kernel=self.kernel)
        # Its own, too: another kernel may have taken that over since it was read.
        if not await self.books.take(mine, agents, row.kernel):
            return False
        if mine != row:
            _log.info("team %s is taken over from kernel %r", row.name or row.id, row.kernel)
        self.rooms[row.id] = TeamState(mine, self.books, self.clock)
        return True

    async def _open(self, teams: list[str], of: Mapping[str, list[AgentRow]], damaged: Collection[str]) -> None:
        agents = [agent for team in teams for agent in of.get(team, ())]
        await self.recovery(teams, agents, damaged)
        for id in teams:
            if id in self.rooms and self.rooms[id].is_doomed:
                with suppress(TakenOver):
                    await self.rooms.pop(id).remove()

    async def _forget(self, agents: Iterable[AgentRow], teams: Rows[TeamRow]) -> None:
        """Leave nothing of an agent whose team was forgotten before it: nobody else would find what is left of it."""
        known = {*teams.damaged, *(row.id for row in teams.whole)}
        for agent in agents:
            if agent.team not in known:
                self.books.hold(agent)
                with noted(f"what agent {agent.path} ({agent.id}) of a team that is gone has left"):
                    await self.recovery.lives.clear(agent)


def _by_team(agents: Iterable[AgentRow]) -> dict[str, list[AgentRow]]:
    found: dict[str, list[AgentRow]] = {}
    for each in agents:
        found.setdefault(each.team, []).append(each)
    return found
