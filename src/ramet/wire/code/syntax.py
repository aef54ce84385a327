"""Parse Python sources to syntax trees."""

from __future__ import annotations

import ast
import contextlib
import threading

_TRIES = 10
_parse_lock = threading.RLock()


def parse_module(source: str | bytes) -> ast.Module:
    """Return the tree of a module's source. Raises the errors of `ast.parse`.

    CPython 3.11 counts the depth of a tree for all threads together (python/cpython#106905). A thread that parses
    concurrently with another may raise SystemError. Ramet's threads parse one at a time, and a parse disturbed by other
    code is retried.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(SystemError), _parse_lock:
            return ast.parse(source)
    return ast.parse(source)
