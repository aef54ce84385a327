"""Trees that another process left are taken up, one after another, and set to work."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Protocol

from ramet.concurrency.clock import Clock
from ramet.concurrency.collector import no_collection
from ramet.host.journal import Journal
from ramet.host.opening import OpenTree, TreePlan
from ramet.host.resuming import Supplied, left_behind, take_up
from ramet.spawn.handle import Handle
from ramet.spawn.reviving import go_on
from ramet.spawn.run import Run


class Owner(Protocol):
    """Whose the trees are to be: a runtime."""

    clock: Clock
    user_dir: pathlib.Path | None

    def open_tree(self, plan: TreePlan) -> OpenTree:
        """One without a root yet."""

    def keep(self, opened: OpenTree, root: Run) -> None:
        """Own one from now on."""


async def resume_all(
    owner: Owner,
    journal: Journal | None,
    supplied: Supplied,
    *,
    only: str | None,
    close_with: Callable[[Run], None],
    prepare: Callable[[Run], None] | None = None,
) -> list[Handle]:
    """Go on with every tree that nobody has, or `only` one; handles on their roots, which `prepare` sees first.

    Raises DefinitionMissing for what is not supplied; the trees before it go on.
    """
    handles = []
    with no_collection():
        for left in await left_behind(journal):
            if left.is_alive or only not in (None, left.root, left.about["session"]):
                continue
            story = await left.story()
            if story.is_over:
                await left.close(owner.clock.now())
                continue
            opened = owner.open_tree(left.plan(supplied, owner.user_dir))
            try:
                root = take_up(opened, story, supplied)
                if prepare is not None:
                    prepare(root)
            except BaseException:
                opened.close()
                raise
            owner.keep(opened, root)
            go_on(opened.tree, story)
            if not root.persistent:
                close_with(root)
            handles.append(opened.tree.handle(root))
    return handles
