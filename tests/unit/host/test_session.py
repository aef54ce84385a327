"""Sessions: their parts, what they show, and their ends."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool

import ramet
from ramet.agent.definition import Agent
from ramet.core.errors import BusyError, InvalidValue, MailRefused, RametError, Unknown
from ramet.core.events import Event, RunSpawned, TurnEnded
from ramet.core.limits import SpawnLimits
from ramet.core.media.attachment import Attachment
from ramet.core.outcome import Status
from ramet.host.registry import AGENT_REGISTRY
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.model import Call, Hang, ScriptedModel
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    Gate,
    background_call,
    of_kind,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
)


@tool
def note(text: str) -> str:
    """Keep a note."""
    return f"kept {text}"


# --- what it is made of


def test_the_public_names_are_imported_from_ramet() -> None:
    """An unknown name raises AttributeError."""
    assert ramet.Session is Session
    assert ramet.AgentRuntime is AgentRuntime
    assert ramet.AGENT_REGISTRY is AGENT_REGISTRY
    assert {"Agent", "Limits", "Result", "ScriptedModel", "SpawnLimits", "SpawnRequest"} <= set(ramet.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        ramet.nonsense  # noqa: B018 - looking is the act


async def test_the_agent_sees_its_tools_and_the_tools_for_agents() -> None:
    """`spawn=False` leaves out the tools for agents; a depth of 0 leaves out the Agent tool."""
    models = [ScriptedModel(["ok"]) for _ in range(3)]
    for model, options in zip(models, [{}, {"spawn": False}, {"spawn_limits": SpawnLimits(depth=0)}], strict=True):
        async with Session(model, [note], **options) as session:  # type: ignore[arg-type]  # options of several types
            await session.ask("Go.")

    offered_tools = [set(model.requests[0].tools) for model in models]
    assert offered_tools[0] == {"note", "Agent", "SendMessage", "TaskOutput", "TaskStop", "ListAgents"}
    assert offered_tools[1] == {"note"}
    assert "Agent" not in offered_tools[2]


async def test_any_definition_may_be_the_main_agent() -> None:
    """The definition is given by name, as an object or as a dict, with its instructions, tools and model."""
    model = ScriptedModel(["ok"] * 3)
    scout = Agent(name="scout", description="Looks.", instructions="You are a scout.", model=model, tools=["note"])
    for agent in ("scout", scout, {"name": "scout", "system_prompt": "You are a scout.", "tools": ["note"]}):
        async with Session(model, [note], agents=[scout], agent=agent) as session:
            await session.ask("Go.")
            assert session.runs()[0].agent == "scout"

    assert [typed_texts(request.messages) for request in model.requests] == [
        [("system", "You are a scout."), ("human", "Go.")]
    ] * 3
    assert {request.tools for request in model.requests} == {("note",)}


async def test_a_system_prompt_comes_first_in_every_request() -> None:
    """Equal words let a provider cache them; a definition's instructions come before."""
    model = ScriptedModel([Call("note", {"text": "x"}), "ok", "ok"])
    scout = Agent(name="scout", instructions="You are a scout.")
    async with Session(model, [note], agent=scout, system_prompt="Be brief.") as session:
        await session.ask("Go.")
        await session.ask("Again.")

    assert {str(request.messages[0].text) for request in model.requests} == {"You are a scout.\n\nBe brief."}


async def test_a_session_id_is_on_every_spawn() -> None:
    """The id scopes state and memory; children have their root's."""
    model = ScriptedModel({"toil": ["done"], "": [specialist_call("toil"), "ok"]})
    async with Session(model, session_id="s-17") as session:
        await session.ask("Go.")

        assert [event.session for event in of_kind(session_events(session), RunSpawned)] == ["s-17", "s-17"]
        assert {run_of(session, path).info.session for path in ("main", "main/1")} == {"s-17"}


