"""A run in a pod of its own: started in a new or a waiting pod, or adopted in a pod of another kernel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core.errors import Gone, IsolationUnavailable, RametError, SandboxFailed
from ramet.core.policy.policy import Isolation
from ramet.isolation import mounts
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.api import manifest
from ramet.isolation.kubernetes.api.labels import PodLabels
from ramet.isolation.kubernetes.api.pod_status import exit_of
from ramet.isolation.kubernetes.kernels import Kernels
from ramet.isolation.kubernetes.placement.sandbox import ExclusiveLease, PodSandbox
from ramet.isolation.kubernetes.pods.claim import PodClaim
from ramet.isolation.kubernetes.pods.pod import Pod, wait_removed
from ramet.isolation.kubernetes.pods.pods import Pods, new_name, new_uid, until_failure
from ramet.isolation.remote.host_agent import NodeClient, OnThreshold
from ramet.isolation.remote.sandbox import RemoteSandbox
from ramet.isolation.zygote.assignment_builder import absolute

_ADOPT_S = 25.0  #: from the claim of a pod to its run's first message
_ANSWER_S = 5.0  #: for an answer of a waiting pod: its node may be gone, which the cluster detects minutes later
_GONE_S = 5.0  #: for the deletion of a pod whose run cannot continue

Begin = Callable[[NodeClient], Awaitable[RemoteSandbox]]


class ConnectedPod(NamedTuple):
    """A pod whose program has sent its hello."""

    pod: Pod
    machine: NodeClient


class SandboxRef(Struct, frozen=True, kw_only=True):
    """The data by which another kernel adopts a run. It is the same from kernel to kernel, and grants no access."""

    run: str
    namespace: str
    pod: str
    uid: str
    number: int  #: of the run among those that the pod keeps


def pod_request(spec: SandboxSpec, places: Mapping[str, str], runtime_class: str | None) -> manifest.PodRequest:
    """Return the pod request of a run.

    `places` are the mounts that its image has, and their paths there; these are not copied.
    """
    sources = mounts.sources_by_mount(map(absolute, spec.grant.readonly_mounts), spec.mount_roots)
    transferred_paths = {
        each: Path(source)
        for each, source in sources.items()
        if not any(Path(each).is_relative_to(path) for path in places)
    }
    team = spec.grant.reservation.name if spec.grant.reservation is not None else ""
    return manifest.PodRequest(
        name=new_name(),
        run=spec.run,
        grant=spec.grant,
        uid=new_uid(),
        pod_labels=PodLabels(tree=spec.tree, team=team, path=spec.path),
        image="bare" if spec.grant.isolation is Isolation.FRESH else spec.image,  # A FRESH run imports all by itself.
        runtime_class=runtime_class,
        folders=tuple(each for each, source in transferred_paths.items() if source.is_dir()),
        files=(*(each for each, source in transferred_paths.items() if not source.is_dir()), *places),
        size_mb=sum(map(_size_mb, transferred_paths.values())),
    )


async def start(
    spec: SandboxSpec,
    *,
    pods: Pods,
    pod: Pod,
    places: Mapping[str, str],
    level: Isolation,
    within_s: float,
    on_threshold: OnThreshold | None,
) -> PodSandbox:
    """Start a new run in a new pod. `places` as in `pod_request`.

    Raises SandboxFailed, SpawnRefused, IsolationUnavailable; the pod is deleted then.
    """

    async def connect_and_begin() -> PodSandbox:
        connected_pod = await connect(pods, pod, level, on_threshold)
        return await _begin_sandbox(pods, connected_pod, lambda machine: machine.start(spec, places))

    return await _in_time(spec, pod, connect_and_begin(), within_s)


async def start_in(
    connected_pod: ConnectedPod,
    spec: SandboxSpec,
    *,
    pods: Pods,
    patch: Mapping[str, Any],
    places: Mapping[str, str],
    within_s: float,
) -> PodSandbox:
    """Start a run in a waiting pod, which belongs to the run after this patch.

    Raises as `start` does, and Gone if the pod is of no use.
    """

    async def begin(machine: NodeClient) -> RemoteSandbox:
        was_claimed = False
        try:
            await machine.check(_ANSWER_S)
            await connected_pod.pod.take(patch)
            was_claimed = True
            return await machine.start(spec, places)
        except RametError as problem:
            if was_claimed and machine.is_open:  # The error concerns the run, not the pod.
                raise
            raise Gone(f"pod {connected_pod.pod.name}: {problem}") from problem

    try:
        return await _in_time(spec, connected_pod.pod, _begin_sandbox(pods, connected_pod, begin), within_s)
    except SandboxFailed as problem:
        if not connected_pod.pod.failure_future.done():
            raise
        raise Gone(str(problem)) from problem


async def _in_time(
    spec: SandboxSpec, pod: Pod, starting: Coroutine[Any, Any, PodSandbox], within_s: float
) -> PodSandbox:
    try:
        async with asyncio.timeout(within_s):
            return await until_failure(pod, starting, drop=PodSandbox.drop)
    except TimeoutError:
        pod.release()
        raise SandboxFailed(f"run {spec.run}: nothing started within {within_s:g} s") from None
    except BaseException:
        pod.release()
        raise


async def adopt(
    description: Mapping[str, Any],
    spec: SandboxSpec,
    *,
    pods: Pods,
    kernels: Kernels,
    level: Isolation,
    on_threshold: OnThreshold | None,
) -> PodSandbox:
    """Adopt a run in its existing pod.

    Raises Gone; the pod is deleted then, unless another kernel has it.
    """
    try:
        ref = msgspec.convert(dict(description), SandboxRef)
    except msgspec.ValidationError:
        raise Gone(f"run {spec.run} ended with the kernel that had started it") from None
    if (ref.run, ref.namespace) != (spec.run, pods.namespace) or not pods.outlives_s:
        raise Gone(f"run {spec.run} has no pod here that can be adopted")
    claim = PodClaim(
        pod=ref.pod,
        uid=ref.uid,
        place=kernels.place,
        living=partial(kernels.owners, pods.namespace),
    )
    pod = pods.claim(claim)

    async def connect_and_begin() -> PodSandbox:
        connected_pod = await connect(pods, pod, level, on_threshold)
        return await _begin_sandbox(pods, connected_pod, lambda machine: machine.adopt(ref.number, spec))

    try:
        async with asyncio.timeout(_ADOPT_S):
            return await until_failure(pod, connect_and_begin(), drop=PodSandbox.drop)
    except (RametError, TimeoutError) as problem:
        pod.release()
        await wait_removed(pod, _GONE_S)
        reason = "its pod did not answer in time" if isinstance(problem, TimeoutError) else str(problem)
        raise Gone(f"run {spec.run}: {reason}") from problem
    except BaseException:
        pod.release()
        raise


async def connect(pods: Pods, pod: Pod, level: Isolation, on_threshold: OnThreshold | None) -> ConnectedPod:
    """Connect to a pod, once a run can start in it. Raises SandboxFailed, SpawnRefused, IsolationUnavailable, Gone."""
    machine = await pods.open(pod, ends=exit_of, level=level, on_threshold=on_threshold)
    try:
        hello = await machine.hello()
        if level.rank < Isolation.L3.rank and hello.level.rank < Isolation.L1.rank:
            raise IsolationUnavailable(level, hello.level, tuple(hello.missing), f"on the pod's node: {hello.remedy}")
    except BaseException:
        await machine.close()
        raise
    return ConnectedPod(pod, machine)


async def _begin_sandbox(pods: Pods, connected_pod: ConnectedPod, begin: Begin) -> PodSandbox:
    pod, machine = connected_pod
    try:
        sandbox = await begin(machine)
        description: Mapping[str, Any] = {}
        if pods.outlives_s:
            pod_fields = {"namespace": pods.namespace, "pod": pod.name, "uid": pod.uid}
            description = msgspec.structs.asdict(SandboxRef(run=sandbox.spec.run, number=sandbox.number, **pod_fields))
        return PodSandbox(sandbox, ExclusiveLease(machine, pod), pod.name, description)
    except BaseException:
        await machine.close()
        raise


def _size_mb(path: Path) -> int:
    """Return the disk usage of a folder or file in MiB, rounded up."""
    files = (
        [path] if not path.is_dir() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    )
    return 1 + sum(4096 * -(-file.lstat().st_size // 4096) for file in files if not file.is_symlink()) // 2**20
