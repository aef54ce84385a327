"""One command as a child process: read within bounds, and gone with all it started when the call is over.

A command runs in a session of its own and carries a mark in its environment. What is ended is its group, its session,
its descendants, and whatever else carries the mark, such as a daemon that left all three. A process that also cleared
its environment is out of reach of this; holding that in is a sandbox's work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

GRACE_S = 2.0  #: from SIGTERM to SIGKILL
MARK = "RAMET_CALL"
ALLOWED = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"})
_REAP_S = 5.0  #: how long a killed child may take to be gone: longer only inside the kernel
_POLL_S = 0.02
_CHUNK = 64 * 1024
_PROC = pathlib.Path("/proc")


def environment() -> dict[str, str]:
    """What a command gets of our environment: no keys."""
    return {key: value for key, value in os.environ.items() if key in ALLOWED or key.startswith("LC_")}


class Ended(NamedTuple):
    """How a command came to its end: by itself, by its time limit, or because enough was read."""

    why: Literal["exit", "timeout", "enough"]
    code: int  #: its exit status; negative is the signal that ended it


class Capture:
    """Output within bounds: its beginning, its end, and how much lay between."""

    __slots__ = ("_head", "_head_size", "_tail", "_tail_size", "total")

    def __init__(self, *, head: int, tail: int = 0) -> None:
        self._head_size, self._tail_size, self.total = head, tail, 0
        self._head, self._tail = bytearray(), bytearray()

    def take(self, data: bytes) -> bool:
        """Keep what is to be kept; says whether all further data would be thrown away."""
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if self._tail_size and data:
            self._tail += data
            if len(self._tail) > 2 * self._tail_size:
                del self._tail[: -self._tail_size]
        return not self._tail_size and self.total > self._head_size

    @property
    def left_out(self) -> int:
        """How many bytes were not kept."""
        return self.total - len(self._head) - min(len(self._tail), self._tail_size)

    def data(self) -> bytes:
        """What was kept; if there is a gap before the end, a line says how large it is."""
        if not self._tail_size:
            return bytes(self._head)
        gap = f"\n… [{self.left_out} bytes left out here] …\n".encode() if self.left_out else b""
        return bytes(self._head) + gap + bytes(self._tail[-self._tail_size :])


class _Reader:
    """Gives what comes through a pipe to `take`, from the event loop, until the end or until it says enough."""

    def __init__(self, fd: int, take: Callable[[bytes], bool]) -> None:
        self._fd, self._take = fd, take
        self._loop = asyncio.get_running_loop()
        self._then: Callable[[], object] | None = None
        self.enough = False
        os.set_blocking(fd, False)

    def start(self, then: Callable[[], object]) -> None:
        """Read as data comes; call `then` once it is enough."""
        self._then = then
        self._loop.add_reader(self._fd, self._ready)

    def _ready(self) -> None:
        if not self._read() and self.enough and self._then:
            self._then()

    def _read(self) -> bool:
        """Take one piece; False if there is none, or no use for more."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        if data and not self._take(data):
            return True
        self.enough = bool(data)
        self._loop.remove_reader(self._fd)
        return False

    def close(self) -> None:
        """Take what is still in the pipe, without waiting for more, and close it."""
        self._loop.remove_reader(self._fd)
        with contextlib.suppress(OSError):
            while not self.enough and self._read():
                pass
        os.close(self._fd)


