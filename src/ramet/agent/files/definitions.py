"""The available agents: from files, code and the built-in ones, with precedence and problems.

A tree keeps a `snapshot()`: definitions that a run writes into the agents' folders have no effect until a new tree
reads them. Call `refresh()` between the starts of trees.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ramet.agent.builtin import builtin_agents
from ramet.agent.definition import PRECEDENCE, Agent
from ramet.agent.files.agent_file import MAX_FILE, AgentFile
from ramet.agent.files.bounded_read import FileStamp, Unreadable, read_text
from ramet.agent.files.dialects.dialect_parser import parse_file
from ramet.agent.files.mcp_file import ServerFile, read_server_file
from ramet.agent.files.search_paths import (
    Candidate,
    Problem,
    SearchPath,
    agent_files,
    agent_search_paths,
    plugin_search_paths,
    user_agent_search_paths,
)
from ramet.agent.tool_entry import parse_entry
from ramet.core.errors import InvalidValue

#: A file changed this shortly before it was read may change again with the same time and size: read it again.
_RACY_NS = 100_000_000


class ShadowedDefinition(NamedTuple):
    """A definition that is hidden by another of the same name."""

    name: str
    loser: str  #: scope and file, as `user ~/.claude/agents/x.md`, with the full path
    winner: str


class _Entry(NamedTuple):
    """The state of one file. `file` is the last valid version, also while the file is invalid."""

    search_path: SearchPath
    stamp: FileStamp | None
    digest: bytes
    file: AgentFile | None
    problem: str | None = None


class Snapshot(Mapping[str, Agent]):
    """The definitions at one moment; immutable."""

    def __init__(
        self,
        agents: dict[str, Agent],
        problems: Iterable[Problem],
        notes: Iterable[Problem],
        shadowed_definitions: Iterable[ShadowedDefinition],
    ) -> None:
        self._agents = MappingProxyType(agents)
        self.problems = tuple(problems)  #: files that were skipped or are used in an older version, and bad references
        self.notes = tuple(notes)  #: settings that are read but not used, or switched off
        self.shadowed_definitions = tuple(shadowed_definitions)

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)


class Definitions(Mapping[str, Agent]):
    """The definitions as of the last `refresh()`."""

    def __init__(
        self,
        search_paths: Sequence[SearchPath],
        fixed_agents: Sequence[Agent],
        *,
        trusted: bool = False,
        project_dir: Path | None = None,
    ) -> None:
        self._search_paths, self._fixed_agents = tuple(search_paths), tuple(fixed_agents)
        self._project_dir, self._server_file = project_dir, ServerFile()
        self._entries: dict[Path, _Entry] = {}
        self._state: object = None
        self._view = Snapshot({}, (), (), ())
        self.refresh(trusted=trusted)

    def __getitem__(self, name: str) -> Agent:
        return self._view[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._view)

    def __len__(self) -> int:
        return len(self._view)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._view.problems

    @property
    def notes(self) -> tuple[Problem, ...]:
        return self._view.notes

    @property
    def shadowed_definitions(self) -> tuple[ShadowedDefinition, ...]:
        return self._view.shadowed_definitions

    def snapshot(self) -> Snapshot:
        """Return the current definitions, for a tree to keep: later refreshes do not change them."""
        return self._view

    def refresh(self, *, trusted: bool | None = None) -> bool:
        """Read changed files again; return True if anything changed. Never raises for the content of a file.

        A file that became invalid or unreadable keeps its last valid version and is reported. `trusted` is the current
        verdict on the project; without it, a changed file of a project is read without its hooks.
        """
        entries: dict[Path, _Entry] = {}
        has_new_servers = self._read_servers(trusted)
        obstacles: list[Problem] = list(self._server_file.problems)
        for search_path in self._search_paths:
            for candidate in agent_files(search_path):
                if isinstance(candidate, Candidate):
                    must_parse = has_new_servers or (trusted is not None and search_path.scope == "project")
                    entries[candidate.path] = self._current(search_path, candidate, trusted, must_parse=must_parse)
                elif candidate.path in self._entries:
                    entries[candidate.path] = self._make_failed_entry(
                        self._entries[candidate.path], candidate.reason, trusted
                    )
                else:
                    obstacles.append(Problem(candidate.path, f"{candidate.reason}; skipped"))
                    entries.update(self._known_entries_below(candidate.path, entries, trusted))
        state = (obstacles, [(path, entry.file, entry.problem) for path, entry in entries.items()])
        self._entries = entries
        if state == self._state:
            return False
        self._state = state
        self._view = _assemble([*self._candidates(entries)], [*obstacles, *_problems(entries)], _notes(entries))
        return True

    def _read_servers(self, trusted: bool | None) -> bool:
        """Read the servers of the project again, with a verdict on it; return True if they have changed."""
        if trusted is None or self._project_dir is None:
            return False
        known_servers = self._server_file.servers
        self._server_file = read_server_file(self._project_dir) if trusted else ServerFile()
        return self._server_file.servers != known_servers

    def _current(
        self, search_path: SearchPath, candidate: Candidate, trusted: bool | None, *, must_parse: bool
    ) -> _Entry:
        """Return the entry of an existing file: the known one, if it is still valid."""
        known_entry = self._entries.get(candidate.path)
        if known_entry is not None and known_entry.stamp == candidate.stamp and not must_parse:
            return known_entry
        now = time.time_ns()  # the scale of the file's own times; a wrong clock costs a second reading
        try:
            text, stamp, _ = read_text(candidate.path, limit=MAX_FILE, fence=search_path.fence)
            digest = hashlib.sha256(text.encode()).digest()
            stable_stamp = stamp if now - stamp.mtime_ns > _RACY_NS else None
            if known_entry is not None and known_entry.digest == digest and not must_parse:
                return known_entry._replace(stamp=stable_stamp)
        except Unreadable as error:
            return self._make_failed_entry(known_entry or _Entry(search_path, None, b"", None), error.reason, trusted)
        try:
            file = parse_file(
                text,
                source=candidate.path,
                scope=search_path.scope,
                dialect=search_path.dialect,
                trusted=bool(trusted),
                servers=self._server_file.servers,
            )
        except InvalidValue as error:
            reason = str(error).removeprefix(f"{candidate.path}: ")
            failed_entry = self._make_failed_entry(known_entry or _Entry(search_path, None, b"", None), reason, trusted)
            return failed_entry._replace(stamp=stable_stamp, digest=digest)
        return _Entry(search_path, stable_stamp, digest, file)

    def _make_failed_entry(self, known_entry: _Entry, reason: str, trusted: bool | None) -> _Entry:
        file = known_entry.file
        if file is not None and trusted is False and known_entry.search_path.scope == "project":
            memory = None if file.agent.memory == "user" else file.agent.memory
            permissions = file.agent.permissions.narrowing()
            agent = file.agent.replace(hooks=None, mcp=(), memory=memory, permissions=permissions)
            file = AgentFile(agent, file.notes, file.is_disabled)
        consequence = "skipped" if file is None else "the version read before stays in use"
        return _Entry(known_entry.search_path, None, b"", file, f"{reason}; {consequence}")

    def _known_entries_below(
        self, folder: Path, entries: dict[Path, _Entry], trusted: bool | None
    ) -> dict[Path, _Entry]:
        """Return the known entries below a folder that still exists but cannot be listed now."""
        return {
            path: self._make_failed_entry(known_entry, "its folder cannot be read", trusted)
            for path, known_entry in self._entries.items()
            if path not in entries and known_entry.file is not None and path.is_relative_to(folder)
        }

    def _candidates(self, entries: Mapping[Path, _Entry]) -> Iterator[Agent]:
        """Yield every definition, the winners of each name first."""
        for scope in PRECEDENCE:
            yield from (agent for agent in self._fixed_agents if agent.scope == scope)
            for search_path in self._search_paths:
                if search_path.scope == scope:
                    yield from (
                        each.file.agent
                        for each in entries.values()
                        if each.search_path == search_path and each.file and not each.file.is_disabled
                    )


def load_definitions(
    project_dir: Path | None,
    *,
    user_dir: Path | None,
    home: Path | None = None,
    managed_dir: Path | None = None,
    plugin_dirs: Sequence[Path] = (),
    call: Sequence[Agent] = (),
    trusted: bool = False,
) -> Definitions:
    """Read all definitions: managed > call > project > user > plugin > builtin; in a scope the first folder wins.

    Files are in `agents/` of each folder. A project's are in `.ramet/agents`, `.claude/agents`, `.agents/agents`, then
    in the folders of other programs; files that lead out of the project are skipped. `home` is searched for the same in
    addition to `user_dir`. An invalid file is reported in `.problems` and skipped. Raises InvalidValue if two of `call`
    have the same name.
    """
    names = [agent.name for agent in call]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue("agents", name, "one definition of each name")
    search_paths = [
        *([SearchPath(managed_dir / "agents", "managed")] if managed_dir is not None else []),
        *(agent_search_paths(project_dir) if project_dir is not None else ()),
        *(user_agent_search_paths(user_dir, home) if user_dir is not None else ()),
        *plugin_search_paths(plugin_dirs, "agents"),
    ]
    # Copies: what a program declares for an agent later does not change trees that are open.
    fixed_agents = (*(agent.replace(scope="call") for agent in call), *builtin_agents())
    return Definitions(_without_duplicates(search_paths), fixed_agents, trusted=trusted, project_dir=project_dir)


def _without_duplicates(search_paths: Iterable[SearchPath]) -> list[SearchPath]:
    """Remove duplicates: a home directory as project has its `.claude/agents` twice, and counts as the project's."""
    unique: dict[str, SearchPath] = {}
    for search_path in search_paths:
        unique.setdefault(os.path.realpath(search_path.folder), search_path)
    return list(unique.values())


