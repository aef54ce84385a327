"""The recovery after a killed server: running agents are resumed, and unfinished spawns and removals are cleaned up."""

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
from ramet.services.teams.agent_lifecycle import AgentLifecycle, close_and_measure
from ramet.services.teams.agents import AgentEntry
from ramet.services.teams.secret_values import configured_values, restore_secrets, supplied_values
from ramet.services.teams.tables import AgentRow, TeamTables
from ramet.services.teams.team_state import TeamState
from ramet.services.teams.validation import Checks

_log = logging.getLogger("ramet.services")
_MAX_CONCURRENT = 8  #: agents that are opened concurrently


@dataclass(frozen=True)
class Recovery:
    """The recovery of agents, with the same id, path, keys and part of their team. Their values are not recorded."""

    lifecycle: AgentLifecycle
    team_states: Mapping[str, TeamState]
    tables: TeamTables
    checks: Checks
    secrets: Mapping[str, str]
    env_vars: Mapping[str, str]
    on_resumed: Callable[[AgentEntry], Awaitable[None]]  #: called with each reopened agent, before clients can find it

    async def __call__(
        self, teams: Collection[str], rows: Collection[AgentRow], damaged_ids: Collection[str] = ()
    ) -> None:
        """Resume the agents of teams. Agents of teams that are being deleted are removed.

        An agent whose values are missing waits for them. An agent that cannot be opened again is failed, with the
        error. An error of one agent is logged, and does not affect the others. The parts of agents whose rows are
        `damaged_ids`, by their ids, stay held. Raises StoreFailed.
        """
        known_ids = {*damaged_ids, *(row.id for row in rows)}
        for id in teams:
            team_state = self.team_states[id]
            for agent in team_state.team.holdings.keys() - known_ids:
                with log_errors(f"the reservation of agent {agent} in team {team_state.label}"):
                    await team_state.release(agent, {})
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT)

        store_failures: list[StoreFailed] = []

        async def take_up(row: AgentRow) -> None:
            async with semaphore:
                try:
                    with log_errors(f"agent {row.path} ({row.id})"):
                        await self._resume_agent(row)
                except StoreFailed as problem:
                    store_failures.append(problem)

        async with asyncio.TaskGroup() as group:
            for row in sorted(rows, key=lambda row: (row.created_at, row.id)):
                group.create_task(take_up(row))
        if store_failures:
            raise store_failures[0]

    async def resume(self, entry: AgentEntry, values: SupplyValues, check: Callable[[], object]) -> AgentEntry:
        """Open a waiting agent with its values. If that fails, it continues to wait.

        `check` raises if the caller may not do this any more when its turn comes. Raises InvalidValue, NotYours for an
        agent that is being killed, TakenOver, and the errors of the agent's type.
        """
        async with entry.write_lock:
            check()
            team_state, row = self._team_state_of(entry), entry.row
            if entry.state != "waiting":
                raise InvalidValue("state", entry.state, "an agent that is waiting for values")
            restored_row = restore_secrets(row, supplied_values(row, values, self._configured_values(row)))
            reopened_entry = await self.lifecycle.open(row, await self.checks(restored_row, team_state.team.total))
            reopened_entry.write_lock = entry.write_lock  # Tasks that wait to change the row keep their places.
            try:
                self._team_state_of(entry)
                await self.on_resumed(reopened_entry)
                self._team_state_of(entry)
            except BaseException:
                await run_shielded(close_and_measure(reopened_entry, "it cannot be resumed"))
                raise
            entry.state = "idle"  # A second request that waits for the lock is then refused.
            self.lifecycle.add(reopened_entry)
        await reopened_entry.save()
        return reopened_entry

    def _team_state_of(self, entry: AgentEntry) -> TeamState:
        """Return the team of an agent that is not being ended. Raises NotYours, TakenOver."""
        team_state = self.team_states.get(entry.row.team)
        if team_state is None:
            raise TakenOver("agent", entry.id)
        if entry.end_task is not None:
            raise NotYours("agent", entry.id)
        return team_state

    def _configured_values(self, row: AgentRow) -> SupplyValues:
        return configured_values(row, self.secrets, self.env_vars)

    async def _resume_agent(self, row: AgentRow) -> None:
        team_state = self.team_states[row.team]
        has_ended = row.state in ("failed", "ended")
        was_ending = not has_ended and row.id not in team_state.team.holdings
        if team_state.is_deleting or row.state == "starting" or was_ending:
            await self.lifecycle.release_and_remove(team_state, row, _usage_of(row))
            return
        team_state.reserve_name(row.name)
        if has_ended:
            if row.id in team_state.team.holdings:  # The server was killed before the failed agent released its part.
                await self.lifecycle.release(team_state, row.id, _usage_of(row))
            await self.lifecycle.add_ended(row)
        else:
            await self._open(team_state, row)

    async def _open(self, team_state: TeamState, row: AgentRow) -> None:
        entry, usage = None, _usage_of(row)
        try:
            restored_row = restore_secrets(row, self._configured_values(row))
        except ValuesMissing as missing:
            _log.warning("agent %s (%s) waits: %s", row.path, row.id, missing)
            self.lifecycle.add_waiting(team_state, row, missing)
            return
        try:
            entry = await self.lifecycle.open(row, await self.checks(restored_row, team_state.team.total))
            await self.on_resumed(entry)
        except Exception as problem:
            if entry is not None:
                usage = await close_and_measure(entry, "it cannot be resumed")
            if isinstance(problem, StoreFailed):  # The next kernel of the store resumes the agent.
                raise
            _log.warning("agent %s (%s) cannot be resumed: %s", row.path, row.id, problem)
            row = self.lifecycle.failed_row(row, error_of(problem))
            await self.lifecycle.release(team_state, row.id, usage, row)
            await self.lifecycle.add_ended(row)
            return
        self.lifecycle.add(entry)
        await entry.save()


@contextmanager
def log_errors(subject: str) -> Iterator[None]:
    """Log an error of the block, and continue. Raises StoreFailed."""
    try:
        yield
    except StoreFailed:
        raise
    except TakenOver as problem:  # This kernel will be informed.
        _log.info("%s is owned by another kernel: %s", subject, problem)
    except Exception as problem:
        _log.error("%s cannot be resumed: %s: %s", subject, type(problem).__name__, problem)


def _usage_of(row: AgentRow) -> Mapping[str, float] | None:
    """Return the use of an agent that cannot report it: nothing before its first run, else None (unknown)."""
    return None if row.run else {}
