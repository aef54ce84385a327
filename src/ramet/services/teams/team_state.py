"""A team of this server: what it has, who holds it, and who stands in line for it.

What is decided here is decided at once; the team's row follows, together with the rows of agents that came or went.
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

#: What a team counts of the machine, and how a reservation of its sandboxes says that.
RESERVED = {"cpu": "cpu_cores", "memory_mb": "memory_mb"}

MOST_WAITING = 100  #: spawns in the line of one team: each holds a connection


@dataclass(eq=False)
class QueueEntry:
    """A place in the line."""

    agent: str
    need: Mapping[str, float]
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class TeamState:
    """One team. `spawning` are its births under way, `names` those of its agents, of the unborn as well."""

    def __init__(self, row: TeamRow, books: TeamTables, clock: Clock) -> None:
        self.id, self.label = row.id, row.name or row.id
        self.team = Team(name=self.label, total=row.resources, held=row.held, spent=row.spent)
        self.names: set[str] = set()
        self.spawning: set[asyncio.Task[Any]] = set()
        self.deleting: asyncio.Task[None] | None = None
        self._row, self._books, self._clock = row, books, clock
        self._line: deque[QueueEntry] = deque()
        self._writing = asyncio.Lock()

    @property
    def row(self) -> TeamRow:
        """The team as it is to be written down."""
        held = {agent: dict(each) for agent, each in self.team.held.items()}
        return replace(self._row, held=held, spent=dict(self.team.spent), doomed=self.is_doomed)

    @property
    def is_doomed(self) -> bool:
        """Whether it is being deleted, since an earlier server perhaps."""
        return self.deleting is not None or self._row.doomed

    @property
    def config(self) -> Any:
        """The configuration of a team, for the backend alone."""
        return msgspec.json.decode(self._row.config)

    @property
    def defaults(self) -> dict[str, float]:
        """Limits of its agents that do not state them."""
        return dict(self._row.defaults)

    @property
    def key(self) -> str:
        """The hash of the team's key."""
        return self._row.key

    def info(self, together: Collection[str]) -> TeamInfo:
        """The team, for whoever may see it; `together` is what of a reservation the machine bounds."""
        team = self.team
        return TeamInfo(
            id=self.id,
            name=self._row.name,
            resources=dict(team.total),
            held=team.holding,
            spent={name: team.spent.get(name, 0.0) for name in team.total},
            free=team.free,
            bounded=[name for name, field in RESERVED.items() if name in team.total and field in together],
            agents=len(team.held),
            labels=dict(self._row.labels),
            created_at=self._row.created_at.isoformat(),
            defaults=dict(self._row.defaults),
            config=self.config,
        )

    def take_name(self, name: str) -> None:
        """Let nobody else in this team have it. Raises InvalidValue if somebody does."""
        if name in self.names:
            raise InvalidValue("name", name, f"a name that no other agent of team {self.label!r} has")
        self.names.add(name)

    async def admit(self, agent: str, need: Mapping[str, float], wait_s: float) -> None:
        """Let an agent hold what it needs, at once or when its turn has come. A cancel leaves the line.

        Who waits is served in order; who does not may have what is free meanwhile. Raises OverCapacity when the time is
        up, or when it could not fit if all others were gone; BusyError for a full line; InvalidValue.
        """
        if not (wait_s and self._line):
            try:
                self.team = self.team.admit(agent, need)
                return
            except OverCapacity:
                if not wait_s:
                    raise
        self.team.check(need)
        if len(self._line) >= MOST_WAITING:
            raise BusyError(f"{MOST_WAITING} spawns wait in the line of team {self.label!r}, as many as may; ask again")
        place = QueueEntry(agent, need)
        self._line.append(place)
        try:
            await wait_with_timeout(place.granted, clock=self._clock, seconds=wait_s)
        except TimeoutError:
            self._leave(place)
            self.team = self.team.admit(agent, need)  # What fits beside those who were before it, else OverCapacity.
        except BaseException:
            self._leave(place)
            raise

    async def release(self, agent: str, used: Mapping[str, float], *rows: AgentRow) -> None:
        """Take back what an agent held but for what it used up, and write that down together with `rows`."""
        self.team = self.team.release(agent, used)
        self._serve()
        await self.write(*rows)

    async def write(self, *rows: AgentRow) -> None:
        """Write down how the team is now, together with rows of agents. A cancel is raised when that is done."""
        await run_shielded(self._write(rows))

    async def found(self) -> None:
        """Put it on record for the first time. Raises Conflict if another team has its name."""
        async with self._writing:
            await run_shielded(self._books.found(self.row))

    async def remove(self) -> None:
        """Forget the team."""
        async with self._writing:
            await self._books.remove(self._row)

    async def _write(self, rows: tuple[AgentRow, ...]) -> None:
        async with self._writing:
            await self._books.write(self.row, *rows)

    def _serve(self) -> None:
        """Admit from the head of the line whoever fits now."""
        while self._line:
            place = self._line[0]
            if not place.granted.done():
                try:
                    self.team = self.team.admit(place.agent, place.need)
                except OverCapacity:
                    if (never := self._why_never(place)) is None:
                        return
                    place.granted.set_exception(never)
                else:
                    place.granted.set_result(None)
            self._line.popleft()

    def _why_never(self, place: QueueEntry) -> OverCapacity | None:
        try:
            self.team.check(place.need)
        except OverCapacity as never:
            return never
        return None

    def _leave(self, place: QueueEntry) -> None:
        """Stand in line no more, and hold nothing."""
        if place in self._line:
            self._line.remove(place)
        self.team = self.team.release(place.agent, {})
        self._serve()
