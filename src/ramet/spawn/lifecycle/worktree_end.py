"""The end of a run's worktree."""

from __future__ import annotations

import asyncio

from ramet.concurrency.deadline import run_shielded
from ramet.isolation.git import worktree
from ramet.isolation.git.git import Git
from ramet.spawn.run import Run


async def leave_worktree(run: Run, git: Git) -> None:
    """Remove the run's worktree if nothing changed in it; otherwise record its path as an artifact."""
    if run.worktree is None:
        return
    old_worktree, run.worktree = run.worktree, None
    finishing = asyncio.create_task(worktree.finish(old_worktree, git=git))
    try:
        with run.context.track_process():
            await run_shielded(asyncio.wait([finishing]))  # It must not be left half removed; git has a time limit.
    finally:
        leftover_path = old_worktree.path if finishing.exception() is not None else finishing.result()
        run.artifacts = (str(leftover_path),) if leftover_path is not None else ()
