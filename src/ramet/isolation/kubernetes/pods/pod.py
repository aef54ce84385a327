"""One pod, from its making to its removal. A task of its own sees to both, whatever becomes of who wanted it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ramet.core.errors import RametError, SandboxFailed
from ramet.isolation.kubernetes.api import manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Taken, Unreachable
from ramet.isolation.kubernetes.api.pod_status import ObservedPod, PodFailure
from ramet.isolation.kubernetes.connect.attach import PodConnection, PodTransport
from ramet.isolation.kubernetes.pods.delete import delete
from ramet.isolation.kubernetes.pods.watch import PodWatch

_AGAIN_S = (0.1, 0.5, 1.0, 2.0, 5.0)
_LATER_S = 30.0  #: likewise, to remove a pod: no reaper takes what is a living kernel's
_LONG_S = 60.0  #: for one to be removed whose run is over, and who waits for that alone

_log = logging.getLogger("ramet.kubernetes")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PodContext:
    """What all pods of a kernel share."""

    api: Api
    owner: str  #: the kernel, by its label
    lookout: PodWatch
    reach: PodTransport
    unschedulable_s: float  #: how long a pod may wait for a place


class Pod:
    """A pod that is wanted, until `release`. Make it on a running event loop."""

    def __init__(self, ground: PodContext, pod: Mapping[str, Any], secret: Mapping[str, Any] | None) -> None:
        """`pod` and `secret` are manifests."""
        self.name: str = pod["metadata"]["name"]
        self.uid = ""
        loop = asyncio.get_running_loop()
        self.reached: asyncio.Future[PodConnection] = loop.create_future()  #: an error: it could not be made
        self.troubled: asyncio.Future[PodFailure] = loop.create_future()  #: once it does not work, or no more
        self.unplaced: asyncio.Future[PodFailure] = loop.create_future()  #: once no node has taken it; one may, later
        self._ground, self._pod, self._secret = ground, pod, secret
        self._owners = {ground.owner}  #: whose it may be to be removed here
        self._seen = ObservedPod(self.name)
        self._changed, self._released = asyncio.Event(), asyncio.Event()
        self._was_made = self._was_taken = False
        self.gone = loop.create_task(self._live())  #: done once it was removed, or is another kernel's

    def release(self) -> None:
        """It is not wanted any more, and goes. Idempotent; waits for nothing."""
        self._released.set()
        self._changed.set()

    async def take(self, patch: Mapping[str, Any]) -> None:
        """It has waited, and is one run's from now on: `manifest.taken`. Raises Missing and what else the API says."""
        self._was_taken = True
        await self._ground.api.patch_pod(self.name, patch)
        if self._secret is not None:
            await self._ground.api.patch_secret(self.name, {"metadata": {"labels": patch["metadata"]["labels"]}})

    @property
    def words(self) -> str:
        """What its program has said on standard error last."""
        return "" if (reached := self._there) is None else reached.words

    @property
    def _there(self) -> PodConnection | None:
        if self.reached.done() and not self.reached.cancelled() and self.reached.exception() is None:
            return self.reached.result()
        return None

    async def _live(self) -> None:
        ground, reached = self._ground, None
        ground.lookout.expect(self.name, self._see)
        try:
            try:
                await self._make()
                await self._placed()
                if not self._released.is_set() and not self.troubled.done():
                    reached = self._reach()
                    self.reached.set_result(reached)
            except Exception as error:
                self.reached.set_exception(error)
                self.reached.exception()  # Seen: nobody need wait for it.
                self._released.set()
            if not self.reached.done():
                self.reached.set_exception(SandboxFailed(f"pod {self.name} was let go of before it could be reached"))
                self.reached.exception()
            await self._released.wait()
        finally:
            if reached is not None:
                await reached.close()
            await self._remove()
            ground.lookout.forget(self.name, was_made=self._was_made)
            ground.reach.forget(self.name)

    def _reach(self) -> PodConnection:
        return self._ground.reach.open(self._ground.api, self.name, self.uid)

    async def _make(self) -> None:
        """Raises SpawnRefused, SandboxFailed, Unreachable and what else the API says."""
        api, secret = self._ground.api, self._secret
        if secret is not None:
            with contextlib.suppress(Taken):  # By a request before, whose answer was lost.
                await self._asked(lambda: api.create_secret(secret))
        self._was_made = True  # For all we know from now on.
        try:
            self.uid = await self._asked(self._created)
        except Unreachable:
            raise
        except RametError:
            self._was_made = False
            raise
        self._ground.lookout.made(self.name)
        if secret is not None:
            await self._asked(lambda: api.patch_secret(self.name, manifest.owned_by(self.name, self.uid)))

    async def _created(self) -> str:
        """Its uid."""
        try:
            return (await self._ground.api.create_pod(self._pod)).uid
        except Taken:  # As above.
            return (await self._ground.api.pod(self.name)).uid

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What the API answers once it does, as long as the pod is wanted. Raises Unreachable when it has not."""
        for again in _AGAIN_S:
            try:
                return await ask()
            except Unreachable:
                if self._released.is_set():
                    raise
            await asyncio.sleep(again)
        return await ask()

    async def _placed(self) -> None:
        """Wait until it has a node, or is in trouble. Raises SandboxFailed if it finds none in time."""
        loop, until = asyncio.get_running_loop(), None
        while not (self._seen.node or self.troubled.done() or self._released.is_set()):
            self._changed.clear()
            trouble = self._seen.trouble
            if trouble is not None and until is None:
                until = loop.time() + self._ground.unschedulable_s
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                assert trouble is not None, "without one there is no bound"
                bound = f"no node took it within {self._ground.unschedulable_s:g} s"
                raise SandboxFailed(f"pod {self.name}: {bound}: {trouble.words}") from None

    def _see(self, seen: ObservedPod) -> None:
        if seen.is_running and not self._seen.is_running and (reached := self._there) is not None:
            reached.runs()
        self._seen = seen
        if seen.trouble is not None:
            happened = self.troubled if seen.trouble.is_final else self.unplaced
            if not happened.done():
                happened.set_result(seen.trouble)
        self._changed.set()

    async def _remove(self) -> None:
        """Delete it, and what it had, however often the API has to be asked; not what another kernel has taken up."""
        tries, is_told = 0, False
        while self._was_made or self._secret is not None:
            # What is told of one that was taken may be from before: by now, another kernel can have taken it up.
            seen = self._seen._replace(version="") if self._was_taken else self._seen
            try:
                is_ours = not self._was_made or await delete(self._ground.api, seen, *self._owners)
                if is_ours and self._secret is not None:
                    await self._ground.api.delete_secret(self.name)
                break
            except RametError as problem:
                is_late = tries >= len(_AGAIN_S)
                if not is_told and (is_late or not isinstance(problem, Unreachable)):
                    _log.warning("pod %s stays for now: %s", self.name, problem)
                    is_told = True
                await asyncio.sleep(_LATER_S if is_late else _AGAIN_S[tries])
                tries += 1


async def removed(pod: Pod, within_s: float = _LONG_S) -> None:
    """Wait for a released pod to be gone, not for longer than that: it goes on without us."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await asyncio.shield(pod.gone)


def on_failure(pod: Pod, tell: Callable[[PodFailure], object]) -> None:
    """Have somebody told of a pod's trouble, now or when it comes."""
    pod.troubled.add_done_callback(lambda done: None if done.cancelled() else tell(done.result()))
