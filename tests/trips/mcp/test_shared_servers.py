"""MCP servers that agents of one tree share: one process for equal entries; each agent hears of its own calls."""

from __future__ import annotations

import asyncio
import pathlib
import uuid
from typing import Any

import pytest

import ramet
from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.events import ApprovalAsked, Notice, ToolProgressed
from ramet.core.mcp.server_entry import as_server
from ramet.host.sandbox import sandboxes
from ramet.models.scripted.dialogue import Call
from ramet.spawn.sandbox.mcp_servers import tree_servers as tree_servers_module
from ramet.spawn.sandbox.mcp_servers.tree_servers import TreeServers
from ramet.spawn.tree import RunTree
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, marked_processes, usual_backend
from tests.trips.kits.mcp import POLICY, PROGRAMS, agent, server
from tests.trips.kits.mcp_addresses import address_server
from tests.trips.kits.sessions import of_kind, session_events

backend = usual_backend
ROOT = pathlib.Path(__file__).parents[3]
RIGHTS: dict[str, Any] = {"readonly_mounts": [str(PROGRAMS)], "memory_mb": 64, "cpu_cores": 1}


def shared(*arguments: str, policy: dict[str, Any] = RIGHTS, **fields: Any) -> dict[str, Any]:
    return server("shares", *arguments, name="board", policy=policy, shared="tree", **fields)


def work(value: str) -> Call:
    return Call("mcp__board__work", {"value": value})


def answers(session: ramet.Session, name: str) -> list[str]:
    """Return what the model of a child read, without the id of the server's process."""
    history = session.handle(name).run.context.history
    return [
        each.text.partition(" ")[2] if each.text[0] == "0" else each.text for each in history if each.type == "tool"
    ]


def processes(session: ramet.Session, name: str) -> list[str]:
    """Return the processes that answered a child, in order."""
    texts = [each.text for each in session.handle(name).run.context.history if each.type == "tool"]
    return list(dict.fromkeys(each.partition(" ")[0] for each in texts if each[0] == "0"))


async def ask(session: ramet.Session, prompt: str) -> None:
    async with asyncio.timeout(90):  # A question that reaches the wrong agent would not be answered.
        await session.ask(prompt)


async def wait_held(session: ramet.Session, name: str) -> None:
    """Wait until the server holds a call of this name: until then it is at work for nobody."""

    def is_held() -> bool:
        return any(each.text == f"holds {name}" for each in of_kind(session_events(session), ToolProgressed))

    await eventually(is_held)


def tree_servers(session: ramet.Session) -> TreeServers:
    tree = session.handle().run.context.tree
    assert isinstance(tree, RunTree)
    return tree.supervisor.tree_servers


