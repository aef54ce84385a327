"""The memory and processor time of this kernel's sandboxes, measured while the feed of changes has readers.

Measuring a sandbox reads files of each of its processes. So it is done for some sandboxes at a time, for a bounded
time, whatever their number is, and an unnoticeable change is none.
"""

from __future__ import annotations

import asyncio
import logging
import time

from ramet.host.control.operator import OperatorControl
from ramet.host.control.run_queries import SandboxUsage

_log = logging.getLogger("ramet.services")
ROUND_S = 0.03  #: seconds of measuring at a time: then others have their turn
ANSWER_S = 1.0  #: seconds for the answer of one sandbox, which may be on another machine
MIN_CPU_S, MIN_MEMORY_MB, MIN_MEMORY_PART = 0.1, 1.0, 0.02  #: smaller changes are not noticeable


class SandboxSamples:
    """The newest measurements by run."""

    def __init__(self, steering: OperatorControl) -> None:
        self._steering = steering
        self.usage: dict[str, SandboxUsage] = {}
        self._last = ""  #: the run that was measured last

    async def measure(self) -> list[str]:
        """Measure the next sandboxes, and return the runs whose usage changed noticeably, or is no longer known."""
        sandboxes = self._steering.sandboxes()
        changed = list(self.usage.keys() - sandboxes.keys())
        for run in changed:
            del self.usage[run]
        runs = list(sandboxes)
        first = runs.index(self._last) + 1 if self._last in sandboxes else 0
        began = time.monotonic()
        for run in (*runs[first:], *runs[:first]):
            self._last = run
            try:
                async with asyncio.timeout(ANSWER_S):
                    metrics = await sandboxes[run].metrics()
            except Exception as problem:  # It ends, or its machine cannot be reached: the newest measurement stays.
                _log.debug("the process of %s is not measured: %s", run, problem)
                continue
            usage = SandboxUsage(memory_mb=round(metrics.memory_mb, 1), cpu_s=round(metrics.cpu_seconds, 2))
            if _is_noticeable(self.usage.get(run), usage):
                self.usage[run] = usage
                changed.append(run)
            if time.monotonic() - began > ROUND_S:
                break
        return changed

    def clear(self) -> None:
        """Forget all measurements: nobody reads them, and they would be outdated."""
        self.usage.clear()


def _is_noticeable(old: SandboxUsage | None, new: SandboxUsage) -> bool:
    if old is None:
        return True
    least_mb = max(MIN_MEMORY_MB, old.memory_mb * MIN_MEMORY_PART)
    return new.cpu_s - old.cpu_s >= MIN_CPU_S or abs(new.memory_mb - old.memory_mb) >= least_mb
