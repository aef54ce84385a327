"""The trees of a working directory that are active now: its kernel is asked, at most every tenth of a second."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from ramet.host.control.run_queries import NO_SAMPLES, NoJournal, SandboxUsage, journal_in, kernel_of
from ramet.host.control.socket import ControlledTrees, NoKernel, Refused, send_request

FRESH_S: Final = 0.1
PATIENCE_S: Final = 2.0


class FolderActivity:
    """The active trees of a folder, as its journal is read from outside of its kernel."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.living: Collection[str] = frozenset()  #: the roots of active trees
        self._streaming: Mapping[str, datetime] = {}
        self._asked_at = -FRESH_S

    async def refresh(self) -> None:
        """Ask the kernel, unless that was just done. A kernel that does not answer changes nothing."""
        if time.monotonic() - self._asked_at < FRESH_S:
            return
        self._asked_at = time.monotonic()
        if not self.has_kernel():
            self.living, self._streaming = frozenset(), {}
            return
        try:
            answer = await send_request(self._folder, ControlledTrees(), patience_s=PATIENCE_S)
        except (NoKernel, Refused):
            return
        self.living = frozenset(answer.get("trees", ()))
        self._streaming = msgspec.convert(answer.get("streaming", {}), dict[str, datetime])

    def has_kernel(self) -> bool:
        """Return whether a process holds the journal."""
        try:
            return kernel_of(journal_in(self._folder)) is not None
        except NoJournal:
            return False

    def is_here(self, root: str) -> bool:
        """Return False: no tree is in this process. So the feed of changes uses `is_elsewhere`."""
        return False

    async def is_elsewhere(self, root: str) -> bool:
        """Return whether a tree is active in the kernel of this folder."""
        await self.refresh()
        return root in self.living

    def streaming(self) -> Mapping[str, datetime]:
        """Return the times of the newest parts of replies that stream, by run."""
        return self._streaming

    def samples(self) -> Mapping[str, SandboxUsage]:
        """Return nothing: the kernel is another process, and does not measure."""
        return NO_SAMPLES

    async def measure(self) -> Collection[str]:
        """Measure nothing."""
        return ()

    def clear_samples(self) -> None:
        """Do nothing."""

    def agent_paths(self) -> Mapping[str, str]:
        """Return nothing: only a server has agents with paths."""
        return {}
