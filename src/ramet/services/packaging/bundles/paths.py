"""The rules for paths of a bundle's files: valid on every file system, and never outside of the bundle's folder."""

from __future__ import annotations

import unicodedata

from ramet.core.errors import InvalidValue
from ramet.services.packaging.contract import BundleLimits, BundleTooLarge

MAX_PART = 200  #: bytes of one name: files of packages that are installed or compiled get something added
MAX_PATH = 1024


def checked_path(raw: bytes, limits: BundleLimits) -> tuple[str, ...]:
    """Return the parts of a member's path; an empty tuple is the bundle's own folder.

    Ignore a leading "./" and a final "/". Raises InvalidValue, and BundleTooLarge for a path that is too deep.
    """
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        raise InvalidValue("member", raw, "a name in UTF-8") from None
    if path.startswith("/"):
        raise InvalidValue("member", path, "a relative path")
    parts = path.split("/")
    if parts[0] == ".":
        del parts[0]
    if parts and not parts[-1]:
        del parts[-1]
    if not parts and not path:
        raise InvalidValue("member", path, "a path that is not empty")
    for part in parts:
        if part == "..":
            raise InvalidValue("member", path, "a path that does not lead out of the bundle: '..' is refused")
        if part in ("", "."):
            raise InvalidValue("member", path, "a path without '.' or empty parts")
        if not part.isprintable() or "\\" in part:
            raise InvalidValue("member", path, "printable characters, and no backslash")
        if len(part.encode()) > MAX_PART:
            raise InvalidValue("member", path, f"names of at most {MAX_PART} bytes")
    if len(raw) > MAX_PATH:
        raise InvalidValue("member", path, f"a path of at most {MAX_PATH} bytes")
    if len(parts) > limits.depth:
        raise BundleTooLarge(f"member {path[:100]!r}: its depth", size=len(parts), limit=limits.depth)
    return tuple(parts)


class BundlePaths:
    """The paths of one bundle, each used once. Two spellings that a file system may treat as one name count as one."""

    def __init__(self) -> None:
        self._spellings: dict[str, str] = {}
        self._folders: set[str] = set()
        self._files: set[str] = set()

    @property
    def folders(self) -> int:
        """The number of folders, including those that occur only in the path of a file."""
        return len(self._folders)

    def folder(self, parts: tuple[str, ...]) -> None:
        """Add a folder and its parents. A folder may be added again. Raises InvalidValue."""
        for end in range(len(parts), 0, -1):
            path = "/".join(parts[:end])
            if path in self._folders:
                return
            if path in self._files:
                raise InvalidValue("member", "/".join(parts), f"each path once: {path!r} is a file already")
            self._spell(path)
            self._folders.add(path)

    def file(self, parts: tuple[str, ...]) -> str:
        """Add a file and its folders, and return its path. Raises InvalidValue."""
        self.folder(parts[:-1])
        path = "/".join(parts)
        if path in self._files or path in self._folders:
            raise InvalidValue("member", path, "each path once: this one occurred already")
        self._spell(path)
        self._files.add(path)
        return path

    def _spell(self, path: str) -> None:
        other = self._spellings.setdefault(_fold(path), path)
        if other != path:
            raise InvalidValue(
                "member", path, f"names that differ by more than case or Unicode form: {other!r} is there"
            )


def _fold(path: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
