"""The agent loop: ask the model and run the requested tools, until it requests none."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolCall, ToolMessage

from ramet.agent.context import calls_of, is_silent, with_call_ids, without_calls
from ramet.agent.history.compaction import LEAST_WINDOW, Compaction, estimated_tokens
from ramet.agent.output import OutputContract
from ramet.concurrency.mailbox import Mail
from ramet.core.errors import BudgetExceeded, InvalidValue, ModelFailed, NeedsInput, OutputInvalid, TaskFailed
from ramet.core.events import Event, MailDelivered, MessageRecorded
from ramet.models.errors import is_overflow
from ramet.models.json_values import sanitize
from ramet.models.messages import encode
from ramet.tools.agents.report_framing import message as framed
from ramet.tools.agents.report_framing import neutralise
from ramet.tools.agents.task_result import find_declared_result
from ramet.tools.context import DeclaredResult, ToolUseContext
from ramet.tools.dispatch import run_tools
from ramet.tools.model_request import ModelRequest
from ramet.tools.monitors.command_monitor import monitors_of

MAX_TURNS = 100
OUTPUT_TRIES = 3  #: maximum final answers that miss their schema or are empty, before the run fails
STOP_HOOK_LIMIT = 8  #: maximum times that a Stop or SubagentStop hook may make an agent continue
#: Sizes of a last request if the whole conversation does not fit into the reserve.
DIGEST_BYTES = (16_000, 4_000, 1_000)
FINAL_ANSWER_PROMPT = (
    "Your budget is used up ({reason}). Do not call tools any more. Answer now with what you have found so far, and "
    "say what is missing."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryParams:
    """The work of one prompt: its run, its new messages, and its bounds."""

    context: ToolUseContext
    messages: Sequence[BaseMessage] = ()
    max_turns: int = MAX_TURNS  #: model replies
    compaction: Compaction | None = None  #: None: the history is never shortened
    output: OutputContract | None = None  #: what the final answer must fit; None: any text
    resumes: bool = False  #: the history may end in the middle of a turn that another process began
    replies: int = 0  #: number of model replies in that turn
    objections: int = 0  #: number of times in that turn that the agent was told to continue instead of ending


async def query(params: QueryParams) -> AsyncGenerator[AIMessageChunk | Event]:
    """Yield the model's chunks as they arrive, and every message after it is recorded; return at the final answer.

    A context with `on_chunk` gets the chunks instead. The answer is the last message of `context.history`. Raises
    BudgetExceeded after the final answer that the budget's owner is granted, ModelFailed if the provider does not
    answer, OutputInvalid if no answer fits, and Aborted if the run was stopped.
    """
    context, ending = params.context, StopCheck(params)
    context.declared_result = None
    if params.resumes and context.final_refusal is not None:
        raise context.final_refusal  # Its final answer was given in another process.
    for message in params.messages:
        yield record_message(context, message)
    calls = open_calls(context.history) if params.resumes else None
    if calls is None and params.resumes and find_declared_result(context.history) is not None:
        calls = []
    try:
        for _ in range(max(0, params.replies - (calls is not None)), params.max_turns):
            context.abort.raise_if_aborted()
            if calls is None:
                for event in [
                    deliver_mail(context, mail) for mail in context.mailbox.drain()
                ]:  # Drain all mail, even if the consumer stops.
                    yield event
                if params.compaction is not None and params.compaction.is_needed(context):
                    await params.compaction.compact(context)
                try:
                    async with aclosing(ask_model(context, build_request(context))) as pieces:
                        async for piece in pieces:
                            yield piece
                except ModelFailed as error:
                    if not await _compact_after_overflow(params, error):
                        raise
                    continue
                calls = calls_of(last_reply(context))
            for event in await _answers(context, calls) if calls else ():
                yield event
            if context.final_refusal is not None:
                raise context.final_refusal
            await _wait_for_monitors(context, calls)
            declared_result = context.declared_result or (
                find_declared_result(context.history) if calls is not None else None
            )
            if declared_result is not None or (not calls and not len(context.mailbox)):
                objection = await ending.objection(declared_result)
                if objection is None:
                    return
                context.declared_result = None
                yield record_message(context, HumanMessage(content=objection))
            calls = None
        raise BudgetExceeded("max_turns", asked=params.max_turns + 1, left=0, scope=context.run.path)
    except BudgetExceeded as refusal:
        if refusal.resource != "max_turns" and refusal.scope == context.run.path:
            context.final_refusal = refusal
            async with aclosing(final_answer(context, refusal)) as pieces:
                async for piece in pieces:
                    yield piece
        raise
    finally:
        if (monitors := monitors_of(context)) is not None:
            await monitors.close()


async def _wait_for_monitors(context: ToolUseContext, calls: Sequence[ToolCall] | None) -> None:
    """Wait for a message before a turn ends whose commands are still monitored."""
    monitors = monitors_of(context)
    if monitors and not calls and context.declared_result is None:
        await context.wait_without_slot(monitors.wait_for_news())


def open_calls(history: Sequence[BaseMessage]) -> list[ToolCall] | None:
    """Return the unanswered calls of the newest reply, empty if it has none; None if the model must be asked next."""
    answered_ids: set[str] = set()
    for message in reversed(history):
        if isinstance(message, AIMessage):
            calls = [call for call in calls_of(message) if call["id"] not in answered_ids]
            return calls if calls or not answered_ids else None
        if not isinstance(message, ToolMessage):
            return None
        answered_ids.add(message.tool_call_id)
    return None


async def _answers(context: ToolUseContext, calls: Sequence[ToolCall]) -> list[Event]:
    """Run the calls of the newest reply: every answer is added to the history, in call order, and recorded."""
    if context.durable is None:
        return [record_message(context, answer) for answer in await run_tools(context, calls)]
    events: list[Event] = []

    def record_answer(answer: ToolMessage) -> ToolMessage:
        """Record an answer at once: a finished call must not be repeated."""
        recorded_answer, data = ensure_encodable(answer)
        assert isinstance(recorded_answer, ToolMessage), "an answer stays one"
        events.append(context.emit(MessageRecorded, message=data, call_id=recorded_answer.tool_call_id))
        return recorded_answer

    answers = await run_tools(context, calls, record_answer)
    index = next(i for i in reversed(range(len(context.history))) if isinstance(context.history[i], AIMessage))
    context.history[index + 1 :] = in_order(context.history[index], [*context.history[index + 1 :], *answers])
    return events


def in_order(reply: BaseMessage, answers: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return answers in the order of their calls."""
    positions = (
        {call["id"]: position for position, call in enumerate(calls_of(reply))} if isinstance(reply, AIMessage) else {}
    )
    return sorted(answers, key=lambda each: positions.get(getattr(each, "tool_call_id", None), len(positions)))


