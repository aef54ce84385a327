"""git, asked without its surprises: no hooks, no prompts, no pagers, none of our environment, bounded in time."""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.deadline import within
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import environment, run
from ramet.core.errors import RametError

_PASSED = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR", "USER", "LOGNAME")
#: The user's configuration is read (it may say which folders are safe), but nothing in it that runs programs of a
#: repository's choice; whoever works in a worktree can write to the repository's own configuration.
_OPTIONS = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.pager=cat", "gc.auto=0", "maintenance.auto=false")
_GRACE_S = 5.0  #: git removes its lock files on SIGTERM, which the user's own git would trip over
_MAX_OUTPUT = 1 << 20
_LOCK_POLL_S = 0.02


class NoWorktree(RametError):
    """A worktree that cannot be had, or git that did not do its part. `remedy` says what the reader can do about it.

    `code` is git's exit status, if it is git that refused.
    """

    def __init__(self, repo: object, reason: str, remedy: str, *, code: int | None = None) -> None:
        self.repo, self.reason, self.remedy, self.code = str(repo), reason, remedy, code
        super().__init__(f"no git worktree for {repo}: {reason}; {remedy}")


@dataclass(frozen=True, kw_only=True)
class Git:
    """How git is called: its environment, its time, and what stops it."""

    clock: Clock = field(default_factory=SystemClock)
    abort: AbortController | None = None
    timeout_s: float = 120.0  #: for one command; checking out a large repository takes long
    environ: Mapping[str, str] | None = None  #: None is this process's environment

    async def __call__(self, where: pathlib.Path, *args: str) -> str:
        """The output of one command. Raises NoWorktree if it fails, Aborted if it is stopped; it is gone then."""
        environ = os.environ if self.environ is None else self.environ
        program = shutil.which("git", path=environ.get("PATH"))
        if program is None:
            raise NoWorktree(where, "git is not installed", "install git, or leave out isolation='worktree'")
        env = environment(_PASSED, environ) | {
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            # Reflogs name somebody; who that is must not depend on how a machine is set up.
            "GIT_AUTHOR_NAME": "ramet",
            "GIT_AUTHOR_EMAIL": "ramet@localhost",
            "GIT_COMMITTER_NAME": "ramet",
            "GIT_COMMITTER_EMAIL": "ramet@localhost",
        }
        options = [part for option in _OPTIONS for part in ("-c", option)]
        output, complaint = Capture(head=_MAX_OUTPUT), Capture(head=_MAX_OUTPUT)
        try:
            ended = await run(
                [program, *options, *args],
                clock=self.clock,
                timeout_s=self.timeout_s,
                cwd=where,
                env=env,
                stdout=output,
                stderr=complaint,
                abort=self.abort,
                grace_s=_GRACE_S,
            )
        except OSError as error:
            raise NoWorktree(where, f"git cannot run there: {error}", "name a folder that exists") from None
        if ended.why == "timeout":
            reason = f"git {args[0]} took longer than {self.timeout_s:g} s"
            raise NoWorktree(where, reason, "try again, or raise timeout_s")
        if ended.code != 0:
            said = complaint.data().decode(errors="replace").strip()[-1_000:]
            reason = f"git {args[0]} failed: {said or f'exit status {ended.code}'}"
            raise NoWorktree(where, reason, "see git's own words", code=ended.code)
        return output.data().decode(errors="surrogateescape")

    @asynccontextmanager
    async def alone_in(self, common_dir: pathlib.Path) -> AsyncIterator[None]:
        """Hold the repository's worktree lock, against other tasks and other processes alike: git's own may fail."""
        try:
            fd = os.open(common_dir / "ramet-worktrees.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NoWorktree(common_dir, str(error), "make the repository writable") from None
        try:
            try:
                await within(self._lock(fd), clock=self.clock, seconds=self.timeout_s, abort=self.abort)
            except TimeoutError:
                raise NoWorktree(common_dir, "another process holds its lock", "try again later") from None
            yield
        finally:
            os.close(fd)

    async def _lock(self, fd: int) -> None:
        while not try_lock(fd):
            await self.clock.sleep(_LOCK_POLL_S)


def try_lock(fd: int) -> bool:
    """Take the lock of an open file, if nobody has it. It goes with the descriptor, and so with its process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
