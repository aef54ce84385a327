"""A call of a function, for one turn: its text from the beginning, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal

from msgspec.structs import replace

from ramet.core.errors import NotShippable, RametError
from ramet.core.events import SandboxStarted
from ramet.core.outcome import Result, Status, value_json
from ramet.services.agent_types import conversation_log
from ramet.services.agent_types.conversation_log import AnswerText, ConversationTurn
from ramet.services.agent_types.outcome import problem_of
from ramet.services.agent_types.resume_turn import ReplayFilter
from ramet.services.problems import error_of, public_message
from ramet.spawn.handle import Handle
from ramet.spawn.lifecycle.run_results import RECORDED_CHARS

#: The place of a call's text relative to the text that its turn had in an earlier kernel: again from the beginning, or
#: after that text; or the call had ended there, and the end of its output is recorded.
Place = Literal["from the beginning", "behind", "at its end"]
BEGINS_AGAIN = "[its kernel was lost; it begins again]"
MAY_MISS = "[its kernel was lost; what it said last may be missing]"


class Pieces:
    """A queue of text pieces from any thread, for one reader."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self.size = 0  #: characters of all pieces, including pieces that are not read

    def put_output(self, stream: str, text: str) -> None:
        """Add text that a sandbox prints. The reader does not get stderr."""
        if stream == "stdout":
            self.put(text)

    def put(self, text: str) -> None:
        """Add text. May be called from any thread."""
        # Otherwise the text is too long already, and the rest is dropped.
        if self.size <= conversation_log.MAX_ANSWER_CHARS:
            self.size += len(text)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, _unicode(text))

    def close(self, _: object) -> None:
        """End the queue; pieces that were added before are read first."""
        self._loop.call_soon(self._queue.put_nowait, None)

    async def next(self) -> str | None:
        """Return the next piece; None after the last."""
        return await self._queue.get()


