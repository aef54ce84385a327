"""Agents that share no address space with any other: each has its own zygote, and one zygote is kept ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from ramet.concurrency.cancel import is_being_cancelled
from ramet.core.errors import SandboxFailed
from ramet.isolation.contract import Image
from ramet.isolation.zygote.client import ZygoteClient
from ramet.isolation.zygote.pool import Start
from ramet.isolation.zygote.process import ZygoteChild

#: the start parameters of a zygote: its image and mounts, and those of the mounts that its child may write to
_Kind = tuple[Image, frozenset[tuple[str, str]], frozenset[str]]


class DedicatedZygotes:
    """Children with a zygote of their own each.

    After the first one, the next zygote of its kind is started in advance.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._next: dict[_Kind, asyncio.Task[ZygoteClient]] = {}
        self._zygotes: set[ZygoteClient] = set()

    async def take(
        self, image: Image, mounts: Mapping[str, str], writable: Collection[str]
    ) -> tuple[ZygoteClient, ZygoteChild]:
        """Return a child and its zygote. Raises SandboxFailed."""
        prepared_task = self._next.pop(_kind(image, mounts, writable), None)
        zygote = None
        if prepared_task is not None:
            with contextlib.suppress(SandboxFailed):
                zygote = await self._wait_for(prepared_task)
        if zygote is None:
            zygote = await self._wait_for(self._launch(image, mounts, writable))
        try:
            child = await zygote.take_child()
        finally:
            zygote.retire()
        return zygote, child

    def prepare(self, image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> None:
        """Start the next zygote of a kind, if none is ready; a zygote that was ready for another kind is dropped."""
        kind = _kind(image, mounts, writable)
        if kind not in self._next:
            for each in list(self._next):
                self._drop(self._next.pop(each))
            self._next[kind] = self._launch(image, mounts, writable)

    async def close(self) -> None:
        """End all zygotes. Idempotent."""
        tasks = list(self._next.values())
        self._next.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(zygote.close() for zygote in self._zygotes))
        self._zygotes.clear()

    def _launch(self, image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> asyncio.Task[ZygoteClient]:
        return asyncio.get_running_loop().create_task(self._start_parked(image, mounts, writable))

    async def _start_parked(self, image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> ZygoteClient:
        zygote = await self._start(image, mounts, writable)
        self._zygotes = {each for each in self._zygotes if not each.has_exited} | {zygote}
        zygote.park(1)
        return zygote

    async def _wait_for(self, task: asyncio.Task[ZygoteClient]) -> ZygoteClient:
        """Wait for a zygote; if the caller is cancelled, the zygote is dropped."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not is_being_cancelled():
                raise SandboxFailed("the backend is closed") from None
            self._drop(task)
            raise

    def _drop(self, task: asyncio.Task[ZygoteClient]) -> None:
        task.cancel()
        task.add_done_callback(_retire)


def _kind(image: Image, mounts: Mapping[str, str], writable: Collection[str]) -> _Kind:
    return image, frozenset(mounts.items()), frozenset(writable)


def _retire(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().retire()
