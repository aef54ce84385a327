"""The recorder: every event is numbered, kept, written and published once, in that order."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from langchain_core.messages import AIMessageChunk
from msgspec.structs import replace

from ramet.concurrency.clock import FakeClock
from ramet.core.events import (
    ClampEvent,
    Event,
    MessageRecorded,
    Notice,
    RunEnded,
    RunSpawned,
    StateChanged,
    TextDelta,
    decode,
    encode,
)
from ramet.core.outcome import Result, Status
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
    """Numbers begin at 1 without gaps, and times come from the clock."""
    clock = FakeClock()
    recorder = Recorder(clock)

    events = [recorder.append(state(number)) for number in range(3)]

    assert [event.seq for event in events] == [1, 2, 3]
    assert {event.at for event in events} == {clock.now()}
    assert list(recorder.recent_events) == events


async def test_waiting_for_the_end_of_a_reader_takes_no_items() -> None:
    """Waiting for the end of a reader ends with it or with the recorder, and holds none of its items meanwhile."""
    recorder = Recorder(FakeClock())
    readers = [recorder.subscribe(run=ROOT.id, chunks=True) for _ in range(2)]
    waits = [asyncio.ensure_future(reader.wait_until_closed()) for reader in readers]
    await asyncio.sleep(0)
    recorder.append(state(1))
    recorder.feed(ROOT, AIMessageChunk(content="text"), "step")
    await asyncio.sleep(0)

    held = [len(reader._waiting_items) for reader in readers]
    are_done = [wait.done() for wait in waits]
    readers[0].close()
    await asyncio.wait_for(waits[0], 180)
    are_done.append(waits[1].done())
    recorder.close()
    await asyncio.wait_for(waits[1], 180)

    assert held == [0, 0]
    assert are_done == [False, False, False]


async def test_a_reader_gets_past_and_new_events() -> None:
    """Each event comes once and in order, until the recorder closes."""
    recorder = Recorder(FakeClock())
    before = [recorder.append(state(number)) for number in range(3)]
    reader = recorder.subscribe()
    after = [recorder.append(state(number)) for number in range(3, 6)]
    recorder.close()

    assert await read(reader) == before + after


async def test_a_reader_may_ask_for_one_run_or_new_events_only() -> None:
    """`run` leaves out other runs, and `past=False` leaves out past events."""
    recorder = Recorder(FakeClock())
    recorder.append(state(0, CHILD))
    one, new = recorder.subscribe(run=CHILD.id), recorder.subscribe(past=False)
    recorder.append(state(1, ROOT))
    recorder.append(state(2, CHILD))
    recorder.close()

    assert [event.state for event in await read(one) if isinstance(event, StateChanged)] == ["s-0", "s-2"]
    assert [event.state for event in await read(new) if isinstance(event, StateChanged)] == ["s-1", "s-2"]


async def test_text_goes_only_to_readers_that_ask_for_it() -> None:
    """Deltas are events with a path, for one run or all; chunks are for one run."""
    recorder = Recorder(FakeClock())
    quiet, loud = recorder.subscribe(), recorder.subscribe(deltas=True)
    own_events, raw = recorder.subscribe(run=CHILD.id, deltas=True), recorder.subscribe(run=ROOT.id, chunks=True)
    recorder.feed(ROOT, AIMessageChunk(content="root's"), "step-1")
    recorder.feed(CHILD, AIMessageChunk(content="child's"), "step-2")
    recorder.feed(CHILD, AIMessageChunk(content=""), "step-2")
    recorder.close()

    assert await read(quiet) == []
    assert [(e.path, e.text, e.seq) for e in await read(loud) if isinstance(e, TextDelta)] == [
        ("main", "root's", 0),
        ("main/child", "child's", 0),
    ]
    assert [e.text for e in await read(own_events) if isinstance(e, TextDelta)] == ["child's"]
    assert [item.text for item in await read(raw) if isinstance(item, AIMessageChunk)] == ["root's"]


async def test_a_slow_reader_loses_the_oldest_events_and_gets_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notice has their number; other readers are not affected."""
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
    """Leaving the iteration ends the subscription, and nothing is buffered for the reader."""
    recorder = Recorder(FakeClock())
    recorder.append(state(0))
    reader = recorder.subscribe()
    async with aclosing(reader.items()) as items:
        await anext(items)

    recorder.append(state(1))

    assert recorder._readers == []


async def test_a_waiting_reader_wakes_for_each_event() -> None:
    """The reader does not hold up the recorder."""
    recorder = Recorder(FakeClock())
    reader = recorder.subscribe()
    reading = asyncio.create_task(read(reader))
    for number in range(3):
        await asyncio.sleep(0)
        recorder.append(state(number))
    recorder.close()

    assert len(await reading) == 3


