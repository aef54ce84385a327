"""A clone of a repository for one run in a sandbox: it goes in as a pack of commits, and comes back as one branch.

The run may do anything with its clone, so the clone is never more than a hostile repository. Rules:

- Each git command sees one repository, in git's sandbox, whatever the user trusts. `git clone` and `git fetch` would
  join two repositories in one process tree, over a transport. Here only a pack passes from one to the other.
- The clone begins as files of the host: one pack with the history of HEAD, one branch, and a configuration of our own.
  No hook, remote, alternate, hard link or setting of the user's repository is in it. Filters, such as LFS, do not run.
- At its end its own configuration helps to name two commits, and counts for nothing else. A repository of the host's,
  which only borrows its objects, reads the files, adds what is not committed as a last commit, and packs new objects.
- The user's repository checks that pack object by object (`index-pack --strict`), and gets one ref, in one step, last.
  Until then nothing refers to the new objects. The last commit has the same id whenever it is made of the same files:
  after a kill the same branch is found again, and not made twice.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.threads import in_thread
from ramet.core.ids import safe_name
from ramet.core.outcome import BRANCH_PREFIX
from ramet.isolation.git import repository_files
from ramet.isolation.git.git import TRUST, Git, NoWorktree
from ramet.isolation.git.host_repository import (
    confine,
    give,
    give_like,
    lay_out,
    make_folder,
    read_pack,
    run_git,
    shallow_commits,
    staging_folder,
    write_pack,
)
from ramet.isolation.git.sandbox.request import Command
from ramet.isolation.git.worktree import find_checkout, mint_label, tips_in, tips_of
from ramet.isolation.limits.disk import used_bytes
from ramet.tools.git.git_checkout import Checkout

#: What git needs in a sandbox: it would end at a file of the machine that the sandbox forbids.
CLONE_ENV: Mapping[str, str] = {"GIT_CONFIG_NOSYSTEM": "1"}
CLONE_FOLDER = "repository"  #: in the workspace: files beside it are no part of the clone
_NO_CLONE = "start it without isolation='worktree'"
_TOO_LARGE = "File too large"  #: in git's message when it reaches the limit of one file


@dataclass(frozen=True, kw_only=True)
class Clone:
    """The clone of one run: the repository that it is made from, and the branch that its work becomes."""

    top: pathlib.Path  #: of the working tree that it is made from
    common_dir: pathlib.Path  #: of the repository that it is made from
    prefix: str  #: of the run's working directory, from the top
    base: str  #: the commit that it begins at
    branch: str
    git: Git = field(repr=False, compare=False)

    def as_data(self) -> dict[str, str]:
        """Return the clone as data for the journal."""
        return {name: str(getattr(self, name)) for name in ("top", "common_dir", "prefix", "base", "branch")}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], git: Git) -> Clone:
        """Return a recorded clone."""
        top, common_dir = pathlib.Path(data["top"]), pathlib.Path(data["common_dir"])
        rest = {name: str(data[name]) for name in ("prefix", "base", "branch")}
        return cls(top=top, common_dir=common_dir, git=git, **rest)

    def folder(self, workspace: pathlib.Path) -> pathlib.Path:
        """Return the clone's top in a workspace."""
        return workspace / CLONE_FOLDER

    def is_in(self, workspace: pathlib.Path) -> bool:
        """Return whether the clone, or whatever its run put in its place, is in a workspace."""
        return os.path.lexists(self.folder(workspace))

    def cwd(self, workspace: pathlib.Path) -> pathlib.Path:
        """Return the run's working directory in a workspace."""
        return workspace / CLONE_FOLDER / self.prefix


