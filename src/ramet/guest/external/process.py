"""A program as a child process: started with an environment of its own, and ended with all that it started."""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.process_reaper import ProcessTag, kill_all
from ramet.core.errors import TaskFailed

#: Seconds from SIGTERM to SIGKILL, and for a killed process to be gone.
GRACE_S, REAP_S = 2.0, 5.0
#: Bytes of the end of its standard error that are kept, and characters of it in an error.
STDERR_BYTES, SHOWN_CHARS = 8 * 1024, 2_000
_BUFFER_BYTES: Final = 64 * 1024
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class ProgramProcess:
    """A program that runs."""

    def __init__(self, child: _Child) -> None:
        assert child.stdout is not None
        self._child = child
        self.stdout: asyncio.StreamReader = child.stdout
        self._stderr = bytearray()

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """Return the writer of its standard input."""
        assert self._child.stdin is not None
        return self._child.stdin

    def write_input(self, text: str) -> None:
        """Write all of its standard input, without waiting for the program to read it."""
        self.stdin.write(text.encode("utf-8", "replace"))
        self.stdin.close()

    async def wait(self) -> int:
        """Return its exit status once it has ended; a signal that ended it is negative."""
        await self._child.exit_event.wait()
        return self._child.code

    def stderr_end(self) -> str:
        """Return the end of what it wrote to its standard error, without control characters."""
        return _CONTROL.sub("", self._stderr.decode("utf-8", "replace")).strip()[-SHOWN_CHARS:]

    def failure(self, reason: str) -> TaskFailed:
        """Return the error of a program that failed, with the end of its standard error."""
        told = self.stderr_end()
        return TaskFailed(f"{reason}\n[stderr] {told}" if told else reason)

    async def early_end(self) -> TaskFailed:
        """Return the error of a program that closed its output, with its status if it ends soon after."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                return self.failure(f"the program ended with {status_text(await self.wait())}")
        return self.failure("the program closed its output")

    async def drain_stderr(self) -> None:
        """Read its standard error to the end, and keep the last part."""
        assert self._child.stderr is not None
        while data := await self._child.stderr.read(_BUFFER_BYTES):
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]


class _Child(asyncio.subprocess.SubprocessStreamProtocol):
    """The pipes of a child process, and its end, also while processes that it started hold the pipes open."""

    def __init__(self) -> None:
        super().__init__(limit=_BUFFER_BYTES, loop=asyncio.get_running_loop())
        self.tag = ProcessTag()
        self.exit_event = asyncio.Event()
        self._started: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._started = transport
        super().connection_made(transport)

    def process_exited(self) -> None:
        super().process_exited()
        self.exit_event.set()

    @property
    def code(self) -> int:
        code = None if self._started is None else self._started.get_returncode()
        return -signal.SIGKILL if code is None else code

    async def end_others(self) -> None:
        """End what the program started and left, once it has ended: its output ends then, too."""
        await self.exit_event.wait()
        await self._kill()

    async def end(self) -> None:
        """End all processes of the program."""
        if self._started is None:
            return
        await self._kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_S):
                await self.exit_event.wait()
        self._started.close()

    async def _kill(self) -> None:
        assert self._started is not None
        await kill_all(self._started.get_pid(), self.tag, grace_s=GRACE_S)


@contextlib.asynccontextmanager
async def started_program(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, has_input: bool
) -> AsyncIterator[ProgramProcess]:
    """Start a program with exactly this environment, in a session of its own. All its processes have ended afterwards.

    Without `has_input`, its standard input is empty. Raises TaskFailed if it cannot be started.
    """
    child = _Child()
    pipe, empty = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    tasks: list[asyncio.Task[None]] = []
    try:
        try:
            # A cancellation waits for the start: a process that runs always has an owner.
            await run_shielded(
                asyncio.get_running_loop().subprocess_exec(
                    lambda: child,
                    *command,
                    stdin=pipe if has_input else empty,
                    stdout=pipe,
                    stderr=pipe,
                    cwd=cwd,
                    env=child.tag.tagged_env(env),
                    start_new_session=True,
                )
            )
        except (OSError, ValueError) as problem:
            raise TaskFailed(f"the program {command[0]!r} could not be started: {problem}") from None
        program = ProgramProcess(child)
        tasks += [asyncio.ensure_future(program.drain_stderr()), asyncio.ensure_future(child.end_others())]
        yield program
    finally:
        await run_shielded(_end(child, tasks))


async def _end(child: _Child, tasks: Sequence[asyncio.Task[None]]) -> None:
    try:
        await child.end()
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def status_text(code: int) -> str:
    """Return an exit status in words."""
    if code >= 0:
        return f"status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
