"""The watch for a blocked event loop: a dump of all threads during the stall, a count and a log line after it.

Code that holds the interpreter (a C extension that does not release the GIL) stops all Python code: the event loop, its
timers and every Python thread. The dump is therefore written by the thread of `faulthandler`, which is in C and needs
no interpreter; a timer of the loop postpones the dump again and again.

A process has one such thread. `ramet serve` uses it, since that process belongs to ramet. A program that has a runtime
in it, and may use `faulthandler.dump_traceback_later` itself, starts a watch only if it wants one.

A fork does not copy that thread, and cancelling a dump waits for the thread: a child would wait forever, also at its
end. So the dump is cancelled before each fork, and requested again in the parent.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import math
import os
import sys
import threading
from dataclasses import dataclass
from typing import Self

from ramet.core.errors import BusyError, InvalidValue

_log = logging.getLogger("ramet.stalls")

#: Default seconds without a beat of the loop that count as a stall.
STALL_S = 5.0
_MOST_S = 86_400.0
#: Beats in the time after which a dump is written.
_BEATS = 5
#: Held while a dump is requested or cancelled, and from before a fork until after it.
_guard = threading.RLock()


@dataclass(frozen=True)
class Stalls:
    """The stalls of one event loop so far."""

    count: int = 0
    seconds: float = 0.0  #: of all stalls together
    longest_s: float = 0.0


class StallWatch:
    """A watch of the running event loop between `start` and `stop`; one in a process at a time."""

    _of_process: StallWatch | None = None

    def __init__(self, *, after_s: float = STALL_S, dump_to: int | None = None) -> None:
        """Set the limits.

        `after_s` seconds without a beat are a stall; `dump_to` is a descriptor, by default that of stderr.

        Raises InvalidValue for an invalid time.
        """
        if isinstance(after_s, bool) or not 0 < after_s <= _MOST_S or not math.isfinite(after_s):
            raise InvalidValue("after_s", after_s, f"seconds above 0, at most {_MOST_S:g}")
        self.after_s, self.so_far = after_s, Stalls()
        self._dump_to = dump_to
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = 0.0

    def start(self) -> Self:
        """Watch the running loop. Idempotent. Raises BusyError while another watch of this process is active."""
        if StallWatch._of_process is self:
            return self
        if StallWatch._of_process is not None:
            raise BusyError("another StallWatch of this process is active: a process has one thread that dumps")
        StallWatch._of_process = self
        self._loop = asyncio.get_running_loop()
        self._beat_at = self._loop.time()
        self._postpone_dump()
        return self

    def stop(self) -> None:
        """Stop watching, from any thread; idempotent. A dump that the program itself had requested is not restored."""
        with _guard:
            if StallWatch._of_process is self:
                StallWatch._of_process = None
                faulthandler.cancel_dump_traceback_later()
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _beat(self) -> None:
        assert self._loop is not None, "stop() cancels the timer"
        now = self._loop.time()
        elapsed_s, self._beat_at = now - self._beat_at, now
        if elapsed_s > self.after_s:
            totals = self.so_far
            self.so_far = Stalls(totals.count + 1, totals.seconds + elapsed_s, max(totals.longest_s, elapsed_s))
            _log.warning(
                "the event loop was blocked for %.1f s, and every agent with it; a dump that begins with 'Timeout' "
                "shows where each thread was after %g s. Run a tool that blocks in a process: "
                'sync_tools="process". A process that was stopped (SIGSTOP, a debugger) is counted, too',
                elapsed_s,
                self.after_s,
            )
        self._postpone_dump()

    def _postpone_dump(self) -> None:
        """Request a dump `after_s` from now; the next call postpones it."""
        assert self._loop is not None, "a loop is watched"
        self._request_dump()
        self._timer = self._loop.call_later(self.after_s / _BEATS, self._beat)

    def _request_dump(self) -> None:
        descriptor = self._dump_to if self._dump_to is not None else _stderr()
        with _guard:
            if descriptor is not None and StallWatch._of_process is self:
                faulthandler.dump_traceback_later(self.after_s, file=descriptor)

    @classmethod
    def _before_fork(cls) -> None:
        _guard.acquire()
        if cls._of_process is not None:
            faulthandler.cancel_dump_traceback_later()

    @classmethod
    def _after_fork_in_parent(cls) -> None:
        if cls._of_process is not None:
            cls._of_process._request_dump()
        _guard.release()

    @classmethod
    def _after_fork_in_child(cls) -> None:
        cls._of_process = None  # It watches no loop of this process.
        _guard.release()


def _stderr() -> int | None:
    """Return the descriptor of stderr; None if there is none: then a stall is only counted and logged."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None


os.register_at_fork(
    before=StallWatch._before_fork,
    after_in_parent=StallWatch._after_fork_in_parent,
    after_in_child=StallWatch._after_fork_in_child,
)