async def plan(
    folder: pathlib.Path,
    name: str,
    *,
    git: Git,
    inside: pathlib.Path | None = None,
    mint: Callable[[], str] = mint_label,
) -> Clone:
    """Return the clone for a run that works in `folder`; nothing is made yet.

    `inside` is the top of the clone that the folder must belong to. Raises NoWorktree, with a remedy, if there is no
    git, no repository or no commit, or if git cannot be confined there; Aborted if stopped.
    """
    repo, git = find_checkout(folder), confine(git)
    if inside is not None:
        check_own(repo, inside)
    try:
        [output] = (await run_git(git, repo, [tips_of("HEAD")])).outputs
    except NoWorktree as error:
        remedy = _NO_CLONE if TRUST in error.remedy else error.remedy
        raise NoWorktree(folder, error.reason, remedy, code=error.code) from None
    [base] = tips_in(output)
    if not base:
        raise NoWorktree(folder, "it has no commit yet", "commit once, so that there is something to start from")
    branch = BRANCH_PREFIX + re.sub(r"\.{2,}", ".", f"{safe_name(name)}-{mint()}")
    prefix = str(repo.prefix)
    return Clone(top=repo.top, common_dir=repo.common_dir, prefix=prefix, base=base, branch=branch, git=git)


async def create(
    clone: Clone,
    workspace: pathlib.Path,
    *,
    owner: tuple[int, int] | None,
    max_bytes: int,
    abort: AbortController | None = None,
) -> bool:
    """Make the clone in a workspace, unless an entry of its name is there; return whether it was made.

    A clone appears whole. `owner` is the user of the workspace, if that is another one. Raises NoWorktree, with a
    remedy, for a clone of more than `max_bytes`, and Aborted if stopped.
    """
    if clone.is_in(workspace):
        return False
    git, repo = dataclasses.replace(clone.git, abort=abort, file_bytes=max_bytes), source_of(clone)
    try:
        with staging_folder(workspace) as staging:
            new = staging / CLONE_FOLDER
            cut_at = shallow_commits(repo.common_dir)
            own = lay_out(new, new / ".git", head=clone.branch, example=clone.base, shallow=cut_at)
            packs = make_folder(staging / "packs", repo.common_dir)
            pack = await write_pack(git, repo, f"{clone.base}\n", packs)
            ref = own.git_dir / "refs" / "heads" / clone.branch
            ref.parent.mkdir()
            ref.write_text(f"{clone.base}\n")
            give_like(packs, own.git_dir)
            commands = [read_pack(pack), Command(("reset", "--hard", "--quiet"))]
            await run_git(git, own, commands, write=[new, packs])
            repository_files.make_folder(new, pathlib.Path(clone.prefix))  # One that is not in HEAD is in no checkout.
            size = await in_thread(lambda: used_bytes(new, max_bytes=max_bytes), name="ramet-clone")
            if size > max_bytes:
                raise _too_large(clone, max_bytes)
            if owner is not None:
                await in_thread(lambda: give(new, *owner), name="ramet-clone")
            new.rename(clone.folder(workspace))
    except NoWorktree as error:
        raise _too_large(clone, max_bytes) if _TOO_LARGE in error.reason else error from None
    except OSError as error:
        raise NoWorktree(clone.top, str(error), "look at its folder there") from None
    return True


def source_of(clone: Clone) -> Checkout:
    """Return the repository that a clone was made from. Raises NoWorktree if there is another one now."""
    repo = find_checkout(clone.top)
    if (repo.top, repo.common_dir) != (clone.top, clone.common_dir):
        raise NoWorktree(clone.top, "another repository is there now", "put the one back that the clone was made from")
    return repo


def check_own(checkout: Checkout, top: pathlib.Path) -> None:
    """Raise NoWorktree unless a clone is where it was made, with its repository in it."""
    if (checkout.top, checkout.git_dir, checkout.common_dir) != (top, top / ".git", top / ".git"):
        raise NoWorktree(top, "it is no longer a repository of its own", "look at its folder")


def _too_large(clone: Clone, max_bytes: int) -> NoWorktree:
    reason = f"a clone of it takes more than the {max_bytes >> 20} MB of policy.workspace_size_mb"
    return NoWorktree(clone.top, reason, "raise that limit, or start the run without isolation='worktree'")
