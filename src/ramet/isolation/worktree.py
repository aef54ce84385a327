"""A git worktree of its own for each child: its edits land in its copy, and are kept only if there are any.

A child starts from HEAD of the folder that it was given: changes there that are not committed, ignored files and the
content of submodules are not in its copy. It works on a branch of its own, `ramet/<name>-<id>`. In the end a worktree
that has no commit of its own and nothing changed or new (ignored files aside) is removed with its branch; any other
stays where it is until somebody merges and removes it.

Worktrees stand in `.ramet/worktrees` of the main working tree, which `.git/info/exclude` hides, or where the caller
says. While a child lives its worktree is locked by an open file, so that `prune`, in whatever process, removes only
what a dead process left.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from ramet.concurrency.deadline import to_its_end
from ramet.core.ids import safe_name
from ramet.isolation.git import Git, NoWorktree, try_lock

PREFIX = "ramet/"
_FOLDER = pathlib.PurePath(".ramet", "worktrees")
_EXCLUDED = "/.ramet/"
_LIVE = "ramet.lock"


@dataclass(frozen=True, kw_only=True)
class Worktree:
    """A child's own copy. `base` is the commit it started from; `cwd` is where the child works in it."""

    path: pathlib.Path
    base: str
    branch: str
    cwd: pathlib.Path
    common_dir: pathlib.Path  #: the repository itself
    _live: io.FileIO = field(repr=False, compare=False)  #: open, and so locked, as long as the child lives


def _mint() -> str:
    return secrets.token_hex(4)


async def create(
    repo_dir: pathlib.Path,
    name: str,
    *,
    into: pathlib.Path | None = None,
    git: Git | None = None,
    mint: Callable[[], str] = _mint,
) -> Worktree:
    """Make a worktree for a child that works in `repo_dir`. If this raises, cancelled or not, there is none.

    Raises NoWorktree, with what to do, where there is no git, no repository or no commit; Aborted if stopped.
    """
    git = git or Git()
    repo = await _repository(git, repo_dir)
    label = re.sub(r"\.{2,}", ".", f"{safe_name(name)}-{mint()}")
    branch, path = PREFIX + label, (into or repo.main / _FOLDER).absolute() / label
    async with git.alone_in(repo.common_dir):
        if path.exists() or await _tip(git, repo.common_dir, f"refs/heads/{branch}"):
            # Nothing of it is ours: undoing a creation that failed would remove somebody's work.
            raise NoWorktree(repo_dir, f"{branch} exists already", "use another name")
        live: io.FileIO | None = None
        try:
            if into is None:
                _exclude(repo.common_dir)
            path.parent.mkdir(parents=True, exist_ok=True)
            await git(repo.top, "worktree", "add", "--quiet", "--no-track", "-b", branch, str(path), repo.head)
            live = await _hold(git, path)
            cwd = path / repo.prefix
            cwd.mkdir(parents=True, exist_ok=True)  # A folder that is not in HEAD is in no checkout.
        except BaseException as error:
            if live is not None:
                live.close()
            await to_its_end(_undo(git, repo.common_dir, path, branch))
            if isinstance(error, OSError):
                raise NoWorktree(repo_dir, str(error), "name a folder that can be written, with `into`") from None
            raise
    assert live is not None, "nobody else can know of it yet"
    return Worktree(path=path, base=repo.head, branch=branch, cwd=cwd, common_dir=repo.common_dir, _live=live)


async def restore(repo_dir: pathlib.Path, path: str, *, branch: str, base: str, git: Git | None = None) -> None:
    """Make one anew that was made for a child of `repo_dir` and is gone, from its branch, or where that began.

    Raises NoWorktree.
    """
    git = git or Git()
    repo = await _repository(git, repo_dir)
    async with git.alone_in(repo.common_dir):
        await git(repo.common_dir, "worktree", "prune")
        is_left = await _tip(git, repo.common_dir, f"refs/heads/{branch}")
        start = [path, branch] if is_left else ["--no-track", "-b", branch, path, base]
        await git(repo.top, "worktree", "add", "--quiet", *start)
        _make_folder(path, repo.prefix)


async def finish(worktree: Worktree, *, git: Git | None = None) -> pathlib.Path | None:
    """Remove a worktree that was not changed; else give its path, for whoever wants to merge it.

    What cannot be shown to be unchanged is kept. The child must be gone.
    """
    git = git or Git()
    try:
        async with git.alone_in(worktree.common_dir):
            if not worktree.path.is_dir():  # The child removed it; its commits are still there.
                await git(worktree.common_dir, "worktree", "prune")
                if await _remove_branch(git, worktree.common_dir, worktree.branch, worktree.base):
                    return None
                await git(worktree.common_dir, "worktree", "add", "--quiet", str(worktree.path), worktree.branch)
                return worktree.path
            tips = {await _tip(git, worktree.path, each) for each in ("HEAD", f"refs/heads/{worktree.branch}")}
            if tips == {worktree.base} and await _is_clean(git, worktree.path):
                await _remove(git, worktree.common_dir, worktree.path)
                await _remove_branch(git, worktree.common_dir, worktree.branch, worktree.base)
                return None
    except NoWorktree:
        pass
    finally:
        worktree._live.close()
    return worktree.path


async def prune(repo_dir: pathlib.Path, *, git: Git | None = None) -> list[pathlib.Path]:
    """Remove what processes that died left unchanged, with its branches; says which. Work of their own is kept."""
    git = git or Git()
    repo = await _repository(git, repo_dir)
    removed: list[pathlib.Path] = []
    async with git.alone_in(repo.common_dir):
        await git(repo.common_dir, "worktree", "prune")
        for path, branch in await _listed(git, repo.common_dir):
            if not await _is_merged(git, repo.common_dir, branch):
                continue
            if path is None:
                await _remove_branch(git, repo.common_dir, branch)
                continue
            live = None
            try:
                live = await _hold(git, path)
                if live is not None and await _is_clean(git, path):
                    await _remove(git, repo.common_dir, path)
                    await _remove_branch(git, repo.common_dir, branch)
                    removed.append(path)
            except (NoWorktree, OSError):
                pass  # It stays.
            finally:
                if live is not None:
                    live.close()
    return removed


