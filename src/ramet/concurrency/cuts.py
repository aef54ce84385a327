"""Work of a run that a pause by a person may cut: a request to a model, a tool call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class WorkCut(Exception):
    """A pause cut this work."""


class Cuts:
    """The work of one run that can be cut now."""

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes = set[_Scope]()

    @contextmanager
    def cuttable(self) -> Iterator[None]:
        """Allow that the work of this block is cut: it is cancelled then, and the block raises WorkCut."""
        task = asyncio.current_task()
        assert task is not None, "work of a run is in a task"
        scope = _Scope(task)
        self._scopes.add(scope)
        try:
            yield
        except asyncio.CancelledError:
            if scope.is_cut and task.uncancel() <= scope.cancelling:
                raise WorkCut from None
            raise  # It is cancelled for another reason, too.
        finally:
            self._scopes.discard(scope)

    def cut(self) -> None:
        """Cut all of it."""
        for scope in list(self._scopes):
            if not scope.is_cut:
                scope.is_cut = True
                scope.task.cancel()


class _Scope:
    __slots__ = ("cancelling", "is_cut", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task, self.cancelling, self.is_cut = task, task.cancelling(), False
