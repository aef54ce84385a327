"""Git without hooks, prompts, pagers or our environment, bounded in time.

In a repository that the user trusts git runs unconfined. In any other repository it runs in a sandbox
(`ramet.isolation.git.sandbox`). The sandbox runs no program of the repository's configuration, and a program that runs
nevertheless reaches nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import re
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock, SystemClock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import CommandResult, environment, run
from ramet.concurrency.threads import in_thread
from ramet.core.errors import RametError
from ramet.isolation import python_runtime
from ramet.isolation.git import repository_files
from ramet.isolation.git.sandbox import options, user_settings
from ramet.isolation.git.sandbox.request import UNCONFINED, Command, Folder, HiddenFolder, Request, mark_line
from ramet.isolation.linux.beneath import open_without_links
from ramet.isolation.mounts import is_private_name
from ramet.isolation.state_search import StateSearch
from ramet.tools.git import irregular_files
from ramet.tools.git.git_checkout import Checkout

_INHERITED = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR", "USER", "LOGNAME")
_ENV: Mapping[str, str] = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    # Reflogs contain a name; it must not depend on the setup of a machine.
    "GIT_AUTHOR_NAME": "ramet",
    "GIT_AUTHOR_EMAIL": "ramet@localhost",
    "GIT_COMMITTER_NAME": "ramet",
    "GIT_COMMITTER_EMAIL": "ramet@localhost",
}
_GRACE_S = 5.0  #: git removes its lock files on SIGTERM, which would block the user's own git
_MAX_OUTPUT = 1 << 20
_LOCK_POLL_S = 0.02
_OLDEST = (2, 38)  #: an older git silently ignores safe.bareRepository
_LAUNCHER = "import sys; sys.path.insert(0, sys.argv[1]); from ramet.isolation.git.sandbox.launcher import main; main()"
_SOURCE = str(pathlib.Path(__file__).resolve().parents[3])
_ROOT = pathlib.Path("/")
_TREE_READERS = frozenset({"status", "add"})  #: commands that read every folder of the working tree
_versions: dict[str, str] = {}  #: version texts of programs that are new enough
TRUST = "trust the repository if you know what it runs: ramet trust DIR"


class NoWorktree(RametError):
    """The error for a worktree that is not available, or a failure of git. `remedy` is the advice for the reader.

    `code` is git's exit status, if git itself refused.
    """

    def __init__(self, repo: object, reason: str, remedy: str, *, code: int | None = None) -> None:
        self.repo, self.reason, self.remedy, self.code = str(repo), reason, remedy, code
        super().__init__(f"no git worktree for {repo}: {reason}; {remedy}")


class _ProcessResult(NamedTuple):
    """The result of one ended process, with its output and its error output."""

    output: str
    error_output: str
    exit_status: CommandResult


class Done(NamedTuple):
    """The outputs of commands, up to the first that failed, and the failure of that one."""

    outputs: list[str]
    failure: NoWorktree | None


def trusts_none(folder: pathlib.Path) -> bool:
    """Return False for every folder: none is trusted."""
    return False


@dataclass(frozen=True, kw_only=True)
class Git:
    """The way to call git: its environment, its time limit, its abort, and whose programs it may run."""

    clock: Clock = field(default_factory=SystemClock)
    abort: AbortController | None = None
    timeout_s: float = 120.0  #: for one command; a checkout of a large repository takes long
    environ: Mapping[str, str] | None = None  #: None is this process's environment
    trusts: Callable[[pathlib.Path], bool] = trusts_none  #: whether the user trusts a folder in its current state
    has_user_settings: bool = True  #: in a sandbox, filters and file names of the user's own configuration count
    file_bytes: int | None = None  #: of one file that git writes in a sandbox

    async def __call__(
        self, checkout: Checkout, *args: str, at_repository: bool = False, write: Iterable[pathlib.Path] = ()
    ) -> str:
        """Return the output of one command; see `each`.

        Raises the errors of `each`, and NoWorktree if the command fails.
        """
        done = await self.each(checkout, [Command(args)], at_repository=at_repository, write=write)
        if done.failure is not None:
            raise done.failure
        return done.outputs[0]

    async def each(
        self,
        checkout: Checkout,
        commands: Sequence[Command],
        *,
        at_repository: bool = False,
        shows_tree: bool = True,
        write: Iterable[pathlib.Path] = (),
        read: Iterable[pathlib.Path] = (),
    ) -> Done:
        """Run commands in a checkout, or in its repository without any working tree, up to the first that fails.

        Without `shows_tree` a sandbox does not show the working tree: for commands that do not read it. `write` are
        folders outside the repository that the commands write to, `read` further ones that they read.

        Raises NoWorktree if the commands cannot be confined, Aborted if they are stopped; when this returns or raises,
        no process of them is left.
        """
        program = self._program(checkout)
        top, git_dir = (checkout.common_dir,) * 2 if at_repository else (checkout.top, checkout.git_dir)
        env = {**self._env(), "GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(top)}
        env["GIT_CEILING_DIRECTORIES"] = str(top.parent)
        reads_tree = any(_TREE_READERS.intersection(each.args) for each in commands)
        await self._check_files(checkout, whole_tree=reads_tree)
        if self._is_trusted(checkout):
            return await self._each_unconfined(checkout, program, commands, top, env)
        await self._check(program, checkout)
        user = await self._user(program, checkout) if self.has_user_settings else user_settings.NONE
        is_shown = shows_tree and not at_repository
        hidden_folders = (
            await in_thread(lambda: _find_hidden_folders(checkout), name="ramet-search") if is_shown else ()
        )
        repository = _open_identity(checkout, checkout.common_dir)
        request = Request(
            program=program,
            commands=tuple(commands),
            mark=secrets.token_hex(16),
            cwd=str(top),
            uid=repository.uid,
            gid=repository.gid,
            parent=os.getpid(),
            cpu_s=int(self.timeout_s) + 10,
            file_bytes=self.file_bytes,
            write=(repository.folder, *(_open_identity(checkout, each).folder for each in write)),
            read=(*user.files, *((str(checkout.top),) if is_shown else ()), *map(str, read)),
            execute=user_settings.program_folders(
                program, self._environ, avoided_folders=[checkout.top, checkout.main, *write]
            ),
            hidden_folders=hidden_folders,
            user=user.settings,
        )
        launcher = [sys.executable, "-I", "-S", "-B", *python_runtime.bytecode(), "-c", _LAUNCHER, _SOURCE]
        result = await self._run(checkout, launcher, _ROOT, env, stdin=request.encode())
        *outputs, _ = result.output.split(mark_line(request.mark))
        return Done(outputs, self._failure(checkout, commands[min(len(outputs), len(commands) - 1)].args[0], result))

    async def _each_unconfined(
        self, checkout: Checkout, program: str, commands: Sequence[Command], top: pathlib.Path, env: Mapping[str, str]
    ) -> Done:
        fixed_options = [part for key, value in options.FIXED for part in ("-c", f"{key}={value}")]
        outputs: list[str] = []
        for command in commands:
            assert not command.stdin_file + command.stdout_file, "only a sandbox opens files for git"
            argv, stdin = [program, *fixed_options, *command.args], command.stdin.encode()
            result = await self._run(checkout, argv, top, env, stdin=stdin)
            if (failure := self._failure(checkout, command.args[0], result)) is not None:
                return Done(outputs, failure)
            outputs.append(result.output)
        return Done(outputs, None)

    @property
    def _environ(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ

    def _env(self) -> dict[str, str]:
        return {**environment(_INHERITED, self._environ), **_ENV}

    def _program(self, checkout: Checkout) -> str:
        program = shutil.which("git", path=self._environ.get("PATH"))
        if program is None:
            raise NoWorktree(checkout.top, "git is not installed", "install git, or leave out isolation='worktree'")
        return program

    async def _check_files(self, checkout: Checkout, *, whole_tree: bool) -> None:
        """Raise NoWorktree for a file that git would wait for. Trust is checked only if a folder is elsewhere."""

        def look() -> None:
            irregular_files.check(checkout, whole_tree=whole_tree, may_lead_out=lambda: self._is_trusted(checkout))

        try:
            await in_thread(look, name="ramet-worktree")
        except irregular_files.Irregular as error:
            raise NoWorktree(checkout.top, str(error), error.remedy) from None

    def _is_trusted(self, checkout: Checkout) -> bool:
        """Return whether the user trusts and owns the repository: another owner could change it at any moment."""
        return any(map(self.trusts, checkout.folders)) and checkout.common_dir.stat().st_uid == os.geteuid()

    async def _check(self, program: str, checkout: Checkout) -> None:
        """Raise NoWorktree for operations that are impossible without trust."""
        if not checkout.is_own:
            raise NoWorktree(checkout.top, checkout.foreign_reason, TRUST)
        if not sys.platform.startswith("linux"):
            raise NoWorktree(checkout.top, f"git cannot be confined on {sys.platform}", TRUST)
        version_text = _versions.get(program, "")
        if not version_text:
            version_text = (await self._run(checkout, [program, "version"], _ROOT, self._env(), forks=False)).output
        match = re.search(r"(\d+)\.(\d+)", version_text)
        if match is None or (int(match[1]), int(match[2])) < _OLDEST:
            minimum = ".".join(map(str, _OLDEST))
            raise NoWorktree(
                checkout.top, f"{version_text.strip()} is older than {minimum}", f"install git {minimum}, or {TRUST}"
            )
        _versions[program] = version_text

    async def _user(self, program: str, checkout: Checkout) -> user_settings.UserSettings:
        argv, env = [program, *user_settings.COMMAND], {**self._env(), **user_settings.ENV}
        result = await self._run(checkout, argv, _ROOT, env, forks=False)
        if (failure := self._failure(checkout, "config", result)) is not None:
            raise failure
        return user_settings.parse_settings(result.output, self._environ)

    async def _run(
        self,
        checkout: Checkout,
        argv: list[str],
        cwd: pathlib.Path,
        env: Mapping[str, str],
        *,
        stdin: bytes = b"",
        forks: bool = True,
    ) -> _ProcessResult:
        output, error_output = Capture(head=_MAX_OUTPUT), Capture(head=_MAX_OUTPUT)
        try:
            exit_status = await run(
                argv,
                clock=self.clock,
                timeout_s=self.timeout_s,
                cwd=cwd,
                env=env,
                stdin=stdin,
                stdout=output,
                stderr=error_output,
                abort=self.abort,
                grace_s=_GRACE_S,
                forks=forks,
            )
        except OSError as error:
            raise NoWorktree(checkout.top, f"git cannot run there: {error}", "name a folder that exists") from None
        error_text = error_output.data().decode(errors="replace").strip()[-1_000:]
        return _ProcessResult(output.data().decode(errors="surrogateescape"), error_text, exit_status)

    def _failure(self, checkout: Checkout, name: str, result: _ProcessResult) -> NoWorktree | None:
        """Return the failure of an ended command; None if it succeeded."""
        if result.exit_status.reason == "timeout":
            reason = f"git {name} took longer than {self.timeout_s:g} s"
            return NoWorktree(checkout.top, reason, "try again, or raise timeout_s")
        if (code := result.exit_status.code) == UNCONFINED:
            return NoWorktree(checkout.top, f"git cannot be confined on this machine: {result.error_output}", TRUST)
        if code != 0:
            reason = f"git {name} failed: {result.error_output or f'exit status {code}'}"
            return NoWorktree(checkout.top, reason, "see the output of git", code=code)
        return None

    @asynccontextmanager
    async def alone_in(self, common_dir: pathlib.Path) -> AsyncIterator[None]:
        """Hold the repository's worktree lock, which excludes other tasks and processes: git's own lock may fail."""
        try:
            fd = repository_files.open_lock(common_dir, "ramet-worktrees.lock")
        except OSError as error:
            raise NoWorktree(common_dir, str(error), "make the repository writable") from None
        try:
            try:
                await wait_with_timeout(self._lock(fd), clock=self.clock, seconds=self.timeout_s, abort=self.abort)
            except TimeoutError:
                raise NoWorktree(common_dir, "another process holds its lock", "try again later") from None
            yield
        finally:
            os.close(fd)

    async def _lock(self, fd: int) -> None:
        while not try_lock(fd):
            await self.clock.sleep(_LOCK_POLL_S)


def try_lock(fd: int) -> bool:
    """Take the lock of an open file, if it is free. The lock ends with the descriptor, and so with its process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _find_hidden_folders(checkout: Checkout) -> tuple[HiddenFolder, ...]:
    """Return state folders of kernels in a working tree, with the project's entries in them."""
    try:
        folders = StateSearch().find_folders({str(checkout.top): str(checkout.top)})
        entries = [(path, os.listdir(path)) for path in folders]  # noqa: PTH208 - names are needed, not paths
    except (RametError, OSError) as error:
        raise NoWorktree(checkout.top, str(error), TRUST) from None
    return tuple(
        HiddenFolder(path, tuple(name for name in names if not is_private_name(name))) for path, names in entries
    )


class _Identity(NamedTuple):
    """A folder that a sandbox shows, and its owner."""

    folder: Folder
    uid: int
    gid: int


def _open_identity(checkout: Checkout, path: pathlib.Path) -> _Identity:
    """Return the current identity of a folder: the sandbox refuses another folder at the path.

    No link on the path counts, at any moment: whoever may replace a part of it could show git another folder.
    """
    try:
        handle = open_without_links(str(path))
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EXDEV):
            raise
        raise NoWorktree(checkout.top, f"{path} leads through a symbolic link", "name the folder itself") from None
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    return _Identity(Folder(str(path), status.st_dev, status.st_ino), status.st_uid, status.st_gid)
