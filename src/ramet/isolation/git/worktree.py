"""A git worktree for each child: its edits stay in its copy, which is kept only if it has any.

A child starts from HEAD of its folder: its copy does not have uncommitted changes, ignored files or the content of
submodules. It works on a branch of its own, `ramet/<name>-<id>`. At the end a worktree without a commit of its own and
without changed or new files is removed with its branch; ignored files do not count. Any other worktree stays until a
person merges and removes it.

Worktrees are in `.ramet/worktrees` of the main working tree, which `.git/info/exclude` hides, or where the caller says.
While a child lives, an open file locks its worktree. So `prune`, in any process, removes only worktrees of dead
processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.ids import safe_name
from ramet.core.outcome import BRANCH_PREFIX
from ramet.isolation import safe_walk
from ramet.isolation.git import repository_files
from ramet.isolation.git.git import Git, NoWorktree, try_lock
from ramet.isolation.git.sandbox.request import Command
from ramet.tools.git.git_checkout import WORKTREES_FOLDER, Checkout, NoCheckout, find

_EXCLUDED = "/.ramet/"
_LOCK_FILE = "ramet.lock"
_STATUS = Command(("status", "--porcelain", "--untracked-files=all", "--ignore-submodules=dirty"))


@dataclass(frozen=True, kw_only=True)
class Worktree:
    """A child's own copy. `base` is the commit it started from; `cwd` is the child's working directory in it."""

    path: pathlib.Path
    base: str
    branch: str
    cwd: pathlib.Path
    origin: Checkout  #: the checkout that it was made from
    _live: io.FileIO = field(repr=False, compare=False)  #: open, and so locked, as long as the child lives

    @property
    def common_dir(self) -> pathlib.Path:
        """The folder of the repository itself."""
        return self.origin.common_dir


def mint_label() -> str:
    """Return the random end of a branch's name."""
    return secrets.token_hex(4)


async def create(
    repo_dir: pathlib.Path,
    name: str,
    *,
    into: pathlib.Path | None = None,
    git: Git | None = None,
    mint: Callable[[], str] = mint_label,
) -> Worktree:
    """Create a worktree for a child that works in `repo_dir`. If this raises or is cancelled, none is left.

    Raises NoWorktree, with a remedy, if there is no git, no repository or no commit; Aborted if stopped.
    """
    git = git or Git()
    repo = find_checkout(repo_dir)
    label = re.sub(r"\.{2,}", ".", f"{safe_name(name)}-{mint()}")
    branch = BRANCH_PREFIX + label
    path = (repo.main / WORKTREES_FOLDER if into is None else _absolute(into)) / label
    async with git.alone_in(repo.common_dir):
        if _exists(path):
            raise NoWorktree(repo_dir, f"{branch} exists already", "use another name")
        live: io.FileIO | None = None
        try:
            path = _make_path_for(repo, path)
            base = await _create_branch(git, repo, path, branch)
            live = _try_lock(_open_worktree(repo, path))
            cwd = path / repo.prefix
            cwd.mkdir(parents=True, exist_ok=True)  # A folder that is not in HEAD is in no checkout.
        except _Refused as error:
            # No branch is ours: an undo would remove another's work.
            await run_shielded(in_thread(lambda: safe_walk.remove_path(path), name="ramet-worktree"))
            raise NoWorktree(repo_dir, error.reason, error.remedy) from None
        except BaseException as error:
            if live is not None:
                live.close()
            await run_shielded(_undo(git, repo, path, branch))
            if isinstance(error, OSError):
                raise NoWorktree(repo_dir, str(error), "name a folder that can be written, with `into`") from None
            raise
    assert live is not None, "no other process knows it yet"
    return Worktree(path=path, base=base, branch=branch, cwd=cwd, origin=repo, _live=live)


