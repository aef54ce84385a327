"""An image that a kernel had pushed is deleted from its registry while the kernel lives."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest

from ramet.core.errors import SandboxFailed
from ramet.isolation.contract import Sandbox
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.config.kubernetes import pods_of
from ramet.services.config.load import load
from ramet.services.contract import Image
from ramet.services.packaging.oci.push import Progress
from ramet.services.packaging.oci.registries import OpenRegistries, open_registries
from ramet.services.packaging.runtime_image.pod_images import PodImages
from ramet.services.packaging.service import PackagingService
from tests.support.image_jobs import wait_finished
from tests.support.pod_runs import spec
from tests.support.pods import Pods
from tests.support.tars import tar

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # a first push compiles all of the library


class Uploads:
    """Images of bundles in the registry of the cluster that no node has pulled, with the reported progress."""

    def __init__(self, pods: Pods, folder: Path) -> None:
        self.told, self.hosts = list[Progress](), [pods.cluster.registry]
        self._base = pods.cluster.base_image

        def opening() -> AbstractAsyncContextManager[OpenRegistries]:
            return open_registries(self.hosts[-1], self._base, environ={})

        self.images = PodImages(opening, "bare", on_progress=self.told.append)
        self.service = PackagingService(folder, push=self.images.image)
        self.images.store = self.service

    async def image(self) -> Image:
        """Make a new image, push it, and delete it from the registry."""
        bundle = await self.service.upload(tar({"kit.py": f"MARK = {os.urandom(8).hex()!r}".encode()}))
        job = await wait_finished(self.service, (await self.service.create_image("", [bundle.id])).id)
        image = await self.service.image(job.image)
        registry, _, rest = (await self.images.image(image)).reference.partition("/")
        repository, _, digest = rest.partition("@")
        async with httpx2.AsyncClient(trust_env=False, timeout=180) as http:
            gone = await http.delete(f"http://{registry}/v2/{repository}/manifests/{digest}")
        assert gone.status_code == 202
        self.told.clear()
        return image


@pytest.fixture
async def uploads(pods: Pods, scratch: Path) -> AsyncIterator[Uploads]:
    """Uploads with their own packaging service."""
    made = Uploads(pods, scratch / "kept")
    async with made.service:
        yield made


async def test_an_image_deleted_from_the_registry_is_pushed_again(pods: Pods, uploads: Uploads, scratch: Path) -> None:
    """The kernel pushes the image once for all runs. If that fails, the error quotes the cluster and the registry."""
    cluster = pods.cluster
    (scratch / "ramet.yaml").write_text(
        f"backend: kubernetes\nworking_dir: .\nnamespace: {pods.namespace}\nkubeconfig: {pods.kubeconfig}\n"
        f"base_image: {cluster.base_image}\nregistry_url: http://{cluster.registry}\n"
    )
    backend = pods_of(load(scratch / "ramet.yaml", {}, {}), uploads.images)

    async def started(run: str, image: Image) -> Sandbox:
        return await backend.start(spec(RunFolders(scratch).root, run, mounts=image.folders))

    try:
        image = await uploads.image()
        for sandbox in await asyncio.gather(started("one", image), started("two", image)):
            found = await sandbox.run_command(
                ["/bin/cat", str(image.folders[0] / "kit.py")], timeout_s=60, max_bytes=99
            )
            assert (found.code, found.stdout[:4]) == (0, b"MARK"), found
            await sandbox.clean_up()
        assert [each.step for each in uploads.told].count("packing") == 1

        lost = await uploads.image()
        uploads.hosts.append("127.0.0.1:1")
        with pytest.raises(SandboxFailed, match=r"pod .*ImagePull.*cannot be pushed again: .*127\.0\.0\.1:1"):
            await started("three", lost)
    finally:
        await backend.close()
    assert await pods.names() == []
