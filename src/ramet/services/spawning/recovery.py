"""What a server that was killed left: agents that lived go on, and what was being made or removed is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from ramet.core.errors import StoreFailed
from ramet.services.problems import error_of
from ramet.services.refusals import TakenOver
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

    async def __call__(self, teams: Collection[str], rows: Collection[AgentRow], damaged: Collection[str] = ()) -> None:
        """Take up the agents of teams, but for those that are doomed, which are removed then.

        An agent that cannot be opened again is failed, and says why; what goes wrong with one is logged, and keeps no
        other from it. What those hold whose rows are `damaged`, by their ids, stays held. Raises StoreFailed.
        """
        known = {*damaged, *(row.id for row in rows)}
        for id in teams:
            room = self.rooms[id]
            for agent in room.team.held.keys() - known:
                with _noted(f"what agent {agent} held of team {room.label}"):
                    await room.release(agent, {})
        turn = asyncio.Semaphore(_AT_A_TIME)

        lost: list[StoreFailed] = []

        async def take_up(row: AgentRow) -> None:
            async with turn:
                try:
                    with _noted(f"agent {row.path} ({row.id})"):
                        await self._take_up(row)
                except StoreFailed as problem:
                    lost.append(problem)

        async with asyncio.TaskGroup() as group:
            for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
                group.create_task(take_up(row))
        if lost:
            raise lost[0]

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
        living, used = None, _used(row)
        try:
            asked = replace(row, policy=with_values(row.policy, self.secrets))
            living = await self.lives.open(row, await self.checks(asked, room.team.total))
            await self.taken_up(living)
        except Exception as problem:
            if living is not None:
                used = await self.lives.give_up(living, "it cannot be gone on with")
            if isinstance(problem, StoreFailed):  # Whoever has the store next goes on with it.
                raise
            _log.warning("agent %s (%s) cannot be gone on with: %s", row.path, row.id, problem)
            row = self.lives.failed(row, error_of(problem))
            await self.lives.release(room, row.id, used, row)
            await self.lives.add_departed(row)
            return
        self.lives.add(living)
        await living.keep()


@contextmanager
def _noted(what: str) -> Iterator[None]:
    """Log what goes wrong, and go on. Raises StoreFailed."""
    try:
        yield
    except StoreFailed:
        raise
    except TakenOver as problem:  # This kernel will hear of it.
        _log.info("%s is not for this one to take up: %s", what, problem)
    except Exception as problem:
        _log.error("%s cannot be taken up: %s: %s", what, type(problem).__name__, problem)


def _used(row: AgentRow) -> Mapping[str, float] | None:
    """What an agent used that is not there to be asked: nothing before its first run, else nobody knows."""
    return None if row.run else {}
