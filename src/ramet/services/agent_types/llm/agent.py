"""An agent of the type "llm": a session, answering in a transport format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from msgspec import Struct

from ramet.core.errors import Aborted, Bug
from ramet.core.events import Event, MessageDiscarded, MessageRecorded, SandboxStarted, ToolStarted
from ramet.core.lifecycle import State
from ramet.core.outcome import ErrorInfo, Result, Status, Usage
from ramet.host.session import Session
from ramet.host.trees import reconfigure
from ramet.services.agent_types import bundle_operations
from ramet.services.agent_types.bundle_operations import LoadBundle, UnloadBundle
from ramet.services.agent_types.llm.resume_turn import ReplayFilter, ResumedTurn
from ramet.services.agent_types.llm.settings import AgentSettings
from ramet.services.agent_types.outcome import problem_of, resource_amounts, used_since
from ramet.services.contract import AgentSpec
from ramet.services.formats.registry import AnswerWriter, format_of
from ramet.services.formats.request import Stop

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

_ROLES = {"human": "user", "ai": "assistant"}
_LENGTH_REASONS = frozenset({"length", "max_tokens", "MAX_TOKENS"})  #: providers' stop reasons of a cut-off reply
_MAX_ARGS_CHARS = 200  #: characters of a tool call's arguments
BEGINS_AGAIN = "[the reply was cut off; it begins again]"


class ListTools(Struct, forbid_unknown_fields=True):
    """List the tools of the agent's next turn: `name`, `description` and `input_schema` (a JSON schema) of each."""


class SetModel(Struct, forbid_unknown_fields=True):
    """Set the model for the agent's next model calls. The answer contains the name of the `model`."""

    model: str


class Compact(Struct, forbid_unknown_fields=True):
    """Compact the agent's conversation now.

    The answer contains whether it was `compacted`, and the number of `messages`.
    """


