"""An agent whose conversation is a session: its turns, answered in a transport format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from ramet.core.errors import Aborted, Bug
from ramet.core.events import Event, MessageDiscarded, MessageRecorded, SandboxStarted, ToolStarted
from ramet.core.lifecycle import State
from ramet.core.media.blocks import is_stored
from ramet.core.outcome import ErrorInfo, Result, Status, Usage, value_text
from ramet.host.session import Session
from ramet.services.agent_types.outcome import problem_of, resource_amounts
from ramet.services.agent_types.resume_turn import ReplayFilter, ResumedTurn
from ramet.services.contract import AgentSpec
from ramet.services.formats.registry import AnswerWriter, ResponseWriter, format_of
from ramet.services.formats.request import Stop, read_prompt

_ROLES = {"human": "user", "ai": "assistant"}
_LENGTH_REASONS = frozenset({"length", "max_tokens", "MAX_TOKENS"})  #: providers' stop reasons of a cut-off reply
_MAX_ARGS_CHARS = 200  #: characters of a tool call's arguments
_BEGINS_AGAIN = "[the reply was cut off; it begins again]"


class SessionOperations(Protocol):
    """The operations of an agent type on the session of one agent."""

    async def control(self, operation: Any) -> Any:
        """Execute an operation; the answer is plain data."""

    async def wait_idle(self) -> None:
        """Wait until no operation prevents a turn."""


class SessionAgent:
    """An agent with a session: one conversation."""

    restarts_turn = False  #: no other kernel begins a turn again, since its text and actions are recorded

    def __init__(
        self,
        session: Session,
        spec: AgentSpec,
        isolation: str,
        used_before: Usage,
        *,
        show_tools: bool,
        operations: SessionOperations | None = None,
    ) -> None:
        """Serve a session that has started.

        `used_before` is the usage of earlier trees. With `show_tools`, answers contain tool calls as text.
        `operations` is None for a type without operations.
        """
        self.isolation = isolation
        self.run = self.tree = session.id
        self._session, self._clock, self._spec = session, spec.runtime.clock, spec
        self._show_tools, self._operations = show_tools, operations
        self._root = session.handle(session.id).run
        self._used_before = used_before
        self._closing = False
        self.end: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        #: the stream of a turn that another kernel began, until the turn is continued
        self._turn_stream = session.listen() if session.id == spec.run else None
        self._root.recorded_end().add_done_callback(lambda end: self._on_run_ended(end.result()))

    # ---- turns

    async def turn(self, body: bytes, format: str) -> AsyncGenerator[bytes]:
        """Answer the last message of a body; see `RunningAgent.turn`.

        After the text that was sent, raises Aborted if the turn was interrupted, and TaskFailed with the turn's status
        if the turn failed.
        """
        prompt = read_prompt(body)
        await self._wait_idle()
        previous_usage = self._session.usage
        writer = format_of(format).Writer(*self._envelope(self._root.turns + 1))
        answer = _Answer(writer, _TurnText(self._show_tools))
        async with aclosing(self._session.submit_message(prompt.text, prompt.attachments)) as items:
            async for item in items:
                for chunk in self._chunks(answer, item):
                    yield chunk
        if self._session.result is None:
            raise Aborted("the agent ended before it answered")
        for chunk in self._last_chunks(answer, self._session.result, self._session.usage - previous_usage):
            yield chunk

    @property
    def turns_taken(self) -> int:
        return self._root.turns

    async def resume_turn(
        self, number: int, body: bytes, format: str, sent_chunks: Sequence[bytes]
    ) -> AsyncGenerator[bytes]:
        """Continue a turn that another kernel began: replay its recorded items, then follow it.

        A turn that was not recorded begins here. Yields the chunks after those of `sent_chunks`. Leaving the iteration
        interrupts the turn. Raises like `turn`.
        """
        if self._root.turns < number:  # The session has not received the message.
            async with aclosing(self.turn(body, format)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        journal = self._spec.runtime.journal
        assert journal is not None, "a turn cannot be resumed if it was never recorded"
        turn = ResumedTurn(self._session, journal.store, self._turn_stream, number)
        writer = AnswerWriter(format, *self._envelope(number), sent_chunks)
        answer = _Answer(writer, _UnsentText(_TurnText(self._show_tools), writer.sent_text))
        for chunk in answer.begin():
            yield chunk
        async with aclosing(self._resumed_items(turn)) as items:
            async for item in items:
                for chunk in self._chunks(answer, item):
                    yield chunk
        result = turn.result or Result(status=Status(turn.status), value=self._newest_text())
        for chunk in self._last_chunks(answer, result, turn.usage):
            yield chunk

    async def interrupt(self) -> None:
        await self._session.interrupt("it was interrupted")

    async def mail(self, text: str) -> None:
        """Send a message, which the agent reads at its next step. Mail wakes an idle agent. Raises MailRefused."""
        self._session.send(text)

    async def mail_once(self, text: str, dedupe_s: float) -> None:
        self._session.send(text, dedupe_s=dedupe_s)

    async def close(self, reason: str) -> None:
        self._closing = True
        await self._session.close(reason)
        if not self.end.done():
            self.end.set_result(None)

    # ---- state

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Return `role` (user, assistant, tool) and `content` of each message, and the tool calls."""
        return [_to_dict(each) for each in self._session.messages]

    def usage(self) -> Mapping[str, float]:
        """Return the usage of the whole tree: tokens, usd, model_calls, tool_calls, agents."""
        return resource_amounts(self._used_before + self._session.usage)

    # ---- operations

    async def control(self, operation: Any) -> Any:
        """Execute an operation of the agent's type. Raises its errors."""
        if self._operations is None:
            raise Bug(f"an operation that was not declared: {type(operation).__name__}")
        return await self._operations.control(operation)

    # ----

    def _envelope(self, number: int) -> tuple[str, str, int]:
        """Return the id, the model and the time of the answer of a turn."""
        return f"{self.run}-{number}", self._root.model, int(self._clock.now().timestamp())

    def _chunks(self, answer: _Answer, item: AIMessageChunk | Event) -> Sequence[bytes]:
        if isinstance(item, SandboxStarted):
            self.isolation = item.level
        return answer.chunks(item)

    def _last_chunks(self, answer: _Answer, result: Result, usage: Usage) -> Sequence[bytes]:
        """Return the chunks after the last item. Raises the error of a turn that failed or was interrupted."""
        if (problem := problem_of(result, self.run)) is not None:
            raise problem
        return answer.last_chunks(result, usage, self._stop_reason())

    async def _resumed_items(self, turn: ResumedTurn) -> AsyncGenerator[AIMessageChunk | Event]:
        """Yield the items of a turn that another kernel began. Leaving the iteration interrupts the turn."""
        is_over = False
        try:
            async with aclosing(turn.items()) as items:
                async for item in items:
                    yield item
            is_over = True
        finally:
            self._close_turn_stream()
            if not is_over:
                await self.interrupt()

    async def _wait_idle(self) -> None:
        """Wait until no operation prevents a turn, and until the turn that a killed server began has ended."""
        self._close_turn_stream()
        if self._operations is not None:
            await self._operations.wait_idle()
        if self._is_free():
            return
        async with aclosing(self._session.events(tree=False)) as events:
            async for _ in events:
                if self._is_free():
                    return

    def _is_free(self) -> bool:
        run = self._root
        return run.turns == 0 or run.state is State.IDLE or run.turn.woken_by_mail or not run.is_living

    def _close_turn_stream(self) -> None:
        if self._turn_stream is not None:
            self._turn_stream.close()
            self._turn_stream = None

    def _newest_text(self) -> str:
        newest = self._session.messages[-1] if self._session.messages else None
        return str(newest.text) if isinstance(newest, AIMessage) else ""

    def _on_run_ended(self, result: Result) -> None:
        if not self.end.done():
            error = result.error or ErrorInfo(type="Ended", message="its run has ended")
            self.end.set_result(None if self._closing else error)

    def _stop_reason(self) -> Stop:
        newest = self._session.messages[-1] if self._session.messages else None
        metadata = newest.response_metadata if isinstance(newest, AIMessage) else {}
        return "length" if _LENGTH_REASONS & {metadata.get("finish_reason"), metadata.get("stop_reason")} else "end"