async def run(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    take: Callable[[bytes], bool],
    timeout_s: float,
    stdin: int = subprocess.DEVNULL,
    forks: bool = True,
    grace_s: float = GRACE_S,
) -> Ended:
    """Run a command to its end, giving its output and errors to `take` as they come; `take` may say enough.

    When this returns or raises, cancelled or not, nothing that the command started is left; `forks=False` says that it
    starts nothing, and saves the search after a normal end. Raises OSError if it cannot be started.
    """
    mark = _Mark()
    # A pipe of our own: one of asyncio's would keep `wait` waiting for grandchildren that hold it open.
    source, sink = os.pipe()
    reader = _Reader(source, take)
    process: asyncio.subprocess.Process | None = None
    timed_out = searched = False
    try:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *argv,
                stdin=stdin,
                stdout=sink,
                stderr=sink,
                cwd=cwd,
                env={**env, MARK: mark.value},
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Cancelled inside, asyncio would kill it at once; a few turns of the loop later it can be ended properly.
            with contextlib.suppress(OSError):
                process = await starting
            raise
        finally:
            os.close(sink)
        begun = process
        reader.start(lambda: begun.returncode is None and _signal_group(begun.pid, signal.SIGKILL))
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
            searched = not forks
        except TimeoutError:
            timed_out = True
    except OSError:
        searched = True  # It never started.
        raise
    finally:
        try:
            if not searched:
                await _end_all(None if process is None else process.pid, mark, grace_s)
        finally:
            try:
                if process is not None and process.returncode is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REAP_S):
                            await process.wait()
            finally:
                reader.close()
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    return Ended("timeout" if timed_out else "enough" if reader.enough else "exit", code)


class _Mark:
    """By what the processes of one command are known. Marks of calls around this one, in other processes, are kept."""

    def __init__(self) -> None:
        token = secrets.token_hex(8)
        self.value = f"{os.environ.get(MARK, '')}.{token}"
        self._token = token.encode()
        self._born = 0
        with contextlib.suppress(OSError, ValueError):
            uptime = float((_PROC / "uptime").read_text().split()[0])
            self._born = int(uptime * os.sysconf("SC_CLK_TCK")) - 2

    def is_older(self, ticks: bytes) -> bool:
        """Whether a process started before the command did: whatever else it looks like, it is not one of its."""
        return int(ticks) < self._born

    def is_on(self, pid: str) -> bool:
        """Whether a process carries the mark. Raises OSError if that cannot be seen."""
        return any(
            each.startswith(MARK.encode()) and self._token in each
            for each in (_PROC / pid / "environ").read_bytes().split(b"\0")
        )


async def _end_all(leader: int | None, mark: _Mark, grace_s: float) -> None:
    """SIGTERM to everything that is left, SIGKILL after the grace, or at once if this wait is itself cancelled."""
    left = _left(leader, mark)
    if not left:
        return
    orphans = left - {leader}
    try:
        _signal(leader, left, signal.SIGTERM)
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while (left := _left(leader, mark)) and loop.time() < until:  # noqa: ASYNC110 - nobody tells of these ends
            await asyncio.sleep(_POLL_S)
    finally:
        for _ in range(100):  # Whoever forks while being killed is found in the next round.
            if not (left := _left(leader, mark)):
                break
            orphans |= left - {leader}
            _signal(leader, left, signal.SIGKILL)
        _reap(orphans)


def _reap(orphans: set[int]) -> None:
    """Take note of the ends of those that came to us: where we are pid 1, as in a container, nobody else does."""
    for pid in orphans:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _left(leader: int | None, mark: _Mark) -> set[int]:
    """The living processes of a command. Without /proc, only whether its group lives.

    Never a process that is older than the command, or of our own session: a mistake here ends what is not ours.
    """
    if not _PROC.is_dir():
        return {leader} if leader and _signal_group(leader, 0) else set()
    ours = os.getsid(0)
    left: set[int] = set() if leader is None else {leader}
    young: dict[int, int] = {}
    for name in os.listdir(_PROC):  # noqa: PTH208 - only the names, hundreds of them
        if not name.isdigit():
            continue
        try:
            fields = (_PROC / name / "stat").read_bytes().rpartition(b")")[2].split()
            state, parent, group, session = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
            if state in (b"Z", b"X") or session in (0, ours) or mark.is_older(fields[19]):
                continue
            young[int(name)] = parent
            if leader in (group, session) or mark.is_on(name):
                left.add(int(name))
        except (OSError, ValueError, IndexError):
            continue  # Gone since, or another user's.
    found = set(left)
    while found:
        found = {pid for pid, parent in young.items() if parent in found and pid not in left}
        left |= found
    return left & young.keys()


def _signal(leader: int | None, left: set[int], number: int) -> None:
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    if leader is not None and not _PROC.is_dir():
        _signal_group(leader, number)


def _signal_group(leader: int, number: int) -> bool:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