class LlmAgent:
    """An agent of the type "llm": one conversation."""

    restarts_turn = False  #: no other kernel begins a turn again, since its text and actions are recorded

    def __init__(
        self,
        session: Session,
        spec: AgentSpec,
        isolation: str,
        model: Callable[[str], str | BaseChatModel],
        settings: AgentSettings,
        used_before: Usage,
    ) -> None:
        """Serve a session that has started.

        `model` returns a model by its name. `settings` are the applied settings of the run. `used_before` is the usage
        of earlier trees.
        """
        self.isolation = isolation
        self.run = self.tree = session.id
        self._session, self._clock = session, spec.runtime.clock
        self._show_tools: bool = spec.info.show_tools
        self._model, self._settings, self._spec = model, settings, spec
        self._root = session.handle(session.id).run
        self._used_before = used_before
        self._compaction: asyncio.Future[None] | None = None  #: set while the conversation is being compacted
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
        text = format_of(format).read(body)
        await self._wait_idle()
        previous_usage = self._session.usage

        def end() -> tuple[Result, Usage]:
            if self._session.result is None:
                raise Aborted("the agent ended before it answered")
            return self._session.result, used_since(previous_usage, self._session.usage)

        answer = self._answer_writer(format, self._root.turns + 1)
        async with aclosing(self._write(answer, self._session.submit_message(text), end)) as chunks:
            async for chunk in chunks:
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

        def end() -> tuple[Result, Usage]:
            return turn.result or Result(status=Status(turn.status), value=self._newest_text()), turn.usage

        answer = self._answer_writer(format, number, sent_chunks)
        for chunk in answer.begin():
            yield chunk
        async with aclosing(self._write(answer, self._resumed_items(turn), end)) as chunks:
            async for chunk in chunks:
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
        """List the tools, load or unload a bundle, set the model, or compact the conversation.

        Raises BusyError for a model change or a compaction during a turn. Raises InvalidValue, Unknown, Damaged for a
        bundle.
        """
        match operation:
            case ListTools():
                return [_tool_document(tool) for tool in self._settings.tools]
            case LoadBundle() | UnloadBundle():
                return await bundle_operations.change(self._spec, operation, self._settings.check, self._settings.apply)
            case SetModel():
                self._spec.rules.check_model("model", operation.model)
                return {"model": await self._settings.set_model(operation.model, self._model(operation.model))}
            case Compact():
                return {"compacted": await self._compact(), "messages": len(self._session.messages)}
        raise Bug(f"an operation that was not declared: {type(operation).__name__}")

    async def _compact(self) -> bool:
        if self._compaction is not None:
            await asyncio.shield(self._compaction)
        self._compaction = asyncio.get_running_loop().create_future()
        try:
            return await reconfigure.compact(self._root)
        finally:
            self._compaction.set_result(None)
            self._compaction = None

    # ----

    def _answer_writer(self, format: str, number: int, sent_chunks: Sequence[bytes] = ()) -> AnswerWriter:
        created = int(self._clock.now().timestamp())
        return AnswerWriter(format, f"{self.run}-{number}", self._root.model, created, sent_chunks)

    async def _write(
        self,
        answer: AnswerWriter,
        items: AsyncGenerator[AIMessageChunk | Event],
        end: Callable[[], tuple[Result, Usage]],
    ) -> AsyncGenerator[bytes]:
        """Yield the chunks of an answer. `end` returns the result and the usage of the turn after its last item."""
        assembler, replay_filter = TextAssembler(self._show_tools), ReplayFilter(answer.sent_text, BEGINS_AGAIN)
        async with aclosing(items):
            async for item in items:
                for chunk in answer.begin():
                    yield chunk
                if isinstance(item, SandboxStarted):
                    self.isolation = item.level
                if isinstance(item, MessageDiscarded) and replay_filter.reset():
                    continue
                for chunk in answer.text(replay_filter.feed(assembler.piece(item))):
                    yield chunk
                if isinstance(item, MessageRecorded | ToolStarted | MessageDiscarded):
                    replay_filter.begin()
        result, usage = end()
        if (problem := problem_of(result, self.run)) is not None:
            raise problem
        for piece in (replay_filter.rest(), replay_filter.feed(assembler.rest(result))):
            for chunk in answer.text(piece):
                yield chunk
        for chunk in answer.end(usage, self._stop_reason()):
            yield chunk

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
        """Wait until a compaction has ended, and until the turn that a killed server began has ended."""
        self._close_turn_stream()
        while self._compaction is not None:
            await asyncio.shield(self._compaction)
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


class TextAssembler:
    """The text of a turn so far. Blank lines separate the replies of the model from each other and from notes."""

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
        elif isinstance(item, MessageDiscarded) and self._tail:
            return self._note(BEGINS_AGAIN)
        elif isinstance(item, ToolStarted) and self._show_tools:
            shown = json.dumps(item.args, ensure_ascii=False, default=str)
            return self._note(
                f"[{item.tool} {shown if len(shown) <= _MAX_ARGS_CHARS else shown[:_MAX_ARGS_CHARS] + '…'}]"
            )
        return ""

    def rest(self, result: Result) -> str:
        """Return the text of a result that no reply contains."""
        if isinstance(result.value, str):
            return "" if self._tail else result.value
        return self._note(json.dumps(result.value, ensure_ascii=False, default=str))

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


def _gap(tail: str) -> str:
    return "\n" * (2 - (len(tail) - len(tail.rstrip("\n"))))


def _to_dict(message: BaseMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": _ROLES.get(message.type, message.type), "content": str(message.text)}
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = [{"id": call["id"], "name": call["name"], "args": call["args"]} for call in message.tool_calls]
        plain["tool_calls"] = calls
    if isinstance(message, ToolMessage):
        plain |= {"tool_call_id": message.tool_call_id, "name": message.name, "status": message.status}
    return plain


def _tool_document(tool: BaseTool) -> dict[str, Any]:
    schema = convert_to_openai_tool(tool)["function"].get("parameters", {"type": "object", "properties": {}})
    return {"name": tool.name, "description": tool.description, "input_schema": schema}
