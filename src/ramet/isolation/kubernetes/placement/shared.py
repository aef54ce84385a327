"""The pod that runs of a team share: created in advance, replaced after its end, and released with the team.

Landlock and seccomp separate its runs, as in the backend `local`; the pod has the resource limits and the root file
system. Runs that need more isolation than that get a pod of their own: `fits` decides, and the caller creates that pod.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ramet.core.errors import RametError, SandboxFailed
from ramet.core.policy.policy import DEFAULTS, Grant, Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import Exit, SandboxSpec
from ramet.isolation.kubernetes.api.labels import PodLabels
from ramet.isolation.kubernetes.api.manifest import NODE_AGENT_MB, PodRequest
from ramet.isolation.kubernetes.api.pod_status import PodFailure, exit_of
from ramet.isolation.kubernetes.api.quotas import DEFAULT_SANDBOXES
from ramet.isolation.kubernetes.placement.sandbox import PodSandbox
from ramet.isolation.kubernetes.pods.pod import Pod, wait_removed
from ramet.isolation.kubernetes.pods.pods import Pods, new_name, new_uid, until_failure
from ramet.isolation.remote.host_agent import NodeClient, OnThreshold
from ramet.isolation.remote.sandbox import RemoteSandbox

#: MiB of each run in addition to its own: memory of the zygote that it no longer shares.
_FORKED_MB = 4
_KEEPER_PIDS = 64  #: of the node agent, the zygotes, and the processes that wait to become agents
_TMPFS_MB = 8  #: no run uses it
_AGAIN_S = 60.0  #: after the creation of a pod failed, before the next attempt

_log = logging.getLogger("ramet.kubernetes")


class Capacity(NamedTuple):
    """The free or used capacity of a pod."""

    memory_mb: int = 0
    pids: int = 0
    disk_mb: int = 0

    @classmethod
    def of(cls, grant: Grant) -> Capacity:
        """Return the capacity that a run uses, without processor time, which is shared dynamically."""
        return cls(grant.memory_mb, grant.pids, grant.workspace_size_mb)

    def holds(self, other: Capacity) -> bool:
        """Check whether this capacity includes all of `other`."""
        return all(own >= other_value for own, other_value in zip(self, other, strict=True))

    def plus(self, other: Capacity) -> Capacity:
        return Capacity(*(own + added for own, added in zip(self, other, strict=True)))

    def minus(self, other: Capacity) -> Capacity:
        return Capacity(*(own - other_value for own, other_value in zip(self, other, strict=True)))


@dataclass(frozen=True, kw_only=True)
class TeamPodSize:
    """The size of a team's pod."""

    capacity: Capacity  #: for runs
    grant: Grant  #: of the pod, as if it had one run
    pids: int  #: of all processes in it

    @classmethod
    def of(cls, reservation: Reservation) -> TeamPodSize | None:
        """Return the size for all that a team reserves; None if it reserves no memory, which gives no size."""
        if reservation.memory_mb is None:
            return None
        sandboxes = reservation.sandboxes or DEFAULT_SANDBOXES
        capacity = Capacity(
            math.ceil(reservation.memory_mb), sandboxes * DEFAULTS.pids, sandboxes * DEFAULTS.workspace_size_mb
        )
        grant = Grant(
            cpu_cores=reservation.cpu_cores or sandboxes * DEFAULTS.cpu_cores,
            memory_mb=capacity.memory_mb + NODE_AGENT_MB + sandboxes * _FORKED_MB,  # There may be two zygotes.
            tmpfs_size_mb=_TMPFS_MB,
            workspace_size_mb=capacity.disk_mb,
        )
        return cls(capacity=capacity, grant=grant, pids=capacity.pids + _KEEPER_PIDS)

    def request(self, team: str) -> PodRequest:
        """Return the request for a new pod of this size."""
        pod_labels = PodLabels(team=team)
        return PodRequest(
            name=new_name(), run="", grant=self.grant, uid=new_uid(), pod_labels=pod_labels, shared_pids=self.pids
        )


def fits(spec: SandboxSpec, offered_level: Isolation = Isolation.L1) -> bool:
    """Check whether the isolation between runs of one pod is all that a run asks for.

    A run in a shared pod has no part of the pod to itself.
    """
    grant = spec.grant
    # /run and loopback are the pod's.
    needs_own_pod = grant.secrets or grant.allowed_endpoints or spec.proxy is not None
    mounts = grant.mounts.paths or (spec.cwd is not None and not spec.cwd.is_relative_to(spec.workspace))
    return grant.isolation.rank <= offered_level.rank and not (needs_own_pod or mounts or spec.has_programs)


class _ConnectedPod(NamedTuple):
    """A pod in which runs can start."""

    pod: Pod
    machine: NodeClient
    level: Isolation


