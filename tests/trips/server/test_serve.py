"""`ramet serve` as a process of its own: started, stopped, killed, and started again."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal

import httpx2
import msgspec
import pytest

import ramet
from ramet.core.errors import Gone
from ramet.services.client.client import Client
from ramet.services.contract import Chunk
from tests.support import stalling_agents
from tests.support.kernels import ENTRY_POINTS
from tests.support.parrot_agents import user_message
from tests.support.prometheus import scrape
from tests.support.serve_process import plugin, serve
from tests.support.turns import counting


async def new_agent(client: Client, agent_type: str) -> tuple[str, str]:
    """Spawn an agent, and return its id and nonce."""
    team = await client.create_team({"agents": 2}, name="red")
    spawned_agent = await client.spawn_agent("red", "bob", agent_type, key=team.key)
    return spawned_agent.agent.id, spawned_agent.nonce


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=["term", "int", "kill"])
async def test_an_agent_outlives_its_server(folder: pathlib.Path, end: signal.Signals) -> None:
    """The next server has the agent with the same id, path and nonce, after a stop and after a kill."""
    plugin(folder)
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as first:
        assert str(socket) in first.line
        async with ramet.connect(socket) as client:
            agent, nonce = await new_agent(client, "echo")
            assert await client.say(agent, b"one", key=nonce) == b"one"
            status, words = await first.end(end)
            assert (status, words) == (-9 if end == signal.SIGKILL else 0, "")
            with pytest.raises(Gone):
                await client.get_agent(agent, key=nonce)

    async with serve(folder), ramet.connect(socket) as client:
        info = await client.get_agent(agent, key=nonce)
        assert (info.path, info.state) == ("red/bob", "idle")
        assert info.turns == 1 or end == signal.SIGKILL  # which gives no time to write it down
        assert await client.say(agent, b"two", key=nonce) == b"two"
        assert [each.name for each in await client.list_teams()] == ["red"]


async def test_a_conversation_outlives_its_server(folder: pathlib.Path) -> None:
    """A model's agent keeps its history after SIGTERM, and answers the next prompt."""
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as first, ramet.connect(socket) as client:
        agent, nonce = await new_agent(client, "llm")
        await client.say(agent, request_body("What is in this folder?"), key=nonce)
        before = await client.history(agent, key=nonce)
        assert (await first.end(signal.SIGTERM)) == (0, "")

    async with serve(folder), ramet.connect(socket) as client:
        assert await client.history(agent, key=nonce) == before
        await client.say(agent, request_body("And what else?"), key=nonce)
        after = await client.history(agent, key=nonce)
    assert after[: len(before)] == before
    assert [each["content"] for each in after if each["role"] == "user"] == [
        "What is in this folder?",
        "And what else?",
    ]


async def test_a_stop_ends_the_stream_of_a_turn_with_an_error_chunk(folder: pathlib.Path) -> None:
    """The reader gets a last chunk, not a broken connection, and the next server has the agent."""
    plugin(folder)
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as first, ramet.connect(socket) as client:
        agent, nonce = await new_agent(client, "echo")
        chunks: list[Chunk] = []
        async for chunk in client.turn(agent, b"one wait", key=nonce):
            if not chunks:
                first.process.terminate()
            chunks.append(chunk)
        assert [each.kind for each in chunks] == ["chunk", "error"]
        assert await first.process.wait() == 0
    async with serve(folder), ramet.connect(socket) as client:
        assert await client.say(agent, b"two", key=nonce) == b"two"


