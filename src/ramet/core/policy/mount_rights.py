"""Rights on mounts: the folders of the host that a run may read, and those that it may also write to.

All paths are normalized. Of nested mounts the innermost decides: a read-only mount in a writable one stays read-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy import rights

#: Folders with programs and settings of the host.
SYSTEM_FOLDERS = (
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/sbin",
    "/usr",
    "/var/run",
    "/var/spool",
)
#: Folders that hold commands or settings which programs of the host obey.
CONTROL_FOLDERS = frozenset((".git", ".ramet"))


class Mounts(NamedTuple):
    """The mounts of a run; no path is in both lists."""

    readonly: tuple[str, ...]
    writable: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Return every path of the host that the run sees."""
        return self.readonly + self.writable

    def is_writable(self, path: str) -> bool:
        """Return whether the innermost mount that covers a path is a writable one."""
        covering = [each for each in self.paths if not rights.uncovered_mounts([each], [path])]
        return bool(covering) and max(covering, key=len) in self.writable

    def kept_readonly(self, writable: Sequence[str]) -> tuple[str, ...]:
        """Return the read-only mounts of this run that lie in one of these writable mounts."""
        return tuple(each for each in self.readonly if each not in writable and _is_in(each, writable))


def writable_mounts(field: str, entries: object) -> tuple[str, ...]:
    """Return normalized paths of folders that a run may write to.

    Raises InvalidValue for a path that no mount may have, and for a folder with programs or settings of the host. What
    lies there, and where links lead, is checked when a run starts.
    """
    paths = rights.mounts(field, entries)
    for path in paths:
        if reason := system_objection(path):
            raise InvalidValue(field, path, f"a folder of the host that a run may write to: {reason}")
    return paths


def system_objection(path: str) -> str:
    """Return the reason why no run may write to a path, by its name; empty if there is none."""
    for each in SYSTEM_FOLDERS:
        if _is_in(path, [each]) or _is_in(each, [path]):
            return f"{each} holds programs or settings of this machine"
    for part in path.split("/"):
        if part.lower() in CONTROL_FOLDERS:
            return f"programs of the host obey what is in {part}"
    return ""


def child_mounts(parent: Mounts, readonly: Sequence[str] | None, writable: Sequence[str] | None) -> Mounts:
    """Return the mounts of a child that requests these, unchecked; None is the parent's.

    A folder that the child requests as read-only is not writable because its parent may write to it. A read-only mount
    of the parent that lies in a writable mount of the child is the child's, too.

    Raises SpawnRefused if these are more than a policy may have.
    """
    readonly = parent.readonly if readonly is None else tuple(readonly)
    writable = tuple(each for each in parent.writable if each not in readonly) if writable is None else tuple(writable)
    readonly = tuple(dict.fromkeys((*readonly, *parent.kept_readonly(writable))))
    if len(readonly) > rights.MAX_ENTRIES:
        reason = (
            f"{len(readonly)} with those that lie in a writable mount, and at most {rights.MAX_ENTRIES} are allowed"
        )
        raise SpawnRefused("policy.readonly_mounts", reason)
    return Mounts(readonly, writable)


def clamp_mounts(granted: Mounts, readonly: Sequence[str] | None, writable: Sequence[str] | None) -> Mounts:
    """Return what both the granted mounts and these lists cover; None leaves the granted ones.

    A granted writable mount may remain as a read-only one, if both lists are given.
    """
    kept_writable = granted.writable
    if writable is not None:
        common = _intersection(granted.writable, tuple(writable))
        kept_writable = tuple(each for each in common if granted.is_writable(each))
    kept_readonly = granted.readonly
    if readonly is not None:
        visible = granted.paths if writable is not None else granted.readonly
        kept_readonly = _intersection(visible, tuple(readonly))
    kept_readonly = tuple(dict.fromkeys((*kept_readonly, *granted.kept_readonly(kept_writable))))
    return Mounts(kept_readonly, tuple(each for each in kept_writable if each not in kept_readonly))


def _intersection(granted: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    covered = [each for each in granted if not rights.uncovered_mounts(allowed, [each])]
    return tuple(dict.fromkeys([*covered, *(each for each in allowed if not rights.uncovered_mounts(granted, [each]))]))


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return not rights.uncovered_mounts(folders, [path])
