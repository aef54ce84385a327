"""Find a git checkout, a working tree and its repository, by reading files, without running git.

Git trusts what it finds: a `.git` file may name any repository of this machine. Here a repository belongs to a working
tree only if it is inside the working tree or names the working tree itself.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePath
from typing import NamedTuple

from ramet.core.errors import RametError

WORKTREES_FOLDER = PurePath(".ramet", "worktrees")  #: folder of ramet's worktrees, in the main working tree
_MAX_POINTER = 64 * 1024
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoCheckout(RametError):
    """The error for a folder outside of any git working tree; `remedy` tells the reader what to do."""

    def __init__(self, folder: Path, reason: str, remedy: str) -> None:
        self.folder, self.reason, self.remedy = folder, reason, remedy
        super().__init__(f"{folder}: {reason}; {remedy}")


class Checkout(NamedTuple):
    """A folder in a working tree. All paths are real paths."""

    top: Path  #: of the working tree
    prefix: Path  #: from the top to the folder
    git_dir: Path  #: of this working tree
    common_dir: Path  #: of the repository; differs only for a linked worktree
    is_own: bool  #: the repository is inside the working tree, or names it
    foreign_reason: str = ""  #: why it is not its own, or what it uses of others

    @property
    def main(self) -> Path:
        """Return the main working tree; this one, if the repository has no main one."""
        return self.common_dir.parent if self.common_dir.name == ".git" else self.top

    @property
    def folders(self) -> tuple[Path, ...]:
        """Return the folders that a person may have trusted: from this one up to the top, here and in the main tree."""
        parts = self.prefix.parts
        subfolders = [Path(*parts[:length]) for length in range(len(parts), -1, -1)]
        tops = dict.fromkeys((self.top, self.main) if self.is_own else (self.top,))
        return tuple(top / each for top in tops for each in subfolders)


def find(folder: Path) -> Checkout:
    """Return the checkout that contains `folder`. Raises NoCheckout, and OSError for an inaccessible folder."""
    real = Path(os.path.realpath(folder, strict=True))
    for top in (real, *real.parents):
        if _is_repository(top):
            raise NoCheckout(folder, "it is in no working tree", "name a folder that was checked out")
        pointer = top / ".git"
        if not os.path.lexists(pointer):
            continue
        if pointer.is_dir() and not _is_repository(pointer):
            continue  # Git continues upward, too.
        return _checkout_at(folder, top, real.relative_to(top))
    raise NoCheckout(folder, "it is in no git repository", "run `git init` there and commit once")


def _checkout_at(folder: Path, top: Path, prefix: Path) -> Checkout:
    pointer = top / ".git"
    git_dir = _real(pointer if pointer.is_dir() else _named_git_dir(folder, top, pointer))
    common_dir = git_dir
    if os.path.lexists(git_dir / "commondir"):
        common_dir = _real(git_dir / _line(git_dir / "commondir"))
    if not _is_repository(common_dir):
        raise NoCheckout(folder, f"{pointer} names no git repository", "repair it: git worktree repair")
    reason = _foreign_reason(top, git_dir, common_dir)
    return Checkout(top, prefix, git_dir, common_dir, not reason, reason)


def _named_git_dir(folder: Path, top: Path, pointer: Path) -> Path:
    try:
        key, _, path = _line(pointer).partition(": ")
    except OSError as error:
        raise NoCheckout(folder, f"{pointer} cannot be read: {error.strerror}", "repair it") from None
    if key != "gitdir" or not path:
        raise NoCheckout(folder, f"{pointer} names no git repository", "repair it: git worktree repair")
    return top / path


def _foreign_reason(top: Path, git_dir: Path, common_dir: Path) -> str:
    """Return why this is not the working tree's own repository; empty if it is."""
    pointer = top / ".git"
    if git_dir == common_dir == pointer:
        reason = ""
    elif git_dir.parent != common_dir / "worktrees" or git_dir.is_relative_to(top):
        reason = f"its repository is elsewhere, at {git_dir}"
    elif not _is_named_by(git_dir, pointer):
        reason = f"the repository at {common_dir} does not know it"
    else:
        reason = ""
    if not reason and len({each.stat().st_uid for each in (top, git_dir, common_dir)}) > 1:
        reason = "its files and its repository have different owners"
    if not reason and os.path.lexists(common_dir / "objects" / "info" / "alternates"):
        reason = "its repository uses objects of another one"
    return reason


def _is_named_by(git_dir: Path, pointer: Path) -> bool:
    try:
        named_path = Path(git_dir, _line(git_dir / "gitdir"))
    except OSError:
        return False
    return named_path.name == ".git" and _real(named_path.parent) == pointer.parent


def _real(path: Path) -> Path:
    """Return the path without links; Path.resolve would raise RuntimeError for a link loop."""
    return Path(os.path.realpath(path))


def _is_repository(folder: Path) -> bool:
    return os.path.lexists(folder / "HEAD") and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def _line(path: Path) -> str:
    """Return the single line of a file, without the line ends that git ignores. Raises OSError."""
    fd = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "it is not a regular file", str(path))
        data = os.read(fd, _MAX_POINTER)
        if b"\0" in data:
            raise OSError(0, "it holds a zero byte", str(path))
        return os.fsdecode(data).rstrip("\r\n")
    finally:
        os.close(fd)
