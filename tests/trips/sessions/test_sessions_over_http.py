"""Conversations of a server: its operator lists, shows and removes them, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

import ramet
from ramet import ScriptedModel, Session
from ramet.cli.main import main
from ramet.core.errors import Denied, NotYours, Unknown
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.client.client import Client
from ramet.services.errors import InUse
from tests.support.plain_models import Plain
from tests.support.serving import EchoServer, serving


async def hold_conversation(echo_server: EchoServer, session: str, *prompts: str) -> None:
    """Hold a conversation on a server, and close it."""
    model = ScriptedModel(["Sure."] * len(prompts))
    async with Session(model, runtime=echo_server.server.runtime, session_id=session) as open:
        for each in prompts:
            await open.ask(each)


async def test_conversations_are_listed_page_by_page_and_shown(echo_server: EchoServer, client: Client) -> None:
    """The list begins with the newest, each with state, turns and first prompt.

    One is found by session id or root id.
    """
    for number in range(5):
        await hold_conversation(echo_server, f"chat-{number}", *["What is new?"] * (number + 1))
    names = [f"chat-{number}" for number in (4, 3, 2, 1, 0)]
    assert [each.id for each in await client.kernel.sessions()] == names
    assert [each.id for each in await client.kernel.sessions(2)] == names[:2]
    newest = (await client.kernel.sessions(1))[0]
    assert (newest.state, newest.turns, newest.first_prompt) == ("closed", 5, "What is new?")

    operator, pages, after = echo_server.server.operator, list[str](), ""
    while not pages or after:
        page = (await echo_server.ask("GET", f"/v1/sessions?limit=2&after={after}", operator)).json()
        pages += [each["id"] for each in page["sessions"]]
        after = page["more"]
    assert pages == names

    for name in ("chat-1", (await client.kernel.sessions())[3].root):
        view = await client.kernel.session(name)
        assert view.session.id == "chat-1"
        assert [each["type"] for each in view.messages] == ["human", "ai"] * 2
    async with Session(ScriptedModel(["Hello."]), runtime=echo_server.server.runtime, session_id="now") as open:
        await open.ask("Who is there?")
        assert (await client.kernel.session("now")).session.state == "open"


async def test_85_the_last_messages_of_a_conversation_can_be_shown(
    echo_server: EchoServer, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """85: the operator sees the last n messages in a folder, over HTTP, and on the command line."""
    await hold_conversation(echo_server, "chat-1", "One.", "Two.", "Three.")
    every = ["One.", "Sure.", "Two.", "Sure.", "Three.", "Sure."]

    for last in (1, 2, 5, 6, 9, None):
        view = await client.kernel.session("chat-1", last=last)
        contents = [each["content"] for each in view.messages]
        assert contents == (every if last is None else every[-last:]), last
        assert view.session.turns == 3
    for wrong in ("0", "-1", "x", "1.5"):
        response = await echo_server.ask("GET", f"/v1/sessions/chat-1?last={wrong}", echo_server.server.operator)
        assert response.status_code == 422, wrong
        assert response.json()["field"] == "last"
    _, team = await echo_server.team()
    assert (await echo_server.ask("GET", "/v1/sessions/chat-1?last=1", team)).status_code == 404
    for source_options in (["--server", echo_server.server.listen_address], ["--dir", str(echo_server.server.dir)]):
        assert await asyncio.to_thread(main, ["sessions", "show", "chat-1", "--last", "2", *source_options]) == 0
        assert capsys.readouterr().out == "user:\nThree.\nagent:\nSure.\n"
    assert main(["sessions", "show", "chat-1", "--last", "0", *source_options]) == 2
    assert "--last: '0' is not accepted; expected a whole number from 1" in capsys.readouterr().err


async def test_a_conversation_is_removed_unless_it_is_needed(echo_server: EchoServer, client: Client) -> None:
    """An open or a kept conversation stays. After a removal, its id is free."""
    runtime = echo_server.server.runtime
    async with Session(ScriptedModel(["Hello."]), runtime=runtime, session_id="a/b") as open:
        await open.ask("Who is there?")
        with pytest.raises(InUse, match="open"):
            await client.kernel.remove_session("a/b")
        root = open.id
    await client.kernel.keep(root)
    with pytest.raises(Denied, match="ramet keep --off"):
        await client.kernel.remove_session("a/b")
    await client.kernel.keep(root, False)
    assert await client.kernel.remove_session("a/b") == root
    with pytest.raises(Unknown, match="a/b"):
        await client.kernel.remove_session("a/b")
    assert await client.kernel.sessions() == []
    assert not [each for each in await client.kernel.runs(ended=True) if each.root == root]
    await hold_conversation(echo_server, "a/b", "Again.")
    assert (await client.kernel.session("a/b")).session.root != root


async def test_only_the_operator_sees_conversations(echo_server: EchoServer, client: Client) -> None:
    """Any other key gets 404, whether the conversation exists or not."""
    await hold_conversation(echo_server, "chat-1", "Hello.")
    _, nonce = await echo_server.agent()
    _, team = await echo_server.team()
    for key in (nonce, team):
        for method, path in (
            ("GET", "/v1/sessions"),
            ("GET", "/v1/sessions/chat-1"),
            ("DELETE", "/v1/sessions/chat-1"),
        ):
            response = await echo_server.ask(method, path, key)
            assert (response.status_code, response.json()["type"]) == (404, "urn:ramet:problem:not-yours"), path
    with pytest.raises(NotYours):
        async with ramet.connect(echo_server.server.listen_address, team) as other:
            await other.kernel.sessions()
    missing = await echo_server.ask("GET", "/v1/sessions/nothing", echo_server.server.operator)
    assert (missing.status_code, missing.json()["known"]) == (404, ["chat-1"])
    for limit in ("0", "1001", "x"):
        assert (
            await echo_server.ask("GET", f"/v1/sessions?limit={limit}", echo_server.server.operator)
        ).status_code == 422
    unknown = await echo_server.ask("GET", "/v1/sessions?after=nothing", echo_server.server.operator)
    assert unknown.status_code == 404


async def seven() -> int:
    """A function agent, whose tree is no conversation."""
    return 7


async def test_a_tree_that_is_no_conversation_is_neither_shown_nor_removed(
    echo_server: EchoServer, client: Client
) -> None:
    """The id of its root is unknown to these operations, and the tree stays."""
    handle = await echo_server.server.runtime.spawn(seven)
    await handle.result()
    for ask in (client.kernel.session, client.kernel.remove_session):
        with pytest.raises(Unknown, match=handle.id):
            await ask(handle.id)
    assert handle.id in [each.root for each in await client.kernel.runs(ended=True)]


async def test_the_sessions_command_works_with_a_server(
    echo_server: EchoServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ramet sessions list`, `show` and `rm` with `--server` give the same output as with a folder."""
    await hold_conversation(echo_server, "chat-1", "What is new?")
    await hold_conversation(echo_server, "chat-2", "Hello")
    source_options = ["--server", echo_server.server.listen_address]

    async def run(*words: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, ["sessions", *words, *source_options])
        return status, *capsys.readouterr()

    status, listing, _ = await run("list", "--json")
    assert (status, [json.loads(each)["id"] for each in listing.splitlines()]) == (0, ["chat-2", "chat-1"])
    assert "some older" in (await run("list", "--limit", "1"))[2]
    assert (await run("show", "chat-1"))[1] == "user:\nWhat is new?\nagent:\nSure.\n"
    assert await run("rm", "chat-1") == (0, "", "removed chat-1\n")
    status, _, err = await run("show", "chat-1")
    assert (status, err) == (2, "ramet: unknown session 'chat-1'; known: chat-2\n")


