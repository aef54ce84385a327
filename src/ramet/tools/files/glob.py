"""Glob: find files by their names, the newest first."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import stat
from collections.abc import Generator
from typing import NamedTuple

from langchain_core.tools import ToolException
from pydantic import Field

from ramet.tools.arguments import Arguments, BuiltinTool, workspace_tool
from ramet.tools.context import ToolUseContext
from ramet.tools.files.paths import SKIPPED, FileMissing, ResolvedPath, current_context, directory, printable, resolve
from ramet.tools.glob_patterns import BadPattern, Pattern
from ramet.tools.permission_checks import hidden_files

MAX_LISTED = 1_000
MAX_ENTRIES = 200_000  #: maximum entries examined
MAX_DEPTH = 100  #: each level holds a descriptor open
_YIELD_INTERVAL = 256  #: entries between two yields to other tasks and cancellation
_MAGIC = frozenset("*?[{")


class GlobArguments(Arguments):
    pattern: str = Field(description="Such as **/*.py, src/**/*.ts, *.{yml,yaml}; ending in / it finds directories")
    path: str | None = Field(None, description="The directory to look in; the workspace root if left out")


class WalkEntry(NamedTuple):
    """An entry below the directory of a walk."""

    path: str  #: relative to the start of the walk
    entry: os.DirEntry[str]
    is_directory: bool


async def glob(arguments: GlobArguments) -> str:
    """Return the paths that match a pattern, one per line, newest first, with a note if there are more."""
    context = current_context()
    resolved, pattern = _base_and_pattern(context, arguments)
    prefix = "" if resolved.display_path == "." else f"{resolved.display_path}/"
    is_hidden = hidden_files(
        context, resolve(context, "." if arguments.pattern.startswith("/") else arguments.path or ".").path
    )
    matches: list[tuple[int, str]] = []
    count = 0
    with contextlib.suppress(FileMissing), directory(resolved) as fd, contextlib.closing(walk(fd)) as entries:
        for each in entries:
            count += 1
            if not count % _YIELD_INTERVAL:
                await asyncio.sleep(0)
            if count > MAX_ENTRIES:
                break
            if each.is_directory is not pattern.directories or not pattern.fits(each.path):
                continue
            if is_hidden is None or not is_hidden(f"{resolved.path}/{each.path}"):
                matches.append((_mtime_ns(each.entry), each.path))
    if not matches:
        return (
            f"No {'directories' if pattern.directories else 'files'} match {printable(arguments.pattern)}."
            + _limit_note(count)
        )
    newest = heapq.nsmallest(MAX_LISTED, matches, key=lambda item: (-item[0], item[1]))
    lines, remaining_chars = [], context.max_result_chars - 500
    for _, path in newest:
        lines.append(prefix + printable(path, max_chars=4096) + ("/" if pattern.directories else ""))
        remaining_chars -= len(lines[-1]) + 1
        if remaining_chars < 0:
            break
    if len(lines) < len(matches):
        lines.append(f"… [{len(lines)} of {len(matches)} shown, the newest first; a narrower pattern shows the others]")
    return "\n".join(lines) + _limit_note(count)


def _base_and_pattern(context: ToolUseContext, arguments: GlobArguments) -> tuple[ResolvedPath, Pattern]:
    """Return the directory and the pattern within it; an absolute pattern contains both."""
    base, pattern = arguments.path or ".", arguments.pattern
    if pattern.startswith("/"):
        parts = pattern.split("/")
        fixed_count = next((at for at, part in enumerate(parts) if _MAGIC & set(part)), len(parts) - 1)
        base, pattern = "/".join(parts[:fixed_count]) or "/", "./" + "/".join(parts[fixed_count:])
    try:
        parsed = Pattern(pattern)
        fixed, rest = parsed.split()
        return resolve(context, f"{base}/{fixed}" if fixed else base), Pattern(rest)
    except BadPattern as error:
        raise ToolException(f"pattern: {error}") from None


def walk(fd: int, prefix: str = "", depth: int = 0) -> Generator[WalkEntry]:
    """Yield everything below an open directory, without following links; unreadable entries are skipped."""
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.name in SKIPPED:
                continue
            path = prefix + entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            yield WalkEntry(path, entry, is_directory)
            if not is_directory or depth >= MAX_DEPTH:
                continue
            try:
                child_fd = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except OSError:
                continue
            try:
                yield from walk(child_fd, f"{path}/", depth + 1)
            finally:
                os.close(child_fd)


def is_directory(resolved: ResolvedPath) -> bool:
    """Return whether a directory exists now; opening it later decides."""
    try:
        return stat.S_ISDIR(resolved.path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def _mtime_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _limit_note(count: int) -> str:
    return f"\n… [stopped after {MAX_ENTRIES} entries; give a `path` to look further]" if count > MAX_ENTRIES else ""


def find_tools() -> list[BuiltinTool]:
    return [
        workspace_tool(
            "Glob",
            "List files by a name pattern, newest first. A pattern without a slash fits names in any directory. "
            f"Skipped: {', '.join(sorted(SKIPPED))}.",
            GlobArguments,
            glob,
            concurrency_safe=True,
            read_only=True,
            repeatable=True,
        )
    ]
