"""Who is left of a command, and how they are ended.

A command runs in a session of its own and carries a mark in its environment. Left of it are, as long as they live, its
group, its session, its descendants, and whoever else carries the mark, such as a daemon that left all three. A process
that also cleared its environment is out of reach of this; holding that in is a sandbox's work.

A mistake here ends what is not ours. So never touched is a process that is older than the command, or of our own
session or of session 0; and each is looked up anew before each signal. Without a /proc that shows us our own namespace,
only the command's group is ended.
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

MARK = "RAMET_CALL"
_GONE_S = 5.0  #: how long what is killed may take to be gone: longer only inside the kernel
_PAUSES_S = (0.002, 0.05)  #: between two looks, first and at most
_CLEAR_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)  #: before another look at who has no environment
_PROC = pathlib.Path("/proc")


class ProcessTag:
    """By what the processes of one command are known. Marks of calls around this one, in other processes, are kept.

    Made before the command is started: whoever is older is not one of its.
    """

    def __init__(self) -> None:
        token = secrets.token_hex(8)
        self._value = f"{os.environ.get(MARK, '')}.{token}"
        self._token = token.encode()
        # The clock that /proc counts by. Where there is no such clock there is no such /proc either.
        clock = getattr(time, "CLOCK_BOOTTIME", None)
        self._born = 0 if clock is None else int(time.clock_gettime(clock) * os.sysconf("SC_CLK_TCK")) - 2

    def put_on(self, env: Mapping[str, str]) -> dict[str, str]:
        """An environment with the mark."""
        return {**env, MARK: self._value}

    def is_older(self, ticks: int) -> bool:
        """Whether a process started before the command did: whatever else it looks like, it is not one of its."""
        return ticks < self._born

    def is_on(self, pid: int) -> bool | None:
        """Whether a process carries the mark; None if it has no environment. Raises OSError if that cannot be seen."""
        environ = (_PROC / str(pid) / "environ").read_bytes()
        if not environ:
            return None
        return any(each.startswith(MARK.encode()) and self._token in each for each in environ.split(b"\0"))


async def kill_all(leader: int | None, mark: ProcessTag, *, grace_s: float) -> None:
    """SIGTERM to everyone who is left of a command, if there is a grace, and SIGKILL after it, until nobody is.

    A cancel ends the grace: SIGKILL follows at once. `leader` is the command itself, None if its pid is not known.
    """
    family = _Family(leader, mark)
    left = True
    try:
        if grace_s > 0:
            left = not await family.gone(signal.SIGTERM, within_s=grace_s)
    finally:
        if left and (family.signal(family.living(), signal.SIGKILL) or family.unclear):
            await run_shielded(family.gone(signal.SIGKILL, within_s=_GONE_S))


class _Stat(NamedTuple):
    """What /proc says of a process."""

    pid: int
    lives: bool
    parent: int
    group: int
    session: int
    born: int  #: in ticks; with the pid, it is this process and no other

    @classmethod
    def of(cls, pid: str) -> _Stat:
        """Raises OSError, ValueError or IndexError if it is gone."""
        fields = (_PROC / pid / "stat").read_bytes().rpartition(b")")[2].split()
        # With more than one thread it lives, even if its first thread has ended.
        lives = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1
        return cls(int(pid), lives, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


class _Family:
    """The processes of one command."""

    def __init__(self, leader: int | None, mark: ProcessTag) -> None:
        self._leader, self._mark = leader, mark
        self._known: dict[int, int] = {}  #: who was found at some look, and when it was born
        self._dead: set[tuple[int, int]] = set()  #: who was found to have ended, and when it was born
        self.unclear = False  #: whether the latest look could not tell of somebody
        self._groups: set[int] = set()  #: of those who were found at the latest look, and of nobody else

    async def gone(self, number: int, *, within_s: float) -> bool:
        """Signal all and wait until nobody lives, for a while."""
        # Not on a `Clock`: real processes take real time, also where a test's clock stands still.
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        pause, longest = _PAUSES_S
        left = self.signal(await self._look(), number)
        while left and loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            left = await self._look()
            if number == signal.SIGKILL:  # Whoever is new may otherwise be part of cleaning up.
                self.signal(left, number)
        return not left

    async def _look(self) -> set[int]:
        """Who lives. Looks again if somebody seems to be between two programs, or may just have had a child.

        Some have no environment for good.
        """
        living = self.living()
        for pause in _CLEAR_S:
            if not self.unclear:
                break
            await asyncio.sleep(pause)
            living = self.living()
        return living

    def signal(self, living: set[int], number: int) -> set[int]:
        """Signal them; says who that was. What kills goes to their groups, too: then no child can be born meanwhile."""
        # The command first, then by age: a parent that saw its child end could still do something about it.
        # PermissionError: it is another user's by now; nothing more can be done from here.
        for pid in sorted(living, key=lambda pid: (pid != self._leader, pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        for group in self._groups if number == signal.SIGKILL else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        return living

    def living(self) -> set[int]:
        """Who lives; takes note of the ends of those that came to us, as to pid 1 of a container: nobody else does."""
        self.unclear = False
        self._groups = set()
        if (names := _names()) is None:
            return self._group()
        found: set[int] = set() if self._leader is None else {self._leader}
        young: dict[int, _Stat] = {}
        groups, of_others = set(), {0, 1, os.getpgrp()}  # To the kernel 0 is our own group, and 1 is everybody.
        us, session_of_ours = os.getpid(), os.getsid(0)
        for name in names:
            if not name.isdigit():
                continue
            try:
                stat = _Stat.of(name)
                if stat.session in (0, session_of_ours) or self._mark.is_older(stat.born):
                    of_others.add(stat.group)
                    continue
                if stat.lives:
                    young[stat.pid] = stat
                    if self._is_of_it(stat):
                        found.add(stat.pid)
                elif stat.pid != self._leader and self._take_note_of_death(stat, us):
                    groups.add(stat.group)
            except (FileNotFoundError, ProcessLookupError):
                self.unclear = True  # Gone since: what it started meanwhile is not in this list.
            except (OSError, ValueError, IndexError):
                continue  # Another user's.
        newer = found
        while newer:
            newer = {pid for pid, stat in young.items() if stat.parent in newer and pid not in found}
            found = found | newer
        living = found & young.keys()
        self._known.update((pid, young[pid].born) for pid in living)
        groups |= {young[pid].group for pid in living}
        self._groups = groups - of_others - {stat.group for pid, stat in young.items() if pid not in living}
        return living

    def _take_note_of_death(self, stat: _Stat, us: int) -> bool:
        """What it started just before may not be in the list that it was found in. Whether it is known as one of us.

        The dead show no mark, so that some are not known.
        """
        is_ours = self._is_of_it(stat)
        if (stat.pid, stat.born) not in self._dead:
            self._dead.add((stat.pid, stat.born))
            self.unclear = True
        if is_ours and stat.parent == us:
            os.waitpid(stat.pid, os.WNOHANG)
        return is_ours

    def _is_of_it(self, stat: _Stat) -> bool:
        """Whether it is one of the family, but for its descent."""
        if self._leader in (stat.group, stat.session) or self._known.get(stat.pid) == stat.born:
            return True
        marked = self._mark.is_on(stat.pid) if stat.lives else False
        self.unclear = self.unclear or marked is None
        return marked is True

    def _group(self) -> set[int]:
        """The group as one that can be signalled, if anybody in it lives."""
        if self._leader is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, 0)
                return {-self._leader}
        return set()


def _names() -> list[str] | None:
    """What is in /proc, if its pids are those of our own namespace: with others we would signal whoever has the same.

    None, too, where we may not look: in a pod, Landlock keeps an agent from a /proc that shows who keeps it.
    """
    try:
        if os.readlink(_PROC / "self") != str(os.getpid()):  # noqa: PTH115 - a name, not a path
            return None
        return os.listdir(_PROC)  # noqa: PTH208 - only the names, hundreds of them
    except OSError:
        return None
