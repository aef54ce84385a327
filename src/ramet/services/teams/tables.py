"""Teams and agents as documents of a store, from which they are resumed after a killed server.

Keys are stored as hashes. A team's row contains what its agents hold, so that one write admits an agent and creates its
row.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from ramet.core.errors import Conflict, Damaged, Unknown
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Policy
from ramet.host.control.run_queries import JournalReader
from ramet.services.contract import AgentState
from ramet.services.errors import TakenOver
from ramet.services.teams.keys import Keyring
from ramet.store.contract import Document, DocumentWrite, Store

TEAM, AGENT = "team", "served"
NAME = "team name"  #: the team with a name, so that only one of two kernels can use the name
VERSION = 1


class TeamRow(Struct, frozen=True, kw_only=True):
    """A team. `doomed` marks a team that was being deleted: it is never resumed."""

    version: int = VERSION
    id: str
    name: str
    key: str  #: the hash of the key
    resources: dict[str, float]
    held: dict[str, dict[str, float]]
    spent: dict[str, float]
    labels: dict[str, str]
    config: Raw
    created_at: datetime
    doomed: bool = False
    defaults: dict[str, float] = {}
    kernel: str = ""  #: the name of the kernel that has it, of several on one store; "" if any kernel may take it


class AgentRow(Struct, frozen=True, kw_only=True):
    """An agent, as requested and in its present state. `policy` has names of secrets, not their values.

    Variables are recorded by name only; rows of older versions have values.
    """

    version: int = VERSION
    id: str
    team: str
    name: str
    path: str
    agent_type: str
    spawn_info: Raw
    transport_format: str
    image: str
    policy: Policy | None
    limits: dict[str, float]
    env: dict[str, str]
    labels: dict[str, str]
    metadata: dict[str, str]
    keys: Keyring
    state: AgentState
    created_at: datetime
    run: str = ""
    isolation: str = ""
    turns: int = 0
    error: ErrorInfo | None = None
    bundles: tuple[str, ...] = ()  #: that were loaded while it was running
    keep_failed_s: float | None = None
    failed_at: datetime | None = None
    env_names: tuple[str, ...] = ()  #: of variables in `env`
    policy_env_names: tuple[str, ...] = ()  #: of variables in the policy


R = TypeVar("R", TeamRow, AgentRow)


class Rows(NamedTuple, Generic[R]):
    """The recorded rows of a kind."""

    readable_rows: list[R]
    errors: dict[str, Damaged]  #: the errors of unreadable rows, including rows of a newer ramet; by their ids


class _Version(Struct):
    version: int


class TeamTables:
    """The rows of one store. Only the holder of the newest version of a row can change it; other writers get TakenOver.

    A row that is written here is held. Reading a row does not hold it: another kernel may have it already.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._versions: dict[tuple[str, str], int] = {}  #: of rows that are held
        self._read_versions: dict[tuple[str, str], int] = {}  #: of rows at the last read
        self._lost_keys: set[tuple[str, str]] = set()  #: lost rows: not created again if another kernel removed them

    async def teams(self) -> Rows[TeamRow]:
        return await self._all(TEAM, TeamRow)

    async def agents(self) -> Rows[AgentRow]:
        return await self._all(AGENT, AgentRow)

    async def foreign_agents(self, teams: Container[str]) -> list[AgentRow]:
        """Return the agents of all other teams, read-only. Raises Damaged for an agent that cannot be read."""
        rows = [_decode(each, AgentRow) for each in await self._store.list(AGENT)]
        return [each for each in rows if each.team not in teams]

    async def leftover_agents(self, team: str) -> list[AgentRow]:
        """Return the recorded agents of a team that is held here, and hold them. Unreadable rows are skipped."""
        rows = list[AgentRow]()
        for each in await self._store.list(AGENT):
            with suppress(Damaged):
                row = _decode(each, AgentRow)
                if row.team == team:
                    self._versions[AGENT, each.key] = each.version
                    rows.append(row)
        return rows

    async def needed_trees(self) -> list[str]:
        """Return the roots of the trees from which agents continue at their next turn, although the trees have ended.

        Raises Damaged for an agent that cannot be read: its needs are unknown.
        """
        records, needed_ids = JournalReader(self._store, ()), list[str]()
        agents = await self.agents()
        for error in agents.errors.values():
            raise error
        for row in agents.readable_rows:
            if row.run and row.state not in ("failed", "ended"):
                with suppress(Unknown):  # Nothing of the tree is left.
                    needed_ids.append(await records.tree_of(row.run))
        return needed_ids

    async def team_by_name(self, name: str) -> TeamRow | None:
        """Return the team of that name, of any kernel, read-only. Raises Damaged."""
        id = await self._store.get(NAME, name)
        return await self.team(id.data.decode()) if id is not None else None

    async def team(self, id: str) -> TeamRow | None:
        """Return the team of that id, of any kernel, read-only. Raises Damaged."""
        document = await self._store.get(TEAM, id)
        return _decode(document, TeamRow) if document is not None else None

    async def write(self, *rows: TeamRow | AgentRow) -> None:
        """Write all of these rows or none.

        Raises TakenOver if another kernel changed one since it was read or written.
        """
        if lost_rows := self._lost_keys.intersection(map(_key_of, rows)):
            raise _takeover_error(*min(lost_rows))
        try:
            documents = await self._store.put_together([], self._writes(*rows))
        except Conflict as conflict:
            raise _takeover_error(conflict.kind, conflict.key) from None
        for document in documents:
            self._versions[document.kind, document.key] = document.version

    async def create(self, row: TeamRow) -> None:
        """Write a new team. Raises Conflict if there is a team of its name."""
        writes = [DocumentWrite(*_key_of(row), msgspec.json.encode(row), 0)]
        if row.name:
            name_document = await self._store.get(NAME, row.name)
            is_orphaned = name_document is not None and await self._store.get(TEAM, name_document.data.decode()) is None
            writes.append(
                DocumentWrite(
                    NAME,
                    row.name,
                    row.id.encode(),
                    name_document.version if name_document is not None and is_orphaned else 0,
                )
            )
        team, *_ = await self._store.put_together([], writes)
        self._versions[team.kind, team.key] = team.version

    async def take_over(self, team: TeamRow, agents: Sequence[AgentRow], previous_kernel: str) -> bool:
        """Write a team and its agents as this kernel's, with their trees. Return False if another kernel was first.

        The result is False if the kernel `previous_kernel`, which had the team, is alive again, or another kernel has
        one of the trees. The agents are written unchanged, so that their previous kernel cannot write them any more.
        """
        self.hold(team, *agents)
        try:
            documents = await self._store.take_over(
                previous_kernel, [agent.run for agent in agents if agent.run], self._writes(team, *agents)
            )
        except Conflict:
            documents = None
        if documents is None:
            self.drop(team, *agents)
            return False
        for document in documents:
            self._versions[document.kind, document.key] = document.version
        return True

    def hold(self, *rows: TeamRow | AgentRow) -> None:
        """Hold rows in the version that was read last."""
        row_keys = list(map(_key_of, rows))
        self._versions.update({row_key: self._read_versions[row_key] for row_key in row_keys})
        self._lost_keys.difference_update(row_keys)

    def holds(self, row: TeamRow) -> bool:
        """Return whether a team was written here, or is held."""
        return _key_of(row) in self._versions

    def drop(self, *rows: TeamRow | AgentRow) -> None:
        """Mark rows as another kernel's: later writes of them raise TakenOver."""
        for row_key in map(_key_of, rows):
            self._versions.pop(row_key, None)
            self._lost_keys.add(row_key)

    async def remove(self, row: TeamRow | AgentRow) -> None:
        """Remove a row; a missing row is no error. Raises TakenOver."""
        row_key = _key_of(row)
        if row_key in self._versions:
            try:
                await self._store.delete(*row_key, expected=self._versions[row_key])
            except Conflict as conflict:
                raise _takeover_error(conflict.kind, conflict.key) from None
            del self._versions[row_key]
            if isinstance(row, TeamRow) and row.name:
                name_document = await self._store.get(NAME, row.name)
                # Another kernel may have used the name since.
                if name_document is not None and name_document.data.decode() == row.id:
                    with suppress(Conflict):
                        await self._store.delete(NAME, row.name, expected=name_document.version)

    def _writes(self, *rows: TeamRow | AgentRow) -> list[DocumentWrite]:
        return [
            DocumentWrite(kind, key, msgspec.json.encode(row), self._versions.get((kind, key), 0))
            for row, (kind, key) in zip(rows, map(_key_of, rows), strict=True)
        ]

    async def _all(self, kind: str, type: type[R]) -> Rows[R]:
        documents = await self._store.list(kind)
        rows = Rows[R]([], {})
        for each in documents:
            try:
                rows.readable_rows.append(_decode(each, type))
            except Damaged as damaged:
                rows.errors[each.key] = damaged
        self._read_versions = {
            row_key: version for row_key, version in self._read_versions.items() if row_key[0] != kind
        }
        self._read_versions.update({(each.kind, each.key): each.version for each in documents})
        return rows


def _key_of(row: TeamRow | AgentRow) -> tuple[str, str]:
    return (TEAM if isinstance(row, TeamRow) else AGENT), row.id


def _takeover_error(kind: str, key: str) -> TakenOver:
    return TakenOver("team" if kind == TEAM else "agent", key)


def is_readable(team: Document) -> bool:
    """Return whether the row of a team can be read: no kernel takes an unreadable one."""
    try:
        _decode(team, TeamRow)
    except Damaged:
        return False
    return True


def _decode(document: Document, type: type[R]) -> R:
    version = document.decode(_Version).version
    if version > VERSION:
        raise Damaged(document.kind, document.key, f"it is of version {version}, and this ramet reads {VERSION}")
    return document.decode(type)