def build_request(context: ToolUseContext) -> ModelRequest:
    """Return the next model request, exactly as it is sent."""
    return ModelRequest(messages=conversation(context), tools=context.tools, step=context.next_step())


def conversation(context: ToolUseContext) -> list[BaseMessage]:
    """Return the messages for the model: all except empty replies, which no provider accepts."""
    return [*context.system_messages, *filterfalse(is_silent, context.history)]


async def _compact_after_overflow(params: QueryParams, error: ModelFailed) -> bool:
    """Return whether the conversation exceeded the model's window and was shortened, so that a retry may help."""
    if params.compaction is None or not is_overflow(error):
        return False
    # Whatever the assumed window, the real one is smaller than this conversation.
    size = estimated_tokens([*params.context.system_messages, *params.context.history])
    tighter = replace(params.compaction, window_tokens=max(LEAST_WINDOW, min(size, params.compaction.window_tokens)))
    return await tighter.compact(params.context, trigger="manual")


async def ask_model(context: ToolUseContext, request: ModelRequest) -> AsyncGenerator[AIMessageChunk | Event]:
    """Ask the model once: pass on or yield the chunks, then yield the recorded reply, which the history has already."""
    async with aclosing(context.ask(context, request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, AIMessageChunk):
                if context.on_chunk is not None:
                    context.on_chunk(piece, request.step)
                else:
                    yield piece
            else:
                if request.is_final_answer:  # No calls will be answered any more.
                    piece = without_calls(piece)
                yield record_message(context, with_call_ids(piece, request.step), request.step)


async def final_answer(context: ToolUseContext, refusal: BudgetExceeded) -> AsyncGenerator[AIMessageChunk | Event]:
    """Let the owner of a spent budget report its findings, from the reserve kept for that, if that suffices."""
    notice = FINAL_ANSWER_PROMPT.format(reason=f"{refusal.resource}: {refusal.left:g} left")
    whole = ModelRequest(
        messages=[*conversation(context), HumanMessage(content=notice)],
        tools=context.tools,
        step=context.next_step(),
        is_final_answer=True,
    )
    shorter = (
        ModelRequest(messages=digest(context.history, size, notice), step=context.next_step(), is_final_answer=True)
        for size in DIGEST_BYTES
    )
    for request in (whole, *shorter):
        try:
            async with aclosing(ask_model(context, request)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        except BudgetExceeded as second:
            refusal = second
        except ModelFailed:
            return  # The spent budget is the relevant error; results so far are kept.
    context.record_refusal(refusal)


def digest(history: Sequence[BaseMessage], size: int, notice: str) -> list[BaseMessage]:
    """Return the conversation as one message of about `size` bytes, for a small reserve: its brief and newest parts."""
    brief = history[0].text[: size // 4] if history else ""
    parts: list[str] = []
    remaining_bytes = size - len(brief.encode())
    for message in reversed(history[1:]):
        text = message.text[: size // 2]
        remaining_bytes -= len(text.encode()) + 2
        if remaining_bytes < 0:
            break
        parts.append(text)
    recent_text = neutralise("\n\n".join(reversed([part for part in parts if part])))[0]
    return [HumanMessage(content=f"{brief}\n\nWhat was done last:\n{recent_text}\n\n{notice}")]


def record_message(context: ToolUseContext, message: BaseMessage, step: str | None = None) -> Event:
    message, data = ensure_encodable(message)
    context.history.append(message)
    return context.emit(
        MessageRecorded,
        message=data,
        step_id=step,
        call_id=getattr(message, "tool_call_id", None),
        usage=context.last_usage if step is not None else None,
        exhausted=context.final_refusal.resource if step is not None and context.final_refusal is not None else "",
    )


def ensure_encodable(message: BaseMessage) -> tuple[BaseMessage, dict[str, Any]]:
    """Return the message, and its data; a tool result that cannot be encoded becomes an error that says so."""
    try:
        return message, encode(message)
    except InvalidValue:
        # A lone surrogate is no valid text.
        message = message.model_copy(update={"content": sanitize(message.content)})
        try:
            return message, encode(message)
        except InvalidValue as refusal:
            if not isinstance(message, ToolMessage):
                raise
            text = f"The result cannot be recorded as data: {refusal}"
            answer = ToolMessage(content=text, tool_call_id=message.tool_call_id, name=message.name, status="error")
            return answer, encode(answer)


def deliver_mail(context: ToolUseContext, mail: Mail) -> Event:
    """Add mail to the conversation, as data in the user's channel."""
    context.emit(MailDelivered, mail_id=mail.id, sender=mail.sender, kind=mail.kind)
    return record_message(context, HumanMessage(content=mail_text(mail)))


def mail_text(mail: Mail) -> str:
    """Return the text of a mail as an agent reads it: that of another agent as data."""
    return framed(mail.text, sender=mail.sender, mail_id=mail.id) if mail.kind == "agent" else mail.text


def last_reply(context: ToolUseContext) -> AIMessage:
    """Return the newest message, which is the model's reply."""
    newest = context.history[-1]
    assert isinstance(newest, AIMessage)
    return newest


def stop_events(context: ToolUseContext) -> tuple[str, ...]:
    """Return the hook events before the run's answer is accepted. A named child counts as a teammate."""
    if not context.run.depth:
        return ("Stop",)
    has_name = not context.run.path.rpartition("/")[2].isdecimal()
    return ("SubagentStop", "TeammateIdle") if has_name else ("SubagentStop",)


class StopCheck:
    """A check whether an answer is accepted: it has text, fits its contract, and no hook objects."""

    __slots__ = ("_context", "_hook_continuations", "_output", "_tries")

    def __init__(self, params: QueryParams) -> None:
        self._context, self._output = params.context, params.output
        self._tries = self._past_tries(params.context.history, params.objections)
        self._hook_continuations = params.objections - self._tries

    def _past_tries(self, history: Sequence[BaseMessage], objections: int) -> int:
        """Return how many of the `objections` objections in another process were about the answer's form."""
        tries = 0
        for index in reversed(range(1, len(history))):
            if tries == objections:
                break
            if isinstance(history[index], HumanMessage):
                declared_result = find_declared_result(history[:index])
                answer = history[index - 1].text if declared_result is None else json.dumps(declared_result.value)
                tries += history[index].text == self._problem(answer)
        return tries

    async def objection(self, declared_result: DeclaredResult | None) -> str | None:
        """Return the message that makes the agent continue; None if the answer is accepted.

        Raises OutputInvalid after the last try. Raises TaskFailed and NeedsInput if the agent declares them.
        """
        if declared_result is not None and declared_result.kind == "fail":
            raise TaskFailed(declared_result.text)
        if declared_result is not None and declared_result.kind == "clarify":
            raise NeedsInput(declared_result.text)
        text = last_reply(self._context).text if declared_result is None else json.dumps(declared_result.value)
        problem = self._problem(text)
        if problem is not None:
            self._tries += 1
            if self._tries >= OUTPUT_TRIES:
                raise OutputInvalid(problem, tries=self._tries)
            return problem
        return await self._hook_objection(text)

    def _problem(self, text: str) -> str | None:
        if self._output is not None:
            return self._output.problem(text)
        return None if text.strip() else "The answer is empty. Give the result of your work."

    async def _hook_objection(self, text: str) -> str | None:
        hooks = self._context.hooks
        if hooks is None or self._hook_continuations >= STOP_HOOK_LIMIT:
            return None
        for event in stop_events(self._context):
            if not hooks.listens(event):
                continue
            payload = {"stop_hook_active": self._hook_continuations > 0, "last_assistant_message": text}
            decision = await hooks.fire(event, self._context, payload, matcher=self._context.run.agent)
            if decision.verdict == "continue":
                self._hook_continuations += 1
                return decision.reason or "Go on: your work is not finished."
        return None
