"""Failed agents that whoever spawned them wanted to have kept: for how long, and where what is left of them is."""

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


def checked_keep_failed(keep_failed_s: object, most: float) -> float | None:
    """For how long an agent is to be kept once it has failed; None until it is killed. Raises InvalidValue."""
    if keep_failed_s is None:
        return None
    if (
        isinstance(keep_failed_s, bool)
        or not isinstance(keep_failed_s, int | float)
        or not math.isfinite(keep_failed_s)
        or not 0 <= keep_failed_s <= most
    ):
        raise InvalidValue(
            "keep_failed_s", keep_failed_s, f"seconds from 0 to {most:g}, as long as this server keeps any"
        )
    return float(keep_failed_s)


def what_stays(row: AgentRow) -> AgentRow:
    """Return the row of an agent that is over, without what only opens one: that may be as large as a request."""
    return replace(row, spawn_info=Raw(b"null"), policy=None, limits={}, env={}, env_names=(), policy_env_names=())


def oldest_beyond(most: int, agents: Sequence[AgentEntry]) -> list[AgentEntry]:
    """Return those of a team's agents that have failed or ended before the newest `most` that did."""
    over = [each for each in agents if each.state in ("failed", "ended")]
    over = [each for each in over if each.ending is None or has_failed(each.ending)]
    over.sort(key=lambda each: (each.failed_at or each.row.created_at, each.row.created_at, each.id))
    return over[: max(0, len(over) - most)]


class FailedAgents:
    """Those that are kept. `folder` has one folder for each agent; `end` ends one that is to go."""

    def __init__(
        self, clock: Clock, sandboxes: Sandboxes, folder: pathlib.Path, end: Callable[[AgentEntry], Awaitable[None]]
    ) -> None:
        self._clock, self._sandboxes, self._folder, self._end = clock, sandboxes, folder, end
        self._waiting: dict[str, asyncio.Task[None]] = {}

    async def keep(self, living: AgentEntry) -> None:
        """Have one that has failed there until its time is over, since it failed, and then end it."""
        row = living.row
        if row.state != "failed" or row.keep_failed_s is None or row.failed_at is None:
            return
        until = row.failed_at + timedelta(seconds=row.keep_failed_s)
        folders = [each for each in (self._folder / row.id, await self._of_sandbox(row, keep=True)) if each is not None]
        living.kept = KeptFailure(until, tuple(str(each) for each in folders if each.exists()))
        self._waiting[row.id] = asyncio.create_task(self._wait(living, (until - self._clock.now()).total_seconds()))

    async def remove(self, row: AgentRow) -> None:
        """Let go of one that is being forgotten: what it left of its sandbox goes."""
        if (waiting := self._waiting.pop(row.id, None)) is not None:
            waiting.cancel()
        if row.state == "failed" and row.keep_failed_s is not None:
            await self._of_sandbox(row, keep=False)

    async def close(self) -> None:
        """Wait for nobody's time any more; they stay on record."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait(self, living: AgentEntry, seconds: float) -> None:
        await self._clock.sleep(max(0.0, seconds))
        await self.end(living)

    async def end(self, living: AgentEntry) -> None:
        """End one that was kept long enough. What goes wrong is logged."""
        try:
            await self._end(living)
        except Exception:  # The next server finds it.
            _log.exception("agent %s (%s), which is to go, stays", living.row.path, living.id)

    async def _of_sandbox(self, row: AgentRow, *, keep: bool) -> pathlib.Path | None:
        """The folder of its run, kept from retention or removed; None if there is none."""
        found = self._sandboxes.folder_of(row.run) if row.run else None
        if found is None:
            return None
        try:
            await in_thread(found.keep if keep else found.remove, name="ramet-folder")
        except (OSError, RametError) as problem:
            _log.error("the folder of run %s cannot be %s: %s", row.run, "kept" if keep else "removed", problem)
        return found.path
