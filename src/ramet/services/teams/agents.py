"""The agents of this server, and the rights on each. Unknown, foreign and forbidden agents raise the same error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, NotYours, Unknown
from ramet.services.contract import RIGHTS, AgentInfo, AgentSpec, AgentState, Right, RunningAgent
from ramet.services.teams import keys
from ramet.services.teams.tables import AgentRow, TeamTables

#: The keyring that is searched for an unknown agent, so that it takes as long as for a known one.
_UNKNOWN_KEYRING = keys.Keyring(owner=keys.hash_of("nobody has this key"))
#: the changing fields of a row
_CHANGING_FIELDS = ("state", "run", "isolation", "turns", "error", "bundles", "failed_at")


class KeptFailure(NamedTuple):
    """The time until which a failed agent is kept, and the folders that it left."""

    until: datetime
    folders: tuple[str, ...]


class AgentEntry:
    """An agent of this server, until it is killed; a failed agent is kept here as well.

    `queue` belongs to the owner of the conversation. That owner also sets `state` to "working" and back to "idle", and
    counts `turns`. `save` records these changes.
    """

    def __init__(
        self,
        row: AgentRow,
        running_agent: RunningAgent,
        tables: TeamTables,
        clock: Clock,
        *,
        spec: AgentSpec | None = None,
    ) -> None:
        """Create an entry. Without a `spec`, the agent could not be opened again, or waits for values."""
        self.row, self.running_agent, self.spec = row, running_agent, spec
        self.state: AgentState = row.state
        self.turns = row.turns
        self.error = row.error
        self.failed_at = row.failed_at
        self.kept_failure: KeptFailure | None = None  #: of a failed agent that is kept for a while
        self.queue: Any = None
        self.fail_task: asyncio.Task[None] | None = None
        self.end_task: asyncio.Task[Any] | None = None
        self.write_lock = asyncio.Lock()  #: held while its row is written
        self.watchers: set[Callable[[], object]] = set()  #: called after each change of its keys
        self._tables, self._clock = tables, clock

    @property
    def id(self) -> str:
        return self.row.id

    def info(self) -> AgentInfo:
        row = self.row
        return AgentInfo(
            id=row.id,
            team=row.team,
            name=row.name,
            path=row.path,
            agent_type=row.agent_type,
            transport_format=row.transport_format,
            state=self.state,
            image=row.image,
            labels=dict(row.labels),
            metadata=dict(row.metadata),
            run=self.running_agent.run or row.run,
            isolation=self.running_agent.isolation,
            bundles=self._bundles,
            turns=self.turns,
            created_at=row.created_at.isoformat(),
            error=self.error,
            kept_until=self.kept_failure.until.isoformat() if self.kept_failure is not None else "",
            kept=list(self.kept_failure.folders) if self.kept_failure is not None else [],
        )

    def as_row(self) -> AgentRow:
        """Return the row of the agent as it is to be written. A working or waiting agent is written as idle."""
        return replace(
            self.row,
            state="idle" if self.state in ("working", "waiting") else self.state,
            run=self.running_agent.run or self.row.run,
            isolation=self.running_agent.isolation,
            turns=self.turns,
            error=None if self.state == "waiting" else self.error,
            bundles=self._bundles,
            failed_at=self.failed_at,
        )

    @property
    def required_bundles(self) -> tuple[str, ...]:
        """The ids of the bundles that are loaded, or are being loaded.

        For an agent that is not open, the ids of its row.
        """
        if self.spec is None:
            return self.row.bundles
        return self.spec.loaded_bundles.required_ids if self.spec.loaded_bundles is not None else ()

    @property
    def _bundles(self) -> tuple[str, ...]:
        loaded_bundles = self.spec.loaded_bundles if self.spec is not None else None
        return self.row.bundles if loaded_bundles is None else tuple(each.id for each in loaded_bundles.bundles)

    def has_right(self, by: str, right: Right) -> bool:
        """Return whether a key has a right now, also after the agent was killed. `by` is the key's hash, or OPERATOR.

        "" means the owner's key: turns that an older version recorded do not name their key.
        """
        ring = self.row.keys
        key_rights = keys.rights_of_hash(ring, by or ring.owner, self._clock.now())
        return by == keys.OPERATOR or (key_rights is not None and right in key_rights.rights)

    def seconds_left(self, by: str) -> float | None:
        """Return for how long a key is valid; None means until it is revoked."""
        return keys.seconds_left(self.row.keys, by, self._clock.now())

    async def save(self) -> None:
        """Record the changed fields, such as run, state and turns. Nothing is written if nothing has changed."""
        async with self.write_lock:
            if self.end_task is None and _changes(self.row, row := self.as_row()):
                await self.write(row)

    async def write(self, row: AgentRow) -> None:
        """Record a new row, then use it. The caller holds `write_lock`.

        A cancellation is raised when the row is written.
        """

        async def write() -> None:
            await self._tables.write(row)
            has_new_keys, self.row = row.keys != self.row.keys, row
            for look in tuple(self.watchers) if has_new_keys else ():
                look()

        await run_shielded(write())


@dataclass(frozen=True)
class AgentAccess:
    """An agent, and a right that a key had on it when it was presented, and may have lost since."""

    entry: AgentEntry
    key: keys.ValidKey
    requester: str  #: the hash of the key, or OPERATOR
    right: Right
    clock: Clock

    def check(self) -> None:
        """Raise NotYours if the key has lost the right."""
        if not self.entry.has_right(self.requester, self.right):
            raise NotYours("agent", self.entry.id)

    @contextmanager
    def watch(self, on_lost: Callable[[], object]) -> Iterator[None]:
        """Call `on_lost` when the key loses the right, by a change of keys or because its time is over."""

        def look() -> None:
            if not self.entry.has_right(self.requester, self.right):
                on_lost()

        async def look_later(seconds: float) -> None:
            remaining_s: float | None = seconds
            while remaining_s is not None and remaining_s > 0:
                await self.clock.sleep(remaining_s)
                remaining_s = self.entry.seconds_left(self.requester)
            look()

        self.entry.watchers.add(look)
        validity_s = self.entry.seconds_left(self.requester)
        timer = asyncio.create_task(look_later(validity_s), name="ramet key's time") if validity_s is not None else None
        try:
            yield
        finally:
            self.entry.watchers.discard(look)
            if timer is not None:
                timer.cancel()


class AgentTable:
    """The agents of this server, by their ids. The operator's key gives access to all of them."""

    def __init__(self, operator: str, clock: Clock) -> None:
        if not operator:
            raise InvalidValue("operator", operator, "a key")
        self._operator, self._clock = keys.hash_of(operator), clock
        self._entries: dict[str, AgentEntry] = {}

    def __iter__(self) -> Iterator[AgentEntry]:
        return iter(list(self._entries.values()))

    def paths_by_run(self) -> dict[str, str]:
        """Return the paths of the agents, by the roots of their trees."""
        runs = ((each.running_agent.run or each.row.run, each.row.path) for each in self._entries.values())
        return {run: path for run, path in runs if run}

    def add(self, entry: AgentEntry) -> None:
        self._entries[entry.id] = entry

    def remove(self, entry: AgentEntry) -> None:
        self._entries.pop(entry.id, None)

    def of_team(self, team: str) -> list[AgentEntry]:
        return [each for each in self if each.row.team == team]

    def has(self, agent_id: str) -> bool:
        """Return whether an agent with that id exists. Keys are not checked."""
        return agent_id in self._entries

    def is_operator(self, key: str) -> bool:
        return keys.key_matches(key, self._operator)

    def knows_key(self, key: str, first: str = "") -> bool:
        """Return whether a key has any right on any agent; the agent with the id `first` is checked first."""
        entry = self._entries.get(first)
        if entry is not None and keys.rights_of_hash(entry.row.keys, keys.hash_of(key), self._clock.now()) is not None:
            return True
        return bool(self._rights_of(key))

    def team_of(self, key: str) -> str:
        """Return the team of the agent on which a key has any right; "" if there is none."""
        return next((entry.row.team for entry, _ in self._rights_of(key)), "")

    def has_right(self, key: str, right: Right) -> bool:
        """Return whether a key has that right on any agent."""
        return any(right in key_rights.rights for _, key_rights in self._rights_of(key))

    def find_by_key(self, key: str, right: Right) -> AgentEntry:
        """Return the agent on which a key has that right.

        Raises NotYours, also for the operator's key: it opens all agents.
        """
        entries = [entry for entry, key_rights in self._rights_of(key) if right in key_rights.rights]
        if not entries:
            raise NotYours("agent", "")
        return entries[-1]

    def authorize(self, agent_id: str, key: str, right: Right) -> AgentAccess:
        """Return the access of a key with that right. Raises NotYours, which is the same for every reason."""
        entry = self._entries.get(agent_id)
        by = keys.hash_of(key)
        key_rights = keys.rights_of_hash(
            entry.row.keys if entry is not None else _UNKNOWN_KEYRING, by, self._clock.now()
        )
        if self.is_operator(key):
            key_rights, by = keys.ValidKey(keys.OWNER, RIGHTS), keys.OPERATOR
        if entry is None or key_rights is None or right not in key_rights.rights:
            raise NotYours("agent", agent_id)
        return AgentAccess(entry, key_rights, by, right, self._clock)

    def _rights_of(self, key: str) -> list[tuple[AgentEntry, keys.ValidKey]]:
        """Return the agents on which a key has any right. All agents are searched in every case."""
        hash, now = keys.hash_of(key), self._clock.now()
        rights = [(entry, keys.rights_of_hash(entry.row.keys, hash, now)) for entry in self._entries.values()]
        return [(entry, key_rights) for entry, key_rights in rights if key_rights is not None]


async def wait_persisted(entry: AgentEntry) -> None:
    """Wait until all that an agent did is in the record of its tree. Raises StoreFailed."""
    if entry.spec is not None:
        with suppress(Unknown):  # The agent has no tree.
            await entry.spec.runtime.get(entry.running_agent.run).run.context.wait_persisted()


def has_failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task was cancelled, or raised."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def _changes(old: AgentRow, new: AgentRow) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in _CHANGING_FIELDS)
