"""Agents as pods, compared with bare pods of the same image, on the cluster of KUBECONFIG and REGISTRY."""

from __future__ import annotations

import asyncio
import secrets
import time
from statistics import median

from benchmarks.cluster import PodNamespace, create_pod_namespace, spec
from benchmarks.cost import Figures, own_kb
from ramet.core.errors import RametError
from ramet.core.policy.policy import DEFAULTS
from ramet.isolation.kubernetes.api import manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.remote.host_agent import NodeClient
from ramet.services.packaging.runtime_image.build import RuntimeImage

_BYTE = "import os, time; os.write(1, b'x'); [(os.write(1, b'x'), time.sleep(0.01)) for _ in range(6000)]"
_RESERVED = 0.05  #: of a processor, for each: 20 fit on a node of 2 cores


async def measure(rounds: int = 10, crowd: int = 20) -> Figures:
    """Measure the time to the first byte and the first frame in turn, then many pods at once, then warm pods."""
    async with create_pod_namespace() as at:
        return {**await _start_cold(at, rounds, crowd), "waited_ms": await _start_in_warm_pods(at, rounds)}


async def _start_cold(at: PodNamespace, rounds: int, crowd: int) -> Figures:
    namespace, image, runs = at
    backend = KubernetesBackend(runs, namespace=namespace, image=image, cpu_reserved=_RESERVED)
    api = Api(namespace, None)
    framed: list[float] = []
    hello = NodeClient.hello

    async def timed_hello(self: NodeClient) -> object:
        reply = await hello(self)
        framed.append(time.monotonic())
        return reply

    NodeClient.hello = timed_hello  # type: ignore[method-assign,assignment]
    try:
        await backend.probe()
        bare, mounted, frames, starts = list[float](), list[float](), list[float](), list[float]()
        for number in range(rounds + 1):
            took, with_volumes = await _start_bare_pod(api, image), await _start_bare_pod(api, image, has_volumes=True)
            framed.clear()
            began = time.monotonic()
            sandbox = await backend.start(spec(runs, f"one-{number}"))
            whole = time.monotonic() - began
            await sandbox.clean_up()
            if number:  # The first of each has what is cached afterwards.
                bare.append(took)
                mounted.append(with_volumes)
                frames.append(framed[0] - began)
                starts.append(whole)
        before, began = own_kb(), time.monotonic()
        living = await asyncio.gather(*(backend.start(spec(runs, f"crowd-{number}")) for number in range(crowd)))
        together = time.monotonic() - began
        each_kb = (own_kb() - before) / crowd
        await asyncio.gather(*(each.clean_up() for each in living))
        return {
            "bare_s": median(bare),
            "mounted_s": median(mounted),
            "mounted_ratio": median(frames) / median(mounted),
            "frame_s": median(frames),
            "frame_ratio": median(frames) / median(bare),
            "start_s": median(starts),
            "crowd_s": together,
            "idle_kb": each_kb,
        }
    finally:
        NodeClient.hello = hello  # type: ignore[method-assign]
        await api.close()
        await backend.close()


async def _start_in_warm_pods(at: PodNamespace, rounds: int) -> float:
    """Return the median of the milliseconds until a run has begun in a warm pod."""
    backend = KubernetesBackend(at.runs, namespace=at.namespace, image=at.image, cpu_reserved=_RESERVED, warm=1)
    starts = list[float]()
    try:
        for number in range(rounds + 1):
            wanted = spec(at.runs, f"waited-{number}")
            began = time.monotonic()
            sandbox = await backend.start(wanted)
            starts.append(1000 * (time.monotonic() - began))
            await sandbox.clean_up()
            while not backend._own_pods._warm_pool.ready_pods:  # noqa: ASYNC110 - it is the cluster's to say
                await asyncio.sleep(0.01)
    finally:
        await backend.close()
    return median(starts[1:])  # For the first one none has waited.


async def _start_bare_pod(api: Api, image: RuntimeImage, *, has_volumes: bool = False) -> float:
    """Return the seconds until the first byte of a bare pod, or of one with only the volumes of an agent's pod.

    A kubelet looks every 300 ms whether a pod's volumes are mounted, and for the first time when none can be.
    """
    form = manifest.PodTemplate(
        namespace=api.namespace,
        image=image.reference,
        command=(image.python, "-I", "-S", "-c", _BYTE),
        runs="/none",
        place="bench",
        owner="bench",
    )
    name = f"bare-{secrets.token_hex(4)}"
    whole = manifest.pod(form, manifest.PodRequest(name=name, run=name, grant=DEFAULTS, uid=1_000_000))
    (container,) = whole["spec"]["containers"]
    if not has_volumes:
        del whole["spec"]["volumes"], container["volumeMounts"]
    began = time.monotonic()
    await api.create_pod(whole)
    try:
        while True:
            try:
                async with api.attach(name) as stream:
                    while not (await stream.receive())[1]:
                        """Empty messages open each channel."""
                    return time.monotonic() - began
            except RametError:
                await asyncio.sleep(0.05)
    finally:
        await api.delete_pod(name)
