"""One of several kernels is killed or ends in order: another continues with all that it had."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx2
import psycopg
import pytest

from ramet.core.errors import OverCapacity, Unknown
from ramet.services.client.client import Client
from ramet.services.client.errors import Refused
from ramet.services.contract import SpawnedAgent
from tests.support.kernels import Kernel, Kernels, all_kernels, stack
from tests.support.kernels_images import GREETER, greeting, image_of, spawn_greeter
from tests.support.tars import tar
from tests.support.turns import Reader, counting
from tests.support.waiting import eventually

__all__ = ["all_kernels", "stack"]  # fixtures are used by their names

pytestmark = pytest.mark.parametrize("stores", ["postgres"])  # It is there for those who say so.


def count_model_requests(folder: pathlib.Path) -> int:
    """Return how often the model was asked."""
    return len(list(folder.glob("asked-*")))


async def ask_repeatedly(kernel: Kernel, agent: str, key: str) -> list[int]:
    """Return the statuses of a question that is repeated until the task is cancelled."""
    statuses: list[int] = []
    async with httpx2.AsyncClient(base_url=kernel.url, timeout=180) as http:
        try:
            while True:
                answer = await http.get(f"/v1/agents/{agent}", headers={"authorization": f"Bearer {key}"})
                statuses.append(answer.status_code)
        except asyncio.CancelledError:
            return statuses


async def test_a_killed_kernel_is_taken_over_in_the_middle_of_turns(
    all_kernels: Kernels, stack: AsyncExitStack, tmp_path: pathlib.Path
) -> None:
    """Active and waiting turns complete, each chunk comes once, and the capacity of the team is unchanged."""
    kernels = [all_kernels.begin(name) for name in ("one", "two")]
    one, two = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    team = await one.create_team({"agents": 2, "tokens": 100_000}, name="crew")
    bob = await two.spawn_agent("crew", "bob", "slow", limits={"tokens": 60_000}, key=team.key)
    ann = await two.spawn_agent("crew", "ann", "echo", limits={"tokens": 40_000}, key=team.key)
    await two.say(ann.agent.id, b"hello", key=ann.nonce)
    first = Reader(two, bob, counting(9, 5, tmp_path))
    await eventually(lambda: first.text.endswith("4 "))
    second = Reader(two, bob, counting(3, 4, tmp_path))
    cut_reader = Reader(two, ann, b"one wait two", format="words")
    await eventually(lambda: second.turn_id and cut_reader.chunks)
    asking = asyncio.create_task(ask_repeatedly(kernels[1], bob.agent.id, bob.nonce))
    kernels[0].kill()
    (tmp_path / "go").touch()
    await asyncio.gather(first.done, second.done, cut_reader.done)
    assert (first.text, second.text) == ("1 2 3 4 5 6 7 8 9 ", "1 2 3 "), (first.chunks, second.chunks)
    for each in (first, second, cut_reader):
        assert [chunk.number for chunk in each.chunks] == list(range(1, len(each.chunks) + 1))
        assert len({chunk.turn for chunk in each.chunks}) == 1
    assert [each.chunks[-1].kind for each in (first, second, cut_reader)] == ["done", "done", "error"]
    assert count_model_requests(tmp_path) == 3, "the reply that was cut off was asked for again, and no other"
    asking.cancel()
    assert set(await asking) <= {200, 503}
    assert [each.id for each in await two.list_agents()] == [bob.agent.id, ann.agent.id]
    assert [each["role"] for each in await two.history(bob.agent.id, key=bob.nonce)] == ["user", "assistant"] * 2
    with pytest.raises(OverCapacity):
        await two.spawn_agent("crew", "eve", "slow", limits={"tokens": 1}, key=team.key)
    await two.kill_agent(ann.agent.id, key=ann.nonce)
    eve = await two.spawn_agent("crew", "eve", "slow", limits={"tokens": 40_000}, key=team.key)
    late = Reader(two, eve, counting(2, 3, tmp_path))
    await late.done
    assert late.text == "1 2 "
    await two.delete_team("crew", key=team.key)
    assert await two.list_teams() == []


async def test_images_outlive_the_kernel_of_their_upload(
    all_kernels: Kernels, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents continue with their images at a kernel that never had them, and new agents start from them.

    The job of an unfinished image has failed, and says that its kernel was lost.
    """
    deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setenv("RAMET_INSTALLS_ALLOWED", "true")
    monkeypatch.setenv("RAMET_INSTALLS_PIP_ARGS", f"-i http://127.0.0.1:{deaf.getsockname()[1]}/")
    kernels = [all_kernels.begin(name) for name in ("one", "two")]
    one, two = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    team = await one.create_team({"agents": 2, "cpu": 2, "memory_mb": 1024}, name="crew")
    image = await image_of(one, (await one.upload_bundle(tar(GREETER))).id)
    bob = await spawn_greeter(one, "crew", "bob", image, team.key)
    needy = await one.create_image([(await two.upload_bundle(tar({"requirements.txt": b"greeting"}))).id])
    async with asyncio.timeout(180):
        while (await two.job(needy.id)).state != "running":  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)
    kernels[0].kill()
    assert (await two.get_agent(bob.agent.id, key=bob.nonce)).state == "idle"
    assert b"hello from an image" in await greeting(two, bob)
    eve = await spawn_greeter(two, "crew", "eve", image, team.key)
    assert b"hello from an image" in await greeting(two, eve)
    assert (await two.job(image)).state == "done"
    failed_job = await two.job(needy.id)
    assert failed_job.error is not None
    assert (failed_job.state, failed_job.image) == ("failed", "")
    assert "kernel 'one' was lost while it made this image" in failed_job.error.message
    assert [each.id for each in await two.list_images()] == [image]
    with pytest.raises(Unknown, match="image"):
        await spawn_greeter(two, "crew", "ann", needy.id, team.key)


