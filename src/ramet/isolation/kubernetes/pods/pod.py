"""A pod, from its creation to its removal. A task of its own performs both, even if the caller is gone."""

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
from ramet.isolation.kubernetes.api.errors import ApiConflict, Unreachable
from ramet.isolation.kubernetes.api.pod_status import ObservedPod, PodFailure
from ramet.isolation.kubernetes.connect.attach import PodConnection, PodTransport
from ramet.isolation.kubernetes.pods.delete import delete
from ramet.isolation.kubernetes.pods.watch import PodWatch

_AGAIN_S = (0.1, 0.5, 1.0, 2.0, 5.0)
_LATER_S = 30.0  #: likewise, to remove a pod: no reaper removes the pod of a living kernel
_LONG_S = 60.0  #: for the removal of a pod whose run has ended, if the caller waits only for that

_log = logging.getLogger("ramet.kubernetes")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PodContext:
    """The objects and settings that all pods of a kernel share."""

    api: Api
    owner: str  #: the kernel, by its label
    watch: PodWatch
    transport: PodTransport
    unschedulable_s: float  #: how long a pod may wait for a node


class Pod:
    """A pod that exists until `release`. Create it on a running event loop."""

    def __init__(self, context: PodContext, pod: Mapping[str, Any], secret: Mapping[str, Any] | None) -> None:
        """Begin the creation of the pod. `pod` and `secret` are manifests."""
        self.name: str = pod["metadata"]["name"]
        self.uid = ""
        loop = asyncio.get_running_loop()
        self.connection_future: asyncio.Future[PodConnection] = (
            loop.create_future()
        )  #: an error: the pod could not be created
        self.failure_future: asyncio.Future[PodFailure] = loop.create_future()  #: set once it does not work
        self.unschedulable: asyncio.Future[PodFailure] = (
            loop.create_future()
        )  #: set once no node took it; one may later
        self._context, self._pod, self._secret = context, pod, secret
        self._owners = {context.owner}  #: the owners whose pod may be removed here
        self._observed_pod = ObservedPod(self.name)
        self._has_changed, self._is_released = asyncio.Event(), asyncio.Event()
        self._was_made = self._was_taken = False
        self.removal = loop.create_task(self._live())  #: done once it was removed, or belongs to another kernel

    def release(self) -> None:
        """Have the pod removed, because it is no longer wanted. Idempotent. Does not block."""
        self._is_released.set()
        self._has_changed.set()

    async def take(self, patch: Mapping[str, Any]) -> None:
        """Turn a waiting pod into the pod of one run, by `manifest.claim_patch`.

        Raises Missing, and the API's other errors.
        """
        self._was_taken = True
        await self._context.api.patch_pod(self.name, patch)
        if self._secret is not None:
            await self._context.api.patch_secret(self.name, {"metadata": {"labels": patch["metadata"]["labels"]}})

    @property
    def last_output(self) -> str:
        """The last output of the pod's program on standard error."""
        return "" if (connection := self._connection) is None else connection.last_output

    @property
    def _connection(self) -> PodConnection | None:
        if (
            self.connection_future.done()
            and not self.connection_future.cancelled()
            and self.connection_future.exception() is None
        ):
            return self.connection_future.result()
        return None

    async def _live(self) -> None:
        context, connection = self._context, None
        context.watch.expect(self.name, self._see)
        try:
            try:
                await self._make()
                await self._wait_for_node()
                if not self._is_released.is_set() and not self.failure_future.done():
                    connection = self._reach()
                    self.connection_future.set_result(connection)
            except Exception as error:
                self.connection_future.set_exception(error)
                self.connection_future.exception()  # Mark the exception as retrieved: there may be no waiter.
                self._is_released.set()
            if not self.connection_future.done():
                self.connection_future.set_exception(
                    SandboxFailed(f"pod {self.name} was released before it could be reached")
                )
                self.connection_future.exception()
            await self._is_released.wait()
        finally:
            if connection is not None:
                await connection.close()
            await self._remove()
            context.watch.forget(self.name, was_made=self._was_made)
            context.transport.forget(self.name)

    def _reach(self) -> PodConnection:
        return self._context.transport.open(self._context.api, self.name, self.uid)

    async def _make(self) -> None:
        """Create the pod. Raises SpawnRefused, SandboxFailed, Unreachable, and the API's other errors."""
        api, secret = self._context.api, self._secret
        if secret is not None:
            with contextlib.suppress(ApiConflict):  # Created by an earlier request whose answer was lost.
                await self._repeat_request(lambda: api.create_secret(secret))
        self._was_made = True  # The pod may exist from now on.
        try:
            self.uid = await self._repeat_request(self._create_pod)
        except Unreachable:
            raise
        except RametError:
            self._was_made = False
            raise
        self._context.watch.add(self.name)
        if secret is not None:
            await self._repeat_request(lambda: api.patch_secret(self.name, manifest.owned_by(self.name, self.uid)))

    async def _create_pod(self) -> str:
        """Create the pod; return its uid."""
        try:
            return (await self._context.api.create_pod(self._pod)).uid
        except ApiConflict:  # Created by an earlier request.
            return (await self._context.api.pod(self.name)).uid

    async def _repeat_request(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until the API answers, as long as the pod is wanted.

        Raises Unreachable if the API has not answered.
        """
        for pause_s in _AGAIN_S:
            try:
                return await ask()
            except Unreachable:
                if self._is_released.is_set():
                    raise
            await asyncio.sleep(pause_s)
        return await ask()

    async def _wait_for_node(self) -> None:
        """Wait until the pod has a node, or fails. Raises SandboxFailed if it finds no node in time."""
        loop, deadline = asyncio.get_running_loop(), None
        while not (self._observed_pod.node or self.failure_future.done() or self._is_released.is_set()):
            self._has_changed.clear()
            trouble = self._observed_pod.failure
            if trouble is not None and deadline is None:
                deadline = loop.time() + self._context.unschedulable_s
            try:
                async with asyncio.timeout_at(deadline):
                    await self._has_changed.wait()
            except TimeoutError:
                assert trouble is not None, "without one there is no bound"
                bound = f"no node accepted it within {self._context.unschedulable_s:g} s"
                raise SandboxFailed(f"pod {self.name}: {bound}: {trouble.message}") from None

    def _see(self, pod: ObservedPod) -> None:
        if pod.is_running and not self._observed_pod.is_running and (connection := self._connection) is not None:
            connection.on_running()
        self._observed_pod = pod
        if pod.failure is not None:
            future = self.failure_future if pod.failure.is_final else self.unschedulable
            if not future.done():
                future.set_result(pod.failure)
        self._has_changed.set()

    async def _remove(self) -> None:
        """Delete the pod and its Secret, and repeat until that succeeds. A pod that another kernel adopted is kept."""
        attempts, is_logged = 0, False
        while self._was_made or self._secret is not None:
            # The last state of a taken pod may be outdated: another kernel can have adopted the pod by now.
            observed_pod = self._observed_pod._replace(version="") if self._was_taken else self._observed_pod
            try:
                is_ours = not self._was_made or await delete(self._context.api, observed_pod, *self._owners)
                if is_ours and self._secret is not None:
                    await self._context.api.delete_secret(self.name)
                break
            except RametError as problem:
                is_late = attempts >= len(_AGAIN_S)
                if not is_logged and (is_late or not isinstance(problem, Unreachable)):
                    _log.warning("pod %s could not be removed yet: %s", self.name, problem)
                    is_logged = True
                await asyncio.sleep(_LATER_S if is_late else _AGAIN_S[attempts])
                attempts += 1


async def wait_removed(pod: Pod, within_s: float = _LONG_S) -> None:
    """Wait until a released pod is gone, at most `within_s`. The removal continues after that."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await asyncio.shield(pod.removal)


def on_failure(pod: Pod, tell: Callable[[PodFailure], object]) -> None:
    """Call `tell` with the pod's failure, now or when it happens."""
    pod.failure_future.add_done_callback(lambda done: None if done.cancelled() else tell(done.result()))
