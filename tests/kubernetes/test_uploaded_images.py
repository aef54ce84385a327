"""An agent of an uploaded image works in a pod whose image has the bundles: no bundle is sent to the pod."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, Secret

import ramet
from ramet.core.errors import SandboxFailed, Unknown
from ramet.core.policy.policy import Policy
from ramet.isolation.kubernetes.backend import KubernetesBackend
from ramet.isolation.kubernetes.images import FindImage
from ramet.services.config.build import server_of
from ramet.services.config.load import load
from ramet.services.packaging.oci.auth import Login
from ramet.services.packaging.oci.docker_config import pull_secret
from ramet.services.packaging.oci.registries import OpenRegistries, open_registries
from ramet.services.packaging.runtime_image.pod_images import PodImages
from ramet.services.packaging.service import PackagingService
from tests.support.acceptance import image_of, spawn
from tests.support.account import Account
from tests.support.cluster import Cluster
from tests.support.image_jobs import wait_finished
from tests.support.pod_runs import spec
from tests.support.registries import PASSWORD, USER, needs_registry, registry
from tests.support.tars import tar

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # a first push compiles all of the library

MAY_SPAWN = Policy(memory_mb=512, network="disabled", allow_sub_agents=True)
#: What it is, by its bytes and by the name that its bundle has, and where that really is.
KIT = b"""
import hashlib, json, pathlib
def work(text):
    file = pathlib.Path(__file__)
    real = file.resolve().parent
    return json.dumps([text.upper(), hashlib.sha256(file.read_bytes()).hexdigest(), file.parent.name, str(real)])

def ask(text):
    from ramet.sub_agent_client import spawn_sub_agent
    return spawn_sub_agent(agent=work, args=(text,)).output
"""


async def test_an_uploaded_image_is_the_same_in_a_pod_as_on_this_machine(
    cluster: Cluster, namespace: str, kernel_account: Account, scratch: Path, sent: list[Path]
) -> None:
    """The id, the digest of the bundle and the answer are equal. The pods have the bundle in their images."""
    pods = (
        f"backend: kubernetes\nnamespace: {namespace}\nkubeconfig: {kernel_account.kubeconfig}\n"
        f"base_image: {cluster.base_image}\nregistry_url: http://{cluster.registry}\n"
    )
    images, answers = list[str](), list[list[str]]()
    for name, settings in (("here", "backend: local\n"), ("pods", pods)):
        (scratch / name).mkdir()
        (scratch / name / "ramet.yaml").write_text(f"working_dir: .\n{settings}")
        config = load(scratch / name / "ramet.yaml", {}, {})
        async with server_of(config, {}) as server, ramet.connect(server.listen_address) as client:
            team = await client.create_team({"agents": 1}, name="readers")
            images.append(await image_of(client, kit=KIT))
            ask = {"function": "kit:ask"}
            with pytest.raises(Unknown, match="0" * 64):
                await spawn(client, team, "ada", "function", ask, image="0" * 64)
            ada = await spawn(client, team, "ada", "function", ask, image=images[-1], policy=MAY_SPAWN)
            answers.append(json.loads(await ada.say("hello")))
            paths = [*(config.working_dir / ".ramet" / "packaging").rglob("kit.py")]
            await client.delete_team(team.team.id, key=team.key)

    assert images[0] == images[1]
    here, there = answers
    assert here[:3] == there[:3]
    assert here[0] == "HELLO"
    bundle = there[2]
    assert (Path(here[3]).is_relative_to(scratch), there[3]) == (True, f"/opt/ramet/bundles/{bundle}")
    assert [each.parent.name for each in paths] == [bundle]
    assert [each for each in sent if "packaging" in each.parts] == []


@needs_registry
async def test_a_pod_pulls_its_image_from_a_registry_with_a_login(
    cluster: Cluster, namespace: str, kernel_account: Account, scratch: Path, tmp_path: Path, sent: list[Path]
) -> None:
    """The node uses the pull secret of the namespace, and other mounts are sent. The error names a lost registry."""
    async with AsyncExitStack() as open_ones:
        async with registry(tmp_path, password=True) as host:
            opening = partial(open_registries, host, cluster.base_image, username=USER, password=PASSWORD, environ={})
            images = PodImages(opening, "bare")
            service = PackagingService(scratch / "kept", push=images.image)
            images.store = await open_ones.enter_async_context(service)
            bundle = await service.upload(tar({"kit.py": KIT, "skills/digging/SKILL.md": b"Dig."}))
            job = await wait_finished(service, (await service.create_image("", [bundle.id])).id)
            image = await service.image(job.image)
            async with cluster.client(namespace) as kube:
                login = {".dockerconfigjson": pull_secret(host, Login(USER, PASSWORD)).decode()}
                await kube.create(
                    Secret(metadata=ObjectMeta(name="login"), type="kubernetes.io/dockerconfigjson", stringData=login)
                )
            backend = KubernetesBackend(
                scratch / "runs",
                namespace=namespace,
                kubeconfig=kernel_account.kubeconfig,
                image=images.image,
                image_with=images.image_with_mounts,
                pull_secrets=("login",),
            )
            open_ones.push_async_callback(backend.close)
            (scratch / "notes").mkdir()
            (scratch / "notes" / "note").write_text("a note")
            mounts = [*image.folders, *image.skills, scratch / "notes"]
            files = [mounts[0] / "kit.py", mounts[1] / "digging" / "SKILL.md", mounts[2] / "note"]
            sandbox = await backend.start(spec(scratch / "runs", "one", mounts=mounts))
            open_ones.push_async_callback(sandbox.clean_up)
            code, out, err = await sandbox.run_command(["/bin/cat", *map(str, files)], timeout_s=60, max_bytes=10_000)
            assert (code, out) == (0, KIT + b"Dig.a note"), err
            assert sent == [scratch / "notes"]
            async with cluster.client(namespace) as kube:
                [pod] = [each async for each in kube.list(Pod)]
            assert pod.spec is not None
            assert str(pod.spec.containers[0].image).startswith(f"{host}/ramet-images@sha256:")
            later = KubernetesBackend(
                scratch / "runs",
                namespace=namespace,
                kubeconfig=kernel_account.kubeconfig,
                image=await images.image(),
                image_with=find_image_of_new_kernel(opening, service),
            )
            open_ones.push_async_callback(later.close)
            await later.probe()

        with pytest.raises(SandboxFailed, match=host):
            await later.start(spec(scratch / "runs", "two", mounts=mounts))
        async with cluster.client(namespace) as kube:
            assert len([each async for each in kube.list(Pod)]) == 1


def find_image_of_new_kernel(
    opening: Callable[[], AbstractAsyncContextManager[OpenRegistries]], service: PackagingService
) -> FindImage:
    """Return the finder of pod images that a newly started kernel has."""
    images = PodImages(opening, "bare")
    images.store = service
    return images.image_with_mounts