class RunningCall:
    """A call that was begun here, or has ended elsewhere. `keep` stores its end before its reader sees the end."""

    def __init__(self, turn: ConversationTurn, keep: Callable[[ConversationTurn], Awaitable[None]]) -> None:
        self.turn, self.pieces = turn, Pieces()
        self.place: Place = "from the beginning"
        #: whether its sandbox outlives its kernel: another kernel can then continue the call
        self.survives_kernel = False
        self.problem: RametError | None = None
        self.is_over = False
        self._keep = keep
        self._texts: list[str] = []
        self._sent_text = ""  #: the text of the turn that its reader received from another kernel
        self._value = ""  #: the returned value as text
        self._recorded_output: str | None = ""  #: if it ended elsewhere: the recorded end of its output
        self._has_news = asyncio.Event()
        self._read_task: asyncio.Task[None] | None = None
        self._handle: Handle | None = None

    @classmethod
    def of_ended_turn(cls, turn: ConversationTurn) -> RunningCall:
        """Return a call that has ended, from its stored turn."""

        async def keep(_: ConversationTurn) -> None:
            """Do nothing: the turn is stored already."""

        call = cls(turn, keep)
        call._texts, call.is_over = [turn.said] if turn.said else [], True
        call.problem = problem_of(turn.result, turn.run)
        return call

    # ---- the call

    def attach(self, handle: Handle, *, was_begun: bool = False) -> None:
        """Follow a call that is running. `was_begun` says that an earlier kernel began it."""
        self._handle = handle
        self._read_task = asyncio.create_task(self._read_output(handle, was_begun), name=f"ramet hears {handle.id}")

    async def set_result(self, result: Result, *, in_the_host: bool) -> None:
        """Take the result of a call that ended before this kernel followed it. Raises any error of `keep`."""
        self.place, output = "at its end", AnswerText()
        self._recorded_output = None if in_the_host else _unicode(result.stdout)
        output.add(self._recorded_output or "")
        await self._end(result, output)

    async def cancel(self, reason: str) -> None:
        """Cancel the call, and return when its end is stored. Idempotent."""
        if self._handle is not None and not self.is_over:
            await self._handle.cancel(reason)
        await self.wait_ended()

    async def wait_ended(self) -> None:
        """Return once the call has ended and its end is stored."""
        if self._read_task is not None:
            await asyncio.wait({self._read_task})

    def check(self) -> None:
        """Raise the error of a call that did not complete: TaskFailed, Aborted, or the error in its answer."""
        if self._read_task is not None and self._read_task.done():
            self._read_task.result()
        if self.problem is not None:
            raise self.problem

    async def _read_output(self, handle: Handle, was_begun: bool) -> None:
        result_task = asyncio.ensure_future(handle.result())
        result_task.add_done_callback(self.pieces.close)
        is_placed, output = asyncio.Event(), AnswerText()
        watch_task = asyncio.create_task(self._watch(handle, is_placed), name=f"ramet watches {handle.id}")
        try:
            if was_begun and handle.run.grant is not None:
                # The place of the text (continued or begun again) must be known before the text.
                await is_placed.wait()
            try:
                while (piece := await self.pieces.next()) is not None:
                    if piece:
                        output.add(piece)
                        self._texts.append(piece)
                        self._has_news.set()
            except RametError as problem:
                self.problem = problem
                await handle.cancel(str(problem))
            await self._end(await result_task, output)
        except RametError as problem:  # The turn cannot be stored: a kernel that can continue it sends the rest.
            self._value, self.problem = "", self.problem or problem
        finally:
            watch_task.cancel()
            self.is_over = True
            self._has_news.set()
        await asyncio.wait({watch_task})

    async def _watch(self, handle: Handle, is_placed: asyncio.Event) -> None:
        try:
            async with aclosing(handle.events()) as events:
                async for event in events:
                    if isinstance(event, SandboxStarted):
                        if event.adopted:
                            self.place = "behind"
                        self.survives_kernel = bool(event.sandbox) and handle.run.context.safety is None
                        is_placed.set()
        finally:
            is_placed.set()

    async def _end(self, result: Result, output: AnswerText) -> None:
        if self.problem is None:
            try:
                self._value = _text_of(result)
                output.add(_on_new_line(self._value, output.ends_a_line))
            except RametError as problem:
                self._value, self.problem = "", problem
        status, error = result.status, result.error
        if self.problem is not None:
            status, error = Status.FAILED, error_of(self.problem)
        error = public_message(error) if error is not None else None
        text = output.text if self.place == "from the beginning" else self._sent_text + output.text
        self.turn = replace(self.turn, said=text, status=status, error=error, used=result.usage_subtree)
        await self._keep(self.turn)
        self.problem = self.problem or problem_of(result, self.turn.run)
        self.is_over = True

    # ---- text for the reader

    async def text(self, sent_before: str = "") -> AsyncGenerator[str]:
        """Yield the text after what the turn's reader has received before, piece by piece, to any end of the call."""
        sent_text: _SentText | None = None
        self._sent_text = sent_before
        async with aclosing(self._items()) as items:
            async for piece in items:
                sent_text = sent_text or self._sent_text_filter(sent_before)
                if text := sent_text.pass_on(piece):
                    yield text
        sent_text = sent_text or self._sent_text_filter(sent_before)
        for text in (sent_text.pass_on(self._unsent_text(sent_before)), sent_text.finish(self._value)):
            if text:
                yield text

    def _sent_text_filter(self, sent_before: str) -> _SentText:
        return _SentText(sent_before, is_again=self.place == "from the beginning")

    def _unsent_text(self, sent_before: str) -> str:
        """Return the text that was produced elsewhere and is not in `before`, as far as it is known."""
        if self._recorded_output is None:
            return f"\n\n{MAY_MISS}\n" if self.problem is None and (sent_before or not self._value) else ""
        unsent = _missing(sent_before, self._recorded_output)
        has_gap = sent_before and unsent == self._recorded_output and len(unsent) >= RECORDED_CHARS
        return f"\n\n{MAY_MISS}\n\n{unsent}" if has_gap else unsent

    async def _items(self) -> AsyncGenerator[str]:
        count = 0
        while True:
            while count < len(self._texts):
                count += 1
                yield self._texts[count - 1]
            if self.is_over:
                return
            self._has_news.clear()
            await self._has_news.wait()


class _SentText:
    """The text of an answer that a reader has received, and a filter for the new part."""

    def __init__(self, before: str, *, is_again: bool) -> None:
        """Begin after the text `before`. `is_again` says that the pieces begin where `before` began."""
        self._filter = ReplayFilter(before if is_again else "", BEGINS_AGAIN)
        self._is_at_line_start = is_again or not before or before.endswith("\n")

    def pass_on(self, piece: str) -> str:
        if not piece:
            return ""
        self._is_at_line_start = piece.endswith("\n")
        return self._filter.feed(piece)

    def finish(self, value: str) -> str:
        """Return the new part of the returned value, on a line of its own after the printed text."""
        return self.pass_on(_on_new_line(value, self._is_at_line_start)) + self._filter.rest()


def _text_of(result: Result) -> str:
    value = result.value
    if value is None:
        return ""
    try:
        return _unicode(value if isinstance(value, str) else value_json(value).decode())
    except (ValueError, TypeError, RecursionError) as problem:
        raise NotShippable("what the function returned", str(problem), "return text, or data in few levels") from None


def _on_new_line(text: str, ends_a_line: bool) -> str:
    return text if ends_a_line or not text else f"\n{text}"


def _missing(sent: str, end: str) -> str:
    """Return the part of the end of a text that its beginning `before` does not contain."""
    common = min(len(sent), len(end))
    while common and not sent.endswith(end[:common]):
        common -= 1
    return end[common:]


def _unicode(text: str) -> str:
    """Return text that can be encoded: lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()