class _TurnText:
    """The text of a turn so far: the replies of a model, and notes between them.

    Blank lines separate the replies from each other and from notes.
    """

    def __init__(self, show_tools: bool) -> None:
        self._show_tools = show_tools
        self._tail = ""  #: the last two characters of the text so far
        self._needs_gap = False  #: whether the next text begins another reply

    def piece(self, item: AIMessageChunk | Event) -> str:
        """Return the text that this item adds; empty for most items."""
        if isinstance(item, AIMessageChunk):
            return self._add(str(item.text))
        if isinstance(item, MessageRecorded):
            self._needs_gap = True
        elif isinstance(item, MessageDiscarded) and self._tail and not self._needs_gap:  # Readers have a part of it.
            return self._note(_BEGINS_AGAIN)
        elif isinstance(item, ToolStarted) and self._show_tools:
            shown = json.dumps(item.args, ensure_ascii=False, default=str)
            return self._note(
                f"[{item.tool} {shown if len(shown) <= _MAX_ARGS_CHARS else shown[:_MAX_ARGS_CHARS] + '…'}]"
            )
        return ""

    def rest(self, result: Result) -> tuple[str, ...]:
        """Return the text of a result that no reply contains."""
        if isinstance(result.value, str):
            return () if self._tail else (result.value,)
        return (self._note(value_text(result.value)),)

    def _note(self, text: str) -> str:
        self._needs_gap = True
        added = self._add(text)
        self._needs_gap = True
        return added

    def _add(self, text: str) -> str:
        if not text:
            return ""
        if self._needs_gap and self._tail:
            text = f"{_gap(self._tail)}{text}"
        self._needs_gap, self._tail = False, (self._tail + text)[-2:]
        return text


