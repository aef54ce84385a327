"""Map paths between a repository and the worktrees that ramet makes of it: a path rule applies in each copy too."""

from __future__ import annotations

import posixpath
from pathlib import Path

from ramet.tools.git.git_checkout import COPIES, Checkout, NoCheckout, find

MAX_NESTED = 40  #: copies inside of copies
_COPIES = f"/{COPIES.as_posix()}/"


def originals(name: str) -> tuple[str, ...]:
    """Return an absolute name, and the corresponding names in the main working tree if it is in a copy."""
    names = [name]
    while _COPIES in names[-1] and len(names) <= MAX_NESTED:
        before, _, inside = names[-1].rpartition(_COPIES)
        names.append(posixpath.join(before or "/", inside.partition("/")[2]).rstrip("/") or "/")
    return tuple(names)


class Checkouts:
    """The git checkouts of folders, each looked up once, for one tool call."""

    def __init__(self) -> None:
        self._found: dict[str, Checkout | None] = {}

    def counterparts(self, folder: str, root: str) -> tuple[str, ...]:
        """Return the corresponding folder in the main working tree, and in the checkout that contains `root`."""
        here, there = self._of(folder), self._of(root)
        if here is None:
            return ()
        tops = [here.main]
        if there is not None and there.common_dir == here.common_dir:
            tops.append(there.top)
        return tuple(str(top / here.prefix) for top in tops)

    def _of(self, folder: str) -> Checkout | None:
        if folder not in self._found:
            try:
                self._found[folder] = find(Path(folder)) if folder else None
            except (NoCheckout, OSError, ValueError):
                self._found[folder] = None
        return self._found[folder]