def _label(agent: Agent) -> str:
    return agent.scope if agent.source is None else f"{agent.scope} {agent.source}"


def _assemble(candidates: Sequence[Agent], problems: list[Problem], notes: list[Problem]) -> Snapshot:
    agents: dict[str, Agent] = {}
    shadowed_definitions: list[ShadowedDefinition] = []
    for agent in candidates:
        winner = agents.setdefault(agent.name, agent)
        if winner is agent:
            continue
        shadowed_definitions.append(ShadowedDefinition(agent.name, _label(agent), _label(winner)))
        if winner.source and agent.source and winner.source.parent == agent.source.parent:
            problems.append(
                Problem(agent.source, f"{agent.name!r} is also defined in {winner.source.name}, which wins")
            )
    # Types may spawn each other in a circle, which the depth limit bounds. They must exist.
    for agent in agents.values():
        problems += (
            Problem(agent.source, f"agent {agent.name!r} may spawn {name!r}, which is not defined")
            for name in _spawn_types(agent)
            if name not in agents
        )
    return Snapshot(agents, problems, notes, shadowed_definitions)


def _spawn_types(agent: Agent) -> Iterator[str]:
    for text in agent.tool_entries or ():
        if isinstance(text, str):
            try:
                entry = parse_entry(text)
            except InvalidValue:
                continue  # reported when the tools are resolved
            if entry.spawns:
                yield from entry.arguments or ()


def _problems(entries: Mapping[Path, _Entry]) -> Iterator[Problem]:
    return (Problem(path, entry.problem) for path, entry in entries.items() if entry.problem)


def _notes(entries: Mapping[Path, _Entry]) -> list[Problem]:
    return [Problem(path, note) for path, entry in entries.items() if entry.file for note in entry.file.notes]
