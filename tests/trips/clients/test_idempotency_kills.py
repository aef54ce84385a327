"""A server is killed between the effect of a request and its answer: the repeated request finds the effect."""

from __future__ import annotations

import pathlib
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from tests.support.kernels import TOKEN, Kernels, all_kernels, stack
from tests.support.serve_process import plugin, serve

__all__ = ["all_kernels", "stack"]  # fixtures are used by their names

MODULE = "tests.support.killed_server"
REPLAYED = "idempotent-replayed"


class KilledServer:
    """A folder that one process after another serves."""

    def __init__(self, folder: pathlib.Path, stack: AsyncExitStack) -> None:
        self.folder, self._stack = folder, stack

    async def begin(self) -> None:
        """Start a new process that serves the folder."""
        env = {"RAMET_OPERATOR_TOKEN": TOKEN, "RAMET_BACKEND": "local"}
        await self._stack.enter_async_context(serve(self.folder, module=MODULE, **env))

    async def ask(self, path: str, key: str, id: str = "", **body: Any) -> httpx2.Response:
        """Send a POST with an Idempotency-Key."""
        headers = {"authorization": f"Bearer {key}", **({"idempotency-key": id} if id else {})}
        transport = httpx2.AsyncHTTPTransport(uds=str(self.folder / ".ramet" / "serve.sock"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://ramet", timeout=180) as http:
            return await http.post(path, headers=headers, **body)

    async def get(self, path: str, key: str = TOKEN) -> Any:
        """Return the JSON of a GET."""
        transport = httpx2.AsyncHTTPTransport(uds=str(self.folder / ".ramet" / "serve.sock"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://ramet", timeout=180) as http:
            return (await http.get(path, headers={"authorization": f"Bearer {key}"})).raise_for_status().json()

    async def killed(self, point: str, path: str, key: str, id: str, **body: Any) -> httpx2.Response:
        """Kill the first server of a POST at a point, and return the next server's answer to the same POST."""
        (self.folder / point).touch()
        with pytest.raises(httpx2.TransportError):
            await self.ask(path, key, id, **body)
        assert not (self.folder / point).exists(), "it was killed there"
        await self.begin()
        return await self.ask(path, key, id, **body)


@pytest.fixture
async def killed_server(folder: pathlib.Path, stack: AsyncExitStack) -> KilledServer:
    plugin(folder)
    server = KilledServer(folder, stack)
    await server.begin()
    return server


async def test_a_repeated_request_finds_its_effect_after_a_kill(killed_server: KilledServer) -> None:
    """A team, an agent, a narrower key and a rotation take effect once, and the returned key works."""
    created_agent = (
        await killed_server.killed("kill-before", "/v1/teams", TOKEN, "t", json={"resources": {"agents": 4}})
    ).json()
    assert [each["id"] for each in (await killed_server.get("/v1/teams"))["teams"]] == [created_agent["team"]["id"]]

    spawn = {"team": created_agent["team"]["id"], "name": "bob", "agent_type": "echo"}
    agent_created = (
        await killed_server.killed("kill-before", "/v1/agents", created_agent["key"], "a", json=spawn)
    ).json()
    agent_list = (await killed_server.get("/v1/agents", created_agent["key"]))["agents"]
    assert [each["id"] for each in agent_list] == [agent_created["agent"]["id"]]
    agent, nonce = f"/v1/agents/{agent_created['agent']['id']}", agent_created["nonce"]
    assert (await killed_server.get(agent, nonce))["state"] == "idle"

    narrower = await killed_server.killed("kill-before", f"{agent}/keys", nonce, "k", json={"rights": ["info"]})
    assert (await killed_server.get(agent, narrower.json()["key"]))["name"] == "bob"

    rotated = await killed_server.killed(
        "kill-before", f"{agent}/rotate", nonce, "5cdbf6c0-2f27-4f4a-9d0b-1f0c6a4d7e11"
    )
    assert (await killed_server.get(agent, rotated.json()["nonce"]))["name"] == "bob"
    assert (await killed_server.ask(f"{agent}/rotate", nonce)).status_code == 401


async def test_a_recorded_answer_is_sent_by_the_next_server(killed_server: KilledServer) -> None:
    """The next server sends the recorded answer; it answers 410 if the outcome of the first request is unknown."""
    body = {"resources": {"agents": 4}}
    team = await killed_server.killed("kill-after", "/v1/teams", TOKEN, "t", json=body)
    assert (team.status_code, team.headers[REPLAYED]) == (201, "true")
    spawn = {"team": team.json()["team"]["id"], "name": "bob", "agent_type": "llm", "spawn_info": {"model": "offline"}}
    agent_created = (await killed_server.ask("/v1/agents", team.json()["key"], json=spawn)).json()
    agent, nonce = f"/v1/agents/{agent_created['agent']['id']}", agent_created["nonce"]

    response = await killed_server.killed("kill-after", f"{agent}/mail", nonce, "m", json={"text": "hello"})
    assert (response.status_code, response.headers[REPLAYED]) == (204, "true")
    unknown = await killed_server.killed("kill-before", f"{agent}/mail", nonce, "n", json={"text": "again"})
    assert (unknown.status_code, unknown.json()["type"]) == (410, "urn:ramet:problem:outcome-unknown")
    assert "the events of the agent" in unknown.json()["detail"]
    history = str((await killed_server.get(f"{agent}/history", nonce))["messages"])
    assert (history.count("hello"), history.count("again")) <= (1, 1)


async def test_a_turn_runs_at_most_once_despite_a_kill(killed_server: KilledServer) -> None:
    """The server never asks the agent twice; a client without an answer is told where to look."""
    team = (await killed_server.ask("/v1/teams", TOKEN, json={"resources": {"agents": 4}})).json()
    spawn = {"team": team["team"]["id"], "name": "bob", "agent_type": "llm", "spawn_info": {"model": "offline"}}
    agent_created = (await killed_server.ask("/v1/agents", team["key"], json=spawn)).json()
    history, nonce = f"/v1/agents/{agent_created['agent']['id']}/history", agent_created["nonce"]
    body = {"model": "any", "messages": [{"role": "user", "content": "What is here?"}]}

    lost_answer = await killed_server.killed("kill-after-turn", "/v1/chat/completions", nonce, "a", json=body)
    assert lost_answer.status_code == 410
    assert "has its answer" in lost_answer.json()["error"]["message"]
    unknown = await killed_server.killed("kill-before-turn", "/v1/chat/completions", nonce, "b", json=body)
    assert unknown.status_code == 410
    assert "the history of the agent" in unknown.json()["error"]["message"]
    chat_answer = await killed_server.killed("kill-after", "/v1/chat/completions", nonce, "c", json=body)
    assert chat_answer.json()["choices"][0]["message"]["content"]
    assert chat_answer.headers[REPLAYED] == "true"
    users = [each for each in (await killed_server.get(history, nonce))["messages"] if each["role"] == "user"]
    assert len(users) <= 3


@pytest.mark.parametrize("stores", ["postgres"])
async def test_another_kernel_answers_a_killed_kernels_request(
    all_kernels: Kernels, stack: AsyncExitStack, tmp_path: pathlib.Path
) -> None:
    """One kernel is killed after a spawn, one in a turn: the kernel that takes over answers both requests."""
    one, two = [all_kernels.begin(name, module=MODULE) for name in ("one", "two")]
    http = await stack.enter_async_context(httpx2.AsyncClient(timeout=180))

    async def ask(url: str, path: str, key: str, id: str, body: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}", "idempotency-key": id}
        return await http.post(f"{url}{path}", headers=headers, json=body)

    team = (await ask(one.url, "/v1/teams", TOKEN, "t", {"resources": {"agents": 4}})).json()
    same = await ask(two.url, "/v1/teams", TOKEN, "t", {"resources": {"agents": 4}})
    assert (same.json(), same.headers[REPLAYED]) == (team, "true"), "any kernel has the answers of all"

    (tmp_path / "one" / "kill-before").touch()
    spawn = {"team": team["team"]["id"], "name": "bob", "agent_type": "slow"}
    agent_created = await ask(two.url, "/v1/agents", team["key"], "a", spawn)  # passed on to one, which dies of it
    assert agent_created.status_code == 201, agent_created.text
    assert one.process.wait() == -9
    listing = await http.get(f"{two.url}/v1/agents", headers={"authorization": f"Bearer {TOKEN}"})
    assert [each["id"] for each in listing.json()["agents"]] == [agent_created.json()["agent"]["id"]]

    one = all_kernels.begin("one", module=MODULE)
    assert one.url
    (tmp_path / "two" / "kill-after-turn").touch()
    body = {"model": "any", "messages": [{"role": "user", "content": f"count 3 9 {tmp_path}"}]}
    answer = await ask(one.url, "/v1/chat/completions", agent_created.json()["nonce"], "q", body)
    assert answer.json()["choices"][0]["message"]["content"] == "1 2 3 ", answer.text
    assert two.process.wait() == -9
    history = await http.get(
        f"{one.url}/v1/agents/{agent_created.json()['agent']['id']}/history",
        headers={"authorization": f"Bearer {agent_created.json()['nonce']}"},
    )
    assert [each["role"] for each in history.json()["messages"]] == ["user", "assistant"]
