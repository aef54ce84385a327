"""Several kernels on one PostgreSQL over HTTP: any of them answers for any team and any agent."""

from __future__ import annotations

import asyncio
import pathlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

import httpx2
import pytest

from ramet.core.errors import InvalidValue, NotYours, OverCapacity, Unknown
from ramet.core.policy.policy import Policy
from ramet.services.client.client import Client
from ramet.services.client.errors import error_of
from ramet.services.cluster.auth import FROM, PASS, PeerAuth
from ramet.services.contract import SpawnedAgent
from ramet.services.errors import InUse, Withdrawn
from ramet.services.operator.changes import ChangedRow
from tests.support import postgres
from tests.support.kernels import TOKEN, Kernel, Kernels, kernels
from tests.support.kernels_images import GREETER, greeting, image_of, spawn_greeter
from tests.support.tars import tar
from tests.support.turns import Reader, counting
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize("stores", ["postgres"], scope="module")  # It is there for those who say so.


class ThreeClients(NamedTuple):
    """A client of each kernel."""

    one: Client
    two: Client
    three: Client


@pytest.fixture(scope="module")
def running_kernels(tmp_path_factory: pytest.TempPathFactory, stores: str) -> Iterator[Kernels]:
    """Yield three kernels for all tests of this module, which end none of them."""
    with kernels(postgres.running(), tmp_path_factory.mktemp("kernels")) as all:
        for name in ("one", "two", "three"):
            all.begin(name, RAMET_BACKEND="local", RAMET_RULES_BUNDLES="teams")
        assert all.all[-1].url
        yield all


@pytest.fixture
async def clients(running_kernels: Kernels) -> AsyncIterator[ThreeClients]:
    """Yield clients of all kernels with the operator's key, and delete every team afterwards."""
    async with AsyncExitStack() as stack:
        clients = ThreeClients(
            *[await stack.enter_async_context(running_kernels.client(each)) for each in running_kernels.all]
        )
        yield clients
        for team in await clients.one.list_teams():
            await clients.one.delete_team(team.id)


async def request_kernel(kernel: Kernel, path: str, headers: dict[str, str], method: str = "GET") -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=kernel.url, timeout=180) as http:
        return await http.request(method, path, headers=headers)


async def test_any_kernel_answers_for_any_agent(clients: ThreeClients) -> None:
    """Each kernel serves the agent's turns, history, keys and end as its owner does."""
    one, two, three = clients
    team = await one.create_team({"agents": 4}, name="crew")
    bob = await two.spawn_agent("crew", "bob", "echo", key=team.key)
    id = bob.agent.id
    assert [await each.say(id, b"hello you", key=bob.nonce) for each in clients] == [b"helloyou"] * 3
    assert (await three.control(id, {"@type": "shout", "times": 2}, key=bob.nonce)) == {"times": 2}
    assert await two.say(id, b"ho", key=bob.nonce) == b"hoho"
    assert len(await two.history(id, key=bob.nonce)) == 4
    narrow = await three.delegate(id, ["info"], key=bob.nonce)
    assert (await two.get_agent(id, key=narrow.key)).turns == 4
    with pytest.raises(NotYours):
        await two.say(id, b"hello", key=narrow.key)
    fresh = await two.rotate(id, key=bob.nonce)
    with pytest.raises(NotYours):
        await three.say(id, b"hello", key=bob.nonce)
    await three.kill_agent(id, key=fresh)
    for each in clients:
        with pytest.raises(NotYours):
            await each.get_agent(id)


async def test_lists_contain_each_team_and_agent_of_all_kernels_once(clients: ThreeClients) -> None:
    """Lists follow the key of the caller; each kernel finds a team by its name."""
    teams = [await each.create_team({"agents": 4}, name=f"team-{at}") for at, each in enumerate(clients)]
    agents = [await clients.two.spawn_agent(each.team.id, "bob", "echo", key=each.key) for each in teams]
    for each in clients:
        assert [team.id for team in await each.list_teams()] == [team.team.id for team in teams]
        assert [agent.id for agent in await each.list_agents()] == [agent.agent.id for agent in agents]
        assert [agent.id for agent in await each.list_agents("team-2")] == [agents[2].agent.id]
        assert [team.name for team in await each.list_teams(key=teams[0].key)] == ["team-0"]
        assert [agent.id for agent in await each.list_agents(key=teams[1].key)] == [agents[1].agent.id]
        assert (await each.get_team("team-1")).agents == 1
        with pytest.raises(NotYours):
            await each.list_agents(key="team_nobody")
    with pytest.raises(InvalidValue, match="no other team"):
        await clients.one.create_team({"agents": 1}, name="team-2")