async def test_the_sync_client_lists_shows_and_removes_conversations(echo_server: EchoServer) -> None:
    """The blocking client has the same methods."""
    await hold_conversation(echo_server, "chat-1", "What is new?")

    def ask() -> list[str]:
        with ramet.connect(echo_server.server.listen_address) as client:
            ids = [each.id for each in client.kernel.sessions()]
            assert client.kernel.session("chat-1").messages
            client.kernel.remove_session("chat-1")
            return ids + [each.id for each in client.kernel.sessions()]

    assert await asyncio.to_thread(ask) == ["chat-1"]


async def test_the_conversation_of_an_agent_cannot_be_removed(folder: pathlib.Path) -> None:
    """A team's agent has a listed conversation.

    Its removal is refused, also after a restart that cannot open the agent.
    """
    async with serving(folder, types={"llm": LlmType({"plain": Plain()}, default="plain")}) as echo_server:
        agent, nonce = await echo_server.agent(agent_type="llm")
        body = {"messages": [{"role": "user", "content": "Hello"}]}
        assert (await echo_server.ask("POST", f"/v1/agents/{agent}/turns", nonce, json=body)).is_success
        root = (await echo_server.ask("GET", f"/v1/agents/{agent}", nonce)).json()["run"]
        for path in ("/v1/sessions", f"/v1/sessions/{root}"):
            assert root in (await echo_server.ask("GET", path, echo_server.server.operator)).text
        response = await echo_server.ask("DELETE", f"/v1/sessions/{root}", echo_server.server.operator)
        assert (response.status_code, response.json()["type"]) == (409, "urn:ramet:problem:in-use")