class SharedPod:
    """The current shared pod of a team; a new pod replaces one that has ended. Create it on a running event loop."""

    def __init__(
        self,
        team: str,
        namespace: str,
        pods: Pods,
        make: Callable[[], Pod],
        *,
        capacity: Capacity,
        patience_s: float,
        on_threshold: OnThreshold,
    ) -> None:
        """Configure the pod. `make` begins a pod; `capacity` is the capacity for all its runs together."""
        self._team, self._namespace, self._pods, self._make_pod = team, namespace, pods, make
        self._capacity, self._patience_s, self._on_threshold = capacity, patience_s, on_threshold
        self._used_capacity: dict[NodeClient, Capacity] = {}
        self._creation: asyncio.Task[_ConnectedPod] | None = None
        self._not_before = 0.0
        self._is_closed = False

    def warm(self) -> None:
        """Begin a new pod unless there is a usable one or one in creation."""
        if not self._is_usable():
            self._creation = asyncio.get_running_loop().create_task(self._make())
            self._creation.add_done_callback(self._was_made)

    async def start(self, spec: SandboxSpec) -> PodSandbox | None:
        """Start a run that `fits`; return None if the pod has no capacity, or there can be no pod, which is logged.

        Raises what `NodeClient.start` raises, with the cluster's message if the pod failed.
        """
        connected_pod = await self._home()
        requested_capacity = Capacity.of(spec.grant)
        if (
            connected_pod is None
            or not fits(spec, connected_pod.level)
            or not self._free(connected_pod).holds(requested_capacity)
        ):
            return None
        self._used_capacity[connected_pod.machine] = self._used_capacity.get(connected_pod.machine, Capacity()).plus(
            requested_capacity
        )
        stay = _SharedLease(self, connected_pod, requested_capacity, spec.run)
        try:
            inner = await until_failure(connected_pod.pod, connected_pod.machine.start(spec), drop=RemoteSandbox.drop)
        except BaseException:
            await stay.release()
            raise
        return PodSandbox(inner, stay, connected_pod.pod.name, {})

    def close(self) -> None:
        """Create no more pods. The pod itself is deleted with all others. Idempotent."""
        self._is_closed = True
        if self._creation is not None:
            self._creation.cancel()

    def _is_usable(self) -> bool:
        """Return whether a pod is being created, or can be used."""
        creation = self._creation
        if creation is None or not creation.done():
            return creation is not None
        if creation.cancelled() or creation.exception() is not None:
            return False
        connected_pod = creation.result()
        return connected_pod.machine.is_open and not connected_pod.pod.failure_future.done()

    async def _home(self) -> _ConnectedPod | None:
        if self._is_closed or (not self._is_usable() and asyncio.get_running_loop().time() < self._not_before):
            return None
        self.warm()
        creation = self._creation
        assert creation is not None, "warmed just now"
        await asyncio.wait((creation,))
        if creation.cancelled() or creation.exception() is not None:
            return None
        return creation.result()

    async def _make(self) -> _ConnectedPod:
        pod = self._make_pod()
        try:
            async with asyncio.timeout(self._patience_s):
                return await until_failure(pod, self._connect(pod))
        except BaseException:
            pod.release()
            raise

    async def _connect(self, pod: Pod) -> _ConnectedPod:
        machine = await self._pods.open(
            pod,
            ends=self._end_of,
            on_threshold=self._on_threshold,
            on_deaf=lambda run: self._end(pod, machine, run),
        )
        try:
            hello = await machine.hello()
            if hello.level.rank < Isolation.L1.rank:
                missing = ", ".join(hello.missing)
                raise SandboxFailed(f"its node cannot isolate runs from each other: {missing}; {hello.remedy}")
            return _ConnectedPod(pod, machine, hello.level)
        except BaseException:
            await machine.close()
            raise

    def _was_made(self, making: asyncio.Task[_ConnectedPod]) -> None:
        if making.cancelled() or (problem := making.exception()) is None:
            return
        reason = str(problem) if isinstance(problem, RametError) else repr(problem)
        _log.warning("team %s has no shared pod, and each of its runs gets its own pod: %s", self._team, reason)
        self._not_before = asyncio.get_running_loop().time() + _AGAIN_S

    def _free(self, connected_pod: _ConnectedPod) -> Capacity:
        return self._capacity.minus(self._used_capacity.get(connected_pod.machine, Capacity()))

    def _give_back(self, connected_pod: _ConnectedPod, capacity: Capacity) -> None:
        remaining = self._used_capacity[connected_pod.machine].minus(capacity)
        if any(remaining):
            self._used_capacity[connected_pod.machine] = remaining
            return
        del self._used_capacity[connected_pod.machine]

    def _end_of(self, failure: PodFailure) -> Exit:
        pod_exit = exit_of(failure)
        return pod_exit._replace(detail=f"the shared pod of team {self._team}: {pod_exit.detail}")

    def _end(self, pod: Pod, machine: NodeClient, run: str) -> None:
        """Delete the pod, with all its runs, because a run in it could not be ended."""
        reason = f"the shared pod of team {self._team} did not end run {run} on request, and was deleted"
        _log.warning("%s: %s", pod.name, reason)
        machine.on_lost(Exit(-signal.SIGKILL, "lost", reason))  # First: the end of the line has no reason.
        pod.release()


class _SharedLease:
    """The `PodLease` of one run in a pod that it shares with others; the pod stays."""

    silence_s = 20.0  #: a line that is cut for a while must not end the pod of the other runs

    def __init__(self, team: SharedPod, connected_pod: _ConnectedPod, capacity: Capacity, run: str) -> None:
        self._team, self._home, self._capacity, self._run = team, connected_pod, capacity, run
        self._has_left = False

    async def end(self) -> None:
        self._team._end(self._home.pod, self._home.machine, self._run)
        await wait_removed(self._home.pod)

    async def release(self) -> None:
        """See `PodLease`; the pod stays."""
        if not self._has_left:
            self._has_left = True
            self._team._give_back(self._home, self._capacity)
