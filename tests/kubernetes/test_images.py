"""Pods start from images that are made without a container engine, and import the modules of guests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lightkube.models.core_v1 import Capabilities, Container, PodSecurityContext, PodSpec, SecurityContext
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from ramet.isolation.zygote.main import IMAGES
from ramet.services.packaging.oci.registry import Registry
from ramet.services.packaging.runtime_image.build import BYTECODE, RuntimeImage, image_on, runtime_image
from ramet.services.packaging.runtime_image.files import LIB, Kind
from ramet.services.packaging.service import PackagingService
from tests.support.cluster import Cluster
from tests.support.image_jobs import wait_finished
from tests.support.tars import tar

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # a first push compiles all of the library

#: What a guest says: who it is, whether it could write, where its bytecode is from, what its image's bundle says.
SAY = """
import json, os, sys
sys.path.insert(0, {lib!r}); sys.path += {imports!r}
from importlib import import_module
for each in {names!r}:
    import_module(each)
made = [each.__cached__ for each in sys.modules.values() if getattr(each, "__cached__", None)]
# Debian's sitecustomize is a link to a file elsewhere, which is a user's to change.
own = [each for each in made if "/bundles/" not in each and "/sitecustomize." not in each]
compiled_here = [each for each in own if not os.path.exists(each)]
print(json.dumps([os.getuid(), os.access("/opt", os.W_OK), compiled_here, __import__("kit").WORD]))
"""


async def run_pod(cluster: Cluster, namespace: str, image: RuntimeImage, kind: Kind) -> list[object]:
    """Run a hardened pod of an image to its end, and return the JSON that it prints."""
    code = SAY.format(lib=LIB, imports=image.imports, names=(*IMAGES[kind], "ramet.isolation.local"))
    hardened = SecurityContext(
        readOnlyRootFilesystem=True, allowPrivilegeEscalation=False, capabilities=Capabilities(drop=["ALL"])
    )
    command = [*image.program("asyncio")[:-1], code]
    spec = PodSpec(
        containers=[Container(name="guest", image=image.reference, command=command, securityContext=hardened)],
        securityContext=PodSecurityContext(runAsNonRoot=True, runAsUser=10_001, runAsGroup=10_001),
        restartPolicy="Never",
        automountServiceAccountToken=False,
    )
    async with cluster.client(namespace) as kube:
        await kube.create(Pod(metadata=ObjectMeta(name=kind), spec=spec))
        phase = None
        async for _, pod in kube.watch(Pod, fields={"metadata.name": kind}):
            phase = pod.status.phase if pod.status else None
            if phase in ("Succeeded", "Failed"):
                break
        text = "\n".join([each async for each in kube.log(kind)])
        assert phase == "Succeeded", text
        found: list[object] = json.loads(text)
        return found


@pytest.mark.parametrize("kind", ["bare", "llm"])
async def test_a_pod_imports_its_bundle_and_all_modules_of_guests(
    cluster: Cluster, namespace: str, tmp_path: Path, kind: Kind
) -> None:
    """The pod runs as an ordinary user, writes nothing, compiles nothing, and needs a base image with Python alone."""
    base = cluster.base_image.removeprefix(f"{cluster.registry}/")
    async with Registry(f"http://{cluster.registry}") as registry, PackagingService(tmp_path) as service:
        bundle = await service.upload(tar({"kit/__init__.py": b"WORD = 'from the bundle'\n"}))
        made = await wait_finished(service, (await service.create_image("", [bundle.id])).id)
        runtime = await runtime_image(registry, base, kind)
        image = await image_on(runtime, await service.image(made.image), registry)

    assert await run_pod(cluster, namespace, image, kind) == [10_001, False, [], "from the bundle"]
    assert BYTECODE in " ".join(image.program("x"))
