"""Prepare stdout and stderr for any state: closed, full, another encoding, or a reader that closes them."""

from __future__ import annotations

import codecs
import os
import sys
from typing import IO, Any

#: Substitutes for our own symbols, for encodings without them.
_SUBSTITUTES = {
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
_SUBSTITUTES |= {"“": '"', "”": '"', "‘": "'", "’": "'", "├": "|", "└": "`", "│": "|", "\xa0": " "}


def prepare_streams() -> None:
    """Make stdout and stderr accept any text in any locale: a missing character becomes a substitute, or `?`."""
    codecs.register_error("ramet", _substitute)
    if sys.stdout is None:  # closed by the caller: without a reader, which is no reason to fail
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123 - likewise
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="ramet")


def discard_stream(stream: IO[str]) -> None:
    """Redirect a stream without a reader to the null device: its buffer is discarded, and the exit stays quiet."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass  # not a real descriptor: nothing will be flushed at exit


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_SUBSTITUTES.get(each, "?") for each in missing), error.end
