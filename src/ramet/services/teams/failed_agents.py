"""Failed agents that are kept on request: for how long, and where their remains are."""

from __future__ import annotations

import asyncio
import logging
import math
import pathlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from msgspec import Raw
from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, RametError
from ramet.host.sandbox.sandboxes import Sandboxes
from ramet.services.teams.agents import AgentEntry, KeptFailure, has_failed
from ramet.services.teams.tables import AgentRow

_log = logging.getLogger("ramet.services")


def checked_keep_failed(keep_failed_s: object, limit_s: float) -> float | None:
    """Return for how many seconds a failed agent is kept; None means until it is killed. Raises InvalidValue."""
    if keep_failed_s is None:
        return None
    if (
        isinstance(keep_failed_s, bool)
        or not isinstance(keep_failed_s, int | float)
        or not math.isfinite(keep_failed_s)
        or not 0 <= keep_failed_s <= limit_s
    ):
        raise InvalidValue(
            "keep_failed_s", keep_failed_s, f"seconds from 0 to {limit_s:g}, as long as this server keeps any"
        )
    return float(keep_failed_s)


def stripped_row(row: AgentRow) -> AgentRow:
    """Return the row of an ended agent, without the fields that only opening needs.

    These fields may be as large as a request.
    """
    return replace(row, spawn_info=Raw(b"null"), policy=None, limits={}, env={}, env_names=(), policy_env_names=())


def oldest_over_limit(limit: int, agents: Sequence[AgentEntry]) -> list[AgentEntry]:
    """Return the failed and ended agents of a team, except the newest `limit`."""
    ended = [each for each in agents if each.state in ("failed", "ended")]
    ended = [each for each in ended if each.end_task is None or has_failed(each.end_task)]
    ended.sort(key=lambda each: (each.failed_at or each.row.created_at, each.row.created_at, each.id))
    return ended[: max(0, len(ended) - limit)]


class FailedAgents:
    """The failed agents that are kept. `folder` has one folder for each agent; `end` ends an agent."""

    def __init__(
        self, clock: Clock, sandboxes: Sandboxes, folder: pathlib.Path, end: Callable[[AgentEntry], Awaitable[None]]
    ) -> None:
        self._clock, self._sandboxes, self._folder, self._end = clock, sandboxes, folder, end
        self._timers: dict[str, asyncio.Task[None]] = {}

    async def keep(self, entry: AgentEntry) -> None:
        """Keep a failed agent until its time since the failure is over, and then end it."""
        row = entry.row
        if row.state != "failed" or row.keep_failed_s is None or row.failed_at is None:
            return
        kept_until = row.failed_at + timedelta(seconds=row.keep_failed_s)
        folders = [
            each
            for each in (self._folder / row.id, await self._keep_sandbox_folder(row, keep=True))
            if each is not None
        ]
        entry.kept_failure = KeptFailure(kept_until, tuple(str(each) for each in folders if each.exists()))
        self._timers[row.id] = asyncio.create_task(
            self._end_later(entry, (kept_until - self._clock.now()).total_seconds())
        )

    async def remove(self, row: AgentRow) -> None:
        """Release an agent that is being removed: remove what remains of its sandbox."""
        if (timer := self._timers.pop(row.id, None)) is not None:
            timer.cancel()
        if row.state == "failed" and row.keep_failed_s is not None:
            await self._keep_sandbox_folder(row, keep=False)

    async def close(self) -> None:
        """Stop waiting for the time of any agent; the agents stay recorded."""
        timers = list(self._timers.values())
        self._timers.clear()
        for each in timers:
            each.cancel()
        await asyncio.gather(*timers, return_exceptions=True)

    async def _end_later(self, entry: AgentEntry, seconds: float) -> None:
        await self._clock.sleep(max(0.0, seconds))
        await self.end(entry)

    async def end(self, entry: AgentEntry) -> None:
        """End an agent that was kept for its time. Errors are logged."""
        try:
            await self._end(entry)
        except Exception:  # The next server finds the agent.
            _log.exception("agent %s (%s) could not be removed", entry.row.path, entry.id)

    async def _keep_sandbox_folder(self, row: AgentRow, *, keep: bool) -> pathlib.Path | None:
        """Keep the folder of the agent's run from retention, or remove it.

        Return the folder, or None if there is none.
        """
        run_folder = self._sandboxes.folder_of(row.run) if row.run else None
        if run_folder is None:
            return None
        try:
            await in_thread(run_folder.keep if keep else run_folder.remove, name="ramet-folder")
        except (OSError, RametError) as problem:
            _log.error("the folder of run %s cannot be %s: %s", row.run, "kept" if keep else "removed", problem)
        return run_folder.path
