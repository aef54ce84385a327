"""The lifecycle of an agent, which is recorded from before its start until after its removal.

The agent holds its part of its team for all of that time. A failure, a cancellation or a kill cannot leave an agent
without its part, or a part without its agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.outcome import ErrorInfo
from ramet.core.team import amount
from ramet.host.runtime import AgentRuntime
from ramet.isolation import safe_walk
from ramet.services.contract import AgentSpec
from ramet.services.errors import TakenOver, ValuesMissing
from ramet.services.problems import error_of, public_message
from ramet.services.teams.agents import AgentEntry, AgentTable, has_failed, wait_persisted
from ramet.services.teams.ended_agent import EndedAgent, WaitingAgent
from ramet.services.teams.failed_agents import FailedAgents, oldest_over_limit, stripped_row
from ramet.services.teams.tables import AgentRow, TeamTables
from ramet.services.teams.team_state import TeamState
from ramet.services.teams.validation import AgentPlan

T = TypeVar("T")
_log = logging.getLogger("ramet.services")


class AgentLifecycle:
    """The lifecycle of all agents of a server, from spawn to end; `folder` has one folder for each agent.

    Of the failed and ended agents of a team, at most `failed_limit` are kept.
    """

    def __init__(
        self,
        agents: AgentTable,
        team_states: Mapping[str, TeamState],
        tables: TeamTables,
        folder: pathlib.Path,
        runtime: AgentRuntime,
        failed_limit: int,
        before_removal: Callable[[str], Awaitable[None]],
    ) -> None:
        """Call `before_removal` with the id of each agent that is removed permanently, before its row is removed."""
        self._agents, self._team_states, self._tables, self._folder = agents, team_states, tables, folder
        self._clock, self._failed_limit, self._before_removal = runtime.clock, failed_limit, before_removal
        self._failed_agents = FailedAgents(
            runtime.clock, runtime.sandboxes, folder, lambda each: self.end(each, "its retention time is over")
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that continues after its caller has given up; `join` waits for the work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def join(self) -> None:
        """Wait until all started work has ended. Do not wait until the time of kept failed agents is over."""
        await self._failed_agents.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
            await self._failed_agents.close()  # Agents may have failed meanwhile.

    # ---- start of agents

    async def start(self, team_state: TeamState, row: AgentRow, plan: AgentPlan) -> AgentEntry:
        """Start an agent that its team has admitted.

        If an error is raised, the agent is removed and its part is free.
        """
        try:
            await team_state.write(row)
            await plan.check_image()
            entry = await self.open(row, plan)
            try:
                async with entry.write_lock:
                    await entry.write(entry.as_row())
            except BaseException:
                await run_shielded(close_and_measure(entry, "it could not be recorded"))
                raise
        except BaseException:
            await run_shielded(self.release_and_remove(team_state, row, {}))
            raise
        self.add(entry)
        return entry

    async def open(self, row: AgentRow, plan: AgentPlan) -> AgentEntry:
        """Open an agent by its type, with a folder of its own. Raises the errors of its type."""
        spec = plan.spec
        # One system call: a thread would cost 100 times as much.
        spec.folder.mkdir(0o700, parents=True, exist_ok=True)
        try:
            if spec.loaded_bundles is not None:
                await spec.loaded_bundles.open()
            running_agent = await plan.type.open(spec)
        except BaseException:
            await run_shielded(_unload_bundles(spec))
            raise
        entry = AgentEntry(replace(row, state="idle"), running_agent, self._tables, self._clock, spec=spec)
        if spec.loaded_bundles is not None:
            spec.loaded_bundles.save = entry.save
        try:
            await wait_persisted(entry)  # A resume looks for its tree.
        except BaseException:
            await run_shielded(close_and_measure(entry, "it could not be recorded"))
            raise
        return entry

    def add(self, entry: AgentEntry) -> None:
        """Add an agent to the table, and handle its end."""

        def handle_end(ended: asyncio.Future[ErrorInfo | None]) -> None:
            if entry.end_task is None:
                entry.fail_task = self.begin(self._fail(entry, _end_error(ended)))

        self._agents.add(entry)
        entry.running_agent.end.add_done_callback(handle_end)

    async def add_ended(self, row: AgentRow) -> None:
        """Add an agent to the table that is not usable any more. It stays until a caller or a time limit ends it."""
        error = row.error or ErrorInfo(type="Gone", message="it had ended")
        entry = AgentEntry(row, EndedAgent(row.run, row.isolation or "none", error), self._tables, self._clock)
        self._agents.add(entry)
        await self._failed_agents.keep(entry)
        self._end_oldest_failed(entry.row.team)

    def add_waiting(self, team_state: TeamState, row: AgentRow, missing: ValuesMissing) -> None:
        """Add an agent to the table that waits for its values. It holds its part of its team, and its row stays."""
        waiting_agent = WaitingAgent(row.run, row.isolation, missing, team_state.team.holdings.get(row.id, {}))
        entry = AgentEntry(row, waiting_agent, self._tables, self._clock)
        entry.state, entry.error = "waiting", error_of(missing)
        self._agents.add(entry)

    def failed_row(self, row: AgentRow, error: ErrorInfo) -> AgentRow:
        """Return the row of an agent that has failed just now."""
        return stripped_row(replace(row, state="failed", error=error, failed_at=self._clock.now()))

    # ---- end of agents

    def end(self, entry: AgentEntry, reason: str) -> asyncio.Future[None]:
        """Close an agent and remove everything of it, once. A caller that stops waiting does not stop the removal.

        If the removal fails, the agent stays in the table as ended, and the next call tries again.
        """
        if entry.end_task is None or has_failed(entry.end_task):
            entry.end_task = self.begin(self._end(entry, reason))
        return asyncio.shield(entry.end_task)

    async def close_all(self, reason: str) -> None:
        """Close every agent and keep its record, so that a later server can resume it."""
        for entry in self._agents:
            entry.end_task = entry.end_task or self.begin(close_and_measure(entry, reason))
            self._agents.remove(entry)
        await self.join()

    def drop_team(self, team_state: TeamState) -> None:
        """Drop everything of a team that another kernel has: that kernel also has the agents and their turns."""
        for spawn_task in team_state.spawning:
            spawn_task.cancel()
        error = TakenOver("team", team_state.label)
        for entry in self._agents.of_team(team_state.id):
            self._agents.remove(entry)
            self._tables.drop(entry.row)
            if entry.queue is not None:
                entry.queue.fence(error)
            entry.end_task = entry.end_task or self.begin(close_and_measure(entry, str(error)))

    async def release_and_remove(self, team_state: TeamState, row: AgentRow, usage: Mapping[str, float] | None) -> None:
        """Remove everything of an agent that has ended, and free its part of the team."""
        await self.release(team_state, row.id, usage)
        await self.remove_records(row)

    async def remove_records(self, row: AgentRow) -> None:
        """Remove everything of an agent whose part is free.

        The row is removed last, so that a later server finds the rest.
        """
        try:
            await run_shielded(in_thread(lambda: _remove_dir(self._folder, row.id), name="ramet-folder"))
            await run_shielded(self._failed_agents.remove(row))
        except OSError as problem:
            _log.error("the folder of agent %s (%s) cannot be removed: %s", row.path, row.id, problem)
        await self._before_removal(row.id)
        await self._tables.remove(row)

    async def release(
        self, team_state: TeamState, agent: str, usage: Mapping[str, float] | None, *rows: AgentRow
    ) -> None:
        """Free the part of an agent, and write the new state of the team together with `rows`.

        If `usage` is None, the use is unknown. Then all of the part counts as used, so that the use never exceeds the
        reservation.
        """
        await team_state.release(agent, team_state.team.holdings.get(agent, {}) if usage is None else usage, *rows)

    async def _fail(self, entry: AgentEntry, error: ErrorInfo | None) -> None:
        """Handle an agent that ended by itself: free its part, and keep the agent for inspection."""
        entry.state, entry.error = ("ended" if error is None else "failed"), error
        entry.failed_at = self._clock.now() if error is not None else None
        usage = await close_and_measure(entry, "it ended")
        async with entry.write_lock:
            entry.row = stripped_row(entry.as_row())
            if (team_state := self._team_states.get(entry.row.team)) is None:
                return  # Another kernel continues it.
            try:
                await self.release(team_state, entry.id, usage, entry.row)
            except TakenOver as problem:  # Likewise, and this kernel will be informed.
                return _log.warning("the end of agent %s is not recorded by this kernel: %s", entry.id, problem)
        await self._failed_agents.keep(entry)
        self._end_oldest_failed(entry.row.team)

    def _end_oldest_failed(self, team: str) -> None:
        """Start to end the agents that failed first, if a team has more than `failed_limit` of them."""
        for each in oldest_over_limit(self._failed_limit, self._agents.of_team(team)):
            _log.info(
                "agent %s (%s), which has %s, is removed to make room for newer agents",
                each.row.path,
                each.id,
                each.state,
            )
            self.begin(self._failed_agents.end(each))

    async def _end(self, entry: AgentEntry, reason: str) -> None:
        if entry.fail_task is not None:
            await asyncio.wait({entry.fail_task})
        entry.state = "ended"
        usage = await close_and_measure(entry, reason)
        if entry.queue is not None:
            await entry.queue.wait_written()  # Else its writes would follow the removal of the other records.
        async with entry.write_lock:
            try:
                team_state = self._team_states.get(entry.row.team)
                if team_state is None:
                    raise TakenOver("agent", entry.id)
                await self.release_and_remove(team_state, entry.row, usage)
            except TakenOver:
                self._agents.remove(entry)
                raise
            self._agents.remove(entry)  # Not before: a caller whose request failed can repeat it.
            team_state.names.discard(entry.row.name)  # Likewise: two records of one name could not be resumed.


async def close_and_measure(entry: AgentEntry, reason: str) -> Mapping[str, float] | None:
    """Close an agent. Return what it used up, or None if that is unknown. Errors are logged, never raised."""
    try:
        await entry.running_agent.close(reason)
    except Exception:
        _log.exception("agent %s (%s) could not be closed cleanly", entry.row.path, entry.id)
    if entry.spec is not None:
        await _unload_bundles(entry.spec)
    try:
        return {name: amount(f"usage.{name}", value) for name, value in entry.running_agent.usage().items()}
    except Exception:
        _log.exception("the usage of agent %s (%s) is unknown", entry.row.path, entry.id)
        return None


async def _unload_bundles(spec: AgentSpec) -> None:
    """Remove everything that was loaded into an agent that has ended. OSError is logged, not raised."""
    try:
        if spec.loaded_bundles is not None:
            await spec.loaded_bundles.close()
    except OSError as problem:
        _log.error("the bundles of agent %s (%s) cannot be removed: %s", spec.path, spec.id, problem)


def _end_error(end: asyncio.Future[ErrorInfo | None]) -> ErrorInfo | None:
    if end.cancelled():
        return ErrorInfo(type="Aborted", message="it was cancelled")
    if (problem := end.exception()) is not None:
        return error_of(problem)
    return None if (error := end.result()) is None else public_message(error)


def _remove_dir(folder: pathlib.Path, name: str) -> None:
    """Remove the folder of an agent, whatever the agent put into it. A missing folder is no error."""
    with contextlib.suppress(FileNotFoundError), safe_walk.open_root(folder) as parent:
        safe_walk.remove(parent, name)
