"""Termination of every sandbox of a backend at once, without the event loop, for a process that is about to exit."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Collection, Iterable
from typing import Final

from ramet.core.errors import SandboxFailed
from ramet.isolation.limits.cgroups import Cgroups
from ramet.isolation.zygote.process import ZygoteChild

_EMPTY_S: Final = 2.0  #: the time within which killed processes must end, before their groups are killed as well
_GONE_S: Final = 4.0  #: after that time a group that is not empty stays for the next kernel
_PAUSES_S: Final = (0.001, 0.02)  #: between two tries to remove the groups: the first and the longest pause


def terminate(children: Iterable[ZygoteChild], groups: Collection[Cgroups]) -> None:
    """Kill these processes and remove all control groups of this kernel; blocks for at most `_GONE_S` seconds.

    A group whose process cannot be killed stays, for `Cgroups.reap` of the next kernel.
    """
    begin = time.monotonic()
    ends = select.poll()
    pidfds = set[int]()
    for each in children:
        pidfd = each.watch()  # Never closed: the process exits next.
        each.kill_group()
        each.signal(signal.SIGKILL)
        if pidfd >= 0:
            ends.register(pidfd, select.POLLIN)
            pidfds.add(pidfd)
    while pidfds and (remaining_s := begin + _EMPTY_S - time.monotonic()) > 0:
        for fd, _ in ends.poll(remaining_s * 1000):
            ends.unregister(fd)
            pidfds.discard(fd)
    for each_place in groups:
        _remove(each_place, begin)


def _remove(groups: Cgroups, begin: float) -> None:
    pause, longest = _PAUSES_S
    is_killed = False
    while True:
        try:
            if groups.close():
                return
        except (SandboxFailed, OSError):  # A group was removed while it was read.
            pass
        elapsed_s = time.monotonic() - begin
        if elapsed_s > _GONE_S:
            return
        if elapsed_s > _EMPTY_S and not is_killed:
            groups.kill()
            is_killed = True
        time.sleep(pause)
        pause = min(2 * pause, longest)
