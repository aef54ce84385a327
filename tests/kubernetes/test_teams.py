"""A team with pods has its own namespace, which lives as long as the team. A quota there holds its reservation."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightkube import ApiError, AsyncClient, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import LimitRange, Namespace, Pod, ResourceQuota
from lightkube.resources.rbac_authorization_v1 import RoleBinding

import ramet
from ramet.core.errors import TaskFailed
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import labels, quotas
from ramet.isolation.kubernetes.api.errors import Forbidden
from ramet.isolation.kubernetes.api.namespaces import Spaces
from ramet.isolation.kubernetes.api.objects import Objects
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.client.client import Client as Asking
from ramet.services.config.build import server_of
from ramet.services.config.load import load
from ramet.services.contract import CreatedTeam
from tests.support.acceptance import Server, image_of, make_agent_wait, spawn
from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.account import Account
from tests.support.cluster import Cluster, is_allowed, wait_until
from tests.support.pods import is_being_removed, live_objects_of, settings_of
from tests.support.serve_process import plugin
from tests.support.serving import short_folder

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images

ASKED = {"agents": 2, "cpu": 2, "memory_mb": 512}
KIT = b"def work(text):\n    return text.upper()\n"
#: What a kernel needs in a team's namespace, and what would be more.
ENOUGH = (("create", "pods"), ("get", "pods/attach"), ("list", "secrets"), ("create", "resourcequotas"))
MORE = (
    ("create", "pods/exec"), ("get", "secrets"), ("list", "configmaps"), ("create", "serviceaccounts/token"),
    ("update", "resourcequotas"), ("delete", "resourcequotas"), ("update", "rolebindings"), ("escalate", "roles"),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(cluster: Cluster, shared_namespace: str) -> Iterator[Server]:
    """A server for the tests of teams. Nothing of it is left when it has ended."""
    with short_folder() as folder:
        plugin(folder, ENTRY_POINTS)
        server = Server(folder, "kubernetes", **settings_of(cluster, shared_namespace))
        try:
            yield server
            assert server.end(signal.SIGTERM) == 0
            assert live_objects_of(cluster, folder) == []
        finally:
            server.end(signal.SIGKILL)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Asking]:
    """A client with the operator's key, which deletes the teams after each test."""
    async with ramet.connect(server.folder / ".ramet" / "serve.sock") as client:
        yield client
        for team in await client.list_teams():
            await client.delete_team(team.id)


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    """A client of the cluster with all rights."""
    async with cluster.client() as kube:
        yield kube


def space_of(team: CreatedTeam) -> str:
    """Return the name of a team's namespace."""
    return f"ramet-team-{team.team.id.removeprefix('team-')}"


def cores_of(amount: str) -> float:
    """Return the number of processors that an amount means, as Kubernetes writes it."""
    return int(amount[:-1]) / 1000 if amount.endswith("m") else float(amount)


async def pods_in(kube: AsyncClient, space: str) -> Sequence[Pod]:
    """Return all pods of a namespace."""
    return [each async for each in kube.list(Pod, namespace=space)]


async def is_gone(kube: AsyncClient, space: str) -> bool:
    """Return whether a namespace was removed."""
    try:
        return is_being_removed(await kube.get(Namespace, space))
    except ApiError as problem:
        if problem.status.code != 404:
            raise
        return True


async def test_the_reservation_of_a_team_is_visible_in_the_cluster(
    client: Asking, kube: AsyncClient, shared_namespace: str
) -> None:
    """The namespace has a quota, a LimitRange, labels and the pods of the agents, and is removed with the team."""
    team = await client.create_team(ASKED, name="counters")
    space = space_of(team)
    found = await kube.get(Namespace, space)
    assert found.metadata is not None
    marks = found.metadata.labels or {}
    assert (marks["app.kubernetes.io/managed-by"], marks["ramet.dev/team"]) == ("ramet", team.team.id)
    [quota] = [each async for each in kube.list(ResourceQuota, namespace=space)]
    [limits] = [each async for each in kube.list(LimitRange, namespace=space)]
    assert quota.spec is not None
    hard = quota.spec.hard or {}
    assert int(hard["limits.memory"].removesuffix("Mi")) >= ASKED["memory_mb"]
    assert cores_of(hard["limits.cpu"]) >= ASKED["cpu"]
    assert limits.spec is not None
    assert [each.type for each in limits.spec.limits] == ["Container"]

    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"]})
    async with make_agent_wait(agent):
        [pod] = await pods_in(kube, space)
        assert await pods_in(kube, shared_namespace) == []
        await client.interrupt(agent.id, key=agent.nonce)
    assert pod.metadata is not None
    assert (pod.metadata.labels or {})["app.kubernetes.io/managed-by"] == "ramet"

    await client.delete_team(team.team.id, key=team.key)
    assert await is_gone(kube, space)
    assert await pods_in(kube, space) == []


