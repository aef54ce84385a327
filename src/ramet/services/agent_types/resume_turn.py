"""Continuing a turn that another kernel began: its recorded items, its new items, and the unsent text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from langchain_core.messages import AIMessageChunk

from ramet.core.errors import Aborted
from ramet.core.events import (
    Event,
    MessageDiscarded,
    MessageRecorded,
    RunEnded,
    SandboxStarted,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from ramet.core.outcome import NO_USAGE, Result, Usage
from ramet.host.journal.stored_events import decode_stored
from ramet.host.session import Session
from ramet.host.trees.turn_stream import TurnStream, whole_chunk
from ramet.store.contract import Store

PAGE: Final = 1_000
_EVENT_TYPES: Final = (TurnStarted, TurnEnded, MessageRecorded, MessageDiscarded, SandboxStarted, ToolStarted, RunEnded)
_TAGS: Final = frozenset(str(each.__struct_config__.tag) for each in _EVENT_TYPES)


class ReplayFilter:
    """A filter for a text that is sent again from its beginning, reply by reply.

    Only the part that was not sent passes. A model is asked again for a reply that was cut off. If the new reply begins
    like the first one, the text continues where the first one ended. If not, a note says that the reply begins again,
    and the whole new reply follows.
    """

    def __init__(self, sent_text: str, note: str) -> None:
        self._sent_text, self._note = sent_text, note
        self._position = self._reply_start = 0
        self._reply = ""

    def begin(self) -> None:
        """Begin another reply, or an item that is no reply."""
        self._reply_start, self._reply = self._position, ""

    def reset(self) -> bool:
        """Discard the text of this reply.

        Return False if a part of it has passed already: then the reader needs a note.
        """
        is_unsent = self._position < len(self._sent_text) or not self._reply
        if is_unsent:
            self._position, self._reply = self._reply_start, ""
        return is_unsent

    def feed(self, text: str) -> str:
        """Return the part of this text that comes after everything that was sent."""
        remaining = len(self._sent_text) - self._position
        if not remaining:
            self._reply = self._reply or text
            return text
        self._reply += text
        if self._sent_text.startswith(text, self._position):
            self._position += len(text)
            return ""
        expected = self._sent_text[self._position : self._position + len(text)]
        self._position = len(self._sent_text)
        return text[remaining:] if len(expected) == remaining and text.startswith(expected) else self._restart_text()

    def rest(self) -> str:
        """Return the text to send at the end, if more was sent before than came again."""
        if self._position == len(self._sent_text):
            return ""
        self._position = len(self._sent_text)
        return self._restart_text()

    def _restart_text(self) -> str:
        return f"\n\n{self._note}\n\n{self._reply.lstrip()}"


class ResumedTurn:
    """The turn of a number: first its items in the session's journal, then its new items."""

    def __init__(self, session: Session, store: Store, listening: TurnStream | None, number: int) -> None:
        self._session, self._store, self._turn_stream, self._number = session, store, listening, number
        self.result: Result | None = None  #: set once the turn has ended in this kernel
        self.status = ""  #: the status that the turn ended with
        self.usage = NO_USAGE
        self._previous_usage: Usage = NO_USAGE
        self._last_seq = 0

    async def items(self) -> AsyncGenerator[AIMessageChunk | Event]:
        """Yield items like `Session.submit_message`. Raises Aborted if the turn never ended."""
        async with aclosing(self._recorded_events()) as events:
            async for event in events:
                if isinstance(event, MessageRecorded) and event.step_id is not None:
                    yield whole_chunk(event)
                yield event
        if self.status:
            return
        if self._turn_stream is None:
            raise Aborted("the agent ended before it answered")
        async with aclosing(self._turn_stream.items(after=self._last_seq)) as items:
            async for item in items:
                if isinstance(item, Event):
                    self._note_end(item)
                yield item
        self.result = self._turn_stream.result
        if self.result is None and not self.status:
            raise Aborted("the agent ended before it answered")

    async def _recorded_events(self) -> AsyncGenerator[Event]:
        id, after, is_in_turn = self._session.id, 0, False
        while page := await self._store.read(after, tree=id, run=id, limit=PAGE):
            after, self._last_seq = page[-1].cursor, page[-1].seq
            for each in page:
                if each.type not in _TAGS:
                    continue
                event = decode_stored(self._store, each)
                if isinstance(event, TurnStarted):
                    is_in_turn = event.turn == self._number
                elif isinstance(event, TurnEnded) and event.turn < self._number:
                    self._previous_usage = event.usage
                if is_in_turn:
                    self._note_end(event)
                    yield event
                if self.status:
                    return
            await asyncio.sleep(0)

    def _note_end(self, event: Event) -> None:
        if isinstance(event, TurnEnded) and event.turn == self._number:
            self.status, self.usage = event.status, event.usage - self._previous_usage
