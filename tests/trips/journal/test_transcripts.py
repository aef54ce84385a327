"""AC-S1-5: each run's messages are in a transcript of its own, in order, and upstream as events that say whose."""

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
from tests.trips.kits.sessions import Gate, background, following, fork, fresh, kept, of_kind, plain, run_of, said

SCRIPT: Script = {
    "dig deep": ["deep find"],
    "dig here": [Call("note", {"text": "n"}), fresh("dig deep", "deep"), "middle find"],
    "copy": ["copied"],
    "": [[fresh("dig here", "digger"), fork("copy", "twin")], "all found"],
}


@tool
def note(text: str) -> str:
    """Keep a note."""
    return f"kept {text}"


def lines(folder: Path, path: str) -> list[Event]:
    return [decode(line) for line in (folder / f"{path}.jsonl").read_bytes().splitlines()]


async def test_there_is_one_transcript_per_run(tmp_path: Path) -> None:
    """One file of JSON lines for each run, by its path, and in it that run's events only, all of them, in order."""
    async with Session(ScriptedModel(SCRIPT), [note], cwd=tmp_path) as session:
        await session.ask("Go.")
        events, folder = kept(session), session.transcripts
    events = events + [event for event in kept(session) if event not in events]  # what closing added

    assert folder is not None
    files = {str(file.relative_to(folder)): file for file in folder.rglob("*.jsonl")}
    paths = {event.path for event in events}
    assert paths == {"main", "main/digger", "main/digger/deep", "main/twin"}
    assert set(files) == {f"{path}.jsonl" for path in paths}
    for path in paths:
        assert lines(folder, path) == [event for event in events if event.path == path]
    assert {file.stat().st_mode & 0o777 for file in files.values()} == {0o600}  # They hold what agents read.


async def test_a_transcript_holds_the_conversation_as_it_was(tmp_path: Path) -> None:
    """The messages of a transcript are the run's history, equal to the byte; answers in the order of their calls."""
    async with Session(ScriptedModel(SCRIPT), [note], cwd=tmp_path) as session:
        await session.ask("Go.")
        histories = {
            path: run_of(session, path).context.history for path in ("main", "main/digger", "main/digger/deep")
        }
        folder = session.transcripts

    assert folder is not None
    for path, history in histories.items():
        [story] = TreeReplay().apply_all(lines(folder, path)).runs.values()
        assert plain([decode_message(each) for each in story.messages]) == plain(history)
        assert len(history) > 1


async def test_what_was_recorded_is_on_disk_before_anybody_sees_it(tmp_path: Path) -> None:
    """AC-S1-5: a transcript survives a crash after message k: when a message is seen, all up to it is in the file."""
    async with Session(ScriptedModel(SCRIPT), [note], cwd=tmp_path) as session:
        assert session.transcripts is not None
        checked = 0
        async for event in session.submit_message("Go."):
            if isinstance(event, MessageRecorded):
                on_disk = of_kind(lines(session.transcripts, "main"), MessageRecorded)

                assert event in on_disk

                checked += 1

    assert checked == 5


async def test_every_event_says_whose_it_is() -> None:
    """AC-S1-5: events carry root, parent, agent, depth, path and the call of the parent that gave birth."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        await session.ask("Go.")
        events = kept(session)
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
    """Each call is on record when it begins and when it is answered, with the id that its message has."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        await session.ask("Go.")
        events = kept(session)

    started = {event.call_id: event for event in of_kind(events, ToolStarted)}
    ended = {event.call_id: event for event in of_kind(events, ToolEnded)}
    answered = {event.call_id: event for event in of_kind(events, MessageRecorded) if event.message["type"] == "tool"}
    assert started.keys() == ended.keys() == answered.keys()
    for call_id, begin in started.items():
        assert begin.seq < ended[call_id].seq < answered[call_id].seq
        assert (begin.tool, begin.path) == (ended[call_id].tool, ended[call_id].path)


async def test_intent_is_on_record_before_the_effect() -> None:
    """Append, then act, then append: a request and a tool call are recorded before they are made."""
    seen: list[str] = []

    @tool
    def look() -> str:
        """Look at the record."""
        seen.extend(type(event).__name__ for event in kept(session)[-1:])
        return "looked"

    def asked(_: object) -> Call:
        seen.extend(type(event).__name__ for event in kept(session)[-1:])
        return Call("look")

    async with Session(ScriptedModel([asked, "ok"]), [look]) as session:
        await session.ask("Go.")

    assert seen == [ModelAsked.__name__, ToolStarted.__name__]


