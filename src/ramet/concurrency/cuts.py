"""Work of a run that a pause by a person may cut: a request to a model, a tool call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class WorkCut(Exception):
    """A pause cut this work."""


class Cuts:
    """The work of one run that can be cut now."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks = set[_CuttableBlock]()

    def cuttable(self, key: object = None) -> _CuttableBlock:
        """Allow that the work of this block is cut: it is cancelled then, and the block raises WorkCut.

        Work that handles its cancellation, and returns, keeps its result. `key` is that of its waits.
        """
        return _CuttableBlock(self._blocks, key)

    def cut(self, is_waiting: Callable[[object], bool]) -> None:
        """Cut all of it that does not wait, by its key, and is not the caller; what is being cancelled ends anyway."""
        caller = asyncio.current_task()
        working = [each for each in self._blocks if each.task.cancelling() <= each.cancelling]
        for block in working:
            if block.task is not caller and not is_waiting(block.key):
                block.is_cut = True
                block.task.cancel()


class _CuttableBlock:
    """Context manager of one block; a class, as each turn enters four, and a generator costs several times as much."""

    __slots__ = ("_blocks", "cancelling", "is_cut", "key", "task")

    task: asyncio.Task[object]
    cancelling: int

    def __init__(self, blocks: set[_CuttableBlock], key: object) -> None:
        self._blocks, self.key, self.is_cut = blocks, key, False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "work of a run is in a task"
        self.task, self.cancelling = task, task.cancelling()
        self._blocks.add(self)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: TracebackType | None) -> None:
        self._blocks.discard(self)
        if not self.is_cut:
            return
        # Without `uncancel`, whatever follows would seem to be cancelled.
        is_cut_only = self.task.uncancel() <= self.cancelling
        if isinstance(error, Exception | asyncio.CancelledError) and is_cut_only:
            raise WorkCut from None
        # It ended by itself, or for another reason, too.
