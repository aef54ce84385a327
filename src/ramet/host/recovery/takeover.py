"""Trees that another process left are taken up, one after another, and set to work."""

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
from ramet.host.recovery.resume import ResolvedInputs, UnfinishedTree, take_up, unfinished_trees
from ramet.host.trees.factory import OpenTree, TreeOptions
from ramet.host.trees.project import Project, git_of
from ramet.isolation.git import worktree
from ramet.isolation.git.git import Git, NoWorktree
from ramet.spawn.birth.record import missing_late_args
from ramet.spawn.handle import Handle
from ramet.spawn.lifecycle.supervisor import MAX_WAKES
from ramet.spawn.recovery import resume_tree
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.adopting")


class TreeOwner(Protocol):
    """Whose the trees are to be: a runtime."""

    clock: Clock
    user_dir: pathlib.Path | None

    def open_project(self, folder: pathlib.Path | None, call: Sequence[Agent] = ()) -> Project:
        """What a folder brings to a tree."""

    def open_tree(self, plan: TreeOptions) -> OpenTree:
        """One without a root yet."""

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own one from now on."""


@dataclass(frozen=True)
class Takeover:
    """How trees are taken up for a runtime; `prepare` sees each root before it is set to work."""

    owner: TreeOwner
    supplied: ResolvedInputs
    close_with: Callable[[Run], None]
    prepare: Callable[[Run], None] | None = None
    reopens: bool = False  #: conversations that were closed, too

    async def take_up(self, trees: Sequence[UnfinishedTree], *, passes_over: bool = False) -> list[Handle]:
        """Set trees that are this kernel's to work, one after another. Raises DefinitionMissing.

        A tree that cannot be read raises DamagedTree, or with `passes_over` is logged, and left as it is.
        """
        handles = []
        with gc_paused():
            for left in trees:
                try:
                    handle = await self._take_up(left)
                except DamagedTree as problem:
                    if not passes_over:
                        raise
                    _log.error("a tree cannot be gone on with: %s", problem)
                    continue
                if handle is not None:
                    handles.append(handle)
        return handles

    async def take_over(self, trees: Sequence[UnfinishedTree], heard: Callable[[Handle], None]) -> None:
        """Likewise, and `heard` is told of each root; what cannot go on here is logged. Raises StoreFailed."""
        for left in trees:
            try:
                for handle in await self.take_up([left]):
                    heard(handle)
            except StoreFailed:
                raise
            except Exception as problem:  # Whatever it is, the others are this kernel's as well.
                why = problem if isinstance(problem, RametError) else f"{type(problem).__name__}: {problem}"
                _log.error("tree %s is this kernel's now, and cannot go on here: %s", left.root, why)

    async def _take_up(self, left: UnfinishedTree) -> Handle | None:
        owner = self.owner
        story = await left.story()
        if left.is_alive:  # Somebody else took it up meanwhile.
            return None
        reopens = self.reopens and story.is_over and _is_conversation(story)
        if reopens:
            story.reopen()
        elif story.is_over:
            await left.close(owner.clock.now())
            return None
        await _restore_worktrees(story, git_of(owner.user_dir))
        plan = left.plan(self.supplied, owner.open_project)
        opened = owner.open_tree(plan)
        try:
            root = take_up(opened, story, self.supplied)
            root.repeatable = plan.repeatable
            if self.prepare is not None:
                self.prepare(root)
            if root.request.late_args is missing_late_args:
                raise DefinitionMissing("late arguments", f"of {root.path}")
            if reopens:
                await left.reopen()
        except BaseException:
            opened.close()
            raise
        owner.keep(opened, root)
        if reopens:
            root.wakes = MAX_WAKES  # Its next turn begins with a prompt: opening it costs nothing.
            root.context.emit(StateChanged, state=root.state.value, why="the conversation was opened again")
        resume_tree(opened.tree, story)
        if not root.persistent:
            self.close_with(root)
        return opened.tree.handle(root)


def _is_conversation(story: TreeReplay) -> bool:
    born = story.root.born.birth
    return bool(born.get("persistent")) and not born.get("agent", {}).get("function")


async def _restore_worktrees(story: TreeReplay, git: Git) -> None:
    """Who had answered in one that was removed since nothing had changed there has its end still to come."""
    for run, repo in _without_folder(story):
        made = run.birth["worktree"]
        try:
            await worktree.restore(repo, made["path"], branch=made["branch"], base=made["base"], git=git)
        except (NoWorktree, OSError) as problem:  # That it is missing is said by who looks for it.
            _log.warning("the worktree of %s cannot be made anew: %s", run.path, problem)


def _without_folder(story: TreeReplay) -> Iterator[tuple[RunSpawned, pathlib.Path]]:
    """Births of living runs whose worktree is gone, parents first, each with the folder that it was made from."""
    for each in story.runs.values():
        born, parent = each.born, story.runs.get(each.born.parent or "")
        is_made = not each.is_over and parent is not None and "worktree" in born.birth
        if parent is not None and is_made and not pathlib.Path(born.birth["cwd"]).is_dir():
            yield born, pathlib.Path(parent.born.birth["cwd"])


async def resume_all(taking: Takeover, journal: Journal | None, *, only: str | None) -> list[Handle]:
    """Go on with every tree that no kernel has, or `only` one; handles on their roots.

    Raises DefinitionMissing for what is not supplied; the trees before it go on. A tree that cannot be read is logged,
    and left as it is; as the `only` one it raises DamagedTree.
    """
    return await taking.take_up(await claim_orphans(journal, only), passes_over=only is None)


async def claim_orphans(journal: Journal | None, only: str | None = None) -> list[UnfinishedTree]:
    """Make the trees that are not over and that no living kernel has this one's, or `only` one."""
    left = [each for each in await unfinished_trees(journal, only) if not each.is_alive]
    if journal is None or not left:
        return []
    ours = set(await journal.store.claim([each.root for each in left]))
    return [each for each in left if each.root in ours]