async def test_agents_of_a_tree_use_one_server(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """The server outlives its users, and ends with the tree.

    Questions and reports reach the agent that called, and no other.

    A crash costs the open calls, and what the server wrote then is shown to no agent; the next call starts it anew.
    """
    mark = uuid.uuid4().hex

    def spawn(name: str, prompt: str, *, waits: bool = True) -> Call:
        return Call("Agent", {"subagent_type": name, "prompt": prompt, "run_in_background": not waits})

    script: dict[str, Any] = {
        "First!": [spawn("user", "Ask.", waits=False), "Begun."],
        "Ask.": [work("ask Who are you?"), work("hold x"), work("hold y"), work("show"), work("hold z"), "Never."],
        "Second!": [spawn("user", "Meet."), spawn("other", "Differ."), "Done."],
        "Meet.": [work("report halfway"), work("ask Who is there?"), work("show"), work("free x"), "I am done."],
        "Differ.": [work("show"), "I am done."],
        "Third!": [spawn("weak", "Nothing."), spawn("user", "Break."), "Done."],
        "Break.": [work("die of private-words"), work("show"), "I am done."],
    }
    user = agent(shared(f"# {mark}", "${UNIT:-metres}"), policy=POLICY)
    other = agent(shared(f"# {mark}", "other"), policy=POLICY).replace(name="other")
    weak = user.replace(name="weak", policy=ramet.Policy(memory_mb=512))
    model = ramet.ScriptedModel(script=script)
    async with ramet.Session(model, agents=[user, other, weak], cwd=tmp_path, backend=backend) as session:
        await ask(session, "First!")
        await eventually(lambda: len(session.approvals.pending) == 1)
        session.approvals.answer(session.approvals.pending[0].id, True, '{"value": "Ada"}')
        await wait_held(session, "x")  # Else the next question would have one agent that it can be for.
        await ask(session, "Second!")

        assert answers(session, "main/2") == ["done", "refused", f"# {mark} metres", "done"]
        assert answers(session, "main/3") == [f"# {mark} other"]
        assert len(marked_processes(mark)) == 2, "one for each entry, and they outlive their users"

        await wait_held(session, "y")
        await ask(session, "Third!")
        await wait_held(session, "z")
        failed = "the MCP server 'board' failed: it ended; a notice of the first agent of the tree says how"
        assert answers(session, "main/1") == ['{"value": "Ada"}', "freed", failed, f"# {mark} metres"]
        assert answers(session, "main/4") == [failed, f"# {mark} metres"]
        first, second = processes(session, "main/1")
        assert processes(session, "main/2") == [first]
        assert processes(session, "main/4") == [second]
        [refusal] = [each.text for each in session.handle().run.context.history if "mcp.board" in each.text]
        assert "mcp.board.policy.readonly_mounts" in refusal, "a server with more rights than its agent"

        servers: list[Any] = [each._attempt for each in tree_servers(session)._servers.values()]
        await session.handle().pause()
        await eventually(lambda: [each.freeze.is_frozen for each in servers] == [False, True])
        await session.handle("main/1").cancel()
        await eventually(lambda: [each.freeze.is_frozen for each in servers] == [True, True])
        await session.handle().resume()
        await eventually(lambda: [each.freeze.is_frozen for each in servers] == [False, False])
        await session.handle().pause()
        assert len(marked_processes(mark)) == 2
        events = session_events(session)
    assert marked_processes(mark) == []
    notices = [(each.path, each.text) for each in of_kind(events, Notice)]
    assert [path for path, text in notices if "private-words" in text] == ["main"]
    assert [each.path for each in of_kind(events, ApprovalAsked)] == ["main/1"]
    reports = [(each.path, each.text) for each in of_kind(events, ToolProgressed)]
    assert reports == [("main/1", "holds x"), ("main/2", "halfway"), ("main/1", "holds y"), ("main/1", "holds z")]


async def test_a_shared_server_ends_with_its_tree(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """No process of it is left when the root has its result, or is stopped during a call, while the kernel goes on."""
    mark = uuid.uuid4().hex
    async with ramet.AgentRuntime(tmp_path, backend=backend) as runtime:
        user = agent(shared(f"# {mark}", policy={**RIGHTS, "cpu_cores": 0.5}), policy=POLICY)
        model = ramet.ScriptedModel(script={"Play.": [work("show"), "I am done."], "Hold.": [work("hold x"), "Never."]})
        result = await runtime.run_agent(user.replace(model=model), prompt="Play.")
        assert (result.output, marked_processes(mark)) == ("I am done.", [])

        handle = await runtime.spawn(user.replace(model=model), "Hold.")
        await eventually(lambda: len(marked_processes(mark)) == 1)
        await handle.cancel()
        assert marked_processes(mark) == []


async def test_a_tree_has_a_bounded_number_of_shared_servers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent works without the one too many, and a notice says why."""
    monkeypatch.setattr(tree_servers_module, "MAX_SERVERS", 1)
    user = agent(shared("one"), {**shared("two"), "name": "second"}, policy=POLICY)
    script: dict[str, Any] = {
        "Begin!": [Call("Agent", {"subagent_type": "user", "prompt": "Play."}), "Done."],
        "Play.": [work("show"), "I am done."],
    }
    model = ramet.ScriptedModel(script=script)
    async with ramet.Session(model, agents=[user], cwd=tmp_path, backend="local", unattended=True) as session:
        await ask(session, "Begin!")
        assert answers(session, "main/1") == ["one"]
        [refusal] = [each.text for each in of_kind(session_events(session), Notice) if each.path != "main"]
    assert "a tree has at most 1 shared servers" in refusal


async def test_agents_share_a_connection_to_an_address(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """There is one session for both; the agent that connects first does not own it, and it ends with the tree."""
    script: dict[str, Any] = {
        "Begin!": [[Call("Agent", {"subagent_type": "user", "prompt": "Play."})] * 2, "Done."],
        "Play.": [Call("mcp__work__work", {}), "I am done."],
    }
    async with address_server("plain_address", tmp_path) as old:
        user = agent(old.entry("work", shared="tree"), policy=old.policy())
        model = ramet.ScriptedModel(script=script)
        async with ramet.Session(model, agents=[user], cwd=tmp_path, backend=backend) as session:
            await ask(session, "Begin!")
            assert answers(session, "main/1") == answers(session, "main/2") == ["work is done"]
            assert [each[0] for each in old.record()].count("DELETE") == 0
        began = [each[0] for each in old.record()]
    assert (began.count("initialize"), began.count("DELETE")) == (1, 1)


async def test_a_server_that_stops_its_guest_costs_no_agent_more_than_its_time(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """The sandbox of a server that has failed is ended for the next agent, whatever its program does to the guest."""
    script: dict[str, Any] = {
        "Begin!": [*[Call("Agent", {"subagent_type": "user", "prompt": "Play."})] * 2, "Done."],
        "Play.": ["I am done."],
    }
    mark = uuid.uuid4().hex
    user = agent(
        server("stopping", f"# {mark}", name="board", policy=RIGHTS, shared="tree", timeout_s=2), policy=POLICY
    )
    async with ramet.Session(
        ramet.ScriptedModel(script=script), agents=[user], cwd=tmp_path, backend=backend, unattended=True
    ) as session:
        async with asyncio.timeout(180):
            await session.ask("Begin!")
        notices = [each.text for each in of_kind(session_events(session), Notice) if each.path != "main"]
        assert len(marked_processes(mark)) == 1, "of the second one"
    assert marked_processes(mark) == []
    failure = "the MCP server 'board' failed: it did not list its tools within 2 s"
    assert notices == [failure, failure]


async def test_a_shared_connection_reaches_no_address_of_the_host_that_is_not_listed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public address of this machine is not covered by "*", which covers other public addresses."""
    monkeypatch.setattr(sandboxes, "is_own_endpoint", lambda endpoint: endpoint == "9.9.9.9:443")
    user = agent(
        {"name": "own", "url": "https://9.9.9.9/mcp", "shared": "tree"},
        policy=ramet.Policy(allowed_endpoints=["*"]),
        model=ramet.ScriptedModel(["Never."]),
    )
    async with ramet.AgentRuntime(tmp_path, backend="local") as runtime:
        with pytest.raises(SpawnRefused, match=r"9\.9\.9\.9:443: no address of the host itself"):
            await runtime.run_agent(user, prompt="Play.")


def test_an_entry_says_how_its_server_is_shared() -> None:
    """A shared program needs all its rights in its policy, and the entry is recorded with it."""
    entry = shared("x")
    assert as_server(as_server(entry).as_record()) == as_server(entry)
    for wrong, field in (({"shared": "session"}, "shared"), ({"shared": "tree", "policy": None}, "policy")):
        with pytest.raises(InvalidValue, match=rf"mcp\.board\.{field}"):
            as_server({**entry, **wrong})