class _Refused(Exception):
    """The error for a worktree that was refused before any part of it was created."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(reason)


async def _create_branch(git: Git, repo: Checkout, path: pathlib.Path, branch: str) -> str:
    """Check out HEAD on a new branch; return its commit. Raises _Refused before anything is created."""
    ref = f"refs/heads/{branch}"
    add = Command(("worktree", "add", "--quiet", "--no-track", "-b", branch, str(path), "HEAD"))
    done = await git.each(repo, [tips_of("HEAD", ref), add, tips_of(ref)], shows_tree=False, write=[path])
    if done.outputs:
        head, existing = tips_in(done.outputs[0])
        if not head:
            raise _Refused("it has no commit yet", "commit once, so that there is something to start from")
        if existing:
            raise _Refused(f"{branch} exists already", "use another name")
    if done.failure is not None:
        raise done.failure
    return tips_in(done.outputs[2])[0]


async def restore(repo_dir: pathlib.Path, path: str, *, branch: str, base: str, git: Git | None = None) -> None:
    """Recreate the missing worktree of a child of `repo_dir`, from its branch, or from the branch's base.

    Raises NoWorktree, and OSError for a path that cannot be created.
    """
    git = git or Git()
    repo = find_checkout(repo_dir)
    async with git.alone_in(repo.common_dir):
        await _forget(git, repo, pathlib.Path(path))
        done = await git.each(repo, [tips_of(f"refs/heads/{branch}")], shows_tree=False)
        if done.failure is not None:
            raise done.failure
        has_branch = any(tips_in(done.outputs[0]))
        folder = _make_path_for(repo, pathlib.Path(path))
        start = [str(folder), branch] if has_branch else ["--no-track", "-b", branch, str(folder), base]
        await _add(git, repo, folder, *start)
        _make_folder(path, repo.prefix)


async def finish(worktree: Worktree, *, git: Git | None = None) -> pathlib.Path | None:
    """Remove an unchanged worktree; otherwise return its path, for a later merge.

    A worktree that cannot be proved unchanged is kept. The child must have ended.
    """
    git, repo = git or Git(), worktree.origin
    try:
        async with git.alone_in(worktree.common_dir):
            if not worktree.path.is_dir():  # The child removed it; its commits still exist.
                await _forget(git, repo, worktree.path)
                if await _remove_branch(git, repo, worktree.branch, worktree.base):
                    return None
                await _add(git, repo, _make_path_for(repo, worktree.path), str(worktree.path), worktree.branch)
                return worktree.path
            checkout = _open_worktree(repo, worktree.path)
            tips = tips_of("HEAD", f"refs/heads/{worktree.branch}")
            done = await git.each(checkout, [tips, _STATUS])
            is_at_base = bool(done.outputs) and set(tips_in(done.outputs[0])) == {worktree.base}
            if is_at_base and done.failure is None and await _is_unchanged(git, checkout, done.outputs[1]):
                await _remove(git, repo, checkout, worktree.branch, worktree.base)
                return None
    except (NoWorktree, OSError):
        pass
    finally:
        worktree._live.close()
    return worktree.path


async def prune(repo_dir: pathlib.Path, *, git: Git | None = None) -> list[pathlib.Path]:
    """Remove unchanged worktrees of dead processes, with their branches; return their paths.

    Worktrees with changes of their own are kept.
    """
    git = git or Git()
    repo = find_checkout(repo_dir)
    removed_paths: list[pathlib.Path] = []
    async with git.alone_in(repo.common_dir):
        for path, branch in await _list_branches(git, repo):
            if path is not None and not _exists(path):
                await _forget(git, repo, path)
                path = None
            if not await _is_merged(git, repo, branch):
                continue
            if path is None:
                await _remove_branch(git, repo, branch)
                continue
            live = None
            try:
                checkout = _open_worktree(repo, path)
                live = _try_lock(checkout)
                if live is not None and await _is_unchanged(git, checkout, await git(checkout, *_STATUS.args)):
                    await _remove(git, repo, checkout, branch)
                    removed_paths.append(path)
            except (NoWorktree, OSError):
                pass  # The worktree stays.
            finally:
                if live is not None:
                    live.close()
    return removed_paths


def find_checkout(folder: pathlib.Path) -> Checkout:
    """Return the checkout of a folder. Raises NoWorktree."""
    try:
        return find(folder)
    except NoCheckout as error:
        raise NoWorktree(folder, error.reason, error.remedy) from None
    except OSError as error:
        raise NoWorktree(folder, f"git cannot run there: {error}", "name a folder that exists") from None


def _absolute(path: pathlib.Path) -> pathlib.Path:
    return path.absolute()


def _open_worktree(repo: Checkout, path: pathlib.Path) -> Checkout:
    """Return the worktree at `path`. Raises NoWorktree for another repository there, which a child could have made."""
    checkout = find_checkout(path)
    if (checkout.top, checkout.common_dir) != (path, repo.common_dir) or checkout.git_dir == checkout.common_dir:
        raise NoWorktree(path, "it is no longer a worktree of its repository", "inspect it, and remove it")
    return checkout


def _make_path_for(repo: Checkout, path: pathlib.Path) -> pathlib.Path:
    """Create the empty folder of a new worktree; return its real path. Raises OSError."""
    if path.parent == repo.main / WORKTREES_FOLDER:
        repository_files.add_line(repo.common_dir, pathlib.Path("info", "exclude"), _EXCLUDED)
        repository_files.make_folder(repo.main, path.relative_to(repo.main))
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    repository_files.make_folder(path.parent.resolve(), pathlib.Path(path.name))
    return path.resolve()


async def _add(git: Git, repo: Checkout, folder: pathlib.Path, *args: str) -> None:
    await git(repo, "worktree", "add", "--quiet", *args, at_repository=True, write=[folder])


async def _forget(git: Git, repo: Checkout, path: pathlib.Path, *then: Command) -> None:
    """Remove the repository's record of a worktree whose folder no longer exists; do nothing if there is no record.

    `git worktree prune` would also remove records of the user's worktrees, whose folders a sandbox does not see.
    """
    if not _exists(path):
        remove = Command(("worktree", "remove", "--force", "--force", str(path)))
        await git.each(repo, [remove, *then], at_repository=True)


def _exists(path: pathlib.Path) -> bool:
    return os.path.lexists(path)


def tips_of(*names: str) -> Command:
    """Return the command that prints the commits of names; see `tips_in`."""
    stdin = "".join(f"{name}^{{commit}}\n" for name in names)
    return Command(("cat-file", "--batch-check=%(objectname)"), stdin)


def tips_in(output: str) -> list[str]:
    """Return the commits of the names; empty for each name that has none."""
    return [line if re.fullmatch(r"[0-9a-f]{40,64}", line) else "" for line in output.splitlines()]


async def _is_unchanged(git: Git, checkout: Checkout, status: str) -> bool:
    """Return whether no file is changed or new. A repository at the place of a submodule counts as a change unread."""
    if status:
        return False
    inner = await in_thread(lambda: repositories_below(checkout.top), name="ramet-worktree")
    if not inner:
        return True
    output = await git(checkout, "--literal-pathspecs", "ls-files", "--stage", "--", *inner)
    return not any(line.startswith("160000 ") for line in output.splitlines())


def repositories_below(top: pathlib.Path) -> Sequence[str]:
    paths = []
    for folder, names, files in os.walk(top):
        if folder != str(top) and ".git" in (*names, *files):
            paths.append(os.path.relpath(folder, top))
    return paths


async def _is_merged(git: Git, repo: Checkout, branch: str) -> bool:
    """Return whether all commits of a branch are in some branch that is not ours."""
    args = ["--format=%(refname)", f"--contains=refs/heads/{branch}"]
    output = await git(repo, "for-each-ref", *args, at_repository=True)
    own_prefix = f"refs/heads/{BRANCH_PREFIX}"
    return any(not each.startswith(own_prefix) for each in output.splitlines())


async def _list_branches(git: Git, repo: Checkout) -> list[tuple[pathlib.Path | None, str]]:
    """Return our branches, each with the path of its worktree if there is one."""
    output = await git(repo, "worktree", "list", "--porcelain", "-z", at_repository=True)
    paths: dict[str, pathlib.Path] = {}
    for entry in output.split("\0\0"):
        lines = dict(line.partition(" ")[::2] for line in entry.split("\0") if line)
        if "branch" in lines:
            paths[lines["branch"].removeprefix("refs/heads/")] = pathlib.Path(lines["worktree"])
    args = ["--format=%(refname:lstrip=2)", f"refs/heads/{BRANCH_PREFIX}"]
    names = await git(repo, "for-each-ref", *args, at_repository=True)
    return [(paths.get(branch), branch) for branch in names.splitlines()]


def _try_lock(checkout: Checkout) -> io.FileIO | None:
    """Lock a worktree for a child; None if it is locked. The lock file is next to git's own records of the worktree."""
    file = io.FileIO(repository_files.open_lock(checkout.git_dir, _LOCK_FILE))
    if try_lock(file.fileno()):
        return file
    file.close()
    return None


