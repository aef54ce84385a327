"""Folders of the host that no sandbox may write to, by real paths: keys, settings, repositories, ramet's own files."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from ramet.core.errors import InvalidValue
from ramet.core.policy.mount_rights import Mounts, system_objection
from ramet.isolation.mounts import STATE, Roots, open_source, sources_of
from ramet.isolation.writable_mounts.host_code import check_host_code, host_code

FIELD = "writable_mounts"
ACCEPTED = "a folder of the host that a run may write to"

_HOMES = ("/root", "/home")
#: Folders with keys or settings, in whatever home they are.
_KEYS = frozenset((".aws", ".azure", ".config", ".docker", ".gnupg", ".kube", ".local", ".ssh"))
_REPOSITORY = ("HEAD", "objects", "refs")  #: by these names git takes a folder for a repository


def checked_sources(mounts: Mounts, roots: Roots | None, runs: str) -> dict[str, str]:
    """Return the source of each mount, and check that a sandbox may see it, or write to it: see `sources_of`."""
    sources = sources_of(mounts.readonly, roots, runs)
    writable = sources_of(mounts.writable, roots, runs, FIELD)
    check_writable(writable, runs)
    return sources | writable


def check_writable(sources: Mapping[str, str], runs: str) -> None:
    """Check the sources of writable mounts; `runs` is the folder of all workspaces, empty if it is not known.

    Raises InvalidValue, which names the mount and the reason: the folder is no folder, belongs to another user, or lies
    on a read-only file system; it is or contains a home, or is a folder with keys; it is or lies in a git repository's
    own folder, or in ramet's; it holds code of this process that cannot be kept read-only.
    """
    for mount, source in sources.items():
        if reason := _objection(mount, source, runs):
            raise make_refusal(mount, reason)
        check_host_code(mount, source, host_code())


def make_refusal(mount: str, reason: str) -> InvalidValue:
    """Return the error that names a writable mount and the reason why a run may not write there."""
    return InvalidValue(FIELD, mount, f"{ACCEPTED}: {reason}")


def is_repository(names: set[str]) -> bool:
    """Return whether git takes a folder with these names in it for a repository."""
    return names.issuperset(_REPOSITORY)


def _objection(mount: str, source: str, runs: str) -> str:
    with open_source(mount, source, FIELD) as fd:
        status, flags = os.fstat(fd), os.fstatvfs(fd).f_flag
    if not stat.S_ISDIR(status.st_mode):
        return "it is no folder"
    if status.st_uid != os.geteuid():
        return f"it belongs to the user {status.st_uid}, and this process to {os.geteuid()}"
    if flags & os.ST_RDONLY:
        return "its file system is read-only"
    if reason := system_objection(source):
        return f"it leads to {source}, and {reason}"
    if runs and STATE not in PurePath(os.path.realpath(runs)).relative_to("/").parts[:-1]:
        real_runs = os.path.realpath(runs)
        if PurePath(real_runs).is_relative_to(source):
            return f"it holds {real_runs}, where ramet keeps the folders of runs"
    return _home_objection(source) or _repository_objection(source)


def _home_objection(source: str) -> str:
    path = PurePath(source)
    for home in _homes():
        if PurePath(home).is_relative_to(path):
            return f"it is or holds the home folder {home}"
        if path.is_relative_to(home) and (inner := path.relative_to(home).parts) and inner[0].startswith("."):
            return f"{inner[0]} in a home folder holds settings, keys or programs of a user"
    if path.parent == PurePath("/home"):
        return "it is a home folder"
    if keys := _KEYS.intersection(path.parts):
        return f"{min(keys)} holds settings, keys or programs of a user"
    for name in (".ssh", ".gnupg"):
        if os.path.lexists(f"{source}/{name}"):
            return f"it has a folder {name}, as a home folder has"
    return ""


def _homes() -> Iterator[str]:
    yield from _HOMES
    yield os.path.realpath(Path.home())
    try:
        yield os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:  # A user of a container who has no entry.
        return


def _repository_objection(source: str) -> str:
    for folder in (source, *map(str, PurePath(source).parents)):
        if all(os.path.lexists(f"{folder}/{name}") for name in _REPOSITORY):
            return f"{folder} is a git repository's own folder, with hooks and settings that git obeys"
    return ""
