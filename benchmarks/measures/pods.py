"""Agents as pods, beside bare pods of the same image that print one byte: on the cluster of KUBECONFIG and REGISTRY."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
from lightkube import AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

from benchmarks.cost import Figures
from ramet.core.errors import RametError
from ramet.core.policy import DEFAULTS, Grant
from ramet.isolation.contract import Sandbox, SandboxSpec
from ramet.isolation.kubernetes import manifest
from ramet.isolation.kubernetes.api import Api
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.remote.outside import Machine
from ramet.services.packaging.registry import Registry
from ramet.services.packaging.runtime_image import RuntimeImage, runtime_image

BASE = "base:1"
GRANT = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8)
_BYTE = "import os, time; os.write(1, b'x'); [(os.write(1, b'x'), time.sleep(0.01)) for _ in range(6000)]"


async def measure(rounds: int = 10, crowd: int = 20) -> Figures:
    """Create to first byte and to first frame, in turn; then so many at once, idle, and their end."""
    async with Registry(f"http://{os.environ['REGISTRY']}") as registry:
        image = await runtime_image(registry, BASE, "bare")
    namespace = f"ramet-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ramet-bench-") as folder:
        async with AsyncClient(namespace=namespace) as kube:
            await kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
            try:
                return await _measured(Path(folder), namespace, image, rounds, crowd)
            finally:
                await kube.deletecollection(Pod, grace_period=0)
                await kube.delete(Namespace, namespace)


async def _measured(folder: Path, namespace: str, image: RuntimeImage, rounds: int, crowd: int) -> Figures:
    backend = KubernetesBackend(
        folder / "runs", namespace=namespace, image=image, cpu_reserved=0.05
    )  # 20 fit on a node of 2 cores
    api = Api(namespace, None)
    framed: list[float] = []
    hello = Machine.hello

    async def heard(self: Machine) -> object:
        said = await hello(self)
        framed.append(time.monotonic())
        return said

    Machine.hello = heard  # type: ignore[method-assign,assignment]
    try:
        await backend.probe()
        bare, mounted, frames, starts = list[float](), list[float](), list[float](), list[float]()
        for number in range(rounds + 1):
            took, with_volumes = await _bare(api, image), await _bare(api, image, has_volumes=True)
            framed.clear()
            began = time.monotonic()
            sandbox = await _start(backend, folder, f"one-{number}")
            whole = time.monotonic() - began
            await sandbox.clean_up()
            if number:  # The first of each has what is cached afterwards.
                bare.append(took)
                mounted.append(with_volumes)
                frames.append(framed[0] - began)
                starts.append(whole)
        before, began = _memory_kb(), time.monotonic()
        living = await asyncio.gather(*(_start(backend, folder, f"crowd-{number}") for number in range(crowd)))
        together = time.monotonic() - began
        each_kb = (_memory_kb() - before) / crowd
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
        Machine.hello = hello  # type: ignore[method-assign]
        await api.close()
        await backend.close()


async def _start(backend: KubernetesBackend, folder: Path, name: str) -> Sandbox:
    workspace = folder / "runs" / name
    workspace.mkdir(parents=True)
    entry = "ramet.isolation.conformance.guest:main"
    return await backend.start(SandboxSpec(run=name, grant=GRANT, workspace=workspace, entry=entry))


async def _bare(api: Api, image: RuntimeImage, *, has_volumes: bool = False) -> float:
    """Seconds until the first byte of a pod with nothing to it, or nothing but the volumes that each agent's pod has.

    A kubelet looks every 300 ms whether a pod's volumes are mounted, and for the first time when none can be.
    """
    form = manifest.Form(
        namespace=api.namespace,
        image=image.reference,
        command=(image.python, "-I", "-S", "-c", _BYTE),
        runs="/none",
        place="bench",
        owner="bench",
    )
    name = f"bare-{secrets.token_hex(4)}"
    whole = manifest.pod(form, manifest.Berth(name=name, run=name, grant=DEFAULTS, uid=1_000_000))
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


def _memory_kb() -> float:
    return psutil.Process().memory_full_info().uss / 1024