async def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is in memory: no transcripts, not durable, and no file."""
    monkeypatch.chdir(tmp_path)
    async with Session(ScriptedModel(["ok"])) as session:
        await session.ask("Go.")

    assert (session.transcripts, session.durable) == (None, False)
    assert files_in(tmp_path) == []


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_with_a_folder_transcripts_are_kept_there(tmp_path: Path) -> None:
    """Each session has a folder of its own in `.ramet/transcripts`."""
    folders = []
    for _ in range(2):
        async with Session(ScriptedModel(["ok"]), cwd=tmp_path) as session:
            await session.ask("Go.")
            folders.append(session.transcripts)

    for folder in folders:
        assert folder is not None
        assert folder.parent == tmp_path / ".ramet" / "transcripts"
        assert (folder / "main.jsonl").is_file()
    assert folders[0] != folders[1]


# --- talking


async def test_submitting_is_an_async_iteration() -> None:
    """`async for event in session.submit_message(…)` yields chunks and events up to the turn's end."""
    async with Session(ScriptedModel(["one two"])) as session:
        stream = session.submit_message("Go.")
        assert inspect.isasyncgen(stream)

        items = [item async for item in stream]

    assert "".join(item.text for item in items if isinstance(item, AIMessageChunk)) == "one two"
    events = [item for item in items if isinstance(item, Event)]
    assert any(isinstance(event, TurnEnded) for event in events)
    assert session.result is not None
    assert session.result.value == "one two"


async def test_a_model_that_does_not_stream_is_read_the_same_way() -> None:
    """The whole text comes as one chunk, so that a program that prints chunks prints the answer."""
    async with Session(ScriptedModel(["one two"], streaming=False)) as session:
        texts = [item.text async for item in session.submit_message("Go.") if isinstance(item, AIMessageChunk)]

    assert "".join(texts) == "one two"


async def test_session_messages_is_a_copy() -> None:
    """Changing the list changes no history."""
    async with Session(ScriptedModel(["ok", "ok"])) as session:
        await session.ask("Go.")

        session.messages.clear()

        assert len(session.messages) == 2


async def test_usage_covers_the_whole_tree() -> None:
    """Each turn and each child counts."""
    model = ScriptedModel({"toil": ["done"], "": [specialist_call("toil"), "ok", "ok"]})
    async with Session(model) as session:
        await session.ask("Go.")
        await session.ask("Again.")

        assert (session.usage.model_calls, session.usage.agents, session.usage.tool_calls) == (4, 1, 1)


async def test_turns_follow_each_other_with_memory() -> None:
    """Each turn has its result, and the numbers continue."""
    async with Session(ScriptedModel([f"answer {number}" for number in range(20)])) as session:
        values = [(await session.ask(f"question {number}")).value for number in range(20)]

        assert values == [f"answer {number}" for number in range(20)]
        assert len(session.messages) == 40
        assert [event.turn for event in of_kind(session_events(session), TurnEnded)] == list(range(1, 21))


async def test_a_prompt_that_nobody_iterates_does_nothing() -> None:
    """The turn begins with the iteration."""
    model = ScriptedModel(["ok"])
    async with Session(model) as session:
        stream = session.submit_message("Go.")
        await asyncio.sleep(0)

        assert model.requests == []
        await stream.aclose()


# --- looking


async def test_a_refused_prompt_is_not_the_reader_of_the_turn_at_work() -> None:
    """Mail began a turn: a prompt that cannot join it is refused, and the next caller waits for that turn."""
    gate = Gate()
    async with Session(ScriptedModel([Call("gate"), "Hello."]), [gate.tool]) as session:
        session.send("Hello?")
        await gate.entered.wait()
        with pytest.raises(MailRefused, match="300000 bytes"):
            await session.ask("x" * 300_000)
        with pytest.raises(BusyError, match="a turn of its own"):
            await session.ask("Look.", attachments=[Attachment(b"text", "n.txt")])
        gate.open.set()
        answer = await session.wait_for_turn()

    assert answer is not None
    assert answer.value == "Hello."


async def test_runs_are_listed_by_path_with_their_facts() -> None:
    """The list has path, agent, state, depth, living children and usage of the subtree."""
    gate = Gate()
    model = ScriptedModel(
        {"toil": [Call("gate"), "done"], "": [background_call("toil", "w", description="digs"), "ok", "ok"]}
    )
    async with Session(model, [gate.tool]) as session:
        await session.ask("Go.")
        await gate.entered.wait()

        root, worker = session.runs()

        assert (root.path, root.agent, root.state, root.depth, root.children) == ("main", "main", "idle", 0, 1)
        assert (worker.path, worker.state, worker.description, worker.depth) == ("main/w", "running", "digs", 1)
        assert (root.usage.agents, worker.usage.model_calls) == (1, 1)
        gate.open.set()
        await session.handle("w").result()
        await eventually(lambda: session.runs()[0].state == "idle")


