"""Holding processes back: stopped while they have used more processor time than they may, continued when it is repaid.

For where there is no control group. A signal is sent only to a process that was seen below the sandbox's own, and is
the same that was seen: it is opened first, then its birth compared, then signalled through what was opened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from ramet.isolation.linux import procfs
from ramet.isolation.linux.procfs import Stat

_PASSES = 4  #: over a tree that grows while it is stopped
_SLACK_S = 0.05  #: of debt, before anybody is stopped: ticks are 10 ms each, and samples a little late


class Pause:
    """Stops the processes of one tree until it is released, and continues only those that it has stopped."""

    def __init__(self, look: Callable[[], Mapping[int, Stat]]) -> None:
        """`look` finds the processes, the first first."""
        self._look = look
        self._stopped: dict[int, int] = {}  #: pid and birth

    @property
    def is_on(self) -> bool:
        """Whether somebody is stopped by it."""
        return bool(self._stopped)

    def stop(self, *, busy: set[int] | None = None) -> None:
        """Stop all; the first one, where it is known who is `busy`, only if it is among these."""
        for _ in range(_PASSES):
            new = 0
            for number, (pid, one) in enumerate(self._look().items()):
                # Who is stopped already stopped itself, and is not ours to continue.
                if one.state in "Tt" or not one.lives or (number == 0 and busy is not None and pid not in busy):
                    continue
                if _send(pid, one.born, signal.SIGSTOP):
                    new += self._stopped.get(pid) != one.born
                    self._stopped[pid] = one.born
            if not new:
                return

    def release(self) -> None:
        """Continue all that were stopped, children before their parents: a shell must not see a job of its stopped."""
        for pid, born in reversed(self._stopped.items()):
            _send(pid, born, signal.SIGCONT)
        self._stopped.clear()


class CpuThrottle:
    """Keeps one tree of processes to `cores`, on average over any second."""

    def __init__(self, cores: float, *, allowance_s: float, look: Callable[[], Mapping[int, Stat]]) -> None:
        """`look` finds the processes, the first first. What was not used within `allowance_s` may be used later."""
        self._cores, self._most = cores, cores * allowance_s
        self._credit = self._most  #: seconds of processor time
        self._pause = Pause(look)
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether somebody is stopped by it."""
        return self._pause.is_on

    @property
    def until(self) -> float:
        """When it is to be released, if it is on."""
        return self._until

    def apply(self, now: float, *, elapsed_s: float, used_s: float, busy: set[int]) -> None:
        """Take note of what a tree has used, and stop or continue it accordingly.

        The tree's first process, which may only keep it, is stopped only if it is `busy` itself.
        """
        self._credit = min(self._most, self._credit + self._cores * elapsed_s - used_s)
        if self._credit < -self._cores * _SLACK_S:
            self._pause.stop(busy=busy)
            self._until = now - self._credit / self._cores
        elif self._credit >= 0 or now >= self._until:
            self.release()

    def release(self) -> None:
        """Continue everybody whom it has stopped."""
        self._pause.release()


def _send(pid: int, born: int, number: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if procfs.start_time(pid) != born:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