async def test_a_stopping_kernel_lets_its_function_turns_end(all_kernels: Kernels, stack: AsyncExitStack) -> None:
    """The kernel is not ready and refuses new work, which the others take; a turn of a function ends there."""
    kernels = [all_kernels.begin(name) for name in ("one", "two")]
    one, two = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    team = await one.create_team({"agents": 2}, name="crew")
    ann = await two.spawn_agent("crew", "ann", "echo", key=team.key)
    turn = Reader(two, ann, b"one wait two", format="words")
    await eventually(lambda: bool(turn.chunks))
    kernels[0].process.send_signal(signal.SIGTERM)
    async with httpx2.AsyncClient(base_url=kernels[0].url, timeout=180) as http:
        while (await http.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        headers = {"authorization": f"Bearer {team.key}"}
        response = await http.post(
            "/v1/agents", headers=headers, json={"team": "crew", "name": "eve", "agent_type": "echo"}
        )
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    coming = asyncio.create_task(two.spawn_agent("crew", "eve", "echo", key=team.key))
    assert (await one.interrupt(ann.agent.id, key=ann.nonce)).interrupted
    await turn.done
    assert turn.chunks[-1].kind == "error", "it was interrupted here, where it was"
    assert b"interrupted" in turn.chunks[-1].body
    assert await asyncio.to_thread(kernels[0].process.wait) == 0
    eve = await coming
    assert await two.say(eve.agent.id, b"hello", key=eve.nonce) == b"hello"
    assert await two.say(ann.agent.id, b"hello", key=ann.nonce) == b"hello"


async def test_a_rolling_restart_loses_no_turn(
    all_kernels: Kernels, stack: AsyncExitStack, tmp_path: pathlib.Path
) -> None:
    """A turn continues, read through a third kernel, while two kernels end in order and begin again."""
    kernels = {name: all_kernels.begin(name) for name in ("one", "two", "three")}
    one, three = [await stack.enter_async_context(all_kernels.client(kernels[each])) for each in ("one", "three")]
    team = await one.create_team({"agents": 2}, name="crew")
    bob = await one.spawn_agent("crew", "bob", "slow", key=team.key)
    reader = Reader(three, bob, counting(9, 5, tmp_path))
    await eventually(lambda: reader.text.endswith("4 "))
    for name in ("one", "two"):
        kernels[name].process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(kernels[name].process.wait) == 0
        kernels[name] = all_kernels.begin(name)
        assert await asyncio.to_thread(getattr, kernels[name], "url")
        assert (await three.get_agent(bob.agent.id, key=bob.nonce)).state in ("idle", "working")
        assert not reader.done.done(), reader.chunks[-1]
    (tmp_path / "go").touch()
    await reader.done
    assert reader.text == "1 2 3 4 5 6 7 8 9 "
    assert [each.number for each in reader.chunks] == list(range(1, len(reader.chunks) + 1))
    assert reader.chunks[-1].kind == "done"


class Load:
    """Clients that ask each agent one turn after another, through kernels that are not about to end."""

    def __init__(self, clients: dict[str, Client], agents: Sequence[SpawnedAgent], folder: pathlib.Path) -> None:
        self.clients, self._folder = clients, folder
        self.under_way = dict.fromkeys(clients, 0)
        self.sent_texts: dict[str, list[str]] = {each.agent.id: [] for each in agents}
        self.is_over = False
        self.workers = [asyncio.create_task(self._talk(each)) for each in agents]

    async def _talk(self, agent: SpawnedAgent) -> None:
        texts = self.sent_texts[agent.agent.id]
        while not self.is_over:
            folder = self._folder / f"{agent.agent.id}-{len(texts)}"
            folder.mkdir()
            body = counting(3, 9, folder)
            texts.append(json.loads(body)["messages"][0]["content"])
            await self._say(agent, body)

    async def _say(self, agent: SpawnedAgent, body: bytes) -> None:
        while True:
            name = min(self.clients, key=lambda each: self.under_way[each])
            self.under_way[name] += 1
            reader = Reader(self.clients[name], agent, body)
            try:
                await reader.done
            except Refused as refusal:
                if refusal.status != 503 or reader.chunks:
                    raise
                continue  # It was not begun, and may be said again.
            finally:
                self.under_way[name] -= 1
            assert reader.text == "1 2 3 ", reader.chunks
            assert [each.number for each in reader.chunks] == list(range(1, len(reader.chunks) + 1))
            return


async def test_a_rolling_restart_under_load_answers_every_turn_once(
    all_kernels: Kernels, stack: AsyncExitStack, tmp_path: pathlib.Path
) -> None:
    """Each kernel ends in order and begins again; clients see no error except 503 before a turn has begun."""
    kernels = {name: all_kernels.begin(name) for name in ("one", "two", "three")}
    clients = {name: await stack.enter_async_context(all_kernels.client(each)) for name, each in kernels.items()}
    agents = []
    for name, client in clients.items():
        team = await client.create_team({"agents": 2}, name=name)
        agents += [await client.spawn_agent(name, each, "slow", key=team.key) for each in ("ann", "bob")]
    load = Load(dict(clients), agents, tmp_path)
    for name in kernels:
        del load.clients[name]  # As a Service does, before a kernel is told to end.
        async with asyncio.timeout(180):
            while load.under_way[name]:  # noqa: ASYNC110 - they come to their ends
                await asyncio.sleep(0.01)
        kernels[name].process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(kernels[name].process.wait) == 0, kernels[name].log_text
        kernels[name] = all_kernels.begin(name)
        load.clients[name] = await stack.enter_async_context(all_kernels.client(kernels[name]))
    load.is_over = True
    await asyncio.gather(*load.workers)
    one = load.clients["one"]
    for each in agents:
        texts, history = load.sent_texts[each.agent.id], await one.history(each.agent.id, key=each.nonce)
        assert [one["content"] for one in history if one["role"] == "user"] == texts
        assert [one["content"] for one in history if one["role"] == "assistant"] == ["1 2 3 "] * len(texts)


async def test_a_kill_among_concurrent_spawns_respects_team_capacity(
    all_kernels: Kernels, stack: AsyncExitStack
) -> None:
    """A hundred concurrent spawns meet the kill.

    Each confirmed agent exists afterwards, and the team has at most ten.
    """
    kernels = [all_kernels.begin(name) for name in ("one", "two", "three")]
    one, two, three = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    team = await one.create_team({"agents": 10}, name="crew")
    spawned_names: list[str] = []

    async def spawn(client: Client, number: int) -> str:
        try:
            spawned_names.append((await client.spawn_agent("crew", f"agent-{number}", "echo", key=team.key)).agent.id)
        except OverCapacity:
            return "full"
        except Refused as refusal:
            return str(refusal.status)
        return "born"

    spawning = [asyncio.create_task(spawn((two, three)[number % 2], number)) for number in range(100)]
    await eventually(lambda: len(spawned_names) >= 3)
    kernels[0].kill()
    outcomes = Counter(await asyncio.gather(*spawning))
    assert set(outcomes) <= {"born", "full", "502", "503"}, outcomes
    agent_ids = {each.id for each in await two.list_agents("crew", key=team.key)}
    assert set(spawned_names) <= agent_ids
    assert len(agent_ids) <= 10
    free = (await three.get_team("crew", key=team.key)).free["agents"]
    assert free == 10 - len(agent_ids)
    more = Counter([await spawn((two, three)[number % 2], 100 + number) for number in range(int(free) + 2)])
    assert more == Counter({"born": int(free), "full": 2})
    assert {each.id for each in await three.list_agents("crew", key=team.key)} == agent_ids | set(spawned_names)


async def test_a_kernel_that_wakes_up_late_forwards_to_the_new_owner(
    all_kernels: Kernels, stack: AsyncExitStack, tmp_path: pathlib.Path
) -> None:
    """A kernel that was suspended while its session ended forwards to the kernel that took over its team."""
    kernels = [all_kernels.begin(name) for name in ("one", "two")]
    one, two = [await stack.enter_async_context(all_kernels.client(each)) for each in kernels]
    team = await one.create_team({"agents": 3}, name="crew")
    ann = await one.spawn_agent("crew", "ann", "echo", key=team.key)
    bob = await one.spawn_agent("crew", "bob", "slow", key=team.key)
    assert await one.say(ann.agent.id, b"hello", key=ann.nonce) == b"hello"
    kernels[0].process.send_signal(signal.SIGSTOP)
    try:
        all_kernels.end_session("one")
        await two.get_agent(ann.agent.id, key=ann.nonce)  # It is there: what changes something is not asked for twice.
        assert await two.say(ann.agent.id, b"again", key=ann.nonce) == b"again"
        assert await two.say(bob.agent.id, counting(2, 3, tmp_path), key=bob.nonce)
        await two.spawn_agent("crew", "eve", "echo", key=team.key)
    finally:
        kernels[0].process.send_signal(signal.SIGCONT)
    async with asyncio.timeout(180):  # It has to hear of it first.
        while len(await one.list_agents("crew", key=team.key)) < 3:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.01)
    assert await one.say(ann.agent.id, b"hello", key=ann.nonce) == b"hello"
    assert await one.say(bob.agent.id, counting(2, 3, tmp_path), key=bob.nonce)
    assert (await one.get_team("crew", key=team.key)).free["agents"] == 0
    with pytest.raises(OverCapacity):
        await one.spawn_agent("crew", "many", "echo", key=team.key)
    kernels[1].kill()
    for each in (ann, bob):  # Questions are asked again until the team is here; what changes something is not.
        await one.get_agent(each.agent.id, key=each.nonce)
    assert await one.say(ann.agent.id, b"back", key=ann.nonce) == b"back"
    assert await one.say(bob.agent.id, counting(2, 3, tmp_path), key=bob.nonce)
    assert len(await one.list_agents("crew", key=team.key)) == 3


