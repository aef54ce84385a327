"""Event streams to readers that are fast, slow, silent or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from ramet.services.http.sse import EventStream, Streams
from ramet.wire.sse import HEARTBEAT
from tests.support.waiting import eventually


class Reader:
    """The client of a stream, as an ASGI server shows it."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.is_complete = False
        self.may_take = asyncio.Event()
        if not is_slow:
            self.may_take.set()
        self._gone = asyncio.Event()

    def leave(self) -> None:
        self._gone.set()
        self.may_take.set()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.may_take.wait()
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.is_complete = not message["more_body"]


async def numbers(
    count: int, numbers_produced: list[int], end_calls: list[bool] | None = None
) -> AsyncGenerator[bytes, None]:
    try:
        for number in range(count):
            numbers_produced.append(number)
            yield b"%04d" % number
    finally:
        if end_calls is not None:
            end_calls.append(True)


async def silence(end_calls: list[bool]) -> AsyncGenerator[bytes, None]:
    try:
        yield b"first"
        await asyncio.Event().wait()
    finally:
        end_calls.append(True)


async def serve(stream: EventStream, reader: Reader) -> None:
    await stream({"type": "http"}, reader.receive, reader.send)


async def test_queued_events_are_sent_in_one_write() -> None:
    """A thousand events that are ready at once cost one write."""
    reader = Reader()

    await serve(Streams().stream(numbers(1000, [])), reader)

    assert b"".join(reader.bodies) == b"".join(b"%04d" % number for number in range(1000))
    assert [each for each in reader.bodies if each] == [b"".join(reader.bodies)]
    assert reader.is_complete


async def test_a_slow_reader_holds_up_its_source() -> None:
    """The source is read no further than the buffer for a slow reader allows."""
    reader, numbers_produced = Reader(is_slow=True), list[int]()
    serving = asyncio.create_task(serve(EventStream(numbers(1000, numbers_produced), Streams(), limit=40), reader))
    await eventually(lambda: len(numbers_produced) == 10)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(numbers_produced) == 10

    reader.may_take.set()
    await serving

    assert b"".join(reader.bodies) == b"".join(b"%04d" % number for number in range(1000))
    assert max(map(len, reader.bodies)) <= 40


async def test_a_silent_stream_sends_heartbeats() -> None:
    """The reader sees that the sender is alive while the agent is silent."""
    reader, ends = Reader(), list[bool]()
    serving = asyncio.create_task(serve(EventStream(silence(ends), Streams(), heartbeat_s=0.001), reader))

    await eventually(lambda: reader.bodies.count(HEARTBEAT) >= 3)
    reader.leave()
    await serving

    assert reader.bodies[0] == b"first"


async def test_a_reader_that_leaves_ends_its_stream() -> None:
    """Nothing more is sent, and the source is closed."""
    reader, ends, streams = Reader(), list[bool](), Streams()
    serving = asyncio.create_task(serve(streams.stream(silence(ends)), reader))
    await eventually(lambda: reader.bodies)
    assert (len(streams), ends) == (1, [])

    reader.leave()
    await serving

    assert (reader.bodies, reader.is_complete, ends, len(streams)) == ([b"first"], False, [True], 0)


async def test_a_stream_waits_until_its_source_is_closed() -> None:
    """The source has cleaned up when the server is told that the response has ended."""
    reader, may_close = Reader(), asyncio.Event()

    async def slow_to_close() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            await may_close.wait()

    serving = asyncio.create_task(serve(Streams().stream(slow_to_close()), reader))
    await eventually(lambda: b"first" in reader.bodies)

    reader.leave()
    done, _ = await asyncio.wait({serving}, timeout=0.05)
    assert not done
    may_close.set()

    await serving


async def test_a_slow_reader_that_leaves_ends_its_stream() -> None:
    """The disconnect is noticed during a write, and the source is closed."""
    reader, numbers_produced, ends = Reader(is_slow=True), list[int](), list[bool]()
    stream = EventStream(numbers(1000, numbers_produced, ends), Streams(), limit=40)
    serving = asyncio.create_task(serve(stream, reader))
    await eventually(lambda: len(numbers_produced) == 10)

    reader.leave()
    await serving

    assert (ends, len(numbers_produced)) == ([True], 10)


async def test_a_server_that_stops_ends_all_streams() -> None:
    """Each stream ends normally after its queued events; a stream that starts too late ends at once."""
    streams, ends = Streams(), list[bool]()
    readers = [Reader() for _ in range(3)]
    serving = [asyncio.create_task(serve(streams.stream(silence(ends)), reader)) for reader in readers]
    await eventually(lambda: all(reader.bodies for reader in readers))

    streams.end()
    await asyncio.gather(*serving)
    late = Reader()
    await serve(streams.stream(silence(ends)), late)

    assert all(b"".join(reader.bodies) == b"first" and reader.is_complete for reader in readers)
    assert late.is_complete
    assert len(streams) == 0


async def test_a_server_that_stops_sends_the_last_event_of_a_stream_that_ends() -> None:
    """The last event is ready when the streams are ended, and is not queued yet."""
    streams, last = Streams(), asyncio.Event()

    async def turn() -> AsyncGenerator[bytes, None]:
        yield b"first,"
        await last.wait()
        for _ in range(5):  # Steps of the event loop, in which the stream may be ended.
            await asyncio.sleep(0)
        yield b"last"

    early, late = Reader(), Reader()
    serving = asyncio.create_task(serve(streams.stream(turn(), is_endless=False), early))
    await eventually(lambda: early.bodies)

    last.set()
    streams.end()
    await serving
    await serve(streams.stream(turn(), is_endless=False), late)

    assert b"".join(early.bodies) == b"".join(late.bodies) == b"first,last"


async def test_an_error_of_the_source_is_raised() -> None:
    """An error is not sent as a normal end."""

    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise OSError("the disk")

    reader = Reader()
    with pytest.raises(OSError, match="the disk"):
        await serve(Streams().stream(broken()), reader)
    assert not reader.is_complete
