"""stdout and stderr as they are given to us: closed, full, in another encoding, with a reader that leaves."""

from __future__ import annotations

import codecs
import os
import sys
from typing import IO, Any

#: The nearest sign for those that we print ourselves, where the encoding has none of them.
_PLAIN = {
    "…": "...",
    "·": "-",
    "✓": "+",
    "✗": "x",
    "■": "#",
    "●": "*",
    "○": "o",
    "•": "*",
    "—": "-",
    "–": "-",
    "─": "-",
}
_PLAIN |= {"“": '"', "”": '"', "‘": "'", "’": "'", "├": "|", "└": "`", "│": "|", "\xa0": " "}


def prepare_streams() -> None:
    """Make stdout and stderr take any text, whatever the locale: what it lacks becomes its nearest, or `?`."""
    codecs.register_error("ramet", _nearest)
    if sys.stdout is None:  # closed by the caller: nobody reads, which is no reason to fail
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123 - likewise
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="ramet")


def abandon(stream: IO[str]) -> None:
    """Nobody reads `stream` any more: what is in its buffer goes nowhere, and the interpreter's exit stays quiet."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # not a real descriptor: nothing will be flushed at exit


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(each, "?") for each in missing), error.end
