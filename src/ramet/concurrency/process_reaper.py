"""Find and terminate the remaining processes of a command.

A command runs in its own session and has a mark in its environment. Its processes are the living members of its group
and its session, its descendants, and every process with the mark, such as a daemon that left all three. A process that
also cleared its environment cannot be found; containing such a process is the task of a sandbox.

A mistake here would terminate foreign processes. So a process is never signalled if it is older than the command, or
belongs to our own session or to session 0. Each process is looked up again before each signal. Without a /proc of our
own PID namespace, only the command's group is terminated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import secrets
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple

from ramet.concurrency.deadline import run_shielded

TAG_VARIABLE = "RAMET_CALL"
_KILL_WAIT_S = 5.0  #: time for killed processes to end: longer only inside the kernel
_PAUSES_S = (0.002, 0.05)  #: pause between two looks: first, and maximum
#: pauses before further looks at processes without an environment
_RECHECK_PAUSES_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
_PROC = pathlib.Path("/proc")


class ProcessTag:
    """The mark that identifies the processes of one command. Marks of enclosing calls in other processes are kept.

    Create the tag before the command starts: older processes do not belong to it.
    """

    def __init__(self) -> None:
        token = secrets.token_hex(8)
        self._value = f"{os.environ.get(TAG_VARIABLE, '')}.{token}"
        self._token = token.encode()
        # The clock of /proc's start times. Systems without this clock have no such /proc either.
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        self._created_ticks = 0 if clock is None else int(time.clock_gettime(clock) * os.sysconf("SC_CLK_TCK")) - 2

    def tagged_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with the mark."""
        return {**env, TAG_VARIABLE: self._value}

    def is_older(self, ticks: int) -> bool:
        """Return whether a process started before the command, and so cannot belong to it."""
        return ticks < self._created_ticks

    def matches(self, pid: int) -> bool | None:
        """Return whether a process has the mark; None without an environment. Raises OSError if this cannot be read."""
        environ = (_PROC / str(pid) / "environ").read_bytes()
        if not environ:
            return None
        return any(each.startswith(TAG_VARIABLE.encode()) and self._token in each for each in environ.split(b"\0"))


async def kill_all(leader: int | None, tag: ProcessTag, *, grace_s: float) -> None:
    """Send SIGTERM to all processes of a command, if there is a grace period, then SIGKILL until none is left.

    A cancellation ends the grace period: SIGKILL follows at once. `leader` is the command itself, None if its pid is
    unknown.
    """
    family = _Family(leader, tag)
    has_survivors = True
    try:
        if grace_s > 0:
            has_survivors = not await family.signal_and_wait(signal.SIGTERM, within_s=grace_s)
    finally:
        if has_survivors and (family.signal(family.living_pids(), signal.SIGKILL) or family.unclear):
            await run_shielded(family.signal_and_wait(signal.SIGKILL, within_s=_KILL_WAIT_S))


