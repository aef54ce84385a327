"""Number the lines of a text file, within bounds, however large the file or its lines are."""

from __future__ import annotations

import hashlib
import io
import os

from langchain_core.tools import ToolException

SMALL = 1024 * 1024  #: bytes that are read inline; larger files use a thread
MAX_SCANNED = 256 * 1024 * 1024  #: bytes from the beginning that are searched for a line
MAX_LINE = 2_000  #: characters of a line that are shown
_CHUNK = 256 * 1024


def read_numbered_lines(fd: int, name: str, first: int, max_lines: int, max_chars: int) -> tuple[str, str]:
    """Return lines from `first` on, at most `max_lines` and about `max_chars` characters, with a note on the rest.

    Also returns the digest of the whole content, empty if the file is too large to be read whole. Raises ToolException
    for a binary file.
    """
    size = os.fstat(fd).st_size
    file: io.BufferedIOBase
    digest = ""
    with os.fdopen(fd, "rb", closefd=False) as source:
        file = source
        if size <= SMALL:
            data = source.read(SMALL + 1)
            if len(data) <= SMALL:
                digest = hashlib.blake2b(data, digest_size=16).hexdigest()
                file = io.BytesIO(data)
            else:
                source.seek(0)  # The file has grown; continue as with a large one.
        if b"\0" in file.read(8192):
            raise ToolException(f"{name}: is a binary file ({size} bytes), not text")
        file.seek(0)
        return _lines(file, name, first, max_lines, max_chars, whole=bool(digest)), digest


def _lines(file: io.BufferedIOBase, name: str, first: int, max_lines: int, max_chars: int, *, whole: bool) -> str:
    skipped, reason = _skip(file, first - 1)
    if skipped < first - 1 or (whole and not _has_more(file)):
        if reason == "scanned":
            raise ToolException(f"{name}: line {first} lies beyond the first {MAX_SCANNED} bytes; use Grep")
        if first == 1:
            return "(the file is empty)"
        return f"(the file has {skipped} lines; there is no line {first})"
    shown: list[str] = []
    used_chars, number = 0, first
    while len(shown) < max_lines and (line := _line(file)) is not None:
        if "\0" in line:
            raise ToolException(f"{name}: line {number} holds binary data; use Grep or Bash")
        entry = f"{number:6d}\t{line}"
        if shown and used_chars + len(entry) > max_chars:
            return _with_note(shown, f"cut here to keep the answer short; go on with offset={number}")
        shown.append(entry)
        used_chars += len(entry) + 1
        number += 1
    if not shown:
        return f"(the file has {first - 1} lines; there is no line {first})"
    if _has_more(file):
        total = f" of {number - 1 + _count(file)}" if whole else ""
        return _with_note(shown, f"lines {first} to {number - 1}{total}; go on with offset={number}")
    return "\n".join(shown)


def _with_note(shown: list[str], note: str) -> str:
    return "\n".join(shown) + f"\n… [{note}]"


def _line(file: io.BufferedIOBase) -> str | None:
    """Return the next line, cut to MAX_LINE characters; None at the end. Holds at most one chunk of it in memory."""
    head = file.readline(MAX_LINE * 4 + 1)
    if not head:
        return None
    left_out, piece = 0, head
    while not piece.endswith(b"\n") and (piece := file.readline(_CHUNK)) and left_out < MAX_SCANNED:
        left_out += len(piece)
    text = head.decode("utf-8", "replace").rstrip("\r\n")
    if len(text) > MAX_LINE:
        left_out += len(text) - MAX_LINE
        text = text[:MAX_LINE]
    return f"{text}… [about {left_out} more in this line]" if left_out else text


def _skip(file: io.BufferedIOBase, lines: int) -> tuple[int, str]:
    """Skip `lines` line ends; return how many were skipped, and why it stopped (`found`, `end` or `scanned`)."""
    skipped = scanned = 0
    last = b""
    while skipped < lines:
        chunk = file.read(_CHUNK)
        if not chunk:
            return skipped + (last not in (b"", b"\n")), "end"
        count = chunk.count(b"\n")
        if skipped + count >= lines:
            at = -1
            for _ in range(lines - skipped):
                at = chunk.find(b"\n", at + 1)
            file.seek(at + 1 - len(chunk), os.SEEK_CUR)
            return lines, "found"
        skipped, scanned, last = skipped + count, scanned + len(chunk), chunk[-1:]
        if scanned >= MAX_SCANNED:
            return skipped, "scanned"
    return skipped, "found"


def _has_more(file: io.BufferedIOBase) -> bool:
    at = file.tell()
    more = bool(file.read(1))
    file.seek(at)
    return more


def _count(file: io.BufferedIOBase) -> int:
    data = file.read()
    return data.count(b"\n") + (not data.endswith(b"\n"))