async def test_the_session_yields_the_root_s_own_events_and_chunks_only() -> None:
    """What `submit_message` yields is the root's: a child's text never mixes with it."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        items = [item async for item in session.submit_message("Go.")]

    chunks = [item for item in items if isinstance(item, AIMessageChunk)]
    events = [item for item in items if not isinstance(item, AIMessageChunk)]
    assert "".join(chunk.text for chunk in chunks) == "all found"
    assert {event.path for event in events} == {"main"}


async def test_the_tree_s_events_are_all_seen_and_children_are_quiet() -> None:
    """`events(tree=True)` brings every event of every run; the text that streams is not among them unless asked for."""
    async with (
        Session(ScriptedModel(SCRIPT), [note]) as session,
        following(session, tree=True) as seen,
    ):
        await session.ask("Go.")

    assert seen == kept(session)
    assert {event.path for event in seen} == {"main", "main/digger", "main/digger/deep", "main/twin"}
    assert not of_kind(seen, TextDelta)


async def test_text_of_children_streams_to_those_who_ask() -> None:
    """With `deltas`, every agent's text comes as it streams, marked with its path, provisional: it has no number."""
    async with (
        Session(ScriptedModel(SCRIPT), [note]) as session,
        following(session, tree=True, deltas=True) as seen,
    ):
        await session.ask("Go.")

    deltas = of_kind(seen, TextDelta)
    texts = {path: "".join(each.text for each in deltas if each.path == path) for path in {d.path for d in deltas}}
    assert texts == {
        "main": "all found",
        "main/digger": "middle find",
        "main/digger/deep": "deep find",
        "main/twin": "copied",
    }
    assert {each.seq for each in deltas} == {0}


async def test_one_run_can_be_followed() -> None:
    """`events(tree=False)` brings the root's own events."""
    async with (
        Session(ScriptedModel(SCRIPT), [note]) as session,
        following(session, tree=False) as seen,
    ):
        await session.ask("Go.")

    assert seen == [event for event in kept(session) if event.path == "main"]


async def test_a_late_reader_gets_all_that_was_kept() -> None:
    """Who subscribes after the turn reads it from its first event."""
    async with Session(ScriptedModel(SCRIPT), [note]) as session:
        await session.ask("Go.")
        async with following(session) as seen:
            pass

    assert seen == kept(session)
    assert isinstance(seen[0], RunSpawned)


async def test_a_reader_of_a_closed_session_gets_what_was_kept_and_ends() -> None:
    """After the session has closed nothing can come: a reader gets the record and is not kept waiting."""
    async with Session(ScriptedModel(["ok"])) as session:
        await session.ask("Go.")

    seen = [event async for event in session.events()]

    assert seen == kept(session)


async def test_no_event_passes_through_the_runs_above() -> None:
    """A run's events reach a reader while all runs above it only wait, at any depth, each exactly once."""
    gate = Gate()
    model = ScriptedModel(lambda messages: "found" if messages[-1].type == "tool" else step(str(messages[-1].text)))

    def step(brief: str) -> Call:
        left = int(brief) if brief.isdigit() else 8
        return fresh(str(left - 1), f"level-{left}") if left else Call("gate")

    async with (
        Session(model, [gate.tool], spawn_limits=SpawnLimits(depth=10)) as session,
        following(session) as seen,
    ):
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()

        deep = [event for event in kept(session) if event.depth == 8]

        gate.open.set()
        await turn

    assert deep
    assert of_kind(deep, ToolStarted)
    assert [event for event in seen if event.depth == 8][: len(deep)] == deep
    assert len({event.seq for event in seen}) == len(seen)


async def test_every_end_is_on_record_with_its_result() -> None:
    """RunEnded holds the result that the run's handle gives."""
    async with Session(ScriptedModel({"find": ["found"], "": [background("find", "bg"), "ok", "ok"]})) as session:
        await session.ask("Go.")
        result = await session.handle("bg").result()
        (end,) = of_kind(kept(session), RunEnded, "main/bg")

    assert end.result == result
    assert (result.status, result.value) == (Status.COMPLETED, "found")
    assert said(run_of(session, "bg").context.history)[-1] == ("ai", "found")
