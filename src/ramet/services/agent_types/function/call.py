"""A call of a function, for one turn: its text from the beginning, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal

from msgspec.structs import replace

from ramet.core.errors import NotShippable, RametError
from ramet.core.events import SandboxStarted
from ramet.core.outcome import Result, Status
from ramet.services.agent_types import kept_turns
from ramet.services.agent_types.function.turn_log import FunctionTurn
from ramet.services.agent_types.kept_turns import Said
from ramet.services.agent_types.llm.resume_turn import ReplayFilter
from ramet.services.agent_types.outcome import problem_of
from ramet.services.problems import error_of, public_message
from ramet.spawn.handle import Handle
from ramet.spawn.lifecycle.supervisor import RECORDED_CHARS

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

    def printed(self, stream: str, text: str) -> None:
        """Add text that a sandbox prints. The reader does not get stderr."""
        if stream == "stdout":
            self.put(text)

    def put(self, text: str) -> None:
        """Add text. May be called from any thread."""
        if self.size <= kept_turns.MOST_SAID:  # Otherwise the text is too long already, and the rest is dropped.
            self.size += len(text)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, _unicode(text))

    def close(self, _: object) -> None:
        """End the queue; pieces that were added before are read first."""
        self._loop.call_soon(self._queue.put_nowait, None)

    async def next(self) -> str | None:
        """Return the next piece; None after the last."""
        return await self._queue.get()


class RunningCall:
    """A call that has `begun` here, or had `ended` elsewhere. `keep` stores its end before its reader sees the end."""

    def __init__(self, turn: FunctionTurn, keep: Callable[[FunctionTurn], Awaitable[None]]) -> None:
        self.turn, self.pieces = turn, Pieces()
        self.place: Place = "from the beginning"
        self.outlives = False  #: whether its sandbox outlives its kernel: another kernel can then continue the call
        self.problem: RametError | None = None
        self.is_over = False
        self._keep = keep
        self._said: list[str] = []
        self._before = ""  #: the text of the turn that its reader received from another kernel
        self._value = ""  #: the returned value as text
        self._printed: str | None = ""  #: if it ended elsewhere: the recorded end of its output
        self._news = asyncio.Event()
        self._living: asyncio.Task[None] | None = None
        self._handle: Handle | None = None

    @classmethod
    def known(cls, turn: FunctionTurn) -> RunningCall:
        """Return a call that has ended, from its stored turn."""

        async def keep(_: FunctionTurn) -> None:
            """Do nothing: the turn is stored already."""

        call = cls(turn, keep)
        call._said, call.is_over = [turn.said] if turn.said else [], True
        call.problem = problem_of(turn.result, turn.run)
        return call

    # ---- what becomes of it

    def begun(self, handle: Handle, *, was_begun: bool = False) -> None:
        """Follow a call that is running. `was_begun` says that an earlier kernel began it."""
        self._handle = handle
        self._living = asyncio.create_task(self._live(handle, was_begun), name=f"ramet hears {handle.id}")

    async def ended(self, result: Result, *, in_the_host: bool) -> None:
        """Take the result of a call that ended before this kernel followed it. Raises any error of `keep`."""
        self.place, said = "at its end", Said()
        self._printed = None if in_the_host else _unicode(result.stdout)
        said.take(self._printed or "")
        await self._end(result, said)

    async def cancel(self, reason: str) -> None:
        """Cancel the call, and return when its end is stored. Idempotent."""
        if self._handle is not None and not self.is_over:
            await self._handle.cancel(reason)
        await self.over()

    async def over(self) -> None:
        """Return once the call has ended and its end is stored."""
        if self._living is not None:
            await asyncio.wait({self._living})

    def check(self) -> None:
        """Raise the error of a call that did not complete: TaskFailed, Aborted, or the error in its answer."""
        if self._living is not None and self._living.done():
            self._living.result()
        if self.problem is not None:
            raise self.problem

    async def _live(self, handle: Handle, was_begun: bool) -> None:
        ending = asyncio.ensure_future(handle.result())
        ending.add_done_callback(self.pieces.close)
        placed, said = asyncio.Event(), Said()
        watching = asyncio.create_task(self._watch(handle, placed), name=f"ramet watches {handle.id}")
        try:
            if was_begun and handle.run.grant is not None:
                await placed.wait()  # The place of the text (continued or begun again) must be known before the text.
            try:
                while (piece := await self.pieces.next()) is not None:
                    if piece:
                        said.take(piece)
                        self._tell(piece)
            except RametError as problem:
                self.problem = problem
                await handle.cancel(str(problem))
            await self._end(await ending, said)
        except RametError as problem:  # The turn cannot be stored: a kernel that can continue it sends the rest.
            self._value, self.problem = "", self.problem or problem
        finally:
            watching.cancel()
            self.is_over = True
            self._news.set()
        await asyncio.wait({watching})

    async def _watch(self, handle: Handle, placed: asyncio.Event) -> None:
        try:
            async with aclosing(handle.events()) as events:
                async for event in events:
                    if isinstance(event, SandboxStarted):
                        if event.adopted:
                            self.place = "behind"
                        self.outlives = bool(event.sandbox) and handle.run.context.safety is None
                        placed.set()
        finally:
            placed.set()

    async def _end(self, result: Result, said: Said) -> None:
        if self.problem is None:
            try:
                self._value = _text_of(result)
                said.take(_apart(self._value, said.ends_a_line))
            except RametError as problem:
                self._value, self.problem = "", problem
        status, error = result.status, result.error
        if self.problem is not None:
            status, error = Status.FAILED, error_of(self.problem)
        error = public_message(error) if error is not None else None
        text = said.text if self.place == "from the beginning" else self._before + said.text
        self.turn = replace(self.turn, said=text, status=status, error=error, used=result.usage_subtree)
        await self._keep(self.turn)
        self.problem = self.problem or problem_of(result, self.turn.run)
        self.is_over = True

    def _tell(self, piece: str) -> None:
        self._said.append(piece)
        self._news.set()

    # ---- for the reader

    async def text(self, before: str = "") -> AsyncGenerator[str]:
        """Yield the text after what the turn's reader has received before, piece by piece, to any end of the call."""
        heard: _SentText | None = None
        self._before = before
        async with aclosing(self._items()) as items:
            async for piece in items:
                heard = heard or self._heard(before)
                if text := heard.pass_on(piece):
                    yield text
        heard = heard or self._heard(before)
        for text in (heard.pass_on(self._unheard(before)), heard.last(self._value)):
            if text:
                yield text

    def _heard(self, before: str) -> _SentText:
        return _SentText(before, is_again=self.place == "from the beginning")

    def _unheard(self, before: str) -> str:
        """Return the text that was produced elsewhere and is not in `before`, as far as it is known."""
        if self._printed is None:
            return f"\n\n{MAY_MISS}\n" if self.problem is None and (before or not self._value) else ""
        rest = _missing(before, self._printed)
        has_gap = before and rest == self._printed and len(rest) >= RECORDED_CHARS
        return f"\n\n{MAY_MISS}\n\n{rest}" if has_gap else rest

    async def _items(self) -> AsyncGenerator[str]:
        at = 0
        while True:
            while at < len(self._said):
                at += 1
                yield self._said[at - 1]
            if self.is_over:
                return
            self._news.clear()
            await self._news.wait()


