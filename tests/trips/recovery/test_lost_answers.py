"""Lost answers of another kernel: only repeatable requests are sent again, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

import psycopg
import pytest

from ramet.host.trees.project import Project
from ramet.spawn.handle import Handle
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, fresh_schema, postgres
from tests.support.serving import EchoServer, serving, short_folder
from tests.support.waiting import eventually
from tests.trips.programs.approvals import lead, model, tools

__all__ = ["postgres"]  # a fixture is used by its name
TOKEN = "op_both_kernels_have_the_same_one"


class Line:
    """A proxy between two kernels: it loses the answers to the next `left` requests of a method."""

    def __init__(self) -> None:
        self.to = ("", 0)
        self.lost_method, self.losses_left = "GET", 0
        self.lost_count = 0
        self.instead: Callable[[], Awaitable[None]] | None = None  #: of carrying a request whose answer is to be lost
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def begin(self, at: int = 0) -> str:
        """Start the proxy and return its address."""
        self._server = await asyncio.start_server(self._come, "127.0.0.1", at)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def end(self) -> None:
        assert self._server is not None
        self._server.close()
        for each in self._carrying:
            each.cancel()
        if self._carrying:
            await asyncio.wait(self._carrying)

    async def _come(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        far, writer = await asyncio.open_connection(*self.to)
        loses = False

        async def answers() -> None:
            while piece := await far.read(65536):
                if loses:
                    self.lost_count += 1
                    break
                back.write(piece)
            back.close()

        answering = asyncio.create_task(answers())
        try:
            while piece := await near.read(65536):
                loses = self.losses_left > 0 and piece.startswith(self.lost_method.encode() + b" ")
                self.losses_left -= loses
                if loses and self.instead is not None:
                    await self.instead()
                    break
                writer.write(piece)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, back):
                each.close()
            answering.cancel()
            await asyncio.wait({answering})


class TwoKernels(NamedTuple):
    """Kernel one owns the teams. Kernel two forwards requests to kernel one through the proxy."""

    one: EchoServer
    two: EchoServer
    line: Line


@pytest.fixture
async def two_kernels(postgres: Server) -> AsyncIterator[TwoKernels]:
    schema = fresh_schema()
    async with AsyncExitStack() as stack:
        line, folders = Line(), [stack.enter_context(short_folder()) for _ in range(2)]
        address = await line.begin()
        stack.push_async_callback(line.end)
        stores = [PostgresStore(postgres.dsn, schema=schema, kernel=name) for name in ("one", "two")]
        options = {"listen": ("127.0.0.1", 0), "token": TOKEN}
        one = await stack.enter_async_context(serving(folders[0], store=stores[0], address=address, **options))
        host, _, port = one.server.listen_address.removeprefix("http://").rpartition(":")
        line.to = (host, int(port))
        two = await stack.enter_async_context(serving(folders[1], store=stores[1], **options))
        yield TwoKernels(one, two, line)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


async def test_a_delete_whose_answer_was_lost_succeeds(two_kernels: TwoKernels) -> None:
    """Kernel two repeats the deletion of a key, an agent and a team. "Not found" then counts as deleted."""
    one, two, line = two_kernels
    team, key = await one.team()
    body = {"team": team, "name": "bob", "agent_type": "echo"}
    created_agent = (await one.ask("POST", "/v1/agents", key, json=body)).json()
    agent, nonce = created_agent["agent"]["id"], created_agent["nonce"]
    narrow = (await one.ask("POST", f"/v1/agents/{agent}/keys", nonce, json={"rights": ["info"]})).json()
    its_key, answers = f"/v1/agents/{agent}/keys/{narrow['id']}", []
    for path, bearer in ((its_key, nonce), (f"/v1/agents/{agent}", nonce), (f"/v1/teams/{team}", key)):
        line.lost_method, line.losses_left = "DELETE", 1
        answers.append(await two.ask("DELETE", path, bearer))

    assert [each.status_code for each in answers] == [204, 204, 204], [each.text for each in answers]
    assert line.lost_count == 3
    assert (await one.ask("GET", f"/v1/agents/{agent}", nonce)).status_code == 401
    assert (await two.ask("GET", f"/v1/teams/{team}", key)).status_code == 401


async def test_a_repeated_delete_with_a_wrong_key_is_refused(two_kernels: TwoKernels) -> None:
    """A wrong key gets 401 although the first answer was lost, and nothing is deleted."""
    one, two, line = two_kernels
    agent, nonce = await one.agent()
    line.lost_method, line.losses_left = "DELETE", 1

    assert (await two.ask("DELETE", f"/v1/agents/{agent}", "agent_nobody")).status_code == 401
    assert line.lost_count == 1
    assert (await two.ask("GET", f"/v1/agents/{agent}", nonce)).status_code == 200


async def test_a_request_that_must_not_repeat_is_not_sent_again(two_kernels: TwoKernels) -> None:
    """A turn, a spawn and a new key are each done once. The client gets 502, because the request may have been done."""
    one, two, line = two_kernels
    team, key = await one.team()
    body = {"team": team, "agent_type": "echo"}
    created_agent = (await one.ask("POST", "/v1/agents", key, json={**body, "name": "bob"})).json()
    agent, nonce = created_agent["agent"]["id"], created_agent["nonce"]
    line.lost_method, line.losses_left = "POST", 9

    answer = await two.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"hello")
    spawn_answer = await two.ask("POST", "/v1/agents", key, json={**body, "name": "eve"})
    rotate_answer = await two.ask("POST", f"/v1/agents/{agent}/rotate", nonce)

    assert [each.status_code for each in (answer, spawn_answer, rotate_answer)] == [502] * 3
    assert line.lost_count == 3
    assert one.echo.opened[0].received_bodies == [(b"hello", "words")]
    assert [each.opening.path.rpartition("/")[2] for each in one.echo.opened] == ["bob", "eve"]


async def test_a_turn_waits_until_its_kernel_accepts_connections(
    two_kernels: TwoKernels, caplog: pytest.LogCaptureFixture
) -> None:
    """The client waits while the kernel accepts no connection, and the turn is then done once."""
    one, two, line = two_kernels
    agent, nonce = await one.agent()
    (seat,) = [each for each in await (await one.server.runtime.open_store()).kernels() if each.name == "one"]
    await line.end()
    with caplog.at_level("INFO", "ramet.serve"):
        asking = asyncio.create_task(two.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"hello"))
        await eventually(lambda: "cannot be reached" in caplog.text)
        await line.begin(int(seat.address.rpartition(":")[2]))

    assert (await asking).status_code == 200
    assert one.echo.opened[0].received_bodies == [(b"hello", "words")]


async def test_a_read_request_is_sent_again_until_an_answer_arrives(two_kernels: TwoKernels) -> None:
    """The client does not notice the three answers that were lost."""
    one, two, line = two_kernels
    agent, nonce = await one.agent()
    line.lost_method, line.losses_left = "GET", 3

    assert (await two.ask("GET", f"/v1/agents/{agent}", nonce)).json()["id"] == agent
    assert line.lost_count == 3


async def test_a_list_fails_with_503_if_a_kernel_does_not_answer(
    two_kernels: TwoKernels, postgres: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that holds its lock may own teams, so the server does not return an incomplete list."""
    one, two, _ = two_kernels
    connections: list[asyncio.StreamWriter] = []
    deaf = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    store = await two.server.runtime.open_store()
    assert isinstance(store, PostgresStore)
    former_store = await PostgresStore(postgres.dsn, schema=store._place.schema, kernel="stopped").open()
    assert one.server.kernels is not None
    monkeypatch.setattr(one.server.kernels.router._fan_out, "_wait_s", 0.5)
    try:
        await former_store.announce(f"http://127.0.0.1:{deaf.sockets[0].getsockname()[1]}")
        others = one.server.kernels.directory.reachable_kernels
        await eventually(lambda: "stopped" in [each.name for each in others()])
        answer = await one.ask("GET", "/v1/teams", TOKEN)
        await eventually(
            lambda: "kernel stopped does not answer a request to all kernels: it does not answer" in caplog.text
        )
    finally:
        await former_store.close()
        deaf.close()
        for each in connections:
            each.close()

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def spawn_tree_with_a_question(echo_server: EchoServer) -> Handle:
    """Spawn a tree on a kernel, in which a payment waits for approval."""
    runtime, folder = echo_server.server.runtime, echo_server.server.dir
    agents = Project.open(None, user_dir=None)
    handle = await runtime.spawn(lead(model()), "lead both", tools=tools(folder), agents=agents)
    await eventually(lambda: runtime.trees[handle.id].inbox.pending)
    return handle