async def test_a_turn_without_room_in_the_quota_is_refused(client: Asking, kube: AsyncClient) -> None:
    """A typed error quotes the API. With room again, the turn works, and the agent gives back its resources."""
    image = await image_of(client, teamkit=KIT)
    team = await client.create_team(ASKED)
    agent = await spawn(client, team, "ada", "function", {"function": "teamkit:work"}, image=image)
    [quota] = [each async for each in kube.list(ResourceQuota, namespace=space_of(team))]
    assert quota.spec is not None
    memory_limit = (quota.spec.hard or {})["limits.memory"]

    async def allow(memory: str) -> None:
        change: dict[str, Any] = {"spec": {"hard": {"limits.memory": memory}}}
        await kube.patch(ResourceQuota, quotas.BOUNDS, change, namespace=space_of(team))
        async with asyncio.timeout(180):  # Until it is in force.
            while True:
                now = await kube.get(ResourceQuota, quotas.BOUNDS, namespace=space_of(team))
                if now.status is not None and (now.status.hard or {}).get("limits.memory") == memory:
                    return
                await asyncio.sleep(0.05)

    await allow("1Mi")
    # The agent is there, and goes on: it is this turn whose pod was refused, as a failure of the turn.
    with pytest.raises(TaskFailed, match=r"SpawnRefused: spawn refused \(quota\): pods .* exceeded quota"):
        await agent.say("unheard")
    assert await pods_in(kube, space_of(team)) == []
    await allow(memory_limit)
    assert await agent.say("heard") == "HEARD"
    await client.kill_agent(agent.id, key=agent.nonce)
    left = await client.get_team(team.team.id, key=team.key)
    assert (left.free, left.agents) == (ASKED, 0)


@pytest.mark.leaves("the server that is started again is for the tests that follow")
async def test_a_restarted_server_keeps_the_namespaces_of_its_teams(
    server: Server, client: Asking, kube: AsyncClient, cluster: Cluster
) -> None:
    """The next server has the namespace and the agents of the team, and removes the namespace of an unknown team."""
    team = await client.create_team(ASKED)
    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"]})
    assert await agent.say("one") == "1 so far: one"
    before = await kube.get(Namespace, space_of(team))
    assert before.metadata is not None
    async with make_agent_wait(agent):
        [lost] = await pods_in(kube, space_of(team))
        server.end(signal.SIGKILL)
    strange = f"{space_of(team)}-gone"  # As of a server that ended before it could write its team down.
    kernel_group = (RunFolders(server.folder).root / ".kernels" / "place").read_text()
    marks = {labels.MANAGED: labels.OURS, labels.PLACE: kernel_group}
    await kube.create(Namespace(metadata=ObjectMeta(name=strange, labels=marks)))
    server.start()

    assert "one" in await agent.say("two")
    after = await kube.get(Namespace, space_of(team))
    assert after.metadata is not None
    assert (after.metadata.uid, is_being_removed(after)) == (before.metadata.uid, False)
    assert await is_gone(kube, strange)
    assert lost.metadata is not None
    assert lost.metadata.name not in live_objects_of(cluster, server.folder)
    await client.delete_team(team.team.id, key=team.key)
    assert await is_gone(kube, space_of(team))


@pytest.mark.parametrize("comes", [True, False])
async def test_a_kernel_waits_for_a_right_that_is_not_in_force_yet(
    comes: bool, kernel_account: Account, kube: AsyncClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """API servers learn late of a right that a kernel gave itself. A right that never takes effect is a refusal."""
    have, refused, late = Objects.ensure, asyncio.Event(), list[asyncio.Task[None]]()

    async def have_late(self: Objects, kind: Any, manifest: Any) -> None:
        async def later() -> None:
            await refused.wait()
            await have(self, kind, manifest)

        if kind is RoleBinding:
            late.extend([asyncio.ensure_future(later())] if comes else [])
            return
        try:
            await have(self, kind, manifest)
        except Forbidden:
            refused.set()
            raise

    monkeypatch.setattr(Objects, "ensure", have_late)
    monkeypatch.setattr("ramet.isolation.kubernetes.api.namespaces._GRANTED_S", 30 if comes else 0.3)
    spaces = Spaces(kernel_account.kubeconfig)
    reservation = Reservation(name=f"team-{namespace}", memory_mb=64)
    space = quotas.name_of(reservation.name)
    try:
        if comes:
            assert await spaces.make(reservation, place="p", owner="o") == space
            assert [each.metadata.name async for each in kube.list(ResourceQuota, namespace=space) if each.metadata]
        else:
            with pytest.raises(Forbidden, match="cannot create resource"):
                await spaces.make(reservation, place="p", owner="o")
        assert refused.is_set()
        await asyncio.gather(*late)
    finally:
        await kube.delete(Namespace, space)
        await spaces.close()


async def test_the_rights_of_deploy_are_enough_and_not_more_than_needed(
    cluster: Cluster, namespace: str, kernel_account: Account, scratch: Path
) -> None:
    """A server with the account of kernels makes a team, runs an agent in a pod, and removes both."""
    environ = {**os.environ, **settings_of(cluster, namespace, kernel_account.kubeconfig)}
    environ |= {"RAMET_WORKING_DIR": str(scratch)}

    async with (
        server_of(load(None, environ, {}), environ) as server,
        ramet.connect(server.listen_address) as client,
        cluster.client() as kube,
    ):
        team = await client.create_team(ASKED)
        try:
            image = await image_of(client, teamkit=KIT)
            agent = await spawn(client, team, "ada", "function", {"function": "teamkit:work"}, image=image)
            assert await agent.say("heard") == "HEARD"
            space = space_of(team)
            with Client(kernel_account.config, trust_env=False) as kernel:
                wanting = [each for each in ENOUGH if not wait_until(partial(is_allowed, kernel, *each, space))]
                beyond = [each for each in MORE if is_allowed(kernel, *each, space)]
                elsewhere = [each for each in (*ENOUGH, *MORE) if is_allowed(kernel, *each, "kube-system")]
            assert (wanting, beyond, elsewhere) == ([], [], [])
        finally:
            await client.delete_team(team.team.id)
        assert await is_gone(kube, space_of(team))
    assert live_objects_of(cluster, scratch) == []
