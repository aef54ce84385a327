"""The recorder of events: numbers them, appends them to the journal, keeps them, and publishes them to readers.

Events go directly from a run to the recorder, at any depth: no parent passes them on. With a journal, an event is
published only after it is durable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import force_setattr

from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue
from ramet.core.events import (
    ClockStepped,
    Event,
    LimitPaused,
    LimitsRaised,
    MessageRecorded,
    Notice,
    RunEnded,
    RunSpawned,
    TextDelta,
    encode,
    with_data,
)
from ramet.disk.state_folder import open_folder, write_gitignore
from ramet.host.journal.journal import DurableCallback, Journal, TreeJournal
from ramet.host.journal.recent_events import KeptEvents

if TYPE_CHECKING:
    from langchain_core.messages import AIMessageChunk

    from ramet.tools.run_info import RunInfo

_log = logging.getLogger("ramet.recorder")
#: Events that a reader may lag behind before it loses the oldest and gets a notice.
MAX_LAG = 100_000
#: Seconds between two clocks of a machine from which one of them was set; a smaller difference is drift or slewing.
STEP_S = 0.5
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MUST_BE_ON_DISK = (MessageRecorded, RunSpawned, RunEnded)
#: Events of any run that concern whoever waits for a turn.
_PAUSES = (LimitPaused, LimitsRaised)
_MAX_PENDING = 64  #: events of one transcript that are not written yet


class Subscription:
    """A reader of the events of a tree or of one run: kept events, then live events, until it is closed."""

    def __init__(self, recorder: Recorder, *, run: str | None, deltas: bool, chunks: bool, past: bool) -> None:
        self._recorder, self._run = recorder, run
        self.deltas = deltas
        self.chunks_of = run if chunks else None
        #: Positions of the past: it is read on demand, since it may be larger than the memory.
        self._at, self._live = (
            (recorder.recent_events.start if past else recorder.recent_events.end),
            recorder.recent_events.end,
        )
        self._waiting_items: deque[Event | AIMessageChunk] = deque()
        self._wakeup = asyncio.Event()
        self._is_closed, self._takes_items = False, True
        self._lost_count = 0

    def offer(self, event: Event) -> None:
        """Take an event, if this reader asked for it."""
        if self._run is None or event.run == self._run or (self.chunks_of and isinstance(event, _PAUSES)):
            self.put(event)

    def put(self, item: Event | AIMessageChunk) -> None:
        """Take any item; drop the oldest item if the reader is too far behind."""
        if not self._takes_items:
            return
        if len(self._waiting_items) >= MAX_LAG:
            self._waiting_items.popleft()
            self._lost_count += 1
        self._waiting_items.append(item)
        self._wakeup.set()

    def close(self) -> None:
        """End the reader once it has read the waiting items."""
        self._is_closed = True
        self._wakeup.set()

    async def wait_until_closed(self) -> None:
        """Wait until this reader is closed, without taking items."""
        self._takes_items = False
        self._waiting_items.clear()
        try:
            while not self._is_closed:
                self._wakeup.clear()
                await self._wakeup.wait()
        finally:
            self._recorder.remove_reader(self)

    async def items(self) -> AsyncGenerator[Event | AIMessageChunk]:
        """Yield the requested items, in order, until this reader is closed."""
        try:
            while (event := self._next_of_past()) is not None:
                if self._run is None or event.run == self._run:
                    yield event
            while True:
                while self._waiting_items:
                    if self._lost_count:
                        lost_count, self._lost_count = self._lost_count, 0
                        yield self._recorder.notice(f"{lost_count} events were lost: this reader was too slow")
                    yield self._waiting_items.popleft()
                if self._is_closed:
                    return
                self._wakeup.clear()
                await self._wakeup.wait()
        finally:
            self._recorder.remove_reader(self)

    def _next_of_past(self) -> Event | None:
        events = self._recorder.recent_events
        self._at = max(self._at, events.start)
        if self._at >= self._live:
            return None
        self._at += 1
        return events.at(self._at - 1)


class Recorder:
    """The recorder of the events of one tree."""

    def __init__(
        self,
        clock: Clock,
        transcripts: pathlib.Path | None = None,
        journal: Journal | None = None,
        *,
        about: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._clock = clock
        self._page: TreeJournal | None = TreeJournal(journal, self._publish, about) if journal is not None else None
        self.transcripts = transcripts  #: folder with one `.jsonl` per run, by path; None keeps nothing on disk
        self.recent_events = KeptEvents(journal.folder if journal is not None else None)
        self._count = 0
        self._offset: float | None = None  #: of the time of day to the monotonic clock, at the last step
        self._readers: list[Subscription] = []
        self._is_closed = False
        self._files = _Transcripts(transcripts) if transcripts is not None else None

    def transcript_of(self, run: RunInfo) -> str:
        """Return the file that holds a run's transcript; empty if none is kept."""
        return str(self.transcripts / f"{run.path}.jsonl") if self.transcripts is not None else ""

    @property
    def durable(self) -> Callable[[], Awaitable[None]] | None:
        """A function that waits until all appended events are durable; None without a journal."""
        return self._page.durable if self._page is not None else None

    @property
    def confirm_ownership(self) -> Callable[[], Awaitable[None]] | None:
        """A function that returns if the tree is still this kernel's; None without a journal."""
        return self._page.confirm_ownership if self._page is not None else None

    @property
    def newest(self) -> int:
        """The number of the newest event."""
        return self._count

    @property
    def waiting(self) -> int:
        """The number of events that are not durable yet."""
        return self._page.waiting if self._page is not None else 0

    def append(self, event: Event) -> Event:
        """Number an event, record it, and publish it as soon as it is durable."""
        now = self._clock.now()
        offset = now.timestamp() - self._clock.monotonic()
        if self._offset is None:
            self._offset = offset
        elif abs(stepped := offset - self._offset) > STEP_S:
            # Before the event, so that no times of different clocks are compared.
            self._offset = offset
            stamp = {name: getattr(event, name) for name in Event.__struct_fields__}
            self._put(ClockStepped(**stamp, by_s=stepped), now)
        return self._put(event, now)

    def _put(self, event: Event, now: datetime) -> Event:
        self._count += 1
        force_setattr(event, "seq", self._count)
        force_setattr(event, "at", now)
        line = None
        try:
            line = encode(event)
        except InvalidValue:  # It cannot be encoded: it was never recorded.
            if self._page is not None or self._files is not None:
                self._count -= 1
                raise
        if self._page is None or line is None:
            self._publish(event, line)
        else:
            self._page.append(event, line)
        return event

    def when_durable(self, do: DurableCallback, hurry: bool = True) -> None:
        """Call a function once all appended events are durable, or with the error if they cannot be.

        Without `hurry` the call comes with the next awaited write: for a caller that knows that another write is
        awaited.
        """
        if self._page is None:
            do(None)
        else:
            self._page.when_durable(do, hurry)

    def continue_numbering(self, seq: int) -> None:
        """Continue the numbering after `seq`: for a tree that another process began."""
        self._count = seq
        if self._page is not None:
            self._page.is_known = True

    def _publish(self, event: Event, line: bytes | None) -> None:
        self.recent_events.append(event, line)
        if self._files is not None and line is not None:
            self._files.write(event, line)
        if self._readers:
            if isinstance(event, RunEnded):
                event = with_data(event)
            for reader in self._readers:
                reader.offer(event)

    def feed(self, run: RunInfo, chunk: AIMessageChunk, step: str) -> None:
        """Pass a chunk of a reply to the readers of provisional text: as an event, or unchanged to the session."""
        for reader in self._readers:
            if reader.chunks_of == run.id:
                reader.put(chunk)
            elif reader.deltas and chunk.text:
                reader.offer(TextDelta(**run.stamp, step_id=step, text=chunk.text))

    def subscribe(
        self, *, run: str | None = None, deltas: bool = False, chunks: bool = False, past: bool = True
    ) -> Subscription:
        """Follow a run, or the whole tree: from the first event kept (unless `past` is False), then live.

        `deltas` adds text as it streams, as events; `chunks` adds the model's own chunks of the run, and the pauses and
        raises of limits in the whole tree.
        """
        reader = Subscription(self, run=run, deltas=deltas, chunks=chunks, past=past)
        if self._is_closed:
            reader.close()
        self._readers.append(reader)
        if self._is_closed:
            reader.close()  # No more events will come: the reader gets the kept events, then the end.
        return reader

    async def follow(self, run: RunInfo) -> AsyncGenerator[Event]:
        """Yield a run's events: the kept ones, then live, until the tree closes."""
        async with aclosing(self.subscribe(run=run.id).items()) as items:
            async for item in items:
                if isinstance(item, Event):
                    yield item

    def remove_reader(self, reader: Subscription) -> None:
        """Forget a reader that has ended."""
        if reader in self._readers:
            self._readers.remove(reader)

    def notice(self, text: str) -> Event:
        """Return an event about the recording itself, for one reader."""
        first = self.recent_events.first
        return Notice(
            root=first.root if first else "", run=first.root if first else "", path="main", agent="ramet", text=text
        )

    def close(self) -> None:
        """End all readers, and write all pending transcripts; a later reader gets the kept events."""
        self._is_closed = True
        if self._page is not None:
            self._page.close()
        for reader in list(self._readers):
            reader.close()
        if self._files is not None:
            self._files.close()


