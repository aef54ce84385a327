"""Handle Ctrl-C and similar signals while agents run: the first stops the tree cleanly, the second ends the process."""

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
    """A context: the first signal calls `stop(name)`, the second `at_once()`, then exits with status 130.

    It uses Python-level handlers rather than the event loop's, because the second signal must work while the loop is
    stuck. `stop` runs inside the handler, so it may only schedule work (`loop.call_soon_threadsafe`).
    """

    def __init__(self, stop: Callable[[str], None], at_once: Callable[[], None]) -> None:
        self._stop, self._at_once = stop, at_once
        self._previous_handlers: dict[int, Any] = {}
        self.signal_name: str | None = None  #: the first signal, by its common name

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in NAMES:
                # An already ignored hang-up stays ignored: nohup asks for that.
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_name is None:
            self.signal_name = NAMES[signal.Signals(number)]
            self._stop(self.signal_name)
        else:
            with contextlib.suppress(Exception):  # The terminal may be gone; nothing may delay the exit.
                self._at_once()
            kill_descendants(os.getpid())
            os._exit(EXIT_CODES[Status.CANCELLED])


def kill_descendants(pid: int) -> None:
    """Kill the processes that tools have started: an immediate exit must not leave them running. Linux only (/proc)."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGSTOP)  # So that it starts no process while its children are searched.
                kill_descendants(child)
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
