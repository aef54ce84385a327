"""Work of a run that a pause by a person may cut: a request to a model, a tool call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WorkCut(Exception):
    """A pause cut this work."""


class Cuts:
    """The work of one run that can be cut now."""

    __slots__ = ("_scopes",)

    def __init__(self) -> None:
        self._scopes = set[_Scope]()

    @contextmanager
    def cuttable(self, key: object = None) -> Iterator[None]:
        """Allow that the work of this block is cut: it is cancelled then, and the block raises WorkCut.

        Work that handles its cancellation, and returns, keeps its result. `key` is that of its waits.
        """
        task = asyncio.current_task()
        assert task is not None, "work of a run is in a task"
        scope = _Scope(task, key)
        self._scopes.add(scope)
        try:
            yield
        except BaseException as error:
            is_other_end = not isinstance(error, Exception | asyncio.CancelledError)
            if scope.is_cut and task.uncancel() <= scope.cancelling and not is_other_end:
                raise WorkCut from None
            raise  # It is cancelled for another reason, too.
        else:
            if scope.is_cut:
                task.uncancel()  # Otherwise whatever follows would seem to be cancelled.
        finally:
            self._scopes.discard(scope)

    def cut(self, is_waiting: Callable[[object], bool]) -> None:
        """Cut all of it that does not wait, by its key, and is not the caller; what is being cancelled ends anyway."""
        caller = asyncio.current_task()
        working = [each for each in self._scopes if each.task.cancelling() <= each.cancelling]
        for scope in working:
            if scope.task is not caller and not is_waiting(scope.key):
                scope.is_cut = True
                scope.task.cancel()


class _Scope:
    __slots__ = ("cancelling", "is_cut", "key", "task")

    def __init__(self, task: asyncio.Task[object], key: object) -> None:
        self.task, self.key, self.cancelling, self.is_cut = task, key, task.cancelling(), False
