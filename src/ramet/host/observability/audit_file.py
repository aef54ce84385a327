"""An audit log in a file: lines of JSON, appended only, each holding the SHA-256 of the line before it.

    {"n":2,"prev":"<SHA-256 of line 1, without its newline>", …, "own":"<SHA-256 of this line up to here>"}

`verify` finds and names a line that was changed, removed, moved or cut off. An attacker with write access to the file
can recreate it from a changed line on, or remove lines from its end. To detect that, keep the newest `head` elsewhere,
and pass it to `verify`.

A line is handed to the kernel before the run continues: it survives a killed process. It survives a power cut once the
file was closed, or, with `fsync=True`, before the run continues.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ramet.core.errors import Damaged, InvalidValue, StoreInUse
from ramet.disk.regular_files import write_all
from ramet.host.observability.audit import AuditEntry

_log = logging.getLogger("ramet.audit")

#: Bytes of a line: no entry is longer.
MAX_LINE = 16 * 1024 * 1024
MAX_FAULTS = 100
#: The value of `prev` in the first line of a file.
NOTHING = "0" * 64
_LINE = re.compile(rb'\{"n":([1-9]\d{0,17}),"prev":"([0-9a-f]{64})".*(,"own":"([0-9a-f]{64})"\})', re.DOTALL)


class AuditFile:
    """A sink that appends to a file, which only its owner may read and only one process writes.

    The file is created if needed. A line that was cut off when the machine failed is removed, and the next line reports
    that. If the disk is full, entries are lost; a line before the next written entry states their number.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        """Open the file. Raises StoreInUse if it has another writer, Damaged if its last line is invalid, OSError."""
        self.path, self._fsync = Path(path).absolute(), fsync
        self._lost_count, self._is_torn = 0, False
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd: int | None = os.open(self.path, flags, 0o600)
        try:
            self._begin(self._fd)
        except BaseException:
            os.close(self._fd)
            self._fd = None
            raise

    def __call__(self, entry: AuditEntry) -> None:
        """Append an entry as one whole line. Raises OSError; then the file is unchanged."""
        if self._lost_count:
            loss_entry = {"time": entry.get("time"), "type": "entries_lost", "count": self._lost_count}
            self._try(loss_entry)
            self._lost_count = 0
        self._try(entry)

    def close(self) -> None:
        """Sync the file to disk, and close it; idempotent. Raises OSError."""
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _begin(self, fd: int) -> None:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidValue("path", str(self.path), "a regular file, or none yet")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreInUse(self.path, "another audit log in this or another process") from None
        if stat.S_IMODE(status.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
        end = _last_newline(fd, status.st_size)
        self._n, self.head, self._size = 0, NOTHING, end
        if end:
            line = _last_line(fd, end)
            read = _read(line)
            if read is None or not read.is_whole:
                raise Damaged("an audit log", self.path, "its last line was changed; verify() has the details")
            self._n, self.head = read.n, _sha(line)
        if end < status.st_size:
            partial_bytes = status.st_size - end
            os.ftruncate(fd, end)
            _log.warning("%s: %d bytes of an unfinished line were cut off", self.path, partial_bytes)
            self._append({"type": "line_cut_off", "bytes": partial_bytes})
        if self._fsync:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _try(self, entry: AuditEntry) -> None:
        try:
            self._append(entry)
        except OSError:
            self._lost_count += 1
            raise

    def _append(self, entry: AuditEntry) -> None:
        fd = self._fd
        if fd is None:
            raise OSError(f"{self.path} was closed")
        if self._is_torn:
            self._remove_partial_line(fd)
        header = {"n": self._n + 1, "prev": self.head}
        body = json.dumps(header | entry | header, separators=(",", ":"))[:-1].encode()
        line = body + f',"own":"{_sha(body)}"}}'.encode()
        try:
            write_all(fd, line + b"\n")
            if self._fsync:
                os.fdatasync(fd)
        except OSError:
            self._remove_partial_line(fd)
            raise
        self._n, self.head, self._size = self._n + 1, _sha(line), self._size + len(line) + 1

    def _remove_partial_line(self, fd: int) -> None:
        """Remove a partly written line."""
        self._is_torn = True
        os.ftruncate(fd, self._size)
        self._is_torn = False


class Fault(NamedTuple):
    """A deviation from the written log."""

    line: int  #: number of the line in the file, from 1
    problem: str


class Verification(NamedTuple):
    """The result of `verify`. `head` is the hash of the last line, to be kept elsewhere."""

    lines: int
    head: str
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Return whether every line has its original content and place."""
        return not self.faults


def verify(path: str | os.PathLike[str], *, head: str | None = None) -> Verification:
    """Read an audit log and return the altered lines; at most the first 100. Raises OSError.

    With an earlier `head` it also detects that the end since then was cut off, or that the whole file was recreated.
    """
    with Path(path).open("rb") as file:
        return _Reading(head).of(file)


class _Read(NamedTuple):
    n: int
    prev: str
    is_whole: bool  #: its own hash is right


class _Reading:
    """A pass through a file."""

    def __init__(self, head: str | None) -> None:
        self._expected_head, self._seen_wanted = head, head in (None, NOTHING)
        self._faults: list[Fault] = []
        self._missing: dict[int, int] = {}  #: numbers that are missing, by the line before which they are missing
        self._highest = 0

    def of(self, file: BinaryIO) -> Verification:
        lines, previous, digest = 0, None, NOTHING
        while line := file.readline(MAX_LINE):
            lines += 1
            is_ended = line.endswith(b"\n")
            line = line.removesuffix(b"\n")
            read = _read(line)
            if not is_ended:
                self._fault(lines, "is cut off, or too long")
            elif read is None:
                self._fault(lines, "is not a line of an audit log")
            elif not read.is_whole:
                self._fault(lines, f"was changed: entry {read.n}")
            if read is not None:
                self._place(lines, read, previous, digest)
            previous, digest = read, _sha(line)
            self._seen_wanted = self._seen_wanted or digest == self._expected_head
        for number, at in self._missing.items():
            self._fault(at, f"does not follow: entry {number} before it was removed")
        if not self._seen_wanted:
            self._fault(lines, "does not follow the given head: the end was cut off, or the whole file was recreated")
        return Verification(lines, digest, tuple(sorted(self._faults)[:MAX_FAULTS]))

    def _place(self, line: int, read: _Read, previous: _Read | None, digest: str) -> None:
        """Check whether a line is in its original place."""
        if not read.is_whole:
            self._highest += read.n == self._highest + 1  # Its number may have been changed.
        elif read.n == self._highest + 1:
            is_known = line == 1 if previous is None else previous.is_whole and previous.n == self._highest
            if is_known and read.prev != digest:
                self._fault(line, f"does not follow: it was written after another line {line - 1}")
        elif read.n > self._highest:
            for number in range(self._highest + 1, min(read.n, self._highest + 1 + MAX_FAULTS)):
                self._missing[number] = line
        elif self._missing.pop(read.n, None) is not None:
            self._fault(line, f"is out of order: entry {read.n} comes after entry {self._highest}")
        else:
            self._fault(line, f"is a duplicate: entry {read.n}")
        self._highest = max(self._highest, read.n)

    def _fault(self, line: int, problem: str) -> None:
        self._faults.append(Fault(line, f"line {line} {problem}"))
        if len(self._faults) > 100 * MAX_FAULTS:
            del self._faults[MAX_FAULTS:]


def _read(line: bytes) -> _Read | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    return _Read(int(match[1]), match[2].decode(), _sha(line[: match.start(3)]) == match[4].decode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _last_newline(fd: int, end: int) -> int:
    """Return the end of the last whole line."""
    while end > 0:
        begin = max(0, end - 65_536)
        at = os.pread(fd, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def _last_line(fd: int, end: int) -> bytes:
    begin = _last_newline(fd, end - 1)
    return os.pread(fd, min(end - 1 - begin, MAX_LINE), begin)
