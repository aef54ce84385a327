"""Pause the garbage collector while many long-lived objects are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection, which would repeatedly scan all new objects.

    Use it for work of bounded length: garbage of other tasks stays until the end.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
