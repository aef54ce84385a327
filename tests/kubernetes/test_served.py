"""A server with pods: pods dial it, and several kernels of one database clean up after each other."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod, Secret

from ramet.core.policy.reservation import Reservation
from ramet.examples.simple_agent import simple_agent
from ramet.isolation.kubernetes.api import quotas
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.team_backend import TeamNamespaces
from ramet.services.config.kubernetes import KernelIdentities
from ramet.services.config.load import load
from ramet.store.postgres import PostgresStore
from tests.support.account import Account
from tests.support.cluster import Cluster, remove_namespaces
from tests.support.free_ports import free_port
from tests.support.pod_runs import spec
from tests.support.pods import Pods, pod_of
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import schema

__all__ = ["postgres", "schema"]  # fixtures are used by their names

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # a first push compiles all of the library


LOGIN = "kubernetes.io/dockerconfigjson"


async def test_a_servers_agent_is_a_pod_that_dials_it(
    cluster: Cluster,
    namespace: str,
    kernel_account: Account,
    scratch: Path,
    sent: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The server never attaches to the pod, and sends it no content of its image."""

    def attach(*_: object) -> None:
        pytest.fail("a pod was attached to")

    monkeypatch.setattr(Api, "attach", attach)
    port = free_port(cluster.host)
    settings = (
        f"backend: kubernetes\nnamespace: {namespace}\nkubeconfig: {kernel_account.kubeconfig}\n"
        f"base_image: {cluster.base_image}\nregistry_url: http://{cluster.registry}\n"
        f"pods: {{dial: '{cluster.host}:{port}'}}\n"
    )
    (scratch / "ramet.yaml").write_text(settings)

    await simple_agent(load(scratch / "ramet.yaml", {}, {}))

    stdout = capsys.readouterr().out
    assert "done: 1 turn, idle, isolation L2" in stdout
    assert "left: 0 agents, 0 teams" in stdout
    assert [each for each in sent if "packaging" in each.parts] == []
    async with cluster.client(namespace) as kube:
        assert [each async for each in kube.list(Pod)] == []


async def test_a_kernel_removes_the_pods_of_a_dead_kernel_and_keeps_its_teams(
    pods: Pods, postgres: Server, schema: str, scratch: Path
) -> None:
    """A kernel removes the pods of a dead kernel. It keeps live pods, and the namespaces of teams.

    The kernels are on two machines and share a database alone. A team's namespace has the login for pulling images.
    """
    team = Reservation(name=f"team-{pods.namespace}", sandboxes=2)
    space = quotas.name_of(team.name)
    stores = [PostgresStore(postgres.dsn, schema=schema, kernel=name) for name in ("one", "two")]
    machines = list[TeamNamespaces]()
    async with AsyncExitStack() as open_ones:
        async with pods.cluster.client(pods.namespace) as kube:
            await kube.create(
                Secret(metadata=ObjectMeta(name="login"), type=LOGIN, stringData={".dockerconfigjson": "{}"})
            )
        for store in stores:
            await store.open()
            open_ones.push_async_callback(store.close)
            machine = TeamNamespaces(
                scratch / store.kernel,
                namespace=pods.namespace,
                kubeconfig=pods.kubeconfig,
                image=pods.images,
                standing=KernelIdentities(store),
                pull_secrets=("login",),
            )
            open_ones.push_async_callback(machine.close)
            machines.append(machine)
        one, two = machines
        try:
            names = []
            for machine, store in zip(machines, stores, strict=True):
                sandbox = await machine.start(spec(scratch / store.kernel, "mine"))
                open_ones.push_async_callback(sandbox.clean_up)
                names.append(pod_of(sandbox))
            await one.reserve(team)
            async with pods.cluster.client(space) as kube:
                assert (await kube.get(Secret, "login")).type == LOGIN

            async def every_team() -> list[str]:
                return [team.name]

            assert await two.keep(every_team) == []
            assert [*await two.reap(), *await one.reap()] == []
            await stores[0].close()  # It is dead to all others from now on.

            assert await two.reap() == [f"pod {names[0]}"]
            assert await pods.names() == names[1:]
            await two.reserve(team)

            async def no_team() -> list[str]:
                return []

            async def phases() -> list[str | None]:
                async with pods.cluster.client() as kube:
                    found = [
                        each async for each in kube.list(Namespace) if each.metadata and each.metadata.name == space
                    ]
                return [each.status.phase if each.status else None for each in found]

            assert await phases() == ["Active"]
            assert await two.keep(no_team) == [f"namespace {space}"]
            assert await phases() in ([], ["Terminating"])
        finally:
            with pods.cluster.blocking_client() as blocking:
                remove_namespaces(blocking, space)
