"""Python sources as syntax trees."""

from __future__ import annotations

import ast
import contextlib
import threading

_TRIES = 10
_turn = threading.RLock()


def parse_module(source: str | bytes) -> ast.Module:
    """Return the tree of a module's source. Raises what `ast.parse` raises.

    CPython 3.11 counts the depth of a tree for all threads together (python/cpython#106905): a thread that parses while
    another does may raise SystemError. Our own threads take turns, and a tree that other code disturbed is tried again.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(SystemError), _turn:
            return ast.parse(source)
    return ast.parse(source)
