"""AC-S1-5: each run's messages are in a transcript of its own, in order, and in events that name their run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool

from ramet.core.events import (
    Event,
    MessageRecorded,
    ModelAsked,
    RunEnded,
    RunSpawned,
    TextDelta,
    ToolEnded,
    ToolStarted,
    decode,
)
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.core.replay.replay import TreeReplay
from ramet.host.session import Session
from ramet.models.messages import decode as decode_message
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, ScriptedModel
from tests.trips.kits.sessions import (
    Gate,
    background_call,
    encoded_messages,
    follow_events,
    fork_call,
    of_kind,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
)

SCRIPT: Script = {
    "dig deep": ["deep find"],
    "dig here": [Call("note", {"text": "n"}), specialist_call("dig deep", "deep"), "middle find"],
    "copy": ["copied"],
    "": [[specialist_call("dig here", "digger"), fork_call("copy", "twin")], "all found"],
}


@tool
def note(text: str) -> str:
    """Keep a note."""
    return f"kept {text}"


def lines(folder: Path, path: str) -> list[Event]:
    return [decode(line) for line in (folder / f"{path}.jsonl").read_bytes().splitlines()]


async def test_each_run_has_one_transcript(tmp_path: Path) -> None:
    """Each run has a file of JSON lines by its path, with exactly that run's events in order."""
    async with Session(ScriptedModel(SCRIPT), [note], cwd=tmp_path) as session:
        await session.ask("Go.")
        events, folder = session_events(session), session.transcripts
    events = events + [event for event in session_events(session) if event not in events]  # what closing added

    assert folder is not None
    files = {str(file.relative_to(folder)): file for file in folder.rglob("*.jsonl")}
    paths = {event.path for event in events}
    assert paths == {"main", "main/digger", "main/digger/deep", "main/twin"}
    assert set(files) == {f"{path}.jsonl" for path in paths}
    for path in paths:
        assert lines(folder, path) == [event for event in events if event.path == path]
    assert {file.stat().st_mode & 0o777 for file in files.values()} == {0o600}  # They hold what agents read.


async def test_a_transcript_holds_the_conversation_as_it_was(tmp_path: Path) -> None:
    """The messages of a transcript equal the run's history byte for byte; answers are in the order of their calls."""
    async with Session(ScriptedModel(SCRIPT), [note], cwd=tmp_path) as session:
        await session.ask("Go.")
        histories = {
            path: run_of(session, path).context.history for path in ("main", "main/digger", "main/digger/deep")
        }
        folder = session.transcripts

    assert folder is not None
    for path, history in histories.items():
        [replayed_run] = TreeReplay().apply_all(lines(folder, path)).runs.values()
        assert encoded_messages([decode_message(each) for each in replayed_run.messages]) == encoded_messages(history)
        assert len(history) > 1


async def test_a_message_is_on_disk_before_a_reader_sees_it(tmp_path: Path) -> None:
    """AC-S1-5: a transcript survives a crash after message k: the file has each message that a reader has seen."""
    async with Session(ScriptedModel(SCRIPT), [note], cwd=tmp_path) as session:
        assert session.transcripts is not None
        checked = 0
        async for event in session.submit_message("Go."):
            if isinstance(event, MessageRecorded):
                on_disk = of_kind(lines(session.transcripts, "main"), MessageRecorded)

                assert event in on_disk

                checked += 1

    assert checked == 5


async def test_every_event_names_its_run() -> None:
    """AC-S1-5: events carry root, parent, agent, depth, path and the call of the parent that spawned the run."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        await session.ask("Go.")
        events = session_events(session)
        runs = {path: run_of(session, path) for path in {event.path for event in events}}

    calls = {event.call_id for event in of_kind(events, ToolStarted)}
    for event in events:
        info = runs[event.path].info
        assert (event.root, event.run, event.parent) == (session.id, info.id, info.parent)
        assert (event.agent, event.depth) == (info.agent, info.depth)
        assert event.depth == event.path.count("/")
        assert (event.parent_call in calls) is (event.depth > 0)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_tool_events_name_their_call() -> None:
    """Each call has an event at its start and one at its answer, with the id of its message."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        await session.ask("Go.")
        events = session_events(session)

    tool_starts = {event.call_id: event for event in of_kind(events, ToolStarted)}
    tool_ends = {event.call_id: event for event in of_kind(events, ToolEnded)}
    answers = {event.call_id: event for event in of_kind(events, MessageRecorded) if event.message["type"] == "tool"}
    assert tool_starts.keys() == tool_ends.keys() == answers.keys()
    for call_id, begin in tool_starts.items():
        assert begin.seq < tool_ends[call_id].seq < answers[call_id].seq
        assert (begin.tool, begin.path) == (tool_ends[call_id].tool, tool_ends[call_id].path)


