"""The stream of one turn of a run for its reader: the model's chunks and the run's events, until the turn is over."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from langchain_core.messages import AIMessageChunk

from ramet.core.events import Event, MessageRecorded
from ramet.core.outcome import Result
from ramet.host.journal.recorder import Recorder
from ramet.models.messages import decode
from ramet.spawn.run import Run

#: Blocks of a chunk that repeat its text, or its `tool_call_chunks`.
_REPEATED_BLOCKS = frozenset({"text", "tool_use", "input_json_delta"})


class TurnStream:
    """A reader of one turn of a run, from construction until the turn is over.

    `result` is the result of the turn; `on_end` is called with it. `async for item in stream` yields chunks of text and
    events. Leaving that iteration ends the reading, not the turn.
    """

    def __init__(self, run: Run, recorder: Recorder, on_end: Callable[[Result], None] = lambda result: None) -> None:
        self._run, self._on_end = run, on_end
        self._reader = recorder.subscribe(run=run.info.id, chunks=True, past=False)
        self.result: Result | None = None
        run.turn.on_result = self._take_result

    def stop_reading(self) -> None:
        """Stop reading items; `result` and `on_end` follow when the turn is over. Idempotent."""
        self._reader.close()

    def close(self) -> None:
        """Stop reading; the turn continues. Idempotent."""
        self.stop_reading()
        if self._run.turn.on_result == self._take_result:
            self._run.turn.on_result = None

    def __aiter__(self) -> AsyncIterator[AIMessageChunk | Event]:
        return self.read()

    async def wait(self) -> None:
        """Wait until the turn is over, without reading its items."""
        await self._reader.wait_until_closed()

    async def read(self) -> AsyncGenerator[AIMessageChunk | Event]:
        """Yield the items of the turn, and stop reading at the end of the iteration."""
        try:
            async with aclosing(self.items()) as items:
                async for item in items:
                    yield item
        finally:
            self.close()

    async def items(self, after: int = -1) -> AsyncGenerator[AIMessageChunk | Event]:
        """Yield the items since the start of the reading, then new ones; of events only those after the number `after`.

        A reply that does not stream comes as one chunk before its event: every model is read in the same way.
        """
        streamed = False
        async with aclosing(self._reader.items()) as items:
            async for item in items:
                if isinstance(item, AIMessageChunk):
                    streamed = True
                    yield _readable(item)
                elif item.seq > after:
                    if isinstance(item, MessageRecorded):
                        if item.step_id is not None and not streamed:
                            yield whole_chunk(item)
                        streamed = False
                    yield item

    def _take_result(self, result: Result) -> None:
        self.result = result
        self.close()
        self._on_end(result)


def whole_chunk(event: MessageRecorded) -> AIMessageChunk:
    """Return a reply that did not stream as one chunk."""
    message = decode(event.message)
    return AIMessageChunk(content=message.content, id=message.id)


def _readable(chunk: AIMessageChunk) -> AIMessageChunk:
    """Return the chunk with its text as the content if it has only text: with tools, some providers stream blocks."""
    blocks = chunk.content
    if isinstance(blocks, str) or not all(_is_repeated(block) for block in blocks):
        return chunk
    return chunk.model_copy(update={"content": str(chunk.text)})


def _is_repeated(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in _REPEATED_BLOCKS and not block.get("citations")
