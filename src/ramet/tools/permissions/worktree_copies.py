"""Map paths between a repository and the worktrees that ramet makes of it: a path rule applies in each copy too."""

from __future__ import annotations

import posixpath
from pathlib import Path

from ramet.tools.git.git_checkout import WORKTREES_FOLDER, Checkout, NoCheckout, find

MAX_NESTED = 40  #: copies inside of copies
_COPIES = f"/{WORKTREES_FOLDER.as_posix()}/"


def originals(name: str) -> tuple[str, ...]:
    """Return an absolute name, and the corresponding names in the main working tree if it is in a copy."""
    names = [name]
    while _COPIES in names[-1] and len(names) <= MAX_NESTED:
        prefix, _, relative = names[-1].rpartition(_COPIES)
        names.append(posixpath.join(prefix or "/", relative.partition("/")[2]).rstrip("/") or "/")
    return tuple(names)


class Checkouts:
    """The git checkouts of folders, each looked up once, for one tool call."""

    def __init__(self) -> None:
        self._by_folder: dict[str, Checkout | None] = {}

    def counterparts(self, folder: str, root: str) -> tuple[str, ...]:
        """Return the corresponding folder in the main working tree, and in the checkout that contains `root`."""
        checkout, root_checkout = self._checkout(folder), self._checkout(root)
        if checkout is None:
            return ()
        tops = [checkout.main]
        if root_checkout is not None and root_checkout.common_dir == checkout.common_dir:
            tops.append(root_checkout.top)
        return tuple(str(top / checkout.prefix) for top in tops)

    def _checkout(self, folder: str) -> Checkout | None:
        if folder not in self._by_folder:
            try:
                self._by_folder[folder] = find(Path(folder)) if folder else None
            except (NoCheckout, OSError, ValueError):
                self._by_folder[folder] = None
        return self._by_folder[folder]
