"""The recorder: every event is numbered, kept, written and handed on, in that order and once."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from contextlib import aclosing
from pathlib import Path

import pytest
from langchain_core.messages import AIMessageChunk

from ramet.concurrency.clock import FakeClock
from ramet.core.events import Event, MessageRecorded, Notice, RunSpawned, StateChanged, TextDelta, decode
from ramet.host.journal import recent_events
from ramet.host.journal import recorder as module
from ramet.host.journal.recent_events import KeptEvents
from ramet.host.journal.recorder import Recorder, Subscription
from tests.support.context import run_info

ROOT, CHILD = run_info(), run_info(1, path="main/child", depth=1)


def state(number: int, run: object = ROOT) -> StateChanged:
    return StateChanged(**run.stamp, state=f"s-{number}")  # type: ignore[attr-defined]  # a RunInfo


async def read(reader: Subscription) -> list[Event | AIMessageChunk]:
    return [item async for item in reader.items()]


def test_events_are_numbered_and_timed() -> None:
    """From 1, without gaps, with the clock's own time."""
    clock = FakeClock()
    recorder = Recorder(clock)

    events = [recorder.append(state(number)) for number in range(3)]

    assert [event.seq for event in events] == [1, 2, 3]
    assert {event.at for event in events} == {clock.now()}
    assert list(recorder.recent_events) == events


async def test_a_reader_gets_what_was_kept_and_what_comes() -> None:
    """Each event once, in order, then the end when the recorder closes."""
    recorder = Recorder(FakeClock())
    before = [recorder.append(state(number)) for number in range(3)]
    reader = recorder.subscribe()
    after = [recorder.append(state(number)) for number in range(3, 6)]
    recorder.close()

    assert await read(reader) == before + after


async def test_a_reader_may_ask_for_one_run_or_for_what_comes_only() -> None:
    """`run` leaves the others out, `past=False` what was before."""
    recorder = Recorder(FakeClock())
    recorder.append(state(0, CHILD))
    one, new = recorder.subscribe(run=CHILD.id), recorder.subscribe(past=False)
    recorder.append(state(1, ROOT))
    recorder.append(state(2, CHILD))
    recorder.close()

    assert [event.state for event in await read(one) if isinstance(event, StateChanged)] == ["s-0", "s-2"]
    assert [event.state for event in await read(new) if isinstance(event, StateChanged)] == ["s-1", "s-2"]


async def test_text_goes_to_those_who_ask() -> None:
    """Deltas as events with a path, for all or one run; chunks as they are, for one run; to nobody else."""
    recorder = Recorder(FakeClock())
    quiet, loud = recorder.subscribe(), recorder.subscribe(deltas=True)
    own, raw = recorder.subscribe(run=CHILD.id, deltas=True), recorder.subscribe(run=ROOT.id, chunks=True)
    recorder.feed(ROOT, AIMessageChunk(content="root's"), "step-1")
    recorder.feed(CHILD, AIMessageChunk(content="child's"), "step-2")
    recorder.feed(CHILD, AIMessageChunk(content=""), "step-2")
    recorder.close()

    assert await read(quiet) == []
    assert [(e.path, e.text, e.seq) for e in await read(loud) if isinstance(e, TextDelta)] == [
        ("main", "root's", 0),
        ("main/child", "child's", 0),
    ]
    assert [e.text for e in await read(own) if isinstance(e, TextDelta)] == ["child's"]
    assert [item.text for item in await read(raw) if isinstance(item, AIMessageChunk)] == ["root's"]


