"""Read, Write, Edit: text files of the workspace, changed atomically.

An existing file is changed only by a run that has read it, and only while it is unchanged since: two agents that work
on one file notice each other. A change replaces the file in one step, so no reader sees a partial file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from typing import Any, NamedTuple

from langchain_core.tools import ToolException
from pydantic import Field

from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.core.media.blocks import inline_block
from ramet.core.media.media_types import MAX_FILE_BYTES, is_media_header, media_type_of
from ramet.tools.arguments import Arguments, BuiltinTool, ToolContent, workspace_tool
from ramet.tools.context import ToolUseContext
from ramet.tools.files.lines import SMALL, read_numbered_lines
from ramet.tools.files.paths import (
    FileMissing,
    ResolvedPath,
    current_context,
    directory,
    open_file,
    os_errors_as_tool_errors,
    regular,
    resolve,
)

MAX_LINES = 2_000
MAX_CHANGED = 8 * 1024 * 1024  #: bytes of a file that Write or Edit may handle


class ReadState(NamedTuple):
    """The state of a file at this run's last access. Kept in the context's `file_cache` by its full path."""

    size: int
    mtime_ns: int
    digest: str  #: empty for a file that is too large to be read whole


class ReadArguments(Arguments):
    file_path: str = Field(description="The file, relative to the workspace root or absolute inside it")
    offset: int = Field(1, ge=0, description="The line to start at, counted from 1")
    limit: int = Field(MAX_LINES, ge=1, description=f"How many lines, at most {MAX_LINES}")


class WriteArguments(Arguments):
    file_path: str = Field(description="The file, relative to the workspace root or absolute inside it")
    content: str = Field(description="The whole new content")


class EditArguments(Arguments):
    file_path: str = Field(description="The file, relative to the workspace root or absolute inside it")
    old_string: str = Field(description="The text to replace, exactly as in the file, and occurring once")
    new_string: str = Field(description="The text to put in its place")
    replace_all: bool = Field(False, description="Replace every occurrence")


async def read(arguments: ReadArguments) -> ToolContent:
    """Return lines of a file with their numbers, like `cat -n`, and a note on omitted lines; an image or PDF itself."""
    context = current_context()
    resolved = resolve(context, arguments.file_path)
    fd = open_file(resolved)
    try:
        status = os.fstat(fd)
        first, max_lines = max(1, arguments.offset), min(arguments.limit, MAX_LINES)
        if is_media_header(os.pread(fd, 12, 0)):
            return _read_media(fd, resolved, status.st_size)
        max_chars = max(1_000, context.max_result_chars - 500)  # below the size at which dispatch would spill it
        owned = fd
        if status.st_size <= SMALL:
            text, digest = read_numbered_lines(owned, resolved.display_path, first, max_lines, max_chars)
        else:
            reading = in_thread(
                lambda: _read_lines_and_close(owned, resolved.display_path, first, max_lines, max_chars),
                name="ramet-read",
            )
            fd = -1  # The thread closes it, even without a waiting caller.
            text, digest = await reading
    finally:
        if fd >= 0:
            os.close(fd)
    context.file_cache[str(resolved.path)] = ReadState(status.st_size, status.st_mtime_ns, digest)
    return text


def _read_media(fd: int, resolved: ResolvedPath, size: int) -> list[dict[str, Any]]:
    """Return an image or a PDF as blocks of a result. It is read whole: a model gets no part of it."""
    if size > MAX_FILE_BYTES:
        raise ToolException(
            f"{resolved.display_path}: has {size} bytes; a model gets files of at most {MAX_FILE_BYTES}"
        )
    with os.fdopen(fd, "rb", closefd=False) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    try:
        media_type = media_type_of(data)
    except InvalidValue as refusal:
        raise ToolException(f"{resolved.display_path}: is no file that a model can read: {refusal}") from None
    pixels = f", {media_type.width} x {media_type.height} pixels" if media_type.is_image else ""
    text = f"{resolved.display_path}: {media_type.name}, {len(data)} bytes{pixels}"
    return [{"type": "text", "text": text}, inline_block(data, media_type, resolved.path.name)]


def _read_lines_and_close(fd: int, name: str, first: int, max_lines: int, max_chars: int) -> tuple[str, str]:
    try:
        return read_numbered_lines(fd, name, first, max_lines, max_chars)
    finally:
        os.close(fd)


async def write(arguments: WriteArguments) -> str:
    """Create a file, or replace one that this run has read."""
    context = current_context()
    resolved = resolve(context, arguments.file_path, writing=True)
    if arguments.file_path.endswith("/") or not resolved.parts:
        raise ToolException(f"{resolved.display_path}: is a directory, not a file")
    data = _encode(resolved, arguments.content)
    _check_size(resolved, len(data))
    existed = _current_content(context, resolved) is not None
    _replace(context, resolved, data)
    return f"{'Replaced' if existed else 'Made'} {resolved.display_path} ({len(data)} bytes)."


async def edit(arguments: EditArguments) -> str:
    """Replace a text that occurs exactly once in a file, or all occurrences if requested."""
    context = current_context()
    resolved = resolve(context, arguments.file_path, writing=True)
    old, new = arguments.old_string, arguments.new_string
    if old == new:
        raise ToolException(f"{resolved.display_path}: old_string and new_string are the same")
    if not old:
        raise ToolException(f"{resolved.display_path}: old_string is empty; Write creates or replaces a whole file")
    data = _current_content(context, resolved)
    if data is None:
        raise ToolException(f"{resolved.display_path}: there is no such file; Write creates one")
    if b"\0" in data[:8192]:
        raise ToolException(f"{resolved.display_path}: is a binary file ({len(data)} bytes); Edit changes text")
    text = data.decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 stay unchanged
    if old not in text and "\r\n" in text and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = text.count(old)
    if not count:
        raise ToolException(f"{resolved.display_path}: old_string is not in the file; nothing was changed")
    if count > 1 and not arguments.replace_all:
        raise ToolException(
            f"{resolved.display_path}: old_string occurs {count} times; add lines around it, or set replace_all. "
            "Nothing was changed"
        )
    _check_size(
        resolved, len(data) + count * (len(_encode(resolved, new)) - len(old.encode("utf-8", "surrogateescape")))
    )
    changed = text.replace(old, new).encode("utf-8", "surrogateescape")
    line = text.count("\n", 0, text.index(old)) + 1
    _replace(context, resolved, changed)
    return f"Edited {resolved.display_path}: " + (
        f"{count} places, the first at line {line}." if count > 1 else f"line {line}."
    )


def _encode(resolved: ResolvedPath, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolException(
            f"{resolved.display_path}: character {error.start} of the text is half of a surrogate pair"
        ) from None


def _check_size(resolved: ResolvedPath, size: int) -> None:
    if size > MAX_CHANGED:
        raise ToolException(f"{resolved.display_path}: {size} bytes; Write and Edit handle at most {MAX_CHANGED}")


def _current_content(context: ToolUseContext, resolved: ResolvedPath) -> bytes | None:
    """Return the file's current content, None if there is no file. Refused unless this run has read that content."""
    try:
        fd = open_file(resolved)
    except FileMissing:
        return None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        read_state = context.file_cache.get(str(resolved.path))
        if not isinstance(read_state, ReadState):
            raise ToolException(f"{resolved.display_path}: exists and was not read in this run; Read it first")
        _check_size(resolved, status.st_size)
        data = file.read(MAX_CHANGED + 1)
        _check_size(resolved, len(data))
        is_unchanged = (
            read_state.digest == _digest(data)
            if read_state.digest
            else (read_state.size, read_state.mtime_ns) == (status.st_size, status.st_mtime_ns)
        )
        if not is_unchanged:
            raise ToolException(f"{resolved.display_path}: has changed since this run read it; Read it again")
        return data