class _UnsentText:
    """The text of a turn that another kernel began, without the part that it has sent."""

    def __init__(self, text: _TurnText, sent_text: str) -> None:
        self._text, self._filter = text, ReplayFilter(sent_text, _BEGINS_AGAIN)

    def piece(self, item: AIMessageChunk | Event) -> str:
        if isinstance(item, MessageDiscarded) and self._filter.reset():
            return ""
        piece = self._filter.feed(self._text.piece(item))
        if isinstance(item, MessageRecorded | ToolStarted | MessageDiscarded):
            self._filter.begin()
        return piece

    def rest(self, result: Result) -> tuple[str, ...]:
        return self._filter.rest(), *map(self._filter.feed, self._text.rest(result))


class _Answer:
    """The answer of one turn: the chunks for each of its items."""

    def __init__(self, writer: ResponseWriter, text: _TurnText | _UnsentText) -> None:
        self._writer, self._text = writer, text
        self._has_begun = False

    def begin(self) -> Sequence[bytes]:
        """Return the chunks that begin the answer, once."""
        if self._has_begun:
            return ()
        self._has_begun = True
        return self._writer.begin()

    def chunks(self, item: AIMessageChunk | Event) -> Sequence[bytes]:
        return (*self.begin(), *self._writer.text(self._text.piece(item)))

    def last_chunks(self, result: Result, usage: Usage, stop: Stop) -> Sequence[bytes]:
        text = [chunk for piece in self._text.rest(result) for chunk in self._writer.text(piece)]
        return (*text, *self._writer.end(usage, stop))


def _gap(tail: str) -> str:
    return "\n" * (2 - (len(tail) - len(tail.rstrip("\n"))))


def _to_dict(message: BaseMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": _ROLES.get(message.type, message.type), "content": str(message.text)}
    if files := [each for each in message.content if is_stored(each)]:
        plain["files"] = files
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = [{"id": call["id"], "name": call["name"], "args": call["args"]} for call in message.tool_calls]
        plain["tool_calls"] = calls
    if isinstance(message, ToolMessage):
        plain |= {"tool_call_id": message.tool_call_id, "name": message.name, "status": message.status}
    return plain