async def test_concurrent_spawns_through_all_kernels_respect_team_capacity(clients: ThreeClients) -> None:
    """A hundred concurrent spawns through three kernels give exactly ten agents."""
    sandboxed_paths = await clients.one.create_team({"agents": 10})

    async def spawn(number: int) -> str:
        try:
            await clients[number % 3].spawn_agent(
                sandboxed_paths.team.id, f"agent-{number}", "echo", key=sandboxed_paths.key
            )
        except OverCapacity as refusal:
            return f"{refusal.resource} {refusal.free}"
        return "spawned"

    assert Counter(await asyncio.gather(*map(spawn, range(100)))) == {"spawned": 10, "agents 0.0": 90}
    assert len(await clients.two.list_agents(sandboxed_paths.team.id)) == 10
    assert (await clients.three.get_team(sandboxed_paths.team.id)).free["agents"] == 0


async def test_clients_of_models_find_their_agent_by_its_key(clients: ThreeClients, running_kernels: Kernels) -> None:
    """Each kernel lists the agent as a model for its key, and refuses a key of no agent."""
    team = await clients.one.create_team({"agents": 4})
    bob = await clients.one.spawn_agent(team.team.id, "bob", "llm", {"model": "offline"}, key=team.key)
    for each in running_kernels.all:
        response = await request_kernel(each, "/v1/models", {"authorization": f"Bearer {bob.nonce}"})
        assert response.json()["first_id"] == bob.agent.id
        assert (await request_kernel(each, "/v1/models", {"authorization": "Bearer agent_nobody"})).status_code == 401


async def test_a_forwarded_stream_arrives_in_pieces_and_ends_with_its_reader(
    clients: ThreeClients, tmp_path: pathlib.Path
) -> None:
    """A reader with `on_leave="interrupt"` that leaves another kernel ends the turn; a second reader does not."""
    team = await clients.one.create_team({"agents": 4})
    bob = await clients.one.spawn_agent(team.team.id, "bob", "slow", key=team.key)
    reader = Reader(clients.two, bob, counting(9, 5, tmp_path), on_leave="interrupt")
    await eventually(lambda: reader.text.endswith("4 "))  # It waits before the next.
    along = Reader(clients.three, bob, turn=reader.chunks[0].turn)
    await eventually(lambda: along.text == reader.text)
    await along.leave()
    assert (await clients.one.get_agent(bob.agent.id)).state == "working"
    await reader.leave()
    async with asyncio.timeout(180):
        while (await clients.one.get_agent(bob.agent.id)).state != "idle":  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)
    assert not (tmp_path / "go").exists()


async def test_a_handover_ends_streams_through_every_kernel(clients: ThreeClients, tmp_path: pathlib.Path) -> None:
    """The stream ends, the waiting turn is withdrawn, and the new owner reads the active turn."""
    team = await clients.one.create_team({"agents": 4})
    bob = await clients.one.spawn_agent(team.team.id, "bob", "slow", key=team.key)
    reader = Reader(clients.two, bob, counting(9, 5, tmp_path))
    await eventually(lambda: reader.text.endswith("4 "))  # It waits before the next.
    waits = Reader(clients.three, bob, counting(1, 2, tmp_path))
    await eventually(lambda: waits.turn_id)

    owner = await clients.three.delegate(bob.agent.id, owner=True, key=bob.nonce)

    await reader.done
    assert isinstance(error_of(reader.chunks.pop().body, 0), NotYours)
    with pytest.raises(Withdrawn):
        await waits.done
    along = Reader(clients.two, SpawnedAgent(bob.agent, owner.key), turn=reader.turn_id)
    (tmp_path / "go").touch()
    await along.done
    assert along.chunks[-1].kind == "done"
    assert along.text.endswith("9 ")
    assert reader.text.endswith("4 ")
    assert (await clients.one.get_agent(bob.agent.id)).turns == 1


