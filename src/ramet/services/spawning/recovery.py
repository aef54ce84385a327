"""What a server that was killed left: agents that lived go on, and what was being made or removed is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ramet.services.problems import error_of
from ramet.services.spawning.books import AgentRow, Books
from ramet.services.spawning.checking import Checks, with_values
from ramet.services.spawning.lives import Lives
from ramet.services.spawning.rooms import Room
from ramet.services.spawning.roster import Living

_log = logging.getLogger("ramet.services")
_AT_A_TIME = 8  #: agents that are opened again at the same time


@dataclass(frozen=True)
class Recovery:
    """Goes on with agents, under the same id, path, keys and part of their team. `secrets` are not on record."""

    lives: Lives
    rooms: Mapping[str, Room]
    books: Books
    checks: Checks
    secrets: Mapping[str, str]
    taken_up: Callable[[Living], Awaitable[None]]  #: of each agent that is open again, before anybody finds it

    async def __call__(self, teams: Collection[str], rows: Collection[AgentRow]) -> None:
        """Take up the agents of teams, but for those that are doomed, which are removed then.

        An agent that cannot be opened again is failed, and says why.
        """
        known = {row.id for row in rows}
        for id in teams:
            room = self.rooms[id]
            for agent in room.team.held.keys() - known:
                await room.release(agent, {})
        turn = asyncio.Semaphore(_AT_A_TIME)

        async def take_up(row: AgentRow) -> None:
            async with turn:
                await self._take_up(row)

        async with asyncio.TaskGroup() as group:
            for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
                group.create_task(take_up(row))

    async def _take_up(self, row: AgentRow) -> None:
        room = self.rooms[row.team]
        is_over = row.state in ("failed", "ended")
        was_ending = not is_over and row.id not in room.team.held
        if room.is_doomed or row.state == "starting" or was_ending:
            await self.lives.forget(room, row, _used(row))
            return
        room.take_name(row.name)
        if is_over:
            if row.id in room.team.held:  # The server was killed before what had failed let go of its part.
                await self.lives.release(room, row.id, _used(row))
            await self.lives.add_departed(row)
        else:
            await self._open(room, row)

    async def _open(self, room: Room, row: AgentRow) -> None:
        try:
            asked = replace(row, policy=with_values(row.policy, self.secrets))
            living = await self.lives.open(row, await self.checks(asked, room.team.total))
        except Exception as problem:
            _log.warning("agent %s (%s) cannot be gone on with: %s", row.path, row.id, problem)
            row = self.lives.failed(row, error_of(problem))
            await self.lives.release(room, row.id, _used(row), row)
            await self.lives.add_departed(row)
            return
        await self.taken_up(living)
        self.lives.add(living)
        await living.keep()


def _used(row: AgentRow) -> Mapping[str, float] | None:
    """What an agent used that is not there to be asked: nothing before its first run, else nobody knows."""
    return None if row.run else {}
