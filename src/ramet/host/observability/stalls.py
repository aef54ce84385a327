"""The watch for a blocked event loop: a dump of all threads during the stall, a count and a log line after it.

A thread of Python writes the dump, never `faulthandler.dump_traceback_later`: that one reads the frames of threads
while they run, without the interpreter's lock, and so ends the process with SIGSEGV. Measured with Python 3.11 to
3.13: one dump in 10 to 20, where the stall is Python code.

Code in C that holds the lock of the interpreter (an extension that does not release it) stops that thread as well.
Then the dump is written once the call returns, while the caller is still at that line: a thread that waits for the
lock gets it first. After a call that never returns there is no dump: SIGABRT ends the process and shows its stacks
(`faulthandler.enable`, as in `ramet serve`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType
from typing import Self

from ramet.core.errors import InvalidValue

_log = logging.getLogger("ramet.stalls")

#: Default seconds without a beat of the loop that count as a stall.
STALL_S = 5.0
_MOST_S = 86_400.0
#: Beats in the time after which a dump is written.
_BEATS = 5
#: Threads in a dump, and frames of each, as many as faulthandler shows.
_MAX_THREADS = _MAX_FRAMES = 100
#: Seconds that `stop` waits for a dump that is being written; the reader of stderr may be slow.
_WRITE_S = 1.0


@dataclass(frozen=True)
class Stalls:
    """The stalls of one event loop so far."""

    count: int = 0
    seconds: float = 0.0  #: of all stalls together
    longest_s: float = 0.0


class StallWatch:
    """A watch of the running event loop between `start` and `stop`."""

    def __init__(self, *, after_s: float = STALL_S, dump_to: int | None = None) -> None:
        """Set the limits.

        `after_s` seconds without a beat are a stall; `dump_to` is a descriptor, by default that of stderr.

        Raises InvalidValue for an invalid time.
        """
        if isinstance(after_s, bool) or not 0 < after_s <= _MOST_S or not math.isfinite(after_s):
            raise InvalidValue("after_s", after_s, f"seconds above 0, at most {_MOST_S:g}")
        self.after_s, self.so_far = after_s, Stalls()
        self._dump_to = dump_to
        self._timer: asyncio.TimerHandle | None = None
        self._dumps: _Dumps | None = None

    def start(self) -> Self:
        """Watch the running loop. Idempotent."""
        if self._timer is None:
            self._dumps = _Dumps(self.after_s, self._dump_to)
            self._schedule_beat(asyncio.get_running_loop())
        return self

    def stop(self) -> None:
        """Stop watching, from any thread; idempotent."""
        timer, self._timer = self._timer, None
        dumps, self._dumps = self._dumps, None
        if timer is not None:
            timer.cancel()
        if dumps is not None:
            dumps.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _schedule_beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self.after_s / _BEATS, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        if (dumps := self._dumps) is None:
            return  # Stopped from another thread a moment ago.
        elapsed_s = dumps.beat()
        if elapsed_s > self.after_s:
            totals = self.so_far
            self.so_far = Stalls(totals.count + 1, totals.seconds + elapsed_s, max(totals.longest_s, elapsed_s))
            _log.warning(
                "the event loop was blocked for %.1f s, and every agent with it; the dump on stderr that begins alike "
                'shows where each thread was. Run a tool that blocks in a process: sync_tools="process". A process '
                "that was stopped (SIGSTOP, a debugger) is counted, too",
                elapsed_s,
            )
        self._schedule_beat(loop)


class _Dumps:
    """The thread that writes one dump in each stall of a loop, and the time of the loop's last beat."""

    def __init__(self, after_s: float, dump_to: int | None) -> None:
        self._after_s = after_s
        self._beat_at = time.monotonic()
        self._dumped_beat = 0.0  #: the beat after which the last dump was made
        self._guard = threading.Lock()
        self._loop_thread = threading.get_ident()
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()  #: to be written; None: the end
        descriptor = dump_to if dump_to is not None else _stderr()
        # A descriptor of its own: the other one may be closed, and its number taken by a file, during a slow write.
        self._descriptor = None if descriptor is None else os.dup(descriptor)
        self._thread = threading.Thread(target=self._watch, name="ramet-stalls", daemon=True)
        self._thread.start()

    def beat(self) -> float:
        """Note that the loop runs; return the seconds since it did before.

        If they were a stall, and nothing could run meanwhile that would have dumped the threads, that is done now.
        """
        now = time.monotonic()
        before, elapsed_s = self._beat_at, now - self._beat_at
        if elapsed_s > self._after_s and self._is_first_dump_after(before):
            self._texts.put(
                self._dump(f"The event loop was blocked for {elapsed_s:.1f} s. Each thread right after that")
            )
        self._beat_at = now
        return elapsed_s

    def stop(self) -> None:
        """End the thread; wait for it for a moment."""
        self._texts.put(None)
        self._thread.join(_WRITE_S)

    def _watch(self) -> None:
        wait_s = self._after_s
        try:
            while (text := self._next_text(wait_s)) is not None:
                if text and self._descriptor is not None:
                    _write(self._descriptor, text)
                # While a stall lasts, its next beat may be any moment away.
                wait_s = max(self._beat_at + self._after_s - time.monotonic(), self._after_s / _BEATS)
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)

    def _next_text(self, wait_s: float) -> str | None:
        """Return what is to be written: "" if the loop runs or was dumped; None at the end."""
        with contextlib.suppress(queue.Empty):
            return self._texts.get(timeout=wait_s)
        beat_at = self._beat_at
        elapsed_s = time.monotonic() - beat_at
        if elapsed_s < self._after_s or not self._is_first_dump_after(beat_at):
            return ""
        return self._dump(f"The event loop has been blocked for {elapsed_s:.1f} s. Each thread")

    def _is_first_dump_after(self, beat_at: float) -> bool:
        with self._guard:
            is_first, self._dumped_beat = self._dumped_beat != beat_at, beat_at
        return is_first

    def _dump(self, heading: str) -> str:
        """Return the stack of each thread below a heading: file, line and function, no values."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = {ident: frame for ident, frame in sys._current_frames().items() if ident != self._thread.ident}
        lines = [f"{heading}, most recent call first:"]
        for ident, frame in list(stacks.items())[:_MAX_THREADS]:
            loop = " (the event loop)" if ident == self._loop_thread else ""
            lines += ["", f"Thread {_plain(names.get(ident, 'of C code'))}{loop}", *_frame_lines(frame)]
        if len(stacks) > _MAX_THREADS:
            lines += ["", f"and {len(stacks) - _MAX_THREADS} threads more"]
        return "\n".join([*lines, "", ""])


def _frame_lines(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < _MAX_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{_plain(code.co_filename)}", line {frame.f_lineno} in {_plain(code.co_name)}')
        frame = frame.f_back
    return lines if frame is None else [*lines, "  ..."]


def _plain(name: str) -> str:
    """Return a name without what could move the cursor of a terminal."""
    return ascii(name)[1:-1]


def _write(descriptor: int, text: str) -> None:
    """Write a text whole; what nobody can read any more is no fault of the watch."""
    data = text.encode()
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def _stderr() -> int | None:
    """Return the descriptor of stderr; None if there is none: then a stall is only counted and logged."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None
