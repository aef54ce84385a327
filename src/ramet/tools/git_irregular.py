"""Files of a repository that git would wait for, or read without end: pipes, devices, and what is far too large.

Git opens its files by name and waits. So ramet looks at them first, without opening what is not a regular file.
Names in the configuration count too: every value may be the name of a file, whatever its key. Git counts a relative
name from the top of the working tree.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ramet.tools import git_config
from ramet.tools.git_checkout import Checkout, NoCheckout, find

MAX_CONFIG = 1 << 20
MAX_FILE = 1 << 28  #: of a file that is neither an object nor an index
MAX_CONFIGS = 100  #: of one repository's configuration, includes counted
MAX_ENTRIES = 2_000_000
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_UNREAD = ("lfs", "annex")  #: folders in a repository that git itself does not read
_LARGE = ("objects", "modules")  #: folders with objects
_KERNELS = ("/proc/", "/sys/")  #: files there look regular and empty; some make a reader wait, or never end
_ATTRIBUTES = "core.attributesfile"
_GITS_OWN = "%(prefix)/"  #: stands for the folder that git is installed in, from which `..` leads anywhere
_OPTIONAL = ":(optional)"  #: of git since 2.52, before a name
_REMEDY = "look at it, and put a regular file in its place or remove it"
_IN_TREES = (".gitattributes", ".gitignore", ".gitmodules", ".mailmap")


class Irregular(Exception):
    """A file that git would wait for: `reason` says what is wrong with the file, `remedy` what the reader can do."""

    def __init__(self, path: Path, reason: str, remedy: str = _REMEDY) -> None:
        self.path, self.reason, self.remedy = path, reason, remedy
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
        seen = set(tops)
        for entry in _below(checkout.top, tops, closed=(".git",)):
            if entry.name in _IN_TREES:
                _check_path(Path(entry.path), MAX_FILE)
            elif entry.name == ".git":
                _check_embedded(Path(entry.path).parent, seen)
    _check_configs(checkout)


def _check_embedded(top: Path, seen: set[Path]) -> None:
    """Look at a repository in a folder of the working tree: git reads its HEAD."""
    try:
        found = find(top)
    except (NoCheckout, OSError):  # It is none to git either.
        return
    folders = {found.common_dir, found.git_dir} - seen
    seen |= folders
    for folder in folders:
        _check_repository(folder, (found.common_dir, found.git_dir))


def _check_repository(folder: Path, tops: tuple[Path, ...]) -> None:
    for entry in _below(folder, tops, closed=tuple(str(folder / each) for each in _UNREAD)):
        parts = Path(entry.path).relative_to(folder).parts if entry.path.startswith(f"{folder}/") else ("",)
        is_object = parts[0] in _LARGE and "objects" in parts and "refs" not in parts and entry.name != "alternates"
        is_large = is_object or entry.name.startswith(("index", "sharedindex"))
        if not (is_large and entry.is_file(follow_symlinks=False)):
            _check_path(Path(entry.path), None if is_large else MAX_FILE)


def _below(top: Path, tops: tuple[Path, ...], *, closed: tuple[str, ...]) -> Iterator[os.DirEntry[str]]:
    """Every entry that is no folder, and each whose name or path is in `closed`.

    Links to folders are followed within `tops`, once.
    """
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
                if entry.name in closed or entry.path in closed or not _is_folder(entry):
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
    # Nobody waits for a folder, a socket or the null device.
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK) and os.path.realpath(path) != os.devnull:
        raise Irregular(path, "it is not a regular file")
    if kind == stat.S_IFREG and limit is not None and found.st_size > limit:
        raise Irregular(path, f"it is larger than {limit} bytes")
    if kind == stat.S_IFREG and not found.st_size and os.path.realpath(path).startswith(_KERNELS):
        raise Irregular(path, "it is a file of the kernel")


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
            for entry in entries:
                _check_named(checkout, path, entry)
        except git_config.NotUnderstood as error:
            raise Irregular(path, f"this git configuration is not understood: {error}") from None
        except OSError:  # Git cannot read it either, and says so.
            continue


def _check_named(checkout: Checkout, config: Path, entry: git_config.Entry) -> None:
    """Look at the file that a value names, if there is one."""
    if entry.is_include or not entry.may_run:
        return
    for name in git_config.spellings(entry.value or ""):
        path = os.path.expanduser(name.removeprefix(_OPTIONAL))  # noqa: PTH111 - Path would drop `./`, and expand `./~`
        remedy = f"remove {entry.key} from it, or name a regular file there by its whole path"
        if path.startswith(_GITS_OWN):
            raise Irregular(config, f"{entry.key} names a file of git's own, {name}", remedy)
        try:
            _check_path(checkout.top / path, MAX_FILE)
        except Irregular as error:
            raise Irregular(error.path, f"{error.reason}, and {entry.key} of {config} names it", remedy) from None
        # Git reads these attributes while it fills a new worktree: HEAD may have put a link to a device there.
        if entry.key == _ATTRIBUTES and path and not path.startswith("/"):
            raise Irregular(config, f"{entry.key} names another file in each worktree, {name}", remedy)


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