async def test_a_forwarded_request_is_not_forwarded_again(clients: ThreeClients, running_kernels: Kernels) -> None:
    """A kernel answers a forwarded request itself or returns 421."""
    team = await clients.one.create_team({"agents": 4})
    passes = PeerAuth("three", TOKEN).headers("two")
    headers = {"authorization": f"Bearer {TOKEN}", **passes}
    answer = await request_kernel(running_kernels.all[1], f"/v1/teams/{team.team.id}", headers)
    assert answer.status_code == 421, answer.text
    assert (await request_kernel(running_kernels.all[1], "/v1/teams", headers)).json() == {"teams": []}, (
        "its own, and no other's"
    )


async def test_a_forged_pass_opens_nothing(clients: ThreeClients, running_kernels: Kernels) -> None:
    """Neither the operator's key, nor an empty or foreign one, nor a pass for another kernel is accepted."""
    good = PeerAuth("three", TOKEN).headers("one")
    forged = [
        {FROM: "three", PASS: TOKEN},
        {FROM: "three", PASS: ""},
        {FROM: "two", PASS: good[PASS]},
        PeerAuth("three", "op_another_token_of_someone").headers("two"),
        good,
    ]
    for each in forged:
        answer = await request_kernel(running_kernels.all[1], "/v1/teams", {"authorization": f"Bearer {TOKEN}", **each})
        assert answer.status_code == 403, each
    assert good[PASS] not in running_kernels.all[1].log_text
    response = await request_kernel(running_kernels.all[1], "/v1/teams", PeerAuth("three", TOKEN).headers("two"))
    assert response.status_code == 401, "a pass is no key"


async def row_in_changes(client: Client, run: str, *, is_over: bool) -> ChangedRow:
    """Follow the changes at a kernel until they show a run that has ended, or has not."""
    async with aclosing(client.kernel.changes(interval_ms=50, ended=True)) as changes:
        async for message in changes:
            for row in message.runs:
                if row.id == run and row.is_over == is_over:
                    return row
    raise AssertionError("a feed has no end")


async def test_any_kernel_shows_and_stops_a_run(clients: ThreeClients, tmp_path: pathlib.Path) -> None:
    """Each kernel shows the run of one kernel as running, also in its feed of changes, and another one stops it."""
    team = await clients.one.create_team({"agents": 4})
    bob = await clients.one.spawn_agent(team.team.id, "bob", "slow", key=team.key)
    reader = Reader(clients.two, bob, counting(3, 2, tmp_path))
    await eventually(lambda: reader.text == "1 ")
    run = (await clients.three.get_agent(bob.agent.id)).run
    for each in clients:
        assert [row.state for row in await each.kernel.runs() if row.id == run] == ["running"]
        assert (await each.kernel.run(run)).state == "running"
        assert (await row_in_changes(each, run, is_over=False)).state == "running"
    with pytest.raises(Unknown):
        await clients.two.kernel.run("nobody")
    ends = [asyncio.create_task(row_in_changes(each, run, is_over=True)) for each in clients]
    await clients.two.kernel.stop(run, "enough")
    await reader.done
    assert {(await each).state for each in ends} == {"cancelled"}
    assert reader.chunks[-1].kind == "error"


async def test_a_large_message_reaches_its_agent_through_another_kernel(clients: ThreeClients) -> None:
    """A message of 3 MB returns byte for byte; each kernel refuses 12 MB."""
    team = await clients.one.create_team({"agents": 4})
    bob = await clients.one.spawn_agent(team.team.id, "bob", "echo", key=team.key)
    word = b"x" * 3_000_000
    assert await clients.two.say(bob.agent.id, word, key=bob.nonce) == word
    for each in (clients.one, clients.two):
        with pytest.raises(InvalidValue, match="bytes"):
            await each.say(bob.agent.id, 4 * word, key=bob.nonce)


