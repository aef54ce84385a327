"""Run one command as a child process, bounded in time and output; all its processes have ended afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from ramet.concurrency import pipes, process_reaper
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded, wait_with_timeout
from ramet.concurrency.pipes import Capture

GRACE_S = 2.0  #: from SIGTERM to SIGKILL
ALLOWED = frozenset({"PATH", "HOME", "LANG", "LC_*", "TERM", "TMPDIR", "USER"})  #: contains no keys
_REAP_S = 5.0  #: time for a killed child to end: longer only inside the kernel
_BASH = ("bash", "--noprofile", "--norc", "-c")
#: A subshell waits for the end of a pipe that only our process writes to, then kills the group. The command has no part
#: of that: bash replaces itself by one that does not know the subshell, so that `wait` does not wait for it either.
_WATCHED = '(exec 1<&- 2<&-; read -r -u "$0" || kill -KILL 0) & eval "exec $0<&-"; exec bash --noprofile --norc -c "$1"'


def environment(allowed_names: Collection[str] = ALLOWED, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that a command gets, by default from our environment: allowed names, `LC_*` by prefix."""
    prefixes = tuple(name[:-1] for name in allowed_names if name.endswith("*"))
    source = os.environ if environ is None else environ
    return {name: value for name, value in source.items() if name in allowed_names or name.startswith(prefixes)}


class CommandResult(NamedTuple):
    """The end of a command: by exit, by its time limit, or because enough output was read."""

    reason: Literal["exit", "timeout", "enough"]
    code: int  #: exit status; negative is the signal that ended it


async def run(
    argv: Sequence[str],
    *,
    clock: Clock,
    timeout_s: float | None,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    stdout: Capture | int,
    stderr: Capture | None = None,
    stdin: bytes | int = b"",
    abort: AbortController | None = None,
    grace_s: float = GRACE_S,
    forks: bool = True,
    pass_fds: Sequence[int] = (),
) -> CommandResult:
    """Run a command to its end, with the environment `env` and a mark. Without `stderr`, both streams go to `stdout`.

    `stdin` is the input, or a descriptor; `stdout` may also be a descriptor. An interrupted command gets SIGTERM, and
    SIGKILL `grace_s` later. Raises OSError if it cannot be started, and Aborted. When this returns or raises, cancelled
    or not, no process that the command started is left. `forks=False` states that it starts none, and saves the search
    after a normal end. `pass_fds` are further descriptors that the command gets.
    """
    if abort is not None:
        abort.raise_if_aborted()
    mark, child = process_reaper.ProcessTag(), _Child()
    streams: list[Capture | int] = [stdout] if stderr is None else [stdout, stderr]
    captures = [each for each in streams if isinstance(each, Capture)]
    timed_out = False
    with contextlib.ExitStack() as ours:
        try:
            with contextlib.ExitStack() as theirs:
                if isinstance(stdin, bytes):
                    stdin = pipes.writer_pipe(stdin, parent_fds=ours, child_fds=theirs) if stdin else subprocess.DEVNULL
                out, *err = [
                    each
                    if isinstance(each, int)
                    else pipes.reader_pipe(each, on_full=child.finish_event.set, parent_fds=ours, child_fds=theirs)
                    for each in streams
                ]
                await child.start(argv, cwd, mark.tagged_env(env), stdin, out, *(err or [out]), pass_fds=pass_fds)
            try:
                await wait_with_timeout(child.finish_event.wait(), clock=clock, seconds=timeout_s, abort=abort)
            except TimeoutError:
                timed_out = True
        finally:
            try:
                if forks or not child.exit_event.is_set():
                    has_enough = any(each.is_full for each in captures)
                    await process_reaper.kill_all(child.pid, mark, grace_s=0 if has_enough else grace_s)
            finally:
                await child.reap()
    is_full = any(each.is_full for each in captures)  # Checked again: the rest of the pipes has been read meanwhile.
    return CommandResult("timeout" if timed_out else "enough" if is_full else "exit", child.code)


async def run_bash(
    command: str,
    *,
    clock: Clock,
    timeout_s: float | None,
    cwd: str | os.PathLike[str],
    env: Mapping[str, str],
    stdout: Capture,
    is_watched: bool,
) -> CommandResult:
    """Run a command with bash, as `run` does. A watched one also ends, with its process group, if we are killed.

    The watch takes some milliseconds, which most commands do not last.
    """
    if not is_watched:
        return await run([*_BASH, command], clock=clock, timeout_s=timeout_s, cwd=cwd, env=env, stdout=stdout)
    held_end, our_end = os.pipe()
    argv = [*_BASH, _WATCHED, str(held_end), command]
    try:
        return await run(argv, clock=clock, timeout_s=timeout_s, cwd=cwd, env=env, stdout=stdout, pass_fds=[held_end])
    finally:
        os.close(held_end)
        os.close(our_end)


class _Child(asyncio.SubprocessProtocol):
    """The child process: its start and its end."""

    def __init__(self) -> None:
        self._transport: asyncio.SubprocessTransport | None = None
        self.exit_event = asyncio.Event()
        self.finish_event = asyncio.Event()  #: the process has ended, or need not continue

    @property
    def pid(self) -> int | None:
        """Return the pid; None if the process never started."""
        return None if self._transport is None else self._transport.get_pid()

    @property
    def code(self) -> int:
        """Return the exit code; for a process that could not be observed, the signal that it was sent."""
        code = None if self._transport is None else self._transport.get_returncode()
        return -signal.SIGKILL if code is None else code

    async def start(
        self,
        argv: Sequence[str],
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        pass_fds: Sequence[int],
    ) -> None:
        """Start the process. A cancellation waits for the start, so that a running process always has an owner."""
        # On cancellation, asyncio would kill the process, but not the processes that it had started.
        await run_shielded(
            asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        )

    async def reap(self) -> None:
        """Wait for a terminated process to end, and release its transport."""
        if self._transport is None:
            return
        try:
            if not self.exit_event.is_set():
                await run_shielded(self._wait_for_exit())
        finally:
            self._transport.close()

    async def _wait_for_exit(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                await self.exit_event.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; asyncio calls this once the process runs."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def process_exited(self) -> None:
        """Set the events of the end; asyncio calls this once the process is reaped."""
        self.exit_event.set()
        self.finish_event.set()
