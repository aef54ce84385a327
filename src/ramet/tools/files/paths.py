"""Paths within roots: a path that leads out of the workspace is refused, even while other processes rename things.

A path is first resolved, including links, and must then be inside a root. It is opened from that root downward, one
directory at a time, without following links. A directory that is swapped for a link between the two steps causes an
error. Hard links cannot be distinguished from files. Reading through one is allowed; writing never changes the other
name, because files are replaced, not overwritten.
"""

from __future__ import annotations

import errno
import os
import pathlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from langchain_core.tools import ToolException

from ramet.tools.context import ToolUseContext, current

MAX_NAME = 4096
#: Directories that are never searched. `PROTECTED` are never written to either: their contents are run or trusted.
SKIPPED = frozenset(
    {".git", ".hg", ".svn", ".ramet", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache", ".tox"}
)
PROTECTED = frozenset({".git", ".ramet"})

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO, or some devices, would wait for the other side.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class FileMissing(ToolException):
    """The error for a missing file, which Write may create."""


class ResolvedPath(NamedTuple):
    """A path inside a root, without links. Nothing need exist there."""

    root: pathlib.Path
    parts: tuple[str, ...]  #: relative to the root; empty for the root itself
    display_path: str  #: the path as a model may read and write it

    @property
    def path(self) -> pathlib.Path:
        return self.root.joinpath(*self.parts)


def current_context() -> ToolUseContext:
    """Return the context of this call. Raises ToolException with a plain sentence if there is none."""
    try:
        return current()
    except LookupError:
        raise ToolException("this tool works inside a ramet run only, in the directory of the run") from None


def resolve(context: ToolUseContext, name: str, *, writing: bool = False) -> ResolvedPath:
    """Resolve a path relative to the workspace. Raises ToolException if it is refused.

    Reading may also access the context's `read_roots`, by absolute paths.
    """
    name = name or "."
    shown = printable(name)
    if "\0" in name:
        raise ToolException(f"{shown}: a name cannot hold a NUL character")
    if len(name) > MAX_NAME:
        raise ToolException(f"{shown}: the name has {len(name)} characters; at most {MAX_NAME} are accepted")
    posix_path = pathlib.PurePosixPath(name)
    if ".." in posix_path.parts:
        raise ToolException(f"{shown}: '..' is not accepted; write the path from the workspace root down")
    cwd = os.path.realpath(context.cwd)
    with os_errors_as_tool_errors(shown):
        resolved = os.path.realpath(os.path.join(cwd, name))  # noqa: PTH118 - pathlib would be slower, on a hot path
    for root in (cwd, *(() if writing else map(os.path.realpath, context.read_roots))):
        if resolved == root or resolved.startswith(root.rstrip("/") + "/"):
            parts = tuple(part for part in resolved[len(root) :].split("/") if part)
            resolved_path = ResolvedPath(
                pathlib.Path(root), parts, printable("/".join(parts) or "." if root == cwd else resolved)
            )
            protected = PROTECTED.intersection(part.casefold() for part in parts) if writing else None
            if protected:
                raise ToolException(
                    f"{resolved_path.display_path}: files in {min(protected)} are not written by these tools"
                )
            return resolved_path
    raise ToolException(f"{shown}: leads outside the workspace {printable(cwd)}, which this tool does not leave")


def printable(name: str, max_chars: int = 300) -> str:
    """Return a name for a line of text: control characters and invalid UTF-8 escaped, with bounded length."""
    if len(name) > max_chars:
        name = name[: max_chars - 60] + "…" + name[-50:]
    if not name.isprintable():
        name = "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode() if c.isascii() else f"\\u{ord(c):04x}"
            for c in name
        )
    return name


@contextmanager
def os_errors_as_tool_errors(shown: str) -> Iterator[None]:
    """Convert OS errors to one sentence for the model; a missing file to FileMissing."""
    try:
        yield
    except FileNotFoundError:
        raise FileMissing(f"{shown}: there is no such file or directory") from None
    except UnicodeEncodeError:
        raise ToolException(f"{shown}: the name cannot be written in the file system's encoding") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise ToolException(f"{shown}: a symbolic link appeared there; it is not followed") from None
        raise ToolException(f"{shown}: {error.strerror or error}") from None


@contextmanager
def directory(resolved: ResolvedPath, *, make: bool = False) -> Iterator[int]:
    """Open the directory at `resolved`, without following links; `make` creates missing directories on the path."""
    with os_errors_as_tool_errors(resolved.display_path):
        fd = os.open(resolved.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in resolved.parts:
                child_fd = _open_below(fd, part, make=make)
                os.close(fd)
                fd = child_fd
            yield fd
        finally:
            os.close(fd)


def _open_below(fd: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
        os.mkdir(part, dir_fd=fd)
        return os.open(part, _DIRECTORY, dir_fd=fd)


def open_file(resolved: ResolvedPath) -> int:
    """Open the regular file at `resolved` for reading; return a descriptor, which the caller closes. Never blocks."""
    if not resolved.parts:
        regular(resolved.root.stat(), resolved.display_path)
    with (
        directory(ResolvedPath(resolved.root, resolved.parts[:-1], resolved.display_path)) as parent,
        os_errors_as_tool_errors(resolved.display_path),
    ):
        # Checked before opening, because opening a device may have an effect, and again afterwards.
        regular(os.stat(resolved.parts[-1], dir_fd=parent, follow_symlinks=False), resolved.display_path)
        fd = os.open(resolved.parts[-1], _READ, dir_fd=parent)
        try:
            regular(os.fstat(fd), resolved.display_path)
        except BaseException:
            os.close(fd)
            raise
        return fd


def regular(status: os.stat_result, shown: str) -> os.stat_result:
    """Return the status of a regular file. Raises ToolException for any other kind."""
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return status
    if stat.S_ISLNK(mode):
        raise ToolException(f"{shown}: a symbolic link appeared there; it is not followed")
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise ToolException(
        f"{shown}: is {kind}, not a file" + ("; Glob lists what it holds" if kind == "a directory" else "")
    )