def _replace(context: ToolUseContext, resolved: ResolvedPath, data: bytes) -> None:
    """Put `data` at the path in one step, keep the file's mode, and remember the file as read."""
    name, temporary = resolved.parts[-1], f".ramet-{secrets.token_hex(8)}"
    with (
        directory(ResolvedPath(resolved.root, resolved.parts[:-1], resolved.display_path), make=True) as parent,
        os_errors_as_tool_errors(resolved.display_path),
    ):
        try:
            mode = stat.S_IMODE(
                regular(os.stat(name, dir_fd=parent, follow_symlinks=False), resolved.display_path).st_mode
            )
        except FileNotFoundError:
            mode = None
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent
        )
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if mode is not None:
                    os.fchmod(fd, mode)
                written = os.fstat(fd)
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(temporary, dir_fd=parent)
            raise
    context.file_cache[str(resolved.path)] = ReadState(written.st_size, written.st_mtime_ns, _digest(data))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def file_tools() -> list[BuiltinTool]:
    return [
        workspace_tool(
            "Read",
            "Read a text file of the workspace: numbered lines, at most "
            f"{MAX_LINES} at once; `offset` and `limit` choose which. Binary files and directories are refused.",
            ReadArguments,
            read,
            concurrency_safe=True,
            read_only=True,
            repeatable=True,
        ),
        workspace_tool(
            "Write",
            "Write a whole file, making missing directories. A file that exists must have been read before.",
            WriteArguments,
            write,
            concurrency_safe=False,
            read_only=False,
            repeatable=True,
        ),
        workspace_tool(
            "Edit",
            "Replace `old_string` by `new_string` in a file that was read before. `old_string` must be there exactly "
            "once, unless `replace_all`.",
            EditArguments,
            edit,
            concurrency_safe=False,
            read_only=False,
            repeatable=False,
        ),
    ]