@dataclass(frozen=True, kw_only=True)
class _Repository:
    top: pathlib.Path  #: of the working tree that was asked about
    prefix: str  #: from there to the folder that was asked about
    main: pathlib.Path  #: of the main working tree, so that a child's child does not stand in the child's
    common_dir: pathlib.Path
    head: str


async def _repository(git: Git, folder: pathlib.Path) -> _Repository:
    try:
        said = await git(folder, "rev-parse", "--show-toplevel", "--git-common-dir", "--show-prefix")
    except NoWorktree as error:
        if "not a git repository" in error.reason:
            raise NoWorktree(folder, "it is in no git repository", "run `git init` there and commit once") from None
        if "must be run in a work tree" in error.reason:
            raise NoWorktree(folder, "it is in no working tree", "name a folder that was checked out") from None
        raise
    top, common_dir, prefix = said.split("\n")[:3]
    head = await _tip(git, folder, "HEAD")
    if not head:
        raise NoWorktree(folder, "it has no commit yet", "commit once, so that there is something to start from")
    common = _resolved(folder, common_dir)
    # The main working tree is where the repository's own folder stands; a bare repository has none.
    main = common.parent if common.name == ".git" else pathlib.Path(top)
    return _Repository(top=pathlib.Path(top), prefix=prefix, main=main, common_dir=common, head=head)


def _resolved(folder: pathlib.Path, path: str) -> pathlib.Path:
    return (folder / path).resolve()


async def _tip(git: Git, where: pathlib.Path, name: str) -> str:
    """The commit that a name stands for; empty if it stands for none."""
    try:
        return (await git(where, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")).strip()
    except NoWorktree as error:
        if error.code != 1:
            raise
        return ""


async def _is_clean(git: Git, path: pathlib.Path) -> bool:
    return not await git(path, "status", "--porcelain", "--untracked-files=all", "--ignore-submodules=none")


async def _is_merged(git: Git, common_dir: pathlib.Path, branch: str) -> bool:
    """Whether all its commits are in some branch that is not ours."""
    said = await git(common_dir, "for-each-ref", "--format=%(refname)", f"--contains=refs/heads/{branch}")
    ours = f"refs/heads/{PREFIX}"
    return any(not each.startswith(ours) for each in said.splitlines())


async def _listed(git: Git, common_dir: pathlib.Path) -> list[tuple[pathlib.Path | None, str]]:
    """Our branches, each with the path of its worktree if there is one."""
    said = await git(common_dir, "worktree", "list", "--porcelain", "-z")
    at: dict[str, pathlib.Path] = {}
    for entry in said.split("\0\0"):
        lines = dict(line.partition(" ")[::2] for line in entry.split("\0") if line)
        if "branch" in lines:
            at[lines["branch"].removeprefix("refs/heads/")] = pathlib.Path(lines["worktree"])
    names = await git(common_dir, "for-each-ref", "--format=%(refname:lstrip=2)", f"refs/heads/{PREFIX}")
    return [(at.get(branch), branch) for branch in names.splitlines()]


async def _hold(git: Git, path: pathlib.Path) -> io.FileIO | None:
    """Lock a worktree as somebody's; None if it is. The lock file stands with git's own records of the worktree."""
    folder = path / (await git(path, "rev-parse", "--git-dir")).strip()
    file = io.FileIO(os.open(folder / _LIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if try_lock(file.fileno()):
        return file
    file.close()
    return None


async def _remove(git: Git, common_dir: pathlib.Path, path: pathlib.Path) -> None:
    await git(common_dir, "worktree", "remove", str(path))  # without --force: git itself refuses if there is anything


async def _remove_branch(git: Git, common_dir: pathlib.Path, branch: str, at: str | None = None) -> bool:
    """Remove a branch that still stands at `at` (or anywhere, if None); False if it has moved."""
    try:
        await git(common_dir, "update-ref", "-d", f"refs/heads/{branch}", *([at] if at else []))
    except NoWorktree:
        return False
    return True


async def _undo(git: Git, common_dir: pathlib.Path, path: pathlib.Path, branch: str) -> None:
    """Leave nothing of a creation that did not succeed, whether or not it got anywhere."""
    calm = Git(clock=git.clock, timeout_s=git.timeout_s, environ=git.environ)  # not stopped by what stopped it
    with contextlib.suppress(NoWorktree):
        await calm(common_dir, "worktree", "remove", "--force", "--force", str(path))
    with contextlib.suppress(NoWorktree):
        await calm(common_dir, "worktree", "prune")
        await _remove_branch(calm, common_dir, branch)


def _make_folder(top: str, below: str) -> None:
    """A folder that is not in the commit is in no checkout."""
    pathlib.Path(top, below).mkdir(parents=True, exist_ok=True)


def _exclude(common_dir: pathlib.Path) -> None:
    """Hide `.ramet` from `git status`, without touching a file that is under version control."""
    file = common_dir / "info" / "exclude"
    text = file.read_text(errors="surrogateescape") if file.exists() else ""
    if _EXCLUDED not in text.splitlines():
        file.parent.mkdir(exist_ok=True)
        gap = "" if not text or text.endswith("\n") else "\n"
        file.write_text(f"{text}{gap}{_EXCLUDED}\n", errors="surrogateescape")
