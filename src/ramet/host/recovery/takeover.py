"""The takeover of trees that another process left: they are rebuilt one after another, and resumed."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramet.agent.definition import Agent
from ramet.concurrency.clock import Clock
from ramet.concurrency.gc_pause import gc_paused
from ramet.core.errors import DamagedTree, DefinitionMissing, RametError, StoreFailed
from ramet.core.events import RunSpawned, StateChanged
from ramet.core.replay.replay import TreeReplay
from ramet.host.journal.journal import Journal
from ramet.host.recovery.resume import ResolvedInputs, UnfinishedTree, rebuild_runs, unfinished_trees
from ramet.host.trees.factory import OpenTree, TreeOptions
from ramet.host.trees.project import Project, git_of
from ramet.isolation.git import worktree
from ramet.isolation.git.git import Git, NoWorktree
from ramet.spawn.birth.record import missing_late_args
from ramet.spawn.handle import Handle
from ramet.spawn.lifecycle.supervisor import MAX_WAKES
from ramet.spawn.recovery import leave_ended_copies, resume_tree
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.recovery")


class TreeOwner(Protocol):
    """The runtime that gets the trees."""

    clock: Clock
    user_dir: pathlib.Path | None

    def open_project(self, folder: pathlib.Path | None, call: Sequence[Agent] = ()) -> Project:
        """Read the definitions and settings that a folder gives to a tree."""

    def open_tree(self, plan: TreeOptions) -> OpenTree:
        """Open a tree without a root."""

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own a tree from now on."""


@dataclass(frozen=True)
class Takeover:
    """The settings with which a runtime resumes trees; `prepare` is called with each root before it starts to work."""

    owner: TreeOwner
    supplied_inputs: ResolvedInputs
    close_with: Callable[[Run], None]
    prepare: Callable[[Run], None] | None = None
    reopens: bool = False  #: reopen conversations that were closed, too

    async def resume(self, trees: Sequence[UnfinishedTree], *, skip_damaged: bool = False) -> list[Handle]:
        """Resume trees that this kernel owns, one after another. Raises DefinitionMissing.

        A tree that cannot be read raises DamagedTree; with `skip_damaged` it is logged and left unchanged.
        """
        handles = []
        with gc_paused():
            for tree in trees:
                try:
                    handle = await self._take_up(tree)
                except DamagedTree as problem:
                    if not skip_damaged:
                        raise
                    _log.error("a tree cannot be resumed: %s", problem)
                    continue
                if handle is not None:
                    handles.append(handle)
        return handles

    async def resume_each(self, trees: Sequence[UnfinishedTree], on_resumed: Callable[[Handle], None]) -> None:
        """Resume trees that this kernel owns, and call `on_resumed` with each root.

        A tree that cannot continue here is logged. Raises StoreFailed.
        """
        with gc_paused():  # Around all of them: after each, a collection would scan all trees before it.
            for tree in trees:
                try:
                    for handle in await self.resume([tree]):
                        on_resumed(handle)
                except StoreFailed:
                    raise
                except Exception as problem:  # Whatever the error is, this kernel owns the other trees, too.
                    reason = problem if isinstance(problem, RametError) else f"{type(problem).__name__}: {problem}"
                    _log.error("this kernel owns tree %s, and cannot resume it: %s", tree.root, reason)

    async def _take_up(self, tree: UnfinishedTree) -> Handle | None:
        owner = self.owner
        replay = await tree.replay()
        if tree.is_alive:  # Another component resumed it meanwhile.
            return None
        reopens = self.reopens and replay.is_over and _is_conversation(replay)
        if reopens:
            replay.reopen()
        elif replay.is_over:
            await tree.close(owner.clock.now())
            return None
        await _restore_worktrees(replay, git_of(owner.user_dir))
        plan = tree.plan(self.supplied_inputs, owner.open_project)
        opened = owner.open_tree(plan)
        try:
            root = rebuild_runs(opened, replay, self.supplied_inputs)
            root.repeatable = plan.repeatable
            if self.prepare is not None:
                self.prepare(root)
            if root.request.late_args is missing_late_args:
                raise DefinitionMissing("late arguments", f"of {root.path}")
            if reopens:
                await tree.reopen()
        except BaseException:
            opened.close()
            raise
        owner.keep(opened, root)
        if reopens:
            root.wake_count = MAX_WAKES  # Its next turn begins with a prompt: the opening uses up no wake.
            root.context.emit(StateChanged, state=root.state.value, why="the conversation was opened again")
        await leave_ended_copies(opened.tree, replay)
        resume_tree(opened.tree, replay)
        if not root.persistent:
            self.close_with(root)
        return opened.tree.handle(root)


def _is_conversation(replay: TreeReplay) -> bool:
    if not replay.runs:  # Its kernel was killed before the root was on record.
        return False
    birth = replay.root.spawn_event.birth
    return bool(birth.get("persistent")) and not birth.get("agent", {}).get("function")


async def _restore_worktrees(replay: TreeReplay, git: Git) -> None:
    """Restore the removed, unchanged worktrees of runs that had answered: their ends are still to come."""
    for run, repo in _without_folder(replay):
        recorded = run.birth["worktree"]
        try:
            await worktree.restore(repo, recorded["path"], branch=recorded["branch"], base=recorded["base"], git=git)
        except (NoWorktree, OSError) as problem:  # The code that needs the worktree reports that it is missing.
            _log.warning("the worktree of %s cannot be restored: %s", run.path, problem)


def _without_folder(replay: TreeReplay) -> Iterator[tuple[RunSpawned, pathlib.Path]]:
    """Yield spawns of living runs whose worktree is missing, parents first, each with its source folder."""
    for each in replay.runs.values():
        spawn, parent = each.spawn_event, replay.runs.get(each.spawn_event.parent or "")
        has_worktree = not each.is_over and parent is not None and "worktree" in spawn.birth
        if parent is not None and has_worktree and not pathlib.Path(spawn.birth["cwd"]).is_dir():
            yield spawn, pathlib.Path(parent.spawn_event.birth["cwd"])


async def resume_all(taking: Takeover, journal: Journal | None, *, only: str | None) -> list[Handle]:
    """Resume every tree that no kernel has, or `only` one; return handles on their roots.

    Raises DefinitionMissing for an object that is not supplied; the trees before it continue. A tree that cannot be
    read is logged and left unchanged; as the `only` one it raises DamagedTree.
    """
    return await taking.resume(await claim_orphans(journal, only), skip_damaged=only is None)


async def claim_orphans(journal: Journal | None, only: str | None = None) -> list[UnfinishedTree]:
    """Claim the trees that are not over and that no living kernel owns, or `only` one; return the claimed trees."""
    trees = [each for each in await unfinished_trees(journal, only) if not each.is_alive]
    if journal is None or not trees:
        return []
    claimed = set(await journal.store.claim([each.root for each in trees]))
    return [each for each in trees if each.root in claimed]
