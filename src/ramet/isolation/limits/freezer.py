"""The freezing of one sandbox: no process of it runs, nor any that it was starting, until it is thawed.

A control group of version 2 keeps its processes frozen whatever signals they receive, and a process that is killed
there ends. Groups of version 1 are not used: a process that is killed there stays until it is thawed, also after the
death of its kernel. Without a group of version 2 the processes are stopped by SIGSTOP. A stopped process cannot act,
but the kernel still sends it the signals that it has ordered before, such as SIGCONT from a timer. So `hold` looks
again from time to time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ramet.core.errors import SandboxFailed
from ramet.isolation.limits.cgroup import Cgroup, fields, pids_in, write
from ramet.isolation.limits.cpu_throttle import Pause
from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat

_PASSES = 100  #: over a sandbox whose processes enter their group; one that always starts others needs several
_SETTLED_S, _STEP_S = 1.0, 0.002  #: the time to wait until no process runs, and between two looks
_NOT_STOPPED = "RSD"  #: states of processes that run, or may run at any time


class Freezer:
    """The means to freeze one sandbox: a control group of version 2, or signals."""

    def __init__(self, look: Callable[[], Mapping[int, Stat]], make_group: Callable[[], Cgroup | None]) -> None:
        """`look` finds the processes, parents first. `make_group` returns their group; it is called at most once.

        The group may hold the processes already; if not, they enter it and stay there. None: there is no group.
        """
        self._look, self._make_group = look, make_group
        self._stops = Pause(look)
        self._folder: Path | None = None
        self._has_asked = False
        self._is_in_group = False  #: every process entered the group

    def freeze(self) -> None:
        """Freeze all processes; blocks for about a second at most. Idempotent."""
        if not self._has_asked:
            self._has_asked = True
            group = self._make_group()
            self._folder = None if group is None else group.freezer
        self._is_in_group = self._folder is not None and self._freeze_group(self._folder)
        if self._is_in_group:
            self._stops.release()  # They were stopped only to enter.
        end = time.monotonic() + _SETTLED_S
        while not self._is_settled() and time.monotonic() < end:
            time.sleep(_STEP_S)

    def hold(self) -> bool:
        """Stop the processes that run again although they are frozen; return whether there were any."""
        if self._is_in_group or not any(each.state in "RS" or each.is_headless for each in self._look().values()):
            return False  # One in state D stops as soon as it can.
        self._stops.stop()
        return True

    def thaw(self) -> None:
        """Let all processes go on, except those that had stopped themselves. Does not wait. Idempotent."""
        if self._folder is not None:
            with contextlib.suppress(SandboxFailed):  # Its processes have ended, and the group with them.
                write(self._folder / "cgroup.freeze", 0)
        self._stops.release()

    def _freeze_group(self, folder: Path) -> bool:
        """Freeze a group, and have all processes enter it; return False if some cannot."""
        try:
            write(folder / "cgroup.freeze", 1)
            for _ in range(_PASSES):
                inside = set(pids_in(folder))
                outside = [each for each in self._look().values() if each.pid not in inside and each.is_alive]
                if not outside:
                    return True
                self._stops.stop()  # A stopped process starts no other, and keeps its pid while it is moved.
                for process in outside:
                    _move(process, folder)
        except (SandboxFailed, OSError):
            pass
        return False

    def _is_settled(self) -> bool:
        if self._is_in_group and self._folder is not None:
            with contextlib.suppress(SandboxFailed):
                return fields(self._folder / "cgroup.events").get("frozen") == 1
            return True  # The group has gone with its processes.
        self._stops.stop()
        return not any(each.state in _NOT_STOPPED for each in self._look().values())


def _move(process: Stat, folder: Path) -> None:
    """Move a process to a group, if it has not ended."""
    with contextlib.suppress(SandboxFailed):
        write(folder / "cgroup.procs", process.pid)
        if procfs.start_time(process.pid) not in (process.start_time, None):  # Another process has its pid by now.
            write(folder.parents[2] / "cgroup.procs", process.pid)
