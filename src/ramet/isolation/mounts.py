"""Read-only mounts: where each lies on the host, and what a sandbox may not see there.

The rules:

- A *root* is a mount that the operator grants. Symbolic links of a root are followed once, when it is granted.
- A mount of a child lies at a root or below one. Below a root no symbolic link is followed, by anybody, at any time.
- A mount's *source* is where it lies: the root's real path with the rest of the mount's path. It has no link in it.
  Whoever opens a source does so with `open_without_links`: a folder that became a link since is an error then.
- What a source may not be is decided by the source, not by the name that was asked for.
- What is private in a state folder (`.ramet`) is so whichever kernel keeps it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from ramet.core.errors import InvalidValue
from ramet.core.policy import rights
from ramet.isolation.linux.beneath import open_without_links

#: By the path of a root: its real path.
Roots = Mapping[str, str]
#: By the path of a mount: its source.
Sources = Mapping[str, str]

#: Trees of which a sandbox has its own, or none.
_OWN_TREES = ("/proc", "/sys", "/dev", "/run", "/var/run")
_OWN_FOLDERS = frozenset(("/", "/tmp"))
STATE = ".ramet"  #: the state folder of a working directory, in which a kernel keeps what it knows
_PRIVATE = frozenset(("door", "operator-token", "runs", "transcripts"))  #: in it, beside the journal and its sockets
_ACCEPTED = "a folder or file of the host that a sandbox may see"


class FileIdentity(NamedTuple):
    """The device and inode of a file, which no other file of this machine has."""

    device: int
    inode: int


def roots_of(mounts: Iterable[str], rules: Roots | None = None) -> dict[str, str]:
    """Return the roots of mounts that are granted now: each is one of its own, but for those that `rules` cover.

    `rules` are roots that an operator allows others to ask for. What is asked for below them follows no link.
    """
    return {mount: _source(mount, rules or {}) or os.path.realpath(mount) for mount in mounts}


def located(mounts: Iterable[str], roots: Roots | None) -> dict[str, str]:
    """Return the source of each mount, without a look at it; without `roots` each is a root of its own, resolved now.

    Raises InvalidValue for a mount that lies below no root.
    """
    mounts = tuple(mounts)
    roots = roots_of(mounts) if roots is None else roots
    found = {}
    for mount in mounts:
        source = _source(mount, roots)
        if source is None:
            raise _refused(mount, "it lies below no mount that the operator granted")
        found[mount] = source
    return found


def sources_of(mounts: Iterable[str], roots: Roots | None, runs: str) -> dict[str, str]:
    """Return what `located` does, and see that a sandbox may have all of it. `runs` is the folder of all workspaces.

    Raises InvalidValue that names the mount and says why it is none: it lies below no root, a symbolic link is on the
    way, it is not there, or it is private to a kernel or the sandbox.
    """
    found = located(mounts, roots)
    for mount, source in found.items():
        with opened(mount, source):
            pass
        if reason := _objection(source, runs):
            raise _refused(mount, reason)
    return found


def source_below(path: str, sources: Sources) -> str | None:
    """Return where a path lies that is one of the mounts or below one; None for any other path."""
    return _source(path, sources)


def identities_of(sources: Sources) -> dict[str, FileIdentity]:
    """Return what each mount is now. Raises InvalidValue for a source that is gone or leads through a link by now."""
    found = {}
    for mount, source in sources.items():
        with opened(mount, source) as fd:
            about = os.fstat(fd)
            found[mount] = FileIdentity(about.st_dev, about.st_ino)
    return found


@contextmanager
def opened(mount: str, source: str) -> Iterator[int]:
    """A handle of a mount's source. Raises InvalidValue that names the mount where the source cannot be opened."""
    try:
        fd = open_without_links(source)
    except OSError as error:
        raise refusal(mount, error) from error
    try:
        yield fd
    finally:
        os.close(fd)


def refusal(mount: str, error: OSError) -> InvalidValue:
    """Return the error that names a mount whose source could not be opened, and says why."""
    is_link = error.errno == errno.ELOOP
    return _refused(mount, "it leads through a symbolic link" if is_link else os.strerror(error.errno or 0))


def states_in(sources: Sources, runs: str) -> tuple[str, ...]:
    """Return where mounts show the kernel's own state folder: to be covered, but for what `is_private` leaves."""
    state = os.path.dirname(os.path.realpath(runs))  # noqa: PTH120
    if os.path.basename(state) != STATE:  # noqa: PTH119
        return ()
    shown = {
        place.rstrip("/") + state[len(source.rstrip("/")) :]
        for mount, source in sources.items()
        if PurePath(state).is_relative_to(source)
        for place in (mount, source)
    }
    return tuple(sorted(shown))


def is_private_name(name: str) -> bool:
    """Whether an entry of a state folder is the kernel's, and not the project's."""
    return name in _PRIVATE or name.startswith("journal.db") or ".sock" in name


def is_private(path: str, runs: str) -> bool:
    """Whether a real path is a kernel's own: the journal, transcripts, workspaces, keys and sockets, or all of it.

    A kernel may work in the workspace of another. What lies there is private only where its own state folder is.
    """
    runs = os.path.realpath(runs)
    if PurePath(path).is_relative_to(runs):
        return True
    state, place = PurePath(runs).parent, PurePath(path)
    if state.name == STATE and place.is_relative_to(state.parent):
        place = place.relative_to(state.parent)
    return place.name == STATE or is_in_private(place.parts)


def is_in_private(parts: Sequence[str]) -> bool:
    """Whether a path, in parts, is or lies below what is private in a state folder."""
    return any(part == STATE and is_private_name(name) for part, name in pairwise(parts))


def _source(path: str, roots: Roots) -> str | None:
    """The real path of the nearest root that covers a path, and the rest of the path."""
    for root in (path, *map(str, PurePath(path).parents)):
        if root in roots:
            return roots[root].rstrip("/") + path[len(root.rstrip("/")) :] or "/"
    return None


def _objection(source: str, runs: str) -> str:
    """Why a source may not be seen; empty for one that may."""
    if source in _OWN_FOLDERS or not rights.uncovered_mounts(_OWN_TREES, [source]):
        return f"it leads to {source}, of which a sandbox has its own"
    return f"it leads to {source}, which is private to a kernel" if runs and is_private(source, runs) else ""


def _refused(mount: str, reason: str) -> InvalidValue:
    return InvalidValue("readonly_mounts", mount, f"{_ACCEPTED}: {reason}")
