"""A team of this server: its resources, the agents that hold them, and the queue of spawns that wait.

Decisions take effect at once; the team's row is written afterwards, together with the rows of the agents.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded, wait_with_timeout
from ramet.core.errors import BusyError, InvalidValue, OverCapacity
from ramet.core.team import Team
from ramet.services.contract import TeamInfo
from ramet.services.teams.tables import AgentRow, TeamRow, TeamTables

#: The resources of the machine that a team counts, and their fields in a reservation of its sandboxes.
RESERVED = {"cpu": "cpu_cores", "memory_mb": "memory_mb"}

MAX_WAITING = 100  #: spawns in the queue of one team: each holds a connection


@dataclass(eq=False)
class QueueEntry:
    """An entry of the queue."""

    agent: str
    need: Mapping[str, float]
    grant: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class TeamState:
    """A team of this server.

    `spawning` are its pending spawns, `names` are the names of its agents, including those being spawned.
    """

    def __init__(self, row: TeamRow, tables: TeamTables, clock: Clock) -> None:
        self.id, self.label = row.id, row.name or row.id
        self.team = Team(name=self.label, total=row.resources, holdings=row.held, spent_amounts=row.spent)
        self.names: set[str] = set()
        self.spawning: set[asyncio.Task[Any]] = set()
        self.deleting: asyncio.Task[None] | None = None
        self._row, self._tables, self._clock = row, tables, clock
        self._queue: deque[QueueEntry] = deque()
        self._write_lock = asyncio.Lock()

    @property
    def row(self) -> TeamRow:
        """The row of the team as it is to be written."""
        held_amounts = {agent: dict(each) for agent, each in self.team.holdings.items()}
        return replace(self._row, held=held_amounts, spent=dict(self.team.spent_amounts), doomed=self.is_deleting)

    @property
    def is_deleting(self) -> bool:
        """True if the team is being deleted, by this or an earlier server."""
        return self.deleting is not None or self._row.doomed

    @property
    def config(self) -> Any:
        return msgspec.json.decode(self._row.config)

    @property
    def defaults(self) -> dict[str, float]:
        return dict(self._row.defaults)

    @property
    def key(self) -> str:
        """The hash of the team's key."""
        return self._row.key

    def info(self, bounded_fields: Collection[str]) -> TeamInfo:
        """Return the description of the team; `bounded_fields` are the fields of a reservation that the machine
        enforces.
        """
        team = self.team
        return TeamInfo(
            id=self.id,
            name=self._row.name,
            resources=dict(team.total),
            held=team.held_amounts,
            spent={name: team.spent_amounts.get(name, 0.0) for name in team.total},
            free=team.free,
            bounded=[name for name, field in RESERVED.items() if name in team.total and field in bounded_fields],
            agents=len(team.holdings),
            labels=dict(self._row.labels),
            created_at=self._row.created_at.isoformat(),
            defaults=dict(self._row.defaults),
            config=self.config,
        )

    def reserve_name(self, name: str) -> None:
        """Reserve a name for an agent. Raises InvalidValue if another agent of the team has it."""
        if name in self.names:
            raise InvalidValue("name", name, f"a name that no other agent of team {self.label!r} has")
        self.names.add(name)

    async def admit(self, agent: str, need: Mapping[str, float], wait_s: float) -> None:
        """Let an agent hold its resources, at once or after waiting in the queue.

        A cancellation removes it from the queue. Waiting spawns are served in order. A spawn that does not wait may
        take free resources meanwhile. Raises OverCapacity when the time is over, or if the need exceeds the total of
        the team; BusyError for a full queue; InvalidValue.
        """
        if not (wait_s and self._queue):
            try:
                self.team = self.team.admit(agent, need)
                return
            except OverCapacity:
                if not wait_s:
                    raise
        self.team.check(need)
        if len(self._queue) >= MAX_WAITING:
            raise BusyError(
                f"{MAX_WAITING} spawns wait in the queue of team {self.label!r}, which is the limit; try again"
            )
        entry = QueueEntry(agent, need)
        self._queue.append(entry)
        try:
            await wait_with_timeout(entry.grant, clock=self._clock, seconds=wait_s)
        except TimeoutError:
            self._remove_waiting(entry)
            self.team = self.team.admit(agent, need)  # Try it before the earlier entries, else OverCapacity.
        except BaseException:
            self._remove_waiting(entry)
            raise

    async def release(self, agent: str, usage: Mapping[str, float], *rows: AgentRow) -> None:
        """Take back the part of an agent, except what it used up, and write that together with `rows`."""
        self.team = self.team.release(agent, usage)
        self._admit_waiting()
        await self.write(*rows)

    async def write(self, *rows: AgentRow) -> None:
        """Write the present state of the team, together with rows of agents.

        A cancellation is raised when that is done.
        """
        await run_shielded(self._write(rows))

    async def create(self) -> None:
        """Record the team for the first time. Raises Conflict if another team has its name."""
        async with self._write_lock:
            await run_shielded(self._tables.create(self.row))

    async def remove(self) -> None:
        async with self._write_lock:
            await self._tables.remove(self._row)

    async def _write(self, rows: tuple[AgentRow, ...]) -> None:
        async with self._write_lock:
            await self._tables.write(self.row, *rows)

    def _admit_waiting(self) -> None:
        """Admit entries from the head of the queue as long as they fit."""
        while self._queue:
            entry = self._queue[0]
            if not entry.grant.done():
                try:
                    self.team = self.team.admit(entry.agent, entry.need)
                except OverCapacity:
                    if (error := self._permanent_error(entry)) is None:
                        return
                    entry.grant.set_exception(error)
                else:
                    entry.grant.set_result(None)
            self._queue.popleft()

    def _permanent_error(self, entry: QueueEntry) -> OverCapacity | None:
        try:
            self.team.check(entry.need)
        except OverCapacity as error:
            return error
        return None

    def _remove_waiting(self, entry: QueueEntry) -> None:
        """Remove an entry from the queue, and free what it holds."""
        if entry in self._queue:
            self._queue.remove(entry)
        self.team = self.team.release(entry.agent, {})
        self._admit_waiting()
