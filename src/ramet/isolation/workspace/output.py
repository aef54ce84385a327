"""Output of a process: read without delay, bounded, shown as it arrives, with secrets masked."""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ramet.disk.regular_files import write_all
from ramet.isolation.masking.masking import Mask

_log = logging.getLogger("ramet.output")

RING_BYTES = 64 * 1024
MAX_FILE_BYTES = 16 * 1024 * 1024  #: the default of `Grant.max_output_bytes`
_CHUNK = 64 * 1024  #: read in one turn of the loop, for each stream: the capacity of a pipe
_LAST = 16  #: the maximum number of chunks that a pipe may still hold when no process writes any more
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  #: a pipe would wait


class OutputStream:
    """A reader of one end of a pipe in the event loop, until its end; it closes the pipe.

    `text` is the newest output. `file` holds the beginning, after output that an earlier execution of the run left
    there. `on_text` receives all output, decoded; bytes that are not UTF-8 are replaced. A callback that raises is
    logged and not called again; so is a file that cannot be written. Neither ever blocks the run.
    """

    def __init__(
        self,
        fd: int,
        *,
        ring_bytes: int = RING_BYTES,
        file: Path | None = None,
        max_file_bytes: int = MAX_FILE_BYTES,
        on_text: Callable[[str], object] | None = None,
        mask: Iterable[str] = (),
        mask_kept: Iterable[str] = (),
    ) -> None:
        """Begin to read; the stream owns `fd` from now on.

        `mask` are secrets to replace by stars; `mask_kept` are values that are, in addition, masked in kept output,
        although they are shown as they arrive.
        """
        self._fd, self._ring_bytes, self._on_text = fd, ring_bytes, on_text
        self._ring = bytearray()
        self._log_file = None if file is None else _LogHead(file, max_file_bytes)
        self._mask, self._mask_kept = Mask(mask), Mask(mask_kept)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_ended = asyncio.Event()
        self.total_bytes = 0  #: received, before masking
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    @property
    def text(self) -> str:
        """The newest output, at most `ring_bytes` before decoding. Complete once `wait_drained` has returned."""
        start, ring = 0, self._ring
        if self.total_bytes > len(ring):  # The text may begin in the middle of a character.
            while start < min(3, len(ring)) and ring[start] & 0xC0 == 0x80:
                start += 1
        return ring[start:].decode(errors="replace")

    async def wait_drained(self) -> None:
        """Wait until all writers have closed the pipe and everything was read, or `close` was called."""
        await self._has_ended.wait()

    def close(self) -> None:
        """Read the rest of the pipe, without waiting for more, and close it. Idempotent."""
        if self._has_ended.is_set():
            return
        for _ in range(_LAST):  # A process that could not be ended may still write, without end.
            if not self._read():
                break
        self._end()

    def _read(self) -> bool:
        """Read one chunk; return False if there is none now, or ever."""
        if self._has_ended.is_set():
            return False
        try:
            data = os.read(self._fd, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:  # The other end of a terminal or a socket is gone.
            data = b""
        if not data:
            self._end()
            return False
        self.total_bytes += len(data)
        self._take(self._mask.feed(data))
        return True

    def _end(self) -> None:
        if self._has_ended.is_set():
            return
        self._has_ended.set()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._take(self._mask.feed(b"", last=True), last=True)

    def _take(self, data: bytes, *, last: bool = False) -> None:
        self._store(self._mask_kept.feed(data, last=last))
        if self._on_text is not None:
            text = self._decoder.decode(data, last)
            if text:
                self._call(self._on_text, text)

    def _store(self, data: bytes) -> None:
        ring = self._ring
        ring += data[-self._ring_bytes :] if self._ring_bytes else b""
        if len(ring) > self._ring_bytes:
            del ring[: -self._ring_bytes]
        if self._log_file is not None and data:
            self._log_file.write(data)

    def _call(self, on_text: Callable[[str], object], text: str) -> None:
        try:
            on_text(text)
        except Exception:
            self._on_text = None
            _log.exception("a callback for output failed; it is not called again")


class _LogHead:
    """A file with the first bytes of a stream, which is open only during a write."""

    def __init__(self, file: Path, most: int) -> None:
        self._file, self._most = file, most
        self._remaining: int | None = None  #: None before the first write

    def write(self, data: bytes) -> None:
        """Append as much as fits; when output is cut off, write a note about it once."""
        if self._remaining == 0:
            return
        try:
            fd = os.open(self._file, _APPEND, 0o600)
            try:
                if self._remaining is None:
                    size = os.fstat(fd).st_size
                    self._remaining = max(0, self._most - size)
                    if size > self._most:  # It has the note already.
                        return
                head = data[: self._remaining]
                self._remaining -= len(head)
                write_all(fd, head)
                if len(head) < len(data):
                    self._remaining = 0
                    write_all(fd, f"\n… [cut off here: at most {self._most} bytes are kept]\n".encode())
            finally:
                os.close(fd)
        except OSError as error:
            self._remaining = 0
            _log.warning("output is no longer written to %s: %s", self._file, error)