async def test_an_unknown_run_is_not_found() -> None:
    """Unknown lists the names that exist."""
    async with Session(ScriptedModel(["ok"])) as session:
        with pytest.raises(Unknown, match="known: main"):
            session.handle("nobody")


# --- ends


async def test_closing_is_idempotent_and_final() -> None:
    """A closed session accepts neither a prompt nor a spawn; a second close has no effect."""
    session = Session(ScriptedModel(["ok"]))
    await session.close()
    await session.close()

    with pytest.raises(RametError):
        await session.ask("Go.")
    with pytest.raises(RametError):
        await session.spawn(SpawnRequest(prompt="x"))


async def test_sessions_of_one_runtime_are_separate() -> None:
    """Each has its own tree, names, budget and record; the runtime lists and ends both."""
    async with AgentRuntime() as runtime:
        model = ScriptedModel({"toil": ["done"], "": [specialist_call("toil", "worker"), "ok"]})
        first, second = (Session(model, runtime=runtime) for _ in range(2))
        await asyncio.gather(first.ask("Go."), second.ask("Go."))

        assert first.handle("worker").id != second.handle("worker").id
        assert {event.root for event in session_events(first)} == {first.id}
        assert set(runtime.get_status()["sessions"]) == {first.id, second.id}
        await first.close()
        assert set(runtime.get_status()["sessions"]) == {second.id}
        assert (await second.ask("Again.")).status is Status.FAILED  # Its script has ended, the session has not.

    assert runtime.get_status() == {"state": "stopped", "sessions": {}}


async def test_stopping_a_runtime_ends_all_trees() -> None:
    """Each tree has ended when `stop` returns; starting and stopping twice has no effect."""
    runtime = AgentRuntime(grace_s=1)
    await runtime.start()
    await runtime.start()
    session = Session(ScriptedModel([Hang(2, "hm")]), runtime=runtime)
    turn = asyncio.create_task(session.ask("Go."))
    handle = await runtime.spawn(asyncio.Event().wait)
    await eventually(lambda: run_of(session, "main").activity.streamed_text)

    await runtime.stop()
    await runtime.stop()

    assert (await turn).status is Status.CANCELLED
    assert (await handle.result()).status is Status.CANCELLED


async def test_a_tree_of_code_closes_when_its_last_run_has_ended() -> None:
    """A detached child may outlive the root: the tree stays until the child ends."""
    gate = asyncio.Event()

    async def loner() -> str:
        await gate.wait()
        return "alone"

    async def root() -> str:
        context = current()
        assert context.tree is not None
        return (await context.tree.spawn(context, SpawnRequest(agent=loner, detached=True))).id

    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(root)
        child = runtime.get((await handle.result()).value)
        assert set(runtime.get_status()["sessions"]) == {handle.id}
        gate.set()

        assert (await child.result()).value == "alone"

        await eventually(lambda: not runtime.get_status()["sessions"])
        assert (await runtime.get(handle.id).result()).value == child.id  # It can still be asked for.


async def test_the_registry_shows_live_runs_of_this_process() -> None:
    """Runs of every runtime are listed by id; a closed session is not."""
    async with Session(ScriptedModel(["ok"])) as session:
        assert AGENT_REGISTRY[session.id].path == "main"
        assert session.id in list(AGENT_REGISTRY)
    assert session.id not in AGENT_REGISTRY


async def test_the_main_agent_may_be_a_function() -> None:
    """A session without a model or a function is refused."""

    async def greet(text: str) -> str:
        return f"you said {text}"

    async with Session(agent=Agent(name="greeter", function=greet)) as session:
        result = await session.ask("hello")
    with pytest.raises(InvalidValue, match="llm"):
        Session(agent=Agent(name="nobody"))

    assert result.status is Status.COMPLETED
    assert result.value == "you said hello"
