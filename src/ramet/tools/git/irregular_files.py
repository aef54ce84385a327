"""Find files of a repository on which git would block or read without end: pipes, devices, and very large files.

Git opens its files by name and blocks. So ramet checks them first, without opening any file that is not regular. Names
in the configuration count too: every value may be the name of a file, whatever its key. Git resolves a relative name
from the top of the working tree.

A reference is a file as well, and the contents of a repository may name one. So a folder of the repository that leads
out of it is refused, and so is a reference to a file that is no reference. Files that git reads for no other purpose
may then be large, or anywhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ramet.tools.git import git_config
from ramet.tools.git.git_checkout import Checkout, NoCheckout, find

MAX_CONFIG = 1 << 20
MAX_FILE = 1 << 28  #: of a file that is neither an object nor an index
MAX_CONFIGS = 100  #: of one repository's configuration, including includes
MAX_ENTRIES = 2_000_000
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_UNREAD_FOLDERS = ("lfs", "annex", "hooks")  #: folders in a repository that git itself does not read; no hook runs
_SUBMODULES = "modules"  #: folder with repositories of submodules, each below its name, which may have slashes
_REFERENCES = ("refs", "logs")  #: folders in which any name may be a branch's
_READ_FOLDERS = (*_REFERENCES, "objects", "worktrees")  #: folders in which a folder of any name is read
_INDEX = ("index", "sharedindex")  #: prefixes of files that may be large
_OBJECT_FOLDERS = ("objects", _SUBMODULES)  #: folders with objects
_ROOT_REFERENCES = ("HEAD", "AUTO_MERGE", "BISECT_EXPECTED_REV")  #: suffixes of reference names outside of `refs`
_SYMREF = b"ref:"  #: prefix of a reference to another one
_MAX_REF = 64 * 1024
_KERNEL_FOLDERS = ("/proc/", "/sys/")  #: files there look regular and empty; some block a reader, or never end
_ATTRIBUTES = "core.attributesfile"
_GIT_PREFIX = "%(prefix)/"  #: stands for git's installation folder, from which `..` leads anywhere
_OPTIONAL = ":(optional)"  #: of git since 2.52, before a name
_REMEDY = "look at it, and put a regular file in its place or remove it"
_LINK_REMEDY = "put the folder itself in its place, or trust the repository if you know what is there: ramet trust DIR"
_TREE_FILES = (".gitattributes", ".gitignore", ".gitmodules", ".mailmap")


class Irregular(Exception):
    """The error for a file on which git would block: `reason` is the problem, `remedy` what the reader can do."""

    def __init__(self, path: Path, reason: str, remedy: str = _REMEDY) -> None:
        self.path, self.reason, self.remedy = path, reason, remedy
        super().__init__(f"{path}: {reason}")


def never() -> bool:
    """Return False: folders of a repository may not be elsewhere."""
    return False


def check(checkout: Checkout, *, whole_tree: bool, may_lead_out: Callable[[], bool] = never) -> None:
    """Check every file that git may open for a checkout; with `whole_tree` in all folders of the working tree.

    `may_lead_out` is called if a folder of the repository is elsewhere; if it returns True, that folder is checked too.
    Raises Irregular. Unreadable files are skipped, because git does not block on them.
    """
    tops = _tops(checkout)
    visited = {checkout.common_dir, checkout.git_dir}
    for folder in sorted(visited):
        _check_repository(folder, tops, may_lead_out)
    for name in _TREE_FILES:
        _check_path(checkout.top / name, MAX_FILE)
    if whole_tree:
        for entry in _entries_below(checkout.top, tops, is_closed=lambda parts: parts[-1] == ".git"):
            if entry.name in _TREE_FILES:
                _check_path(Path(entry.path), MAX_FILE)
            elif entry.name == ".git":
                _check_embedded(Path(entry.path).parent, visited)
    _check_configs(checkout)


def _check_embedded(top: Path, visited: set[Path]) -> None:
    """Check a repository in a folder of the working tree: git reads its HEAD."""
    try:
        checkout = find(top)
    except (NoCheckout, OSError):  # Git sees no repository either.
        return
    folders = {checkout.common_dir, checkout.git_dir} - visited
    visited |= folders
    for folder in sorted(folders):
        _check_repository(folder, _tops(checkout), never)


def _tops(checkout: Checkout) -> tuple[Path, ...]:
    return tuple(dict.fromkeys((checkout.common_dir, checkout.git_dir, checkout.top, checkout.main)))


def _check_repository(folder: Path, tops: tuple[Path, ...], may_lead_out: Callable[[], bool]) -> None:
    for entry in _entries_below(folder, tops, is_closed=_is_unread, may_lead_out=may_lead_out):
        path, parts = Path(entry.path), _parts(folder, entry)
        is_index = entry.name.startswith(_INDEX) and not set(_REFERENCES).intersection(parts)
        if not (is_index or _is_object(parts)):
            if _check_path(path, MAX_FILE) and ("refs" in parts or parts[-1].endswith(_ROOT_REFERENCES)):
                _check_reference(path)
        elif not entry.is_file(follow_symlinks=False):
            _check_path(path, None)


def _is_unread(parts: Sequence[str]) -> bool:
    """Return whether git itself does not read this folder, in the repository or in a submodule's."""
    *parents, name = parts
    is_repository = not parents or (
        parents[0] == _SUBMODULES != parents[-1] and not set(_READ_FOLDERS).intersection(parents)
    )
    return is_repository and name in _UNREAD_FOLDERS


def _is_object(parts: Sequence[str]) -> bool:
    return parts[0] in _OBJECT_FOLDERS and "objects" in parts and "refs" not in parts and parts[-1] != "alternates"