async def test_a_slow_reader_loses_the_oldest_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lag is bounded; how many were lost is said in their place; nobody else is concerned."""
    monkeypatch.setattr(module, "MAX_LAG", 10)
    recorder = Recorder(FakeClock())
    slow = recorder.subscribe()
    for number in range(25):
        recorder.append(state(number))
    recorder.close()

    notice, *rest = await read(slow)

    assert isinstance(notice, Notice)
    assert notice.text.startswith("15 events were lost")
    assert [event.state for event in rest if isinstance(event, StateChanged)] == [f"s-{n}" for n in range(15, 25)]
    assert len(recorder.recent_events) == 25


async def test_a_reader_that_leaves_is_forgotten() -> None:
    """Leaving the iteration ends the subscription; nothing is kept for it any more."""
    recorder = Recorder(FakeClock())
    recorder.append(state(0))
    reader = recorder.subscribe()
    async with aclosing(reader.items()) as items:
        await anext(items)

    recorder.append(state(1))

    assert recorder._readers == []


async def test_a_reader_waits_for_news() -> None:
    """It holds nobody up, and wakes for each event."""
    recorder = Recorder(FakeClock())
    reader = recorder.subscribe()
    reading = asyncio.create_task(read(reader))
    for number in range(3):
        await asyncio.sleep(0)
        recorder.append(state(number))
    recorder.close()

    assert len(await reading) == 3


async def test_after_the_end_there_is_the_record() -> None:
    """Who comes after the close gets what was kept, and is not kept waiting."""
    recorder = Recorder(FakeClock())
    event = recorder.append(state(0))
    recorder.close()

    assert await read(recorder.subscribe()) == [event]
    assert recorder._readers == []


def test_transcripts_follow_the_paths(tmp_path: Path) -> None:
    """One file per run, in folders like its path; whole lines that decode to the events."""
    recorder = Recorder(FakeClock(), tmp_path / "t")

    events = [recorder.append(RunSpawned(**run.stamp, name="x")) for run in (ROOT, CHILD)]
    events += [recorder.append(state(number, run)) for number, run in enumerate((ROOT, CHILD, ROOT))]
    recorder.close()

    for run in (ROOT, CHILD):
        lines = (tmp_path / "t" / f"{run.path}.jsonl").read_bytes().splitlines()
        assert [decode(line) for line in lines] == [event for event in events if event.run == run.id]
        assert recorder.transcript_of(run) == str(tmp_path / "t" / f"{run.path}.jsonl")
    assert Recorder(FakeClock()).transcript_of(ROOT) == ""


def test_what_must_not_get_lost_is_written_at_once(tmp_path: Path) -> None:
    """A birth, a message, an end are on disk when `append` returns, with all that came before; the rest rides along."""
    recorder = Recorder(FakeClock(), tmp_path)
    file = tmp_path / "main.jsonl"
    recorder.append(state(0))
    assert not file.exists()

    recorder.append(MessageRecorded(**ROOT.stamp, message={"type": "human", "content": "x"}))

    assert len(file.read_bytes().splitlines()) == 2
    for number in range(64):
        recorder.append(state(number))
    assert len(file.read_bytes().splitlines()) == 66
    recorder.close()


def test_a_disk_that_fails_does_not_stop_the_agents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Transcripts that can no longer be written are said once, in the log; events go on."""
    (tmp_path / "t").write_text("in the way")
    recorder = Recorder(FakeClock(), tmp_path / "t")

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            recorder.append(RunSpawned(**ROOT.stamp, name="x"))

    assert len(recorder.recent_events) == 3
    assert len(caplog.records) == 1
    recorder.close()


def test_the_record_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that talks without end does not fill the memory: the oldest events go."""
    monkeypatch.setattr(recent_events, "KEPT_EVENTS", 10)
    recorder = Recorder(FakeClock())

    events = [recorder.append(state(number)) for number in range(25)]

    assert list(recorder.recent_events) == events[15:]


async def test_old_events_are_read_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What does not fit into memory is read as it was, by whoever comes late; the file has no name."""
    monkeypatch.setattr(recent_events, "MAX_MEMORY", 10_000)
    recorder = Recorder(FakeClock())
    recorder.recent_events = KeptEvents(tmp_path)

    events = [recorder.append(Notice(**ROOT.stamp, text=str(number) * 1_000)) for number in range(100)]
    events.append(recorder.append(state(100)))
    late, one = recorder.subscribe(), recorder.subscribe(run=CHILD.id)
    recorder.close()

    assert await read(late) == events
    assert await read(one) == []
    assert recorder.recent_events._bytes <= 10_000
    assert recorder.recent_events._files
    assert not os.listdir(tmp_path)  # noqa: PTH208 - of a folder that holds nothing


def test_the_files_of_old_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest file goes with its events; the newest events are there, in their order."""
    for name, value in (("MAX_MEMORY", 5_000), ("MAX_FILE", 5_000), ("MAX_FILES", 2)):
        monkeypatch.setattr(recent_events, name, value)
    recorder = Recorder(FakeClock())

    events = [recorder.append(Notice(**ROOT.stamp, text="x" * 1_000)) for _ in range(100)]
    kept = list(recorder.recent_events)

    assert len(recorder.recent_events._files) == 2
    assert 10 <= len(kept) <= 20
    assert kept == events[-len(kept) :]


def test_without_a_file_the_oldest_events_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory stays bounded where nothing can be written, and the log says so."""
    monkeypatch.setattr(recent_events, "MAX_MEMORY", 5_000)
    monkeypatch.setattr(tempfile, "TemporaryFile", no_file)
    recorder = Recorder(FakeClock())

    events = [recorder.append(Notice(**ROOT.stamp, text="x" * 1_000)) for _ in range(20)]
    kept = list(recorder.recent_events)

    assert kept == events[-len(kept) :]
    assert 1 <= len(kept) <= 5
    assert "the oldest events are dropped" in caplog.text


def no_file(**_: object) -> None:
    raise OSError("no space left")
