"""Files of a repository that git would wait for, or read without end: pipes, devices, and what is far too large.

Git opens its files by name and waits. So ramet looks at them first, without opening what is not a regular file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ramet.tools import git_config
from ramet.tools.git_checkout import Checkout

MAX_CONFIG = 1 << 20
MAX_FILE = 1 << 28  #: of a file that is neither an object nor an index
MAX_CONFIGS = 100  #: of one repository's configuration, includes counted
MAX_ENTRIES = 2_000_000
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_UNREAD = ("lfs", "annex")  #: folders in a repository that git itself does not read
_LARGE = ("objects", "modules")  #: folders with objects
_IN_TREES = (".gitattributes", ".gitignore", ".gitmodules", ".mailmap")


class Irregular(Exception):
    """A file that git would wait for; `reason` says what it is not."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


def check(checkout: Checkout, *, whole_tree: bool) -> None:
    """Look at every file that git may open for a checkout; with `whole_tree` in all folders of the working tree.

    Raises Irregular. What cannot be read is passed over, as git does not wait for it.
    """
    tops = tuple(dict.fromkeys((checkout.common_dir, checkout.git_dir, checkout.top)))
    for folder in tops[:-1]:
        _check_repository(folder, tops)
    for name in _IN_TREES:
        _check_path(checkout.top / name, MAX_FILE)
    if whole_tree:
        for entry in _below(checkout.top, tops, unread=(".git",)):
            if entry.name in _IN_TREES:
                _check_path(Path(entry.path), MAX_FILE)
    _check_configs(checkout)


def _check_repository(folder: Path, tops: tuple[Path, ...]) -> None:
    for entry in _below(folder, tops, unread=tuple(str(folder / each) for each in _UNREAD)):
        first = Path(entry.path).relative_to(folder).parts[0] if entry.path.startswith(f"{folder}/") else ""
        is_large = first in _LARGE or entry.name.startswith(("index", "sharedindex"))
        if not (is_large and entry.is_file(follow_symlinks=False)):
            _check_path(Path(entry.path), None if is_large else MAX_FILE)


def _below(top: Path, tops: tuple[Path, ...], *, unread: tuple[str, ...]) -> Iterator[os.DirEntry[str]]:
    """Every entry that is no folder. Links to folders are followed within `tops`, once."""
    waiting, seen, count = [str(top)], {os.path.realpath(top)}, 0
    while waiting:
        try:
            found = os.scandir(waiting.pop())
        except OSError:  # It is gone, or git cannot read it either.
            continue
        with found:
            for entry in found:
                count += 1
                if count > MAX_ENTRIES:
                    raise Irregular(top, f"it holds more than {MAX_ENTRIES} files")
                if entry.name in unread or entry.path in unread:
                    continue
                if not _is_folder(entry):
                    yield entry
                    continue
                if entry.is_symlink():
                    real = os.path.realpath(entry.path)
                    if real in seen or not any(Path(real).is_relative_to(each) for each in tops):
                        continue
                    seen.add(real)
                waiting.append(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle
        return False


def _check_path(path: Path, limit: int | None) -> None:
    try:
        found = path.stat()
    except OSError:  # It is not there, or leads nowhere: git does not wait for it.
        return
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK):  # Nobody waits for a folder or a socket.
        raise Irregular(path, "it is not a regular file")
    if kind == stat.S_IFREG and limit is not None and found.st_size > limit:
        raise Irregular(path, f"it is larger than {limit} bytes")


def _check_configs(checkout: Checkout) -> None:
    """Look at every file that the configuration includes, whether the include is in force or not."""
    common = checkout.common_dir
    waiting = [common / "config", common / "config.worktree", checkout.git_dir / "config.worktree"]
    waiting += sorted((common / "worktrees").glob("*/config.worktree"))
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MAX_CONFIGS:
            raise Irregular(common / "config", f"it includes more than {MAX_CONFIGS} files")
        try:
            entries = list(git_config.parse(_content(path)))
            waiting += [git_config.included(path, each.value) for each in entries if each.is_include and each.value]
        except git_config.NotUnderstood as error:
            raise Irregular(path, f"this git configuration is not understood: {error}") from None
        except OSError:  # Git cannot read it either, and says so.
            continue


def _content(path: Path) -> bytes:
    _check_path(path, MAX_CONFIG)
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Irregular(path, "it is not a regular file")
        data = b""
        while len(data) <= MAX_CONFIG and (piece := os.read(descriptor, MAX_CONFIG)):
            data += piece
    finally:
        os.close(descriptor)
    return data