async def test_every_kernel_shares_images_and_bundles(clients: ThreeClients) -> None:
    """A bundle uploaded to one kernel and built by another serves a spawn at the third; a deletion holds at all."""
    one, two, three = clients
    bundles = await asyncio.gather(*(each.upload_bundle(tar(GREETER, mtime=at)) for at, each in enumerate(clients)))
    assert bundles == [bundles[0]] * 3
    assert [await each.list_bundles() for each in clients] == [[bundles[0]]] * 3
    team = await three.create_team({"agents": 4, "cpu": 4, "memory_mb": 4096}, name="crew")
    image = await image_of(two, bundles[0].id, asked=one, key=team.key)
    assert [await each.get_image(image) for each in clients] == [await one.get_image(image)] * 3
    bob = await spawn_greeter(one, "crew", "bob", image, team.key)
    assert b"hello from an image" in await greeting(two, bob)
    for each in clients:
        with pytest.raises(NotYours):
            await each.delete_image(image, key=team.key)
        with pytest.raises(InUse) as refusal:
            await each.delete_image(image)
        assert list(refusal.value.users) == ["crew/bob"]
    await three.kill_agent(bob.agent.id, key=bob.nonce)
    await one.delete_image(image)
    for each in clients:
        with pytest.raises(Unknown, match="image"):
            await spawn_greeter(each, "crew", "eve", image, team.key)
    assert (await three.get_team("crew")).agents == 0
    ann = await three.spawn_agent("crew", "ann", "llm", {"model": "offline"}, policy=Policy(), key=team.key)
    change = {"@type": "load_bundle", "bundle": bundles[0].id}
    await two.control(ann.agent.id, change, key=ann.nonce)
    with pytest.raises(InUse) as refusal:
        await one.delete_bundle(bundles[0].id)
    assert list(refusal.value.users) == ["crew/ann"]
    await two.control(ann.agent.id, {**change, "@type": "unload_bundle"}, key=ann.nonce)
    await one.delete_bundle(bundles[0].id)
    with pytest.raises(Unknown, match="bundle"):
        await two.control(ann.agent.id, change, key=ann.nonce)


async def test_a_teams_upload_stays_private_at_every_kernel(clients: ThreeClients) -> None:
    """No kernel shows the bundle and image of one team to another team, whichever kernels store and build them."""
    one, two, three = clients
    created_team = await one.create_team({"agents": 4, "cpu": 4, "memory_mb": 4096}, name="crew")
    other = await two.create_team({"agents": 4, "cpu": 4, "memory_mb": 4096}, name="other")
    bundle = await two.upload_bundle(tar({**GREETER, "own.py": b""}), key=created_team.key)
    image = await image_of(three, bundle.id, asked=two, key=created_team.key)
    try:
        for each in clients:
            assert await each.list_bundles(key=created_team.key) == [bundle]
            assert [image_listed.id for image_listed in await each.list_images(key=created_team.key)] == [image]
            assert [*await each.list_bundles(key=other.key), *await each.list_images(key=other.key)] == []
            with pytest.raises(Unknown, match="image"):
                await spawn_greeter(each, "other", "spy", image, other.key)
            with pytest.raises(Unknown, match="bundle"):
                await each.create_image([bundle.id], key=other.key)
        bob = await spawn_greeter(two, "crew", "bob", image, created_team.key)
        assert b"hello from an image" in await greeting(three, bob)

        assert await three.upload_bundle(tar({**GREETER, "own.py": b""}), key=other.key) == bundle
        assert [await each.list_bundles(key=other.key) for each in clients] == [[bundle]] * 3
        assert [await each.list_images(key=other.key) for each in clients] == [[]] * 3
    finally:
        for team in (created_team, other):
            await one.delete_team(team.team.id)
        await one.delete_image(image)
        await one.delete_bundle(bundle.id)


async def test_kernels_report_health_and_readiness(clients: ThreeClients, running_kernels: Kernels) -> None:
    """`/healthz` and `/readyz` answer without a key."""
    for each in running_kernels.all:
        assert (await request_kernel(each, "/healthz", {})).json()["status"] == "ok"
        assert (await request_kernel(each, "/readyz", {})).json()["status"] == "ready"