class _Stat(NamedTuple):
    """The state of a process in /proc."""

    pid: int
    is_alive: bool
    parent: int
    group: int
    session: int
    start_ticks: int  #: start time in ticks; identifies the process together with the pid

    @classmethod
    def of(cls, pid: str) -> _Stat:
        """Read the state of a process. Raises OSError, ValueError or IndexError if the process has ended."""
        fields = (_PROC / pid / "stat").read_bytes().rpartition(b")")[2].split()
        # With several threads the process lives, even if its first thread has ended.
        is_alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
        return cls(int(pid), is_alive, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


class _Family:
    """The processes of one command."""

    def __init__(self, leader: int | None, mark: ProcessTag) -> None:
        self._leader, self._mark = leader, mark
        self._start_ticks_by_pid: dict[int, int] = {}  #: pids found so far, and their start times
        self._ended_processes: set[tuple[int, int]] = set()  #: pids and start times of processes found to have ended
        self.unclear = False  #: the latest look could not identify some process
        self._groups: set[int] = set()  #: groups of only the processes found at the latest look

    async def signal_and_wait(self, number: int, *, within_s: float) -> bool:
        """Signal all processes and wait until none lives; return whether that happened in time."""
        # No `Clock`: real processes take real time, even if a test's clock stands still.
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        pause, longest = _PAUSES_S
        remaining = self.signal(await self._scan(), number)
        while remaining and loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            remaining = await self._scan()
            if number == signal.SIGKILL:  # With SIGTERM, a new process may be part of the cleanup.
                self.signal(remaining, number)
        return not remaining

    async def _scan(self) -> set[int]:
        """Return the living processes. Look again while a process may be in exec, or may just have forked.

        Some processes never have an environment.
        """
        living_pids = self.living_pids()
        for pause in _RECHECK_PAUSES_S:
            if not self.unclear:
                break
            await asyncio.sleep(pause)
            living_pids = self.living_pids()
        return living_pids

    def signal(self, living_pids: set[int], number: int) -> set[int]:
        """Signal processes and return them. SIGKILL is also sent to their groups, so that no child can escape."""
        # The command first, then by age: a parent that saw its child end could still react.
        # PermissionError: the process belongs to another user by now; nothing more can be done.
        for pid in sorted(living_pids, key=lambda pid: (pid != self._leader, pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        for group in self._groups if number == signal.SIGKILL else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        return living_pids

    def living_pids(self) -> set[int]:
        """Return the living processes; reap those adopted by us as pid 1 of a container, as no one else does."""
        self.unclear = False
        self._groups = set()
        if (names := _names()) is None:
            return self._group()
        pids: set[int] = set() if self._leader is None else {self._leader}
        candidates: dict[int, _Stat] = {}
        # For the kernel, 0 is our own group, and 1 is every process.
        groups, foreign_groups = set(), {0, 1, os.getpgrp()}
        own_pid, own_session = os.getpid(), os.getsid(0)
        for name in names:
            if not name.isdigit():
                continue
            try:
                stat = _Stat.of(name)
                if stat.session in (0, own_session) or self._mark.is_older(stat.start_ticks):
                    foreign_groups.add(stat.group)
                    continue
                if stat.is_alive:
                    candidates[stat.pid] = stat
                    if self._is_member(stat):
                        pids.add(stat.pid)
                elif stat.pid != self._leader and self._record_end(stat, own_pid):
                    groups.add(stat.group)
            except (FileNotFoundError, ProcessLookupError):
                self.unclear = True  # Ended since: a process that it started meanwhile is not in this list.
            except (OSError, ValueError, IndexError):
                continue  # Another user's process.
        newer = pids
        while newer:
            newer = {pid for pid, stat in candidates.items() if stat.parent in newer and pid not in pids}
            pids = pids | newer
        living_pids = pids & candidates.keys()
        self._start_ticks_by_pid.update((pid, candidates[pid].start_ticks) for pid in living_pids)
        groups |= {candidates[pid].group for pid in living_pids}
        self._groups = (
            groups - foreign_groups - {stat.group for pid, stat in candidates.items() if pid not in living_pids}
        )
        return living_pids

    def _record_end(self, stat: _Stat, own_pid: int) -> bool:
        """Note a dead process, which may have started another after the list was read; return whether it is ours.

        Dead processes show no mark, so some are not recognised.
        """
        is_ours = self._is_member(stat)
        if (stat.pid, stat.start_ticks) not in self._ended_processes:
            self._ended_processes.add((stat.pid, stat.start_ticks))
            self.unclear = True
        if is_ours and stat.parent == own_pid:
            os.waitpid(stat.pid, os.WNOHANG)
        return is_ours

    def _is_member(self, stat: _Stat) -> bool:
        """Return whether a process belongs to the command, apart from its ancestry."""
        if self._leader in (stat.group, stat.session) or self._start_ticks_by_pid.get(stat.pid) == stat.start_ticks:
            return True
        has_mark = self._mark.matches(stat.pid) if stat.is_alive else False
        self.unclear = self.unclear or has_mark is None
        return has_mark is True

    def _group(self) -> set[int]:
        """Return the group as a pid that can be signalled, if any member lives."""
        if self._leader is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, 0)
                return {-self._leader}
        return set()


def _names() -> list[str] | None:
    """Return the names in /proc; None if its pids are of another namespace, where the same pids are other processes.

    None also if access is denied: in a pod, Landlock keeps an agent from a /proc that shows its supervisor.
    """
    try:
        if os.readlink(_PROC / "self") != str(os.getpid()):  # noqa: PTH115 - a name, not a path
            return None
        return os.listdir(_PROC)  # noqa: PTH208 - only the names, hundreds of them
    except OSError:
        return None
