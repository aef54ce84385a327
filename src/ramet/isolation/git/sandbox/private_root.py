"""A private root for one process: folders of the host, bound read-only except those to write.

Needs a mount namespace that this process has just entered, and capabilities in it.
"""

from __future__ import annotations

# Importing pathlib would take as long as the whole work of this module.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH115, PTH120, PTH211
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from ramet.isolation.git.sandbox.request import Folder, HiddenFolder
from ramet.isolation.linux import calls

_RDONLY, _NOSUID, _NODEV = calls.MOUNT_ATTR_RDONLY, calls.MOUNT_ATTR_NOSUID, calls.MOUNT_ATTR_NODEV
_STAGE = "/tmp"
_TMP_OPTIONS = "mode=1777,size=64m,nr_inodes=4k"


class _Bind(NamedTuple):
    path: str
    fd: int
    attributes: int


class _Cover(NamedTuple):
    path: str
    binds: tuple[_Bind, ...]
    links: dict[str, str]


def enter(
    *,
    read: Iterable[str],
    write: Iterable[Folder],
    devices: Iterable[str],
    hidden_folders: Iterable[HiddenFolder] = (),
    cwd: str,
) -> None:
    """Build a root that holds only these paths, and an empty /tmp; make it the root of this process.

    Hidden folders are covered, except their named entries. The folder `cwd` exists, at least as an empty one. A link is
    recreated as a link. Raises OSError, also if a folder to write is not the one that was checked.
    """
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)
    links = {path: os.readlink(path) for path in read if os.path.islink(path)}
    paths = [path for path in read if path not in links and os.path.exists(path)]
    binds = [_open_bind(path, _RDONLY | _NOSUID | _NODEV) for path in paths]
    binds += [_open_bind(path, _NOSUID) for path in devices if os.path.exists(path)]
    binds += [_open_checked_bind(folder) for folder in write]
    covers = [_make_cover(each) for each in hidden_folders if os.path.isdir(each.path)]
    calls.mount("tmpfs", _STAGE, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=755,size=1m")
    os.mkdir(f"{_STAGE}/tmp")
    calls.mount("tmpfs", f"{_STAGE}/tmp", "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, _TMP_OPTIONS)
    for path, target in links.items():
        os.makedirs(os.path.dirname(_STAGE + path), exist_ok=True)
        os.symlink(target, _STAGE + path)
    steps: list[_Bind | _Cover] = [*binds, *covers]
    for step in sorted(steps, key=lambda step: step.path.count("/")):
        if isinstance(step, _Bind):
            _mount(step)
        else:
            _cover(step)
    os.makedirs(_STAGE + cwd, exist_ok=True)
    os.chdir(_STAGE)
    calls.pivot_root(".", ".")
    calls.umount(".", calls.MNT_DETACH)
    os.chdir("/")
    calls.mount_setattr("/", _RDONLY | _NOSUID | _NODEV, recursive=False)


def _open_bind(path: str, attributes: int) -> _Bind:
    return _Bind(path, os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC), attributes)


def _open_checked_bind(folder: Folder) -> _Bind:
    bind = _open_bind(folder.path, _NOSUID | _NODEV)
    status = os.fstat(bind.fd)
    if (status.st_dev, status.st_ino) != (folder.device, folder.inode) or not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder.path} was replaced while git was started")
    return bind


def _make_cover(folder: HiddenFolder) -> _Cover:
    paths = [path for name in folder.entries if os.path.lexists(path := f"{folder.path}/{name}")]
    links = {path: os.readlink(path) for path in paths if os.path.islink(path)}
    binds = (_open_bind(path, _RDONLY | _NOSUID | _NODEV) for path in paths if path not in links)
    return _Cover(folder.path, tuple(binds), links)


def _cover(cover: _Cover) -> None:
    """Mount an empty folder over a folder, and put back its entries that are not hidden."""
    cover_path = _STAGE + cover.path
    calls.mount("tmpfs", cover_path, "tmpfs", calls.MS_NOSUID | calls.MS_NODEV, "mode=755,size=1m")
    for path, target in cover.links.items():
        os.symlink(target, _STAGE + path)
    for bind in cover.binds:
        _mount(bind)
    calls.mount_setattr(cover_path, _RDONLY, recursive=False)


def _mount(bind: _Bind) -> None:
    mount_path = _STAGE + bind.path
    if not os.path.exists(mount_path):
        if stat.S_ISDIR(os.fstat(bind.fd).st_mode):
            os.makedirs(mount_path)
        else:
            os.makedirs(os.path.dirname(mount_path), exist_ok=True)
            os.close(os.open(mount_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    calls.mount(f"/proc/self/fd/{bind.fd}", mount_path, None, calls.MS_BIND | calls.MS_REC)
    os.close(bind.fd)
    calls.mount_setattr(mount_path, bind.attributes)
