"""The changes of a run in its own copy of a repository: its worktree, its clone, or the branch that it left."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, InvalidValue, Unknown
from ramet.isolation.git.clone import Clone, source_of
from ramet.isolation.git.copy_diff import CopyDiff, branch_diff, folder_diff
from ramet.isolation.git.git import Git, NoWorktree
from ramet.isolation.git.worktree import find_checkout
from ramet.isolation.workspace.run_dirs import RunFolders

if TYPE_CHECKING:
    from ramet.core.replay.replay import TreeReplay
    from ramet.core.replay.run_replay import RunReplay
    from ramet.spawn.run import Run


async def diff_of(replay: TreeReplay, id: str, working_dir: pathlib.Path, active: Run | None = None) -> CopyDiff:
    """Return the difference between the copy of a recorded run and the commit that it began at.

    `active` is the run itself if this process runs it. Raises Gone for a run that has no copy, whose copy does not
    exist any more, or whose copy cannot be read.
    """
    run = replay.runs[id]
    try:
        if "clone" in run.spawn_event.birth:
            return await _clone_diff(run, working_dir, active)
        if "worktree" in run.spawn_event.birth:
            return await _worktree_diff(run, replay)
    except (NoWorktree, OSError, Unknown, InvalidValue, KeyError, TypeError) as error:
        reason = f"{error.reason}; {error.remedy}" if isinstance(error, NoWorktree) else str(error)
        raise Gone(f"the changes of {run.spawn_event.path} cannot be read: {reason}") from None
    raise Gone(f"{run.spawn_event.path} works in no worktree and no clone of its own")


async def _clone_diff(run: RunReplay, working_dir: pathlib.Path, active: Run | None) -> CopyDiff:
    clone = Clone.from_data(run.spawn_event.birth["clone"], Git())
    if run.result is not None and not run.result.artifacts:
        return CopyDiff(base=clone.base)
    source = source_of(clone)
    if run.result is not None and (branch := run.result.branch):
        return _found(await branch_diff(clone.git, branch, clone.base, source), branch)
    if active is not None and active.is_living and active.sandbox.current is not None:
        await active.sandbox.current.sync()
    folder = await in_thread(lambda: RunFolders(working_dir).find(run.id), name="ramet-diff")
    workspace = folder.workspace.resolve()
    return await folder_diff(clone.git, clone.folder(workspace), clone.base, source)


async def _worktree_diff(run: RunReplay, replay: TreeReplay) -> CopyDiff:
    recorded, parent = run.spawn_event.birth["worktree"], replay.runs[run.spawn_event.parent or ""]
    path, base, branch = (str(recorded[name]) for name in ("path", "base", "branch"))
    if run.result is not None and not run.result.artifacts:
        return CopyDiff(base=base)
    source = find_checkout(pathlib.Path(parent.spawn_event.birth["cwd"]))
    if pathlib.Path(path).is_dir():  # noqa: ASYNC240 - one look
        return await folder_diff(Git(), pathlib.Path(path), base, source)
    return _found(await branch_diff(Git(), branch, base, source), branch)


def _found(diff: CopyDiff | None, branch: str) -> CopyDiff:
    if diff is None:
        raise Gone(f"the branch {branch} is no longer there")
    return diff
