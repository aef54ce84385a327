"""Lines that a person enters while a command works."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

_READ: Final = 4096
_AGAIN_S: Final = 1.0  #: between two looks, in a command that works in the background of its terminal


class InputLines:
    """A context in a running event loop, in which each entered line, whatever it says, calls `on_line`.

    Nothing is read from an input that has ended, from a file, or, as that would stop the process, in the background of
    a terminal.
    """

    def __init__(self, on_line: Callable[[], None]) -> None:
        self._on_line = on_line
        self._input = sys.stdin.fileno() if sys.stdin is not None else -1
        self._again: asyncio.TimerHandle | None = None

    def __enter__(self) -> InputLines:
        self._loop = asyncio.get_running_loop()
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._again is not None:
            self._again.cancel()

    def _listen(self) -> None:
        with suppress(OSError, ValueError):  # A file, or no input at all.
            self._loop.add_reader(self._input, self._read)

    def _end(self) -> None:
        with suppress(OSError, ValueError):
            self._loop.remove_reader(self._input)

    def _read(self) -> None:
        if _is_in_background(self._input):
            self._end()
            self._again = self._loop.call_later(_AGAIN_S, self._listen)
            return
        try:
            text = os.read(self._input, _READ)
        except OSError:
            text = b""
        if not text:
            self._end()
        elif b"\n" in text:
            self._on_line()


def _is_in_background(descriptor: int) -> bool:
    """Return whether a descriptor is a terminal in which another command is in the foreground."""
    try:
        return os.isatty(descriptor) and os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:
        return True