async def _remove(git: Git, repo: Checkout, checkout: Checkout, branch: str, commit: str | None = None) -> None:
    """Remove a clean worktree, and its branch unless that has moved from `commit`.

    Raises NoWorktree if the user has locked the worktree, OSError for files that stay.
    """
    if _exists(checkout.git_dir / "locked"):
        raise NoWorktree(checkout.top, "it is locked", "git worktree unlock")
    await run_shielded(in_thread(lambda: safe_walk.remove_path(checkout.top), name="ramet-worktree"))
    await _forget(git, repo, checkout.top, _removal(branch, commit))


async def _remove_branch(git: Git, repo: Checkout, branch: str, commit: str | None = None) -> bool:
    """Remove a branch that is still at `commit` (or anywhere, if None); return False if it has moved."""
    done = await git.each(repo, [_removal(branch, commit)], at_repository=True)
    return done.failure is None


def _removal(branch: str, commit: str | None) -> Command:
    return Command(("update-ref", "-d", f"refs/heads/{branch}", *([commit] if commit else [])))


async def _undo(git: Git, repo: Checkout, path: pathlib.Path, branch: str) -> None:
    """Remove everything that an unsuccessful creation left, whatever its progress."""
    uninterrupted_git = dataclasses.replace(git, abort=None)  # must not be stopped by the original abort
    with contextlib.suppress(OSError):
        safe_walk.remove_path(path)
    with contextlib.suppress(NoWorktree):
        await _forget(uninterrupted_git, repo, path)
        await _remove_branch(uninterrupted_git, repo, branch)


def _make_folder(top: str, relative_path: pathlib.Path) -> None:
    """Create a folder below `top`: one that is not in the commit is in no checkout."""
    pathlib.Path(top, relative_path).mkdir(parents=True, exist_ok=True)
