"""Throttling of processes: stop those that have used more processor time than allowed, and continue them later.

This is for machines without control groups. A signal goes only to a process that was found below the sandbox's own, and
that has not been replaced: the process is opened first, then its start time is compared, then it is signalled through
the opened descriptor.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat

_PASSES = 4  #: over a tree that grows while it is stopped
_SLACK_S = 0.05  #: of debt, before any process is stopped: ticks are 10 ms each, and samples a little late


class Pause:
    """A stop of the processes of one tree, until its release; it continues only the processes that it has stopped."""

    def __init__(self, look: Callable[[], Mapping[int, Stat]]) -> None:
        """`look` finds the processes, in an order that begins with the first one."""
        self._look = look
        self._stopped_processes: dict[int, int] = {}  #: pid and start time

    @property
    def is_on(self) -> bool:
        """Return whether this has stopped any process."""
        return bool(self._stopped_processes)

    def stop(self, *, busy: set[int] | None = None) -> None:
        """Stop all processes; where `busy` is known, stop the first process only if it is in `busy`."""
        for _ in range(_PASSES):
            new = 0
            for number, (pid, process) in enumerate(self._look().items()):
                # A process that is already stopped has stopped itself, and is not ours to continue.
                if (
                    process.state in "Tt"
                    or not process.is_alive
                    or (number == 0 and busy is not None and pid not in busy)
                ):
                    continue
                if _send(pid, process.start_time, signal.SIGSTOP):
                    new += self._stopped_processes.get(pid) != process.start_time
                    self._stopped_processes[pid] = process.start_time
            if not new:
                return

    def release(self) -> None:
        """Continue all stopped processes, children before parents: a shell must not see one of its jobs stopped."""
        for pid, start_time in reversed(self._stopped_processes.items()):
            _send(pid, start_time, signal.SIGCONT)
        self._stopped_processes.clear()


class CpuThrottle:
    """A limiter that keeps one tree of processes to `cores`, on average over any second."""

    def __init__(self, cores: float, *, allowance_s: float, look: Callable[[], Mapping[int, Stat]]) -> None:
        """`look` finds the processes, the first one first. Time not used within `allowance_s` may be used later."""
        self._cores, self._most = cores, cores * allowance_s
        self._credit = self._most  #: seconds of processor time
        self._pause = Pause(look)
        self.until = 0.0  #: the time of the release, if the throttle is on

    @property
    def is_on(self) -> bool:
        """Return whether this has stopped any process."""
        return self._pause.is_on

    def apply(self, now: float, *, elapsed_s: float, used_s: float, busy: set[int]) -> None:
        """Record the usage of a tree, and stop or continue the tree accordingly.

        The first process, which may only keep the tree, is stopped only if it is `busy` itself.
        """
        self._credit = min(self._most, self._credit + self._cores * elapsed_s - used_s)
        if self._credit < -self._cores * _SLACK_S:
            self._pause.stop(busy=busy)
            self.until = now - self._credit / self._cores
        elif self._credit >= 0 or now >= self.until:
            self.release()

    def release(self) -> None:
        """Continue every process that this has stopped."""
        self._pause.release()


def _send(pid: int, start_time: int, number: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if procfs.start_time(pid) != start_time:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
