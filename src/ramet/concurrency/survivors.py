"""Who is left of a command, and how they are ended.

A command runs in a session of its own and carries a mark in its environment. Left of it are, as long as they live, its
group, its session, its descendants, and whoever else carries the mark, such as a daemon that left all three. A process
that also cleared its environment is out of reach of this; holding that in is a sandbox's work.

A mistake here ends what is not ours. So never touched is a process that is older than the command, or of our own
session or of session 0; and each is looked up anew before each signal. Without a /proc that shows our own namespace,
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

from ramet.concurrency.deadline import to_its_end

MARK = "RAMET_CALL"
_GONE_S = 5.0  #: how long what is killed may take to be gone: longer only inside the kernel
_PAUSES_S = (0.002, 0.05)  #: between two looks, first and at most
_PROC = pathlib.Path("/proc")


class Mark:
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

    def is_older(self, ticks: bytes) -> bool:
        """Whether a process started before the command did: whatever else it looks like, it is not one of its."""
        return int(ticks) < self._born

    def is_on(self, pid: str) -> bool:
        """Whether a process carries the mark. Raises OSError if that cannot be seen."""
        return any(
            each.startswith(MARK.encode()) and self._token in each
            for each in (_PROC / pid / "environ").read_bytes().split(b"\0")
        )


async def end(leader: int | None, mark: Mark, *, grace_s: float) -> None:
    """SIGTERM to everyone who is left of a command, if there is a grace, and SIGKILL after it, until nobody is.

    A cancel ends the grace: SIGKILL follows at once. `leader` is the command itself, None if its pid is not known.
    """
    family = _Family(leader, mark)
    left = True
    try:
        if grace_s > 0:
            left = not await family.gone(signal.SIGTERM, within_s=grace_s, again=False)
    finally:
        if left and family.signal(signal.SIGKILL):
            await to_its_end(family.gone(signal.SIGKILL, within_s=_GONE_S, again=True))


class _Family:
    """The processes of one command."""

    def __init__(self, leader: int | None, mark: Mark) -> None:
        self._leader, self._mark = leader, mark
        self._known: set[int] = set()  #: who was of it at some look

    async def gone(self, number: int, *, within_s: float, again: bool) -> bool:
        """Signal all and wait until nobody lives, for a while; `again` is for whoever was forked in the meantime."""
        # Not on a `Clock`: real processes take real time, also where a test's clock stands still.
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        pause, longest = _PAUSES_S
        left = self.signal(number)
        while left and loop.time() < until:  # nobody tells of these ends
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            left = self.signal(number) if again else self.living()
        return not left

    def signal(self, number: int) -> set[int]:
        """Signal everyone who lives; says who that was."""
        living = self.living()
        # PermissionError: it is another user's by now; nothing more can be done from here.
        for pid in living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return living

    def living(self) -> set[int]:
        """Who lives; takes note of the ends of those that came to us, as to pid 1 of a container: nobody else does."""
        if not _shows_us():
            return self._group()
        us, session_of_ours, leader = os.getpid(), os.getsid(0), self._leader
        found: set[int] = set() if leader is None else {leader}
        young: dict[int, int] = {}
        ended: list[int] = []
        for name in os.listdir(_PROC):  # noqa: PTH208 - only the names, hundreds of them
            if not name.isdigit():
                continue
            try:
                fields = (_PROC / name / "stat").read_bytes().rpartition(b")")[2].split()
                state, parent, group, session = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
                if session in (0, session_of_ours) or self._mark.is_older(fields[19]):
                    continue
                pid = int(name)
                if state in (b"Z", b"X"):
                    if parent == us and pid != leader and (session == leader or pid in self._known):
                        ended.append(pid)
                    continue
                young[pid] = parent
                if leader in (group, session) or self._mark.is_on(name):
                    found.add(pid)
            except (OSError, ValueError, IndexError):
                continue  # Gone since, or another user's.
        for pid in ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        newer = found
        while newer:
            newer = {pid for pid, parent in young.items() if parent in newer and pid not in found}
            found = found | newer
        self._known |= found & young.keys()
        return found & young.keys()

    def _group(self) -> set[int]:
        """The group as one that can be signalled, if anybody in it lives."""
        if self._leader is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, 0)
                return {-self._leader}
        return set()


def _shows_us() -> bool:
    """Whether the pids of /proc are those of our own namespace: with others we would signal whoever has the same."""
    try:
        return os.readlink(_PROC / "self") == str(os.getpid())  # noqa: PTH115 - a name, not a path
    except OSError:
        return False