async def test_intent_is_recorded_before_the_effect() -> None:
    """The session records a request and a tool call before it makes them."""
    types: list[str] = []

    @tool
    def look() -> str:
        """Look at the record."""
        types.extend(type(event).__name__ for event in session_events(session)[-1:])
        return "looked"

    def asked(_: object) -> Call:
        types.extend(type(event).__name__ for event in session_events(session)[-1:])
        return Call("look")

    async with Session(ScriptedModel([asked, "ok"]), [look]) as session:
        await session.ask("Go.")

    assert types == [ModelAsked.__name__, ToolStarted.__name__]


async def test_a_session_yields_only_the_roots_events_and_chunks() -> None:
    """`submit_message` never yields text or events of a child."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        items = [item async for item in session.submit_message("Go.")]

    chunks = [item for item in items if isinstance(item, AIMessageChunk)]
    events = [item for item in items if not isinstance(item, AIMessageChunk)]
    assert "".join(chunk.text for chunk in chunks) == "all found"
    assert {event.path for event in events} == {"main"}


async def test_a_tree_reader_gets_every_event_without_text() -> None:
    """`events(tree=True)` yields every event of every run, and no streaming text."""
    async with (
        Session(ScriptedModel(SCRIPT), [note]) as session,
        follow_events(session, tree=True) as followed_events,
    ):
        await session.ask("Go.")

    assert followed_events == session_events(session)
    assert {event.path for event in followed_events} == {"main", "main/digger", "main/digger/deep", "main/twin"}
    assert not of_kind(followed_events, TextDelta)


async def test_deltas_stream_the_text_of_every_agent() -> None:
    """`deltas` adds the streaming text of each agent, with its path and without a number."""
    async with (
        Session(ScriptedModel(SCRIPT), [note]) as session,
        follow_events(session, tree=True, deltas=True) as followed_events,
    ):
        await session.ask("Go.")

    deltas = of_kind(followed_events, TextDelta)
    texts = {path: "".join(each.text for each in deltas if each.path == path) for path in {d.path for d in deltas}}
    assert texts == {
        "main": "all found",
        "main/digger": "middle find",
        "main/digger/deep": "deep find",
        "main/twin": "copied",
    }
    assert {each.seq for each in deltas} == {0}


async def test_a_reader_can_follow_the_root_alone() -> None:
    """`events(tree=False)` yields the root's own events."""
    async with (
        Session(ScriptedModel(SCRIPT), [note]) as session,
        follow_events(session, tree=False) as followed_events,
    ):
        await session.ask("Go.")

    assert followed_events == [event for event in session_events(session) if event.path == "main"]


async def test_a_late_reader_gets_every_event() -> None:
    """A reader that subscribes after the turn gets the turn from its first event."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        await session.ask("Go.")
        async with follow_events(session) as followed_events:
            pass

    assert followed_events == session_events(session)
    assert isinstance(followed_events[0], RunSpawned)


async def test_a_reader_of_a_closed_session_gets_every_event_and_ends() -> None:
    """A closed session records nothing more, so the reader does not wait."""
    async with Session(ScriptedModel(["ok"])) as session:
        await session.ask("Go.")

    events = [event async for event in session.events()]

    assert events == session_events(session)


async def test_events_of_a_deep_run_bypass_its_ancestors() -> None:
    """A reader gets a run's events exactly once while each run above only waits, at any depth."""
    gate = Gate()
    model = ScriptedModel(lambda messages: "found" if messages[-1].type == "tool" else step(str(messages[-1].text)))

    def step(brief: str) -> Call:
        remaining = int(brief) if brief.isdigit() else 8
        return specialist_call(str(remaining - 1), f"level-{remaining}") if remaining else Call("gate")

    async with (
        Session(model, [gate.tool], spawn_limits=SpawnLimits(depth=10)) as session,
        follow_events(session) as followed_events,
    ):
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()

        deep = [event for event in session_events(session) if event.depth == 8]

        gate.open.set()
        await turn

    assert deep
    assert of_kind(deep, ToolStarted)
    assert [event for event in followed_events if event.depth == 8][: len(deep)] == deep
    assert len({event.seq for event in followed_events}) == len(followed_events)


async def test_every_end_is_recorded_with_its_result() -> None:
    """RunEnded holds the result that the run's handle returns."""
    async with Session(ScriptedModel({"find": ["found"], "": [background_call("find", "bg"), "ok", "ok"]})) as session:
        await session.ask("Go.")
        result = await session.handle("bg").result()
        (end,) = of_kind(session_events(session), RunEnded, "main/bg")

    assert end.result == result
    assert (result.status, result.value) == (Status.COMPLETED, "found")
    assert typed_texts(run_of(session, "bg").context.history)[-1] == ("ai", "found")