async def test_a_question_is_listed_and_answered_at_any_kernel(two_kernels: TwoKernels) -> None:
    """A question is answered once: after that, both kernels answer 404."""
    one, two, _ = two_kernels
    handle = await spawn_tree_with_a_question(one)
    for each in (one, two):
        [question] = (await each.ask("GET", "/v1/approvals", TOKEN)).json()["approvals"]
        assert (question["path"], question["args"]) == ("main/payer", {"amount": 50})
    path = f"/v1/approvals/{question['id']}"

    assert (await two.ask("POST", path, "agent_nobody", json={"allowed": True})).status_code == 401
    assert (await two.ask("POST", path, TOKEN, json={"allowed": True, "reason": "due"})).status_code == 204
    assert (await handle.result()).value == "both are done"
    for each in (one, two):
        assert (await each.ask("POST", path, TOKEN, json={"allowed": False})).status_code == 404
        assert (await each.ask("GET", "/v1/approvals", TOKEN)).json()["approvals"] == []


async def test_an_approval_whose_answer_was_lost_is_not_reported_as_unknown(two_kernels: TwoKernels) -> None:
    """The approval arrived and its answer was lost, so the client gets 502 and not 404."""
    one, two, line = two_kernels
    handle = await spawn_tree_with_a_question(one)
    [question] = (await two.ask("GET", "/v1/approvals", TOKEN)).json()["approvals"]
    line.lost_method, line.losses_left = "POST", 1

    answer = await two.ask("POST", f"/v1/approvals/{question['id']}", TOKEN, json={"allowed": True})

    assert answer.status_code == 502, answer.text
    assert line.lost_count == 1
    assert (await handle.result()).value == "both are done"


async def test_a_turn_sent_to_a_kernel_that_hands_over_runs_on_the_other_kernel(two_kernels: TwoKernels) -> None:
    """A turn arrives while its kernel closes its connections. The other kernel runs the turn once."""
    one, two, line = two_kernels
    agent, nonce = await one.agent()
    await one.ask("GET", f"/v1/agents/{agent}", nonce)
    line.lost_method, line.losses_left, line.instead = "POST", 1, one.server.drain

    answer = await two.ask("POST", f"/v1/agents/{agent}/turns", nonce, content=b"hello")

    assert answer.status_code == 200, answer.text
    assert b"hello" in answer.content
    assert one.echo.opened[0].received_bodies == []
    assert [each.received_bodies for each in two.echo.opened] == [[(b"hello", "words")]]
