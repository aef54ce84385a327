"""The end of a clone: the host puts the work of its run into the repository that it was made from, as one branch."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from ramet.concurrency.threads import in_thread
from ramet.core.outcome import BRANCH_PREFIX
from ramet.isolation.git.clone import Clone, check_own, source_of
from ramet.isolation.git.git import Git, NoWorktree
from ramet.isolation.git.host_repository import (
    give_like,
    lay_out,
    make_folder,
    parse_id,
    read_pack,
    run_git,
    shallow_commits,
    staging_folder,
    write_pack,
)
from ramet.isolation.git.sandbox.request import Command
from ramet.isolation.git.worktree import find_checkout, repositories_below, tips_in, tips_of
from ramet.tools.git.git_checkout import Checkout

_MAX_BRANCHES = 20  #: of one run: each of its ends may leave one
_MAX_INNER = 100


class Branch(NamedTuple):
    """The branch that holds the work of a run."""

    name: str
    summary: str  #: how much changed, as `git diff --shortstat` says it
    left_out: str = ""  #: what is not in it, and why


async def finish(clone: Clone, workspace: pathlib.Path, *, begun: datetime, max_bytes: int) -> Branch | None:
    """Put the work of an ended run into the repository that its clone was made from; None if nothing changed.

    The branch holds the commits of its HEAD and of its own branch, and as a last commit, dated `begun` at the earliest,
    what is not committed. Ignored files do not count. The clone stays as it is.

    Raises NoWorktree for a clone that cannot be read, or that holds more than `max_bytes` of new objects, and OSError.
    """
    git = dataclasses.replace(clone.git, abort=None, file_bytes=max_bytes)
    top = clone.folder(workspace.resolve())  # noqa: ASYNC240 - no link of a guest is above the clone
    if not clone.is_in(workspace):
        raise NoWorktree(top, "the run removed it", "nothing is left of it")
    own = find_checkout(top)
    check_own(own, top)
    [output] = (await run_git(git, own, [tips_of("HEAD", f"refs/heads/{clone.branch}")])).outputs
    tips = list(dict.fromkeys(filter(None, tips_in(output)))) or [clone.base]
    with staging_folder(workspace) as staging:
        shallow = shallow_commits(own.common_dir)
        reader = lay_out(top, staging / "git", head="none", example=clone.base, shallow=shallow, objects_of=own)
        files = await _read_files(git, reader, tips[0])
        new = await _new_commit(git, reader, clone, tips, files, begun)
        if new is None and files.left_out:
            raise NoWorktree(top, f"there is no commit, and not taken is {files.left_out}", "look at its folder")
        if new is None:
            return None
        packs = make_folder(staging / "packs", reader.common_dir)
        made = [Command(("hash-object", "-t", "commit", "-w", "--stdin"), new.text)] if new.text else []
        pack = await write_pack(git, reader, f"{new.id}\n^{clone.base}\n", packs, first=made, reads_tree=True)
        repo = source_of(clone)
        give_like(packs, repo.common_dir)
        name, summary = await _take(git, repo, clone, new.id, pack, max_bytes)
        return Branch(name, summary, files.left_out)


class _Files(NamedTuple):
    tree: str  #: empty if they could not be read
    left_out: str


class _NewCommit(NamedTuple):
    id: str
    text: str  #: of a commit that does not exist yet; empty for one of the run's own


async def _read_files(git: Git, reader: Checkout, commit: str) -> _Files:
    """Write the files of the clone as a tree, except repositories inside it."""
    inner = await in_thread(lambda: repositories_below(reader.top), name="ramet-clone")
    try:
        if len(inner) > _MAX_INNER:
            raise NoWorktree(reader.top, f"{len(inner)} repositories are inside it", "remove them")
        inner = await _not_ignored(git, reader, inner)
        kept_out = [f":(exclude,top,literal){path}" for path in inner]
        add = Command(("add", "--all", "--", ".", *kept_out))
        [_, _, tree] = (
            await run_git(git, reader, [Command(("read-tree", commit)), add, Command(("write-tree",))], reads_tree=True)
        ).outputs
    except NoWorktree as error:
        return _Files("", f"what was not committed: {error.reason}")
    return _Files(parse_id(tree), f"the repositories inside it: {', '.join(inner)}" if inner else "")


async def _not_ignored(git: Git, reader: Checkout, paths: Sequence[str]) -> Sequence[str]:
    if not paths:
        return paths
    command = Command(("check-ignore", "--no-index", "-z", "--stdin"), "".join(f"{path}\0" for path in paths))
    done = await git.each(reader, [command])
    if done.failure is not None and done.failure.code != 1:  # 1: none is ignored.
        raise done.failure
    ignored = set("".join(done.outputs).split("\0"))
    return [path for path in paths if path not in ignored]


async def _new_commit(
    git: Git, reader: Checkout, clone: Clone, tips: Sequence[str], files: _Files, begun: datetime
) -> _NewCommit | None:
    """Return the commit that holds the whole work; None if there is none besides the base."""
    first, last = tips[0], tips[-1]
    commands = [
        Command(("rev-parse", "--verify", f"{first}^{{tree}}")),
        Command(("log", "-1", "--format=%ct", first)),
        Command(("rev-list", "--max-count=1", *tips, f"^{clone.base}")),
        Command(("rev-list", "--max-count=1", last, f"^{first}", f"^{clone.base}")),
    ]
    tree, date, ahead, aside = (
        each.strip() for each in (await run_git(git, reader, commands, reads_tree=True)).outputs
    )
    if files.tree in ("", tree) and not aside:
        return _NewCommit(first, "") if ahead else None
    parents = [first, last] if aside else [first]  # Its own branch may have gone another way than its HEAD.
    seconds = max(int(begun.timestamp()), int(date) if date.isdecimal() and len(date) < 12 else 0)
    lines = [f"tree {files.tree or tree}", *(f"parent {each}" for each in parents)]
    lines += [f"{role} ramet <ramet@localhost> {seconds} +0000" for role in ("author", "committer")]
    text = "\n".join([*lines, "", f"Work of {clone.branch.removeprefix(BRANCH_PREFIX)} that was not committed", ""])
    body = f"commit {len(text)}\0{text}".encode()
    return _NewCommit(
        hashlib.new("sha256" if len(first) == 64 else "sha1", body, usedforsecurity=False).hexdigest(), text
    )


async def _take(
    git: Git, repo: Checkout, clone: Clone, commit: str, pack: pathlib.Path, max_bytes: int
) -> tuple[str, str]:
    """Add a pack to a repository, and a branch at its commit, unless it is there; return its name and the difference.

    A branch with other commits, of an earlier end of the run, stays; the new one gets a number.
    """
    names = [clone.branch, *(f"{clone.branch}-{number}" for number in range(2, _MAX_BRANCHES + 1))]
    difference = Command(("diff-tree", "--shortstat", "-r", "--no-renames", clone.base, commit))
    async with git.alone_in(repo.common_dir):
        [output] = (await run_git(git, repo, [tips_of(*(f"refs/heads/{name}" for name in names))])).outputs
        name, tip = next(
            (pair for pair in zip(names, tips_in(output), strict=True) if pair[1] in ("", commit)), ("", "")
        )
        if not name:
            raise NoWorktree(repo.top, f"{names[-1]} and all before it exist", "remove branches that you have merged")
        steps = [
            read_pack(pack, "--strict", f"--max-input-size={max_bytes}"),
            Command(("rev-list", "--objects", "--quiet", commit, f"^{clone.base}")),
            Command(("update-ref", f"refs/heads/{name}", commit, "0" * len(commit))),
        ]
        steps = [] if tip else steps
        done = await git.each(repo, [*steps, difference], shows_tree=False, write=[pack.parent])
    if done.failure is not None and len(done.outputs) < len(steps):
        raise done.failure
    summary = done.outputs[-1].strip() if done.failure is None else ""
    return name, summary if re.fullmatch(r"[\w ,()+-]{1,200}", summary, re.ASCII) else ""
