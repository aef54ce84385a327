"""The garbage collector, held while many objects are made at once that all stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No collection meanwhile: it would look through everything that was just made, again and again.

    For work that ends by itself: what others leave behind meanwhile stays until then.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
