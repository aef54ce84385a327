"""Ctrl-C and its kin while agents run: the first stops the tree in good order, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ramet.core.outcome import EXIT_CODES, Status

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "the terminal closed"}


class Interrupts:
    """While entered, signals call `stop(name)`, then `at_once()` and the end of the process with status 130.

    Python-level handlers rather than the event loop's: the second word must work while the loop is stuck. `stop` runs
    inside the handler, so it may only hand over (`loop.call_soon_threadsafe`).
    """

    def __init__(self, stop: Callable[[str], None], at_once: Callable[[], None]) -> None:
        self._stop, self._at_once = stop, at_once
        self._before: dict[int, Any] = {}
        self.heard: str | None = None  #: the first signal, by the name a person knows

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in NAMES:
                # A hang-up that is ignored already stays so: that is what nohup asks for.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.heard is None:
            self.heard = NAMES[signal.Signals(number)]
            self._stop(self.heard)
        else:
            with contextlib.suppress(Exception):  # The terminal may be gone; nothing may keep us.
                self._at_once()
            _kill_descendants(os.getpid())
            os._exit(EXIT_CODES[Status.CANCELLED])


def _kill_descendants(pid: int) -> None:
    """End what tools have started: to leave at once must not leave it running. Linux only, as /proc is."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGSTOP)  # So that it starts nothing more while its own are looked for.
                _kill_descendants(child)
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
