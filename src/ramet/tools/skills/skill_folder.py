"""The folder of a skill, whose files are read on demand and which no path can leave.

The path has no link in it when the skill is found. Every part of the path, and of a file's name below it, is opened
from the descriptor of the part before, without following links. A folder or file that became a link is an error.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from ramet.core.errors import Denied, InvalidValue, Unknown
from ramet.disk.regular_files import open_regular

BODY = "SKILL.md"
MAX_BODY = 64 * 1024
MAX_FILE = 256 * 1024
MAX_LISTED = 100
MAX_EXAMINED = 1_000
MAX_DEPTH = 5
_MAX_NAME = 255
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A handle: in a sandbox the folders above a mount cannot be listed.
_HANDLE_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SkillFile(NamedTuple):
    """A file of a skill."""

    name: str  #: `references/forms.md`
    size: int


class Listing(NamedTuple):
    """The files of a skill, as many as are listed."""

    files: tuple[SkillFile, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """A skill that an agent may use: its name, its folder, and the hash of the text that the agent was offered."""

    name: str
    path: str  #: absolute, without a link in it
    digest: str  #: of SKILL.md

    def body(self) -> str:
        """Return the text of SKILL.md below its front matter.

        Raises Denied if the file is not the one that was found when the agent began, or cannot be read.
        """
        data = read_file(self.path, BODY, limit=MAX_BODY)
        if digest_of(data) != self.digest:
            raise Denied("skill", f"{BODY} of {self.name} has changed since this agent began; it is not used")
        lines = decode(data, BODY).split("\n")
        end = next((index for index, line in enumerate(lines) if index and line.rstrip() == "---"), 0)
        return "\n".join(lines[end + 1 :]).strip()

    def text(self, file: str) -> str:
        """Return the whole text of one file. Raises InvalidValue, Unknown with the listed files, or Denied."""
        try:
            return decode(read_file(self.path, file, limit=MAX_FILE), file)
        except FileNotFoundError:
            raise Unknown("file of the skill", file, tuple(each.name for each in self.listing().files)) from None

    def listing(self) -> Listing:
        """Return the files beside SKILL.md, by name. Links, devices and hidden names are left out."""
        with (
            closing(_Descriptor(_open_folder(self.path))) as handle,
            closing(_Descriptor(os.open(".", _FOLDER_FLAGS, dir_fd=handle.number))) as folder,
        ):
            examined = list(_files_below(folder.number, "", MAX_DEPTH, [MAX_EXAMINED]))
        files = sorted(each for each in examined if each is not None and each.name != BODY)
        return Listing(tuple(files[:MAX_LISTED]), None not in examined and len(files) <= MAX_LISTED)


def read_file(folder: str, name: str, *, limit: int) -> bytes:
    """Return the content of a regular file below a folder.

    Raises InvalidValue for a name that could mean another place and for a file above the limit, FileNotFoundError, and
    Denied for a link, a device, or a file that cannot be read.
    """
    *folders, last = _parts(name)
    with closing(_Descriptor(_open_folder(folder, folders))) as at:
        try:
            handle = open_regular(last, folder=at.number)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Denied("skill", f"{name} is not a regular file that can be read: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InvalidValue("file of the skill", name, f"a file of at most {limit} bytes")
    return data


def decode(data: bytes, name: str) -> str:
    r"""Return text with `\\n` as line ends. Raises InvalidValue for bytes that are not UTF-8."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise InvalidValue("file of the skill", name, "text in UTF-8; run a program to read another file") from None


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Descriptor:
    """An open folder, to be closed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        os.close(self.number)


def _parts(name: str) -> list[str]:
    parts = name.strip().removeprefix("./").split("/")
    for part in parts:
        if part in ("", ".", "..") or "\0" in part or len(part.encode("utf-8", "surrogatepass")) > _MAX_NAME:
            raise InvalidValue(
                "file", name[:200], "the name of a file below the skill's folder, as references/forms.md"
            )
    if len(parts) > MAX_DEPTH:
        raise InvalidValue("file", name[:200], f"a name of at most {MAX_DEPTH} parts")
    return parts


def _open_folder(path: str, subfolders: Sequence[str] = ()) -> int:
    """Return a handle of a folder, opened part by part. Raises FileNotFoundError or Denied."""
    at = os.open("/", _HANDLE_FLAGS)
    for part in (*path.strip("/").split("/"), *subfolders):
        try:
            inner = os.open(part, _HANDLE_FLAGS, dir_fd=at)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise Denied("skill", f"{part!r} of {path} is a link, or no folder that can be read: {reason}") from None
        finally:
            os.close(at)
        at = inner
    return at


def _files_below(folder: int, prefix: str, depth: int, remaining: list[int]) -> Iterator[SkillFile | None]:
    """Yield the regular files below a folder, and None where something is left out because of a bound."""
    with os.scandir(folder) as listing:
        for entry in listing:
            remaining[0] -= 1
            if remaining[0] < 0:
                yield None
                return
            if entry.name.startswith(".") or not entry.name.isprintable():
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield SkillFile(prefix + entry.name, status.st_size)
                elif stat.S_ISDIR(status.st_mode):
                    if depth <= 1:
                        yield None
                        continue
                    inner = os.open(entry.name, _FOLDER_FLAGS, dir_fd=folder)
                    with closing(_Descriptor(inner)):
                        yield from _files_below(inner, f"{prefix}{entry.name}/", depth - 1, remaining)
            except OSError:
                continue  # It vanished, or became a link.