async def test_a_reader_after_the_close_gets_the_kept_events() -> None:
    """The reader does not wait."""
    recorder = Recorder(FakeClock())
    event = recorder.append(state(0))
    recorder.close()

    assert await read(recorder.subscribe()) == [event]
    assert recorder._readers == []


async def test_a_value_of_json_text_reaches_readers_as_data(tmp_path: Path) -> None:
    """Early and late readers get the data of a result, and its line has the data."""
    result = Result(status=Status.COMPLETED, value=msgspec.Raw(b'{"found":[1,null]}'))
    recorder = Recorder(FakeClock(), tmp_path)
    early = recorder.subscribe()
    appended = recorder.append(RunEnded(**ROOT.stamp, result=result))
    late = recorder.subscribe()
    recorder.close()

    expected = replace(appended, result=replace(result, value={"found": [1, None]}))
    assert await read(early) == [expected]
    assert await read(late) == [expected]
    assert decode((tmp_path / "main.jsonl").read_bytes()) == expected


def test_late_readers_get_whole_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 40 is not 40.0 for a reader that comes late, as long as its event is in memory."""
    kept = KeptEvents()
    clamp = ClampEvent(**ROOT.stamp, field="limits.tool_calls", asked=5_000, given=40)
    kept.append(clamp, encode(clamp))

    assert repr(kept[0]) == repr(clamp)
    monkeypatch.setattr(recent_events, "MAX_MEMORY", 0)
    kept.append(clamp, encode(clamp))
    assert [*kept] == [clamp, clamp]


def test_transcripts_follow_the_paths(tmp_path: Path) -> None:
    """Each run has a file in folders like its path, with whole lines that decode to its events."""
    recorder = Recorder(FakeClock(), tmp_path / "t")

    events = [recorder.append(RunSpawned(**run.stamp, name="x")) for run in (ROOT, CHILD)]
    events += [recorder.append(state(number, run)) for number, run in enumerate((ROOT, CHILD, ROOT))]
    recorder.close()

    for run in (ROOT, CHILD):
        lines = (tmp_path / "t" / f"{run.path}.jsonl").read_bytes().splitlines()
        assert [decode(line) for line in lines] == [event for event in events if event.run == run.id]
        assert recorder.transcript_of(run) == str(tmp_path / "t" / f"{run.path}.jsonl")
    assert Recorder(FakeClock()).transcript_of(ROOT) == ""


def test_important_events_are_written_at_once(tmp_path: Path) -> None:
    """Spawns, messages and ends are on disk when `append` returns, with all events before them; others are buffered."""
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
    """A failure of transcripts is logged once, and events continue."""
    (tmp_path / "t").write_text("in the way")
    recorder = Recorder(FakeClock(), tmp_path / "t")

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            recorder.append(RunSpawned(**ROOT.stamp, name="x"))

    assert len(recorder.recent_events) == 3
    assert len(caplog.records) == 1
    recorder.close()


def test_the_events_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest events are dropped."""
    monkeypatch.setattr(recent_events, "KEPT_EVENTS", 10)
    recorder = Recorder(FakeClock())

    events = [recorder.append(state(number)) for number in range(25)]

    assert list(recorder.recent_events) == events[15:]


async def test_old_events_are_read_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Events that do not fit into memory go to an unnamed file, and late readers get them unchanged."""
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
    """The oldest file is dropped with its events; the newest events stay in order."""
    for name, value in (("MAX_MEMORY", 5_000), ("MAX_FILE", 5_000), ("MAX_FILES", 2)):
        monkeypatch.setattr(recent_events, name, value)
    recorder = Recorder(FakeClock())

    events = [recorder.append(Notice(**ROOT.stamp, text="x" * 1_000)) for _ in range(100)]
    recent = list(recorder.recent_events)

    assert len(recorder.recent_events._files) == 2
    assert 10 <= len(recent) <= 20
    assert recent == events[-len(recent) :]


def test_without_a_file_the_oldest_events_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory stays bounded if no file can be written, and the log says so."""
    monkeypatch.setattr(recent_events, "MAX_MEMORY", 5_000)
    monkeypatch.setattr(tempfile, "TemporaryFile", no_file)
    recorder = Recorder(FakeClock())

    events = [recorder.append(Notice(**ROOT.stamp, text="x" * 1_000)) for _ in range(20)]
    recent = list(recorder.recent_events)

    assert recent == events[-len(recent) :]
    assert 1 <= len(recent) <= 5
    assert "the oldest events are dropped" in caplog.text


def no_file(**_: object) -> None:
    raise OSError("no space left")
