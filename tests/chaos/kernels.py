"""Kernels as separate processes: start them, kill them at a moment, and find what they leave."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pathlib
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence

from tests.chaos.deadly import Kill
from tests.support.waiting import alive, eventually

ROOT = pathlib.Path(__file__).parents[2]
LIFE_S = 60  #: what one life may take; passed only by a kernel that hangs
_PR_SET_CHILD_SUBREAPER = 36


class Kernel:
    """Process of the program, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, errors: pathlib.Path) -> None:
        self.process, self._errors = process, errors

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def words(self) -> str:
        """Last 3000 characters of its stderr."""
        return self._errors.read_text()[-3000:]

    async def up(self) -> None:
        """Return when the program is about to begin, or has ended."""
        assert self.process.stdout is not None
        await self.process.stdout.readline()

    async def end(self) -> int:
        """Wait for the end and return the exit code; a negative code is a signal's number."""
        return await asyncio.wait_for(self.process.wait(), LIFE_S)

    async def kill_after(self, seconds: float) -> int:
        """Kill the process so many seconds after it is up, unless it has ended by then."""
        await self.up()
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.process.wait(), seconds)
        self.kill()
        return await self.end()

    def kill(self) -> None:
        """Send SIGKILL if the process lives. `Process.kill` would poll first, and take the exit code away."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


async def start(
    trip: str, folder: pathlib.Path, kill: Kill | None = None, server: Sequence[str] = (), *, before: Sequence[str] = ()
) -> Kernel:
    """Start a process of a trip.

    `before` is a command that starts the program.
    """
    errors = folder / "stderr"
    program, arguments = "tests.chaos.program", (trip, str(folder), str(kill or ""), *server)
    with errors.open("a") as file:
        process = await asyncio.create_subprocess_exec(
            *before,
            *(sys.executable, "-m", program, *arguments),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=file,
            start_new_session=True,
        )
    return Kernel(process, errors)


@contextlib.asynccontextmanager
async def taken_over(trip: str, folder: pathlib.Path, kill: Kill | None, server: Sequence[str]) -> AsyncIterator[None]:
    """Have the kernel of a trip killed beside another one, which has taken the tree over and ended well afterwards."""
    with inheriting_orphans() as orphans:
        other = await start(f"{trip} taken over", folder, None, (*server, "other"))
        orphans.expect(other.pid)
        try:
            await eventually((folder / "standing by").exists)
            killed = await start(trip, folder, kill, (*server, "killed"))
            assert await killed.end() == -signal.SIGKILL, killed.words
            yield
            assert await other.end() == 0, other.words
        finally:
            other.kill()
        await orphans.wait_ended()


@contextlib.contextmanager
def inheriting_orphans() -> Iterator[Orphans]:
    """Become the parent of the processes that a dead kernel leaves, so that they can be seen."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    orphans = Orphans()
    try:
        yield orphans
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        orphans.end()


class Orphans:
    """Processes that became children of this one because their parent died."""

    def __init__(self) -> None:
        self._ours = _children()

    def expect(self, pid: int) -> None:
        """Accept this process as one of ours: it was started meanwhile and stays."""
        self._ours.add(pid)

    async def wait_ended(self) -> None:
        """Wait until none is left alive; dead ones are reaped."""
        await eventually(lambda: not self._living())

    def end(self) -> None:
        """Kill and reap all, so that other tests see none."""
        for pid in _children() - self._ours:  # Also what is about to end, a zombie with a thread left, say.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # It was somebody else's by then.
                os.waitpid(pid, 0)

    def _living(self) -> set[int]:
        living = set[int]()
        for pid in _children() - self._ours:
            if alive(pid):
                living.add(pid)  # If it ends meanwhile, it is reaped at the next look, or by `end`.
            else:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return living


def descendants(pid: int) -> list[int]:
    """Return the living processes below one; a process that only waits to be reaped is left out."""
    below = [each for each in _children(pid) if alive(each)]
    return below + [further for each in below for further in descendants(each)]


def _children(pid: int | str = "self") -> set[int]:
    pids: set[int] = set()
    with contextlib.suppress(OSError):  # It, or a thread of it, has ended meanwhile.
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                pids.update(map(int, (task / "children").read_text().split()))
    return pids