def _parts(top: Path, entry: os.DirEntry[str]) -> list[str]:
    return entry.path[len(str(top)) + 1 :].split("/")


def _entries_below(
    top: Path,
    tops: tuple[Path, ...],
    *,
    is_closed: Callable[[Sequence[str]], bool],
    may_lead_out: Callable[[], bool] | None = None,
) -> Iterator[os.DirEntry[str]]:
    """Yield every entry that is no folder, and each closed folder, by the parts of its path from `top`.

    Links to folders within `tops` are followed, once as a folder of objects and once as another one. A link that leads
    out is skipped without `may_lead_out`. Otherwise it is followed if `may_lead_out()` is true. Raises Irregular if
    not.
    """
    queue, visited, count = [str(top)], {(os.path.realpath(top), False)}, 0
    while queue:
        try:
            entries = os.scandir(queue.pop())
        except OSError:  # It no longer exists, or git cannot read it either.
            continue
        with entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    raise Irregular(top, f"it holds more than {MAX_ENTRIES} files")
                if not _is_folder(entry) or is_closed(parts := _parts(top, entry)):
                    yield entry
                    continue
                if entry.is_symlink():
                    real = os.path.realpath(entry.path)
                    if (real, _is_object(parts)) in visited:
                        continue
                    if not any(Path(real).is_relative_to(each) for each in tops):
                        if may_lead_out is None:
                            continue
                        if not may_lead_out():
                            raise Irregular(
                                Path(entry.path), f"it leads out of the repository, to {real}", _LINK_REMEDY
                            )
                    visited.add((real, _is_object(parts)))
                queue.append(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link loop
        return False


def _check_path(path: Path, limit: int | None) -> bool:
    """Raise Irregular for a file on which git would block, or read without end; return whether it is regular."""
    try:
        status = path.stat()
    except OSError:  # It does not exist, or is a broken link: git does not block on it.
        return False
    kind = stat.S_IFMT(status.st_mode)
    # Opening a folder, a socket or the null device does not block.
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK) and os.path.realpath(path) != os.devnull:
        raise Irregular(path, "it is not a regular file")
    if kind == stat.S_IFREG and limit is not None and status.st_size > limit:
        raise Irregular(path, f"it is larger than {limit} bytes")
    if kind == stat.S_IFREG and not status.st_size and os.path.realpath(path).startswith(_KERNEL_FOLDERS):
        raise Irregular(path, "it is a file of the kernel")
    return kind == stat.S_IFREG


def _check_reference(path: Path) -> None:
    """Raise Irregular for a reference to a file that is no reference, because that file was not checked."""
    try:
        start = _read_start(path, len(_SYMREF))
        target = _read_start(path, _MAX_REF)[len(_SYMREF) :].strip() if start == _SYMREF else b"refs/"
    except OSError:  # It does not exist, or git cannot read it either.
        return
    if not target.startswith(b"refs/") or len(target) >= _MAX_REF - len(_SYMREF):
        raise Irregular(path, f"it stands for a file that is no reference, {os.fsdecode(target)[:100]!r}")


def _check_configs(checkout: Checkout) -> None:
    """Check every file that the configuration includes, whether the include is active or not."""
    common = checkout.common_dir
    queue = [common / "config", common / "config.worktree", checkout.git_dir / "config.worktree"]
    queue += sorted((common / "worktrees").glob("*/config.worktree"))
    visited: set[Path] = set()
    while queue:
        path = queue.pop(0)
        if path in visited:
            continue
        visited.add(path)
        if len(visited) > MAX_CONFIGS:
            raise Irregular(common / "config", f"it includes more than {MAX_CONFIGS} files")
        try:
            entries = list(git_config.parse(_content(path)))
            queue += [git_config.include_path(path, each.value) for each in entries if each.is_include and each.value]
            for entry in entries:
                _check_named(checkout, path, entry)
        except git_config.NotUnderstood as error:
            raise Irregular(path, f"this git configuration is not understood: {error}") from None
        except OSError:  # Git cannot read it either, and reports that.
            continue


def _check_named(checkout: Checkout, config: Path, entry: git_config.Entry) -> None:
    """Check the file that a value names, if there is one."""
    if entry.is_include or not entry.may_run:
        return
    for name in git_config.spellings(entry.value or ""):
        path = os.path.expanduser(name.removeprefix(_OPTIONAL))  # noqa: PTH111 - Path would drop `./`, and expand `./~`
        remedy = f"remove {entry.key} from it, or name a regular file there by its whole path"
        if path.startswith(_GIT_PREFIX):
            raise Irregular(config, f"{entry.key} names a file of git's own, {name}", remedy)
        try:
            _check_path(checkout.top / path, MAX_FILE)
        except Irregular as error:
            raise Irregular(error.path, f"{error.reason}, and {entry.key} of {config} names it", remedy) from None
        # Git reads these attributes while it fills a new worktree, in which HEAD may have put a link to a device.
        if entry.key == _ATTRIBUTES and path and not path.startswith("/"):
            raise Irregular(config, f"{entry.key} names another file in each worktree, {name}", remedy)


def _content(path: Path) -> bytes:
    _check_path(path, MAX_CONFIG)
    return _read_start(path, MAX_CONFIG + 1)


def _read_start(path: Path, length: int) -> bytes:
    """Return the first bytes of a regular file, read without blocking.

    Raises OSError, and Irregular for another file.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Irregular(path, "it is not a regular file")
        data = b""
        while len(data) < length and (piece := os.read(descriptor, length - len(data))):
            data += piece
    finally:
        os.close(descriptor)
    return data
