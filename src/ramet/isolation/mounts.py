"""Mounts: the source of each mount on the host, and the parts that a sandbox may not see.

Rules:

- A *root* is a mount that the operator grants. Symbolic links of a root are followed once, when the root is granted.
- A mount of a child lies at a root or below one. No code follows a symbolic link below a root, at any time.
- A mount's *source* is its place on the host: the root's real path plus the rest of the mount's path. It has no link in
  it. Code that opens a source uses `open_without_links`: a folder that became a link since then is an error.
- The checks for forbidden sources look at the source, not at the requested name.
- The private parts of a state folder (`.ramet`) are private in the state folder of any kernel.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from ramet.core.errors import InvalidValue
from ramet.core.policy import rights
from ramet.isolation.linux.beneath import open_without_links

#: Maps the path of a root to its real path.
Roots = Mapping[str, str]
#: Maps the path of a mount to its source.
Sources = Mapping[str, str]

#: Trees that are separate in each sandbox, or absent.
_OWN_TREES = ("/proc", "/sys", "/dev", "/run", "/var/run")
_OWN_FOLDERS = frozenset(("/", "/tmp"))
STATE = ".ramet"  #: the state folder of a working directory, in which a kernel keeps its data
#: private names in that folder, next to the journal and its sockets
_PRIVATE = frozenset(("door", "operator-token", "pod-listener", "runs", "transcripts"))
_ACCEPTED = "a folder or file of the host that a sandbox may see"


class FileIdentity(NamedTuple):
    """The device and inode of a file; no other file of this machine has the same pair."""

    device: int
    inode: int


def roots_of(mounts: Iterable[str], rules: Roots | None = None) -> dict[str, str]:
    """Return the roots of mounts that are granted now: each mount is its own root, except those that `rules` cover.

    `rules` are roots that an operator allows others to request. Mounts below them follow no link.
    """
    return {mount: _source(mount, rules or {}) or os.path.realpath(mount) for mount in mounts}


def sources_by_mount(mounts: Iterable[str], roots: Roots | None, field: str = "readonly_mounts") -> dict[str, str]:
    """Return the source of each mount, without checking it.

    Without `roots`, each mount is a root of its own, which is resolved now.

    Raises InvalidValue if a mount lies below no root.
    """
    mounts = tuple(mounts)
    roots = roots_of(mounts) if roots is None else roots
    sources = {}
    for mount in mounts:
        source = _source(mount, roots)
        if source is None:
            raise _make_refusal(mount, "it lies below no mount that the operator granted", field)
        sources[mount] = source
    return sources


def sources_of(mounts: Iterable[str], roots: Roots | None, runs: str, field: str = "readonly_mounts") -> dict[str, str]:
    """Return the source of each mount, as `sources_by_mount` does, and check that a sandbox may see it.

    `runs` is the folder of all workspaces, `field` the name of the right in errors.

    Raises InvalidValue, which names the mount and the reason, if a mount lies below no root or does not exist. The same
    error is raised for a symbolic link on its path, and for a mount that is private to a kernel or the sandbox.
    """
    sources = sources_by_mount(mounts, roots, field)
    for mount, source in sources.items():
        with open_source(mount, source, field):
            pass
        if reason := _objection(source, runs):
            raise _make_refusal(mount, reason, field)
    return sources


def check_readable(sources: Sources) -> None:
    """Check that a sandbox of root, which runs as another user, can read each mount.

    A sandbox sees root's files as its own. Those of all others it sees as any stranger does. Raises InvalidValue, which
    names the mount and the user who may read it.
    """
    for mount, source in sources.items():
        with open_source(mount, source) as fd:
            status = os.fstat(fd)
        needed = stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else stat.S_IROTH
        if status.st_uid != 0 and not status.st_mode & needed:
            owner = f"only the user {status.st_uid}, whose it is, may open it, and a sandbox of root is another user"
            raise _make_refusal(mount, f"{owner}: start ramet as that user", "readonly_mounts")


def source_below(path: str, sources: Sources) -> str | None:
    """Return the source of a path that is one of the mounts or below one; None for any other path."""
    return _source(path, sources)


def identities_of(sources: Sources, writable: Collection[str] = ()) -> dict[str, FileIdentity]:
    """Return the device and inode of each mount now; `writable` are those that an error calls so.

    Raises InvalidValue if a source no longer exists or its path now contains a link.
    """
    identities = {}
    for mount, source in sources.items():
        with open_source(mount, source, "writable_mounts" if mount in writable else "readonly_mounts") as fd:
            status = os.fstat(fd)
            identities[mount] = FileIdentity(status.st_dev, status.st_ino)
    return identities


@contextmanager
def open_source(mount: str, source: str, field: str = "readonly_mounts") -> Iterator[int]:
    """Open a mount's source and yield a descriptor of it.

    Raises InvalidValue, which names the mount, if the source cannot be opened.
    """
    try:
        fd = open_without_links(source)
    except OSError as error:
        raise refusal(mount, error, field) from error
    try:
        yield fd
    finally:
        os.close(fd)


def refusal(mount: str, error: OSError, field: str = "readonly_mounts") -> InvalidValue:
    """Return the error that names a mount whose source could not be opened, and the reason."""
    is_link = error.errno == errno.ELOOP
    return _make_refusal(mount, "it leads through a symbolic link" if is_link else os.strerror(error.errno or 0), field)


def states_in(sources: Sources, runs: str) -> tuple[str, ...]:
    """Return the paths at which mounts show the kernel's own state folder.

    These folders must be covered, except the entries for which `is_private` is false.
    """
    state = os.path.dirname(os.path.realpath(runs))  # noqa: PTH120
    if os.path.basename(state) != STATE:  # noqa: PTH119
        return ()
    visible = {
        path.rstrip("/") + state[len(source.rstrip("/")) :]
        for mount, source in sources.items()
        if PurePath(state).is_relative_to(source)
        for path in (mount, source)
    }
    return tuple(sorted(visible))


def is_private_name(name: str) -> bool:
    """Return whether an entry of a state folder belongs to the kernel, and not to the project."""
    return name in _PRIVATE or name.startswith("journal.db") or ".sock" in name


def is_private(path: str, runs: str) -> bool:
    """Return whether a real path belongs to a kernel: the journal, transcripts, workspaces, keys and sockets.

    The state folder itself belongs to the kernel, too. A kernel may work in the workspace of another kernel. Files
    there are private only inside its own state folder.
    """
    runs = os.path.realpath(runs)
    if PurePath(path).is_relative_to(runs):
        return True
    state, entry = PurePath(runs).parent, PurePath(path)
    if state.name == STATE and entry.is_relative_to(state.parent):
        entry = entry.relative_to(state.parent)
    return entry.name == STATE or is_in_private(entry.parts)


def is_in_private(parts: Sequence[str]) -> bool:
    """Return whether a path, in parts, is or lies below a private entry of a state folder."""
    return any(part == STATE and is_private_name(name) for part, name in pairwise(parts))


def _source(path: str, roots: Roots) -> str | None:
    """Return the real path of the nearest root that covers a path, plus the rest of the path."""
    for root in (path, *map(str, PurePath(path).parents)):
        if root in roots:
            return roots[root].rstrip("/") + path[len(root.rstrip("/")) :] or "/"
    return None


def _objection(source: str, runs: str) -> str:
    """Return the reason why a sandbox may not see a source; empty if it may."""
    if source in _OWN_FOLDERS or not rights.uncovered_mounts(_OWN_TREES, [source]):
        return f"it leads to {source}, and a sandbox has its own"
    return f"it leads to {source}, which is private to a kernel" if runs and is_private(source, runs) else ""


def _make_refusal(mount: str, reason: str, field: str) -> InvalidValue:
    return InvalidValue(field, mount, f"{_ACCEPTED}: {reason}")