class _Transcripts:
    """The transcripts of a tree: one file of JSON lines per run, in folders by path.

    Only whole lines are written, before publishing.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._pending: dict[str, list[bytes]] = {}
        self._broken = self._is_made = False

    def write(self, event: Event, line: bytes) -> None:
        lines = self._pending.setdefault(event.path, [])
        lines += (line, b"\n")
        # A message, a spawn and an end are on disk before they are published; smaller events are written with the next.
        if isinstance(event, _MUST_BE_ON_DISK) or len(lines) >= 2 * _MAX_PENDING:
            self._flush(event.path)

    def close(self) -> None:
        for path in list(self._pending):
            self._flush(path)

    def _flush(self, path: str) -> None:
        lines = self._pending.pop(path, None)
        if not lines or self._broken:
            return
        file = self._folder / f"{path}.jsonl"
        try:
            with open_folder(file.parent, make=True) as folder:
                if not self._is_made:
                    write_gitignore(self._folder.parent)
                    self._is_made = True
                descriptor = os.open(file.name, _APPEND, 0o600, dir_fd=folder)  # It holds private text of agents.
            try:
                _write_all(descriptor, lines)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._broken = True
            _log.error("transcripts can no longer be written to %s: %s", self._folder, error)


def _write_all(fd: int, parts: list[bytes]) -> None:
    """Write all parts, normally with one call and without a copy. Raises OSError."""
    remaining = sum(map(len, parts)) - os.writev(fd, parts)
    if remaining:
        rest = memoryview(b"".join(parts))[-remaining:]
        while rest:
            rest = rest[os.write(fd, rest) :]