@pytest.mark.parametrize("agent_type", ["slow", "slow-function"])
async def test_a_turn_cut_by_a_stop_resumes_at_the_next_start(folder: pathlib.Path, agent_type: str) -> None:
    """The last chunk tells the reader so. The history has the answer once the turn has ended."""
    plugin(folder, ENTRY_POINTS)
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as first, ramet.connect(socket) as client:
        team = await client.create_team({"agents": 1}, name="red")
        info = {"function": "tests.support.slow_functions:counts"} if agent_type == "slow-function" else None
        spawned_agent = await client.spawn_agent("red", "bob", agent_type, info, key=team.key)
        agent, nonce = spawned_agent.agent.id, spawned_agent.nonce
        chunks: list[Chunk] = []
        async for chunk in client.turn(agent, counting(3, 2, folder), key=nonce):
            if not chunks:
                first.process.terminate()
            chunks.append(chunk)
        assert await first.process.wait() == 0
        assert chunks[-1].kind == "error"
        assert b"is resumed at the next start" in chunks[-1].body

    (folder / "go").touch()
    async with serve(folder), ramet.connect(socket) as client:
        await client.say(agent, counting(1, 0, folder), key=nonce)  # It waits for the end of the other one.
        history = await client.history(agent, key=nonce)
    answers = [each["content"] for each in history if each["role"] == "assistant"]
    assert [each.split("\n")[0] for each in answers] == ["1 2 3 ", "1 "]
    assert len([each for each in history if each["role"] == "user"]) == 2


async def test_a_stalled_server_reports_the_stall(folder: pathlib.Path) -> None:
    """An agent holds the interpreter's lock in C.

    The server dumps its stacks as soon as it can; log and metrics show the stall. SIGABRT dumps them in the middle of
    a call that does not return, and ends the server.
    """
    plugin(folder, stalling_agents.ENTRY_POINT)
    pipe, socket = folder / "pipe", folder / ".ramet" / "serve.sock"
    os.mkfifo(pipe)
    async with serve(folder, RAMET_STALL_S="1", RAMET_METRICS="public") as first, ramet.connect(socket) as client:
        agent, nonce = await new_agent(client, "stalling")
        turn = asyncio.create_task(client.say(agent, os.fsencode(pipe), key=nonce))
        assert first.process.stderr is not None
        log = [(await first.process.stderr.readline()).decode()]
        while "stand_still_in_c" not in log[-1]:
            log.append((await first.process.stderr.readline()).decode())
        assert not turn.done()
        pipe.write_bytes(b"go on")
        assert await turn == b"it went on"
        async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(socket)), timeout=180) as http:
            metrics = scrape((await http.get("http://ramet/metrics")).text)

        turn = asyncio.create_task(client.say(agent, os.fsencode(pipe), key=nonce))
        log.append("")
        while "stand_still_in_c" not in log[-1]:
            log.append((await first.process.stderr.readline()).decode())
        status, rest = await first.end(signal.SIGABRT)
        await asyncio.wait([turn])
        assert turn.exception() is not None

    assert any(line.startswith("The event loop ") for line in log)
    assert metrics.value("ramet_event_loop_stalls_total") >= 1
    assert metrics.value("ramet_event_loop_stalled_seconds_total") >= 1
    assert "the event loop was blocked for" in "".join(log)
    assert status == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in rest


async def test_a_second_server_on_one_folder_is_refused(folder: pathlib.Path) -> None:
    """The second server prints one line, which names the first, and exits with 1 or 2. The first one continues."""
    async with serve(folder) as first, ramet.connect(folder / ".ramet" / "serve.sock") as client:
        async with serve(folder) as second:
            assert second.line == ""
            [line] = (await second.process.communicate())[1].decode().splitlines()
            assert line.startswith("ramet: socket: ")
            assert f"process {first.process.pid} does" in line
            assert second.process.returncode == 2
        async with serve(folder, "--socket", str(folder / "other.sock")) as third:
            [line] = (await third.process.communicate())[1].decode().splitlines()
            assert f"belongs to another kernel (pid {first.process.pid}), which serves at " in line
            assert "serve.sock; a folder has one kernel at a time" in line
            assert third.process.returncode == 1
        assert await client.list_teams() == []
    assert not (folder / "other.sock").exists()


async def test_a_tcp_address_uses_the_operators_token(folder: pathlib.Path) -> None:
    """The token comes from the environment. It is not printed and not written to a file."""
    token = "a-token-of-my-own-choice"
    async with serve(folder, "--listen", "127.0.0.1:0", RAMET_OPERATOR_TOKEN=token) as process:
        url = next(word for word in process.line.split() if word.startswith("http://"))
        async with ramet.connect(url, token) as client:
            assert await client.list_teams() == []
        assert not (folder / ".ramet" / "operator-token").exists()
        assert token not in process.line


def request_body(text: str) -> bytes:
    """Return the body of a request with one message."""
    return msgspec.json.encode({"messages": [user_message(text)]})
