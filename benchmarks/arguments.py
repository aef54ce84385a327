"""Arguments that several commands have."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Return the whole number above 0 that a text is. Raises ArgumentTypeError."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)
