"""What a server that was killed left: agents that lived go on, and what was being made or removed is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, NotYours, StoreFailed
from ramet.services.contract import SupplyValues
from ramet.services.errors import TakenOver, ValuesMissing
from ramet.services.problems import error_of
from ramet.services.teams.agent_lifecycle import AgentLifecycle
from ramet.services.teams.agents import AgentEntry
from ramet.services.teams.secret_values import configured_values, restore_secrets, supplied_values
from ramet.services.teams.tables import AgentRow, TeamTables
from ramet.services.teams.team_state import TeamState
from ramet.services.teams.validation import Checks

_log = logging.getLogger("ramet.services")
_AT_A_TIME = 8  #: agents that are opened again at the same time


@dataclass(frozen=True)
class Recovery:
    """Goes on with agents, under the same id, path, keys and part of their team. Values are not on record."""

    lives: AgentLifecycle
    rooms: Mapping[str, TeamState]
    books: TeamTables
    checks: Checks
    secrets: Mapping[str, str]
    env_vars: Mapping[str, str]
    taken_up: Callable[[AgentEntry], Awaitable[None]]  #: of each agent that is open again, before anybody finds it

    async def __call__(self, teams: Collection[str], rows: Collection[AgentRow], damaged: Collection[str] = ()) -> None:
        """Take up the agents of teams, but for those that are doomed, which are removed then.

        An agent whose values are missing waits for them. One that cannot be opened again is failed, and says why; what
        goes wrong with one is logged, and keeps no other from it. What those hold whose rows are `damaged`, by their
        ids, stays held. Raises StoreFailed.
        """
        known = {*damaged, *(row.id for row in rows)}
        for id in teams:
            room = self.rooms[id]
            for agent in room.team.held.keys() - known:
                with noted(f"what agent {agent} held of team {room.label}"):
                    await room.release(agent, {})
        turn = asyncio.Semaphore(_AT_A_TIME)

        lost: list[StoreFailed] = []

        async def take_up(row: AgentRow) -> None:
            async with turn:
                try:
                    with noted(f"agent {row.path} ({row.id})"):
                        await self._take_up(row)
                except StoreFailed as problem:
                    lost.append(problem)

        async with asyncio.TaskGroup() as group:
            for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
                group.create_task(take_up(row))
        if lost:
            raise lost[0]

    async def resume(self, living: AgentEntry, given: SupplyValues, check: Callable[[], object]) -> AgentEntry:
        """Open an agent that waits, with its values. If that fails it waits on.

        `check` raises where whoever asked may not do so by the time it is their turn.
        Raises InvalidValue, NotYours for one that is being killed, TakenOver, and what its type finds wrong.
        """
        async with living.changing:
            check()
            room, row = self._room_of(living), living.row
            if living.state != "waiting":
                raise InvalidValue("state", living.state, "an agent that is waiting for values")
            asked = restore_secrets(row, supplied_values(row, given, self._configured(row)))
            opened = await self.lives.open(row, await self.checks(asked, room.team.total))
            opened.changing = living.changing  # Whoever waits to change its row is to have its turn.
            try:
                self._room_of(living)
                await self.taken_up(opened)
                self._room_of(living)
            except BaseException:
                await run_shielded(self.lives.give_up(opened, "it cannot be gone on with"))
                raise
            living.state = "idle"  # A second request that waits for the lock is refused.
            self.lives.add(opened)
        await opened.keep()
        return opened

    def _room_of(self, living: AgentEntry) -> TeamState:
        """The team of an agent that nobody ends. Raises NotYours, TakenOver."""
        room = self.rooms.get(living.row.team)
        if room is None:
            raise TakenOver("agent", living.id)
        if living.ending is not None:
            raise NotYours("agent", living.id)
        return room

    def _configured(self, row: AgentRow) -> SupplyValues:
        return configured_values(row, self.secrets, self.env_vars)

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

    async def _open(self, room: TeamState, row: AgentRow) -> None:
        living, used = None, _used(row)
        try:
            asked = restore_secrets(row, self._configured(row))
        except ValuesMissing as missing:
            _log.warning("agent %s (%s) waits: %s", row.path, row.id, missing)
            self.lives.add_waiting(room, row, missing)
            return
        try:
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
def noted(what: str) -> Iterator[None]:
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