class _SentText:
    """The text of an answer that a reader has received, and a filter for the new part."""

    def __init__(self, before: str, *, is_again: bool) -> None:
        """Begin after the text `before`. `is_again` says that the pieces begin where `before` began."""
        self._onward = ReplayFilter(before if is_again else "", BEGINS_AGAIN)
        self._ends_a_line = is_again or not before or before.endswith("\n")

    def pass_on(self, piece: str) -> str:
        """Return the new part of the next piece."""
        if not piece:
            return ""
        self._ends_a_line = piece.endswith("\n")
        return self._onward.pass_on(piece)

    def last(self, value: str) -> str:
        """Return the new part of the returned value, on a line of its own after the printed text."""
        return self.pass_on(_apart(value, self._ends_a_line)) + self._onward.rest()


def _text_of(result: Result) -> str:
    """Return the function's return value as text. Raises NotShippable."""
    value = result.value
    if value is None:
        return ""
    try:
        return _unicode(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    except (ValueError, TypeError, RecursionError) as problem:
        raise NotShippable("what the function returned", str(problem), "return text, or data in few levels") from None


def _apart(text: str, ends_a_line: bool) -> str:
    return text if ends_a_line or not text else f"\n{text}"


def _missing(before: str, end: str) -> str:
    """Return the part of the end of a text that its beginning `before` does not contain."""
    common = min(len(before), len(end))
    while common and not before.endswith(end[:common]):
        common -= 1
    return end[common:]


def _unicode(text: str) -> str:
    """Return text that can be encoded: lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()
