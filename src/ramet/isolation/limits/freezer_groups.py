"""Control groups of one kernel that only freeze: for sandboxes whose limits are in groups of version 1, or in none."""

from __future__ import annotations

import threading

from ramet.core.errors import SandboxFailed
from ramet.isolation.limits.cgroups import Cgroup, Cgroups


class FreezerGroups:
    """A place for groups of version 2, made with the first of them: a kernel that freezes nothing has no such place."""

    def __init__(self) -> None:
        self._groups: Cgroups | None = None
        self._has_tried = False
        self._lock = threading.Lock()
        self._made = 0

    def make(self, owner: str) -> Cgroup | None:
        """Make a group, in a place that is named after its owner; None if this machine has none for us. Blocks."""
        with self._lock:
            try:
                if not self._has_tried:
                    self._has_tried = True
                    self._groups = Cgroups.open_freezers(f"{owner}-frozen")
                if self._groups is None:
                    return None
                self._made += 1
                return self._groups.make(f"agent-{self._made}")
            except (SandboxFailed, OSError):
                return None

    @property
    def place(self) -> Cgroups | None:
        """The groups that were made; None if there are none."""
        return self._groups

    def close(self) -> None:
        """Remove the place, if it is empty. Idempotent."""
        with self._lock:
            groups, self._groups = self._groups, None
            self._has_tried = False
        if groups is not None:
            groups.close()