async def test_a_kernel_that_loses_its_store_permanently_exits(all_kernels: Kernels, stack: AsyncExitStack) -> None:
    """The process exits with status 1, so that a supervisor restarts it; the next one has the agent again."""
    kernel = all_kernels.begin("one")
    one = await stack.enter_async_context(all_kernels.client(kernel))
    team = await one.create_team({"agents": 1}, name="crew")
    ann = await one.spawn_agent("crew", "ann", "slow", key=team.key)
    with psycopg.connect(all_kernels.dsn, autocommit=True) as connection:  # As one of its name that began meanwhile.
        connection.execute("UPDATE ramet.kernels SET epoch = epoch + 1 WHERE name = 'one'")
    all_kernels.end_session("one")

    assert await asyncio.to_thread(kernel.process.wait) == 1, kernel.log_text
    assert "CRITICAL ramet.runtime: nothing more can be recorded here, and open trees end (1)" in kernel.log_text
    last_line = kernel.log_text.splitlines()[-1]
    assert last_line.startswith("ramet: the store ")
    assert last_line.endswith("; the server exits and can be started again")
    assert "Traceback" not in kernel.log_text
    restarted_kernel = await stack.enter_async_context(all_kernels.client(all_kernels.begin("one")))
    assert (await restarted_kernel.get_agent(ann.agent.id, key=ann.nonce)).state == "idle"
