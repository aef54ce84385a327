"""The end of a run's own copy of a repository: its worktree, or the clone in its sandbox."""

from __future__ import annotations

import asyncio
import logging

from ramet.concurrency.deadline import run_shielded
from ramet.core.events import Notice
from ramet.isolation.git import clone_end, worktree
from ramet.isolation.git.clone import Clone
from ramet.isolation.git.git import Git
from ramet.isolation.git.worktree import Worktree
from ramet.spawn.masking import masked_text
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.worktree_end")


async def leave_worktree(run: Run, git: Git) -> None:
    """Remove the run's worktree, or fetch its clone's branch, and record what was changed as artifacts.

    A copy without changes leaves nothing. It is left once, however often and by however many callers this is awaited.
    """
    if run.worktree is not None:
        copy, run.worktree = run.worktree, None
        leaving = _leave_clone(run, copy) if isinstance(copy, Clone) else _leave_worktree(run, copy, git)
        run.worktree_end = asyncio.create_task(leaving)
    if run.worktree_end is None:
        return
    with run.context.track_process():
        await run_shielded(asyncio.wait([run.worktree_end]))  # It must not be left half removed; git has a time limit.


async def _leave_worktree(run: Run, left: Worktree, git: Git) -> None:
    try:
        path = await worktree.finish(left, git=git)
    except Exception:
        run.artifacts = (str(left.path),)
        raise
    run.artifacts = (str(path),) if path is not None else ()


async def _leave_clone(run: Run, clone: Clone) -> None:
    folder, grant = run.sandbox.folder, run.grant
    assert folder is not None, "a run with a clone works in a sandbox, which has a folder"
    assert grant is not None, "as above"
    max_bytes = grant.workspace_size_mb << 20
    try:
        begun = (await asyncio.to_thread(folder.read_info)).created
        branch = await clone_end.finish(clone, folder.workspace, begun=begun, max_bytes=max_bytes)
    except Exception as problem:  # Whatever it is, the work must not be lost with the run's folder.
        reason = _printable(problem)
        _log.warning("the work of %s stays in its clone, at %s: %s", run.info.path, folder.workspace, reason)
        is_there = clone.is_in(folder.workspace)
        run.artifacts = (str(clone.folder(folder.workspace)),) if is_there else ()
        _notify(run, f"its work is on no branch of {clone.top}: {reason}")
        if is_there:
            await asyncio.to_thread(folder.keep)  # Retention would remove it.
        return
    run.artifacts = ()
    if branch is not None:
        run.artifacts = (branch.name, f"{branch.summary or 'changed'}: git diff HEAD...{branch.name}")
        if branch.left_out:
            _notify(run, f"on the branch {branch.name} is everything but {_printable(branch.left_out)}")
            await asyncio.to_thread(folder.keep)


def _notify(run: Run, text: str) -> None:
    run.context.emit(Notice, text=masked_text(run, text))


def _printable(text: object) -> str:
    """Return a text with names and words of a guest, bounded, and safe for a record, a log and a terminal."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:2_000])
