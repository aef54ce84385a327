"""The changes that runs made in their own copies of repositories, computed one at a time."""

from __future__ import annotations

import asyncio
import pathlib
from contextlib import suppress

from msgspec import convert

from ramet.core.errors import Gone, Unknown
from ramet.host.control.operator import OperatorControl
from ramet.services.operator.contract import RunDiff
from ramet.services.operator.runs import RunViews


class DiffViews:
    """Diffs of recorded runs, active and ended."""

    def __init__(self, runs: RunViews, steering: OperatorControl, working_dir: pathlib.Path | None) -> None:
        self._runs, self._steering, self._working_dir = runs, steering, working_dir
        self._turn = asyncio.Lock()  #: git may need a processor for half a minute

    async def get(self, run: str) -> RunDiff:
        """Return what a run changed in its worktree or clone. Raises Unknown, and Gone if there is nothing to read."""
        from ramet.host.sandbox.run_diff import diff_of  # Readers of journals begin without it.

        replay = await self._runs.replay(run)
        if self._working_dir is None:
            raise Gone("this kernel has no folder, and its runs have no copies of repositories there")
        active = None
        with suppress(Unknown):
            active = self._steering.find(run).run
        async with self._turn:
            diff = await diff_of(replay, run, self._working_dir, active)
        return convert(diff, RunDiff, from_attributes=True)
