"""Capture of printed text within bounds, in place of the process's own streams."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from ramet.concurrency.pipes import Capture

KEEP = 128 * 1024  #: bytes kept from the beginning, and as many from the end


class CapturedOutput:
    """The captured output of one piece of code."""

    def __init__(self) -> None:
        self._capture = Capture(head=KEEP, tail=KEEP)
        self._lock = threading.Lock()

    def take(self, text: str) -> None:
        """Capture text, within the bounds."""
        with self._lock:
            self._capture.append(text.encode("utf-8", "backslashreplace"))

    def text(self) -> str:
        with self._lock:
            return self._capture.data().decode("utf-8", "replace").replace("\0", "␀")


class _Switch(io.TextIOBase):
    """A stream that captures printed text; text of `exempt` threads goes to the other stream."""

    def __init__(self, original: TextIO, output: CapturedOutput, exempt: set[int]) -> None:
        self._original, self._output, self._exempt = original, output, exempt

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return the descriptor of the process's own stream: programs started with it write there."""
        return self._original.fileno()

    def write(self, text: str) -> int:
        """Print text.

        Raises TypeError if the argument is not text.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() takes text, not {type(text).__name__}")
        if threading.get_ident() in self._exempt:
            self._original.write(text)
        else:
            self._output.take(text)
        return len(text)


class Streams:
    """The stdout and stderr of this process, and the threads whose output is not captured."""

    def __init__(self) -> None:
        self.exempt: set[int] = set()
        self._own_stream: tuple[TextIO, TextIO] | None = None  #: set while others replace them
        self._output: CapturedOutput | None = None

    @contextlib.contextmanager
    def capture(self, output: CapturedOutput) -> Iterator[None]:
        """Capture printed text into `output`, until the context is left, or entered again with another object."""
        if self._own_stream is None:
            self._own_stream = (sys.stdout, sys.stderr)
        self._output = output
        sys.stdout, sys.stderr = (_Switch(each, output, self.exempt) for each in self._own_stream)
        try:
            yield
        finally:
            if self._output is output:
                self.close()

    def close(self) -> None:
        """Restore the original streams."""
        if self._own_stream is not None:
            sys.stdout, sys.stderr = self._own_stream
            self._own_stream = self._output = None
