"""Control groups whose processes have ended, until the kernel lets them be removed."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable

from ramet.core.errors import SandboxFailed
from ramet.isolation import spawn_thread
from ramet.isolation.limits.cgroups import Cgroup

_RETRY_S = 1.0  #: between two attempts to remove groups that could not be removed at first

_log = logging.getLogger(__name__)


class GroupRemover:
    """A remover of groups.

    A group that still holds a process, which may be dying in the kernel, is retried until it goes.

    Groups that are left when this is closed are for `Cgroups.reap`.
    """

    def __init__(self) -> None:
        self._removals: set[asyncio.Task[bool]] = set()
        self._remaining: list[Cgroup] = []
        self._retry_task: asyncio.Task[None] | None = None

    def remove(self, group: Cgroup) -> asyncio.Task[bool]:
        """Start to remove a group; the task returns whether the group was removed within the time for clean-up."""
        removal = asyncio.get_running_loop().create_task(self._remove(group))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        return removal

    async def close(self) -> None:
        """Wait for the groups that are being removed, and retry the remaining ones once."""
        while self._removals:
            await asyncio.wait(self._removals)
        if self._retry_task is not None:
            self._retry_task.cancel()
            await asyncio.wait([self._retry_task])
        self._remaining = await _still_there(self._remaining)

    async def _remove(self, group: Cgroup) -> bool:
        try:
            if await spawn_thread.call(group.try_remove) or await group.remove():
                return True
        except (SandboxFailed, OSError) as problem:  # OSError: a group below was removed while it was read.
            _log.warning("a control group could not be removed yet: %s", problem)
        self._remaining.append(group)
        if self._retry_task is None or self._retry_task.done():
            self._retry_task = asyncio.get_running_loop().create_task(self._try_again())
        return False

    async def _try_again(self) -> None:
        while self._remaining:
            await asyncio.sleep(_RETRY_S)
            groups, self._remaining = self._remaining, []
            try:
                self._remaining += await _still_there(groups)
            except asyncio.CancelledError:
                self._remaining += groups
                raise


async def _still_there(groups: Iterable[Cgroup]) -> list[Cgroup]:
    """Return the groups that could not be removed now."""
    return [group for group in groups if not await spawn_thread.call(functools.partial(_try_remove, group))]


def _try_remove(group: Cgroup) -> bool:
    try:
        group.kill()
        return group.try_remove()
    except (SandboxFailed, OSError):
        return False
