"""One turn of one run: the loop or the function, and whatever became of it as a verdict."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage

from ramet.agent.loop import QueryParams, query
from ramet.agent.output import OutputContract
from ramet.concurrency.cancel import is_being_cancelled
from ramet.core.errors import Aborted, BudgetExceeded, Bug, InvalidValue, RametError
from ramet.core.events import BudgetRefused, MessageRecorded
from ramet.core.ids import CallId
from ramet.core.outcome import ErrorInfo, Status, shown
from ramet.models.plain import plain
from ramet.spawn.run import Run, Verdict
from ramet.tools.context import CurrentCall, current_call
from ramet.tools.sync import run_in_thread

_log = logging.getLogger("ramet.turn")
Begin = Callable[[], Awaitable[None]]
Feed = Callable[[AIMessageChunk], None]


async def work(run: Run, messages: Sequence[BaseMessage], begin: Begin, feed: Feed) -> Verdict:
    """Do a turn and say how it ended; never raises for what happened in it."""
    try:
        run.context.abort.raise_if_aborted()
        await begin()
        if run.agent.function is not None:
            return Verdict(Status.COMPLETED, await _call(run, messages))
        return Verdict(Status.COMPLETED, await _converse(run, messages, feed))
    except asyncio.CancelledError:
        if run.cut is None and not run.context.abort.aborted and not is_being_cancelled():
            return _failed(run, RuntimeError("it cancelled itself"))
        return run.cut or _failed(run, Aborted(run.context.abort.reason or "its event loop was stopped"))
    except Aborted as stopped:
        return run.cut or _failed(run, stopped)
    except BudgetExceeded as refusal:
        run.context.emit(
            BudgetRefused, resource=refusal.resource, asked=refusal.asked, left=refusal.left, scope=refusal.scope
        )
        return _failed(run, refusal)
    except RametError as failure:
        if isinstance(failure, Bug):
            _log.exception("a bug of ours ended %s", run.info.path)
        return _failed(run, failure)
    except (Exception, SystemExit) as failure:
        _log.exception("%s failed", run.info.path)
        return _failed(run, failure)


def cut(run: Run, status: Status, reason: str) -> Verdict:
    """The verdict of a run that was stopped, with what it had said until then."""
    return Verdict(status, error=ErrorInfo(type="Aborted", message=reason), partial=partial(run))


def partial(run: Run) -> str:
    """The newest text of this turn, streaming or recorded."""
    if run.heard:
        return "".join(run.heard)
    for message in reversed(run.context.history[run.turn_began_at :]):
        if isinstance(message, AIMessage) and message.text:
            return str.__str__(message.text)
    return ""


_STATUS: dict[type[BaseException], Status] = {Aborted: Status.CANCELLED, BudgetExceeded: Status.BUDGET_EXHAUSTED}


def _failed(run: Run, error: BaseException) -> Verdict:
    status = _STATUS.get(type(error), Status.FAILED)
    scope = error.scope if isinstance(error, BudgetExceeded) else None
    info = ErrorInfo(type=type(error).__name__, message=str(error), scope=scope)
    return Verdict(status, error=info, partial=partial(run))


async def _converse(run: Run, messages: Sequence[BaseMessage], feed: Feed) -> Any:
    contract = OutputContract(run.agent.output) if run.agent.output is not None else None
    params = QueryParams(
        context=run.context,
        messages=messages,
        max_turns=run.max_turns,
        compaction=run.compaction,
        output=contract,
    )
    async with aclosing(query(params)) as pieces:
        async for piece in pieces:
            if isinstance(piece, AIMessageChunk):
                run.heard.append(piece.text)
                feed(piece)
            elif isinstance(piece, MessageRecorded):
                run.heard.clear()
    newest = run.context.history[-1]
    assert isinstance(newest, AIMessage), "a conversation that ends well ends with an answer"
    text = str.__str__(newest.text)  # exact text: langchain's own kind of it is no JSON
    return text if contract is None else contract.parse(text)


def recordable(run: Run, value: Any) -> Any:
    """A value as JSON for the record: an answer by its contract, data as it is, anything else as what it is."""
    if value is not None and run.agent.output is not None and run.agent.function is None:
        return OutputContract(run.agent.output).data(value)
    try:
        return plain(value, "value")
    except InvalidValue:
        return {"@type": f"{type(value).__module__}.{type(value).__qualname__}", "repr": shown(value)[:1000]}


async def _call(run: Run, messages: Sequence[BaseMessage]) -> Any:
    """Run a plain function as an agent: in the loop if it is async, else in a thread."""
    function, request = run.agent.function, run.request
    assert function is not None
    arguments = request.args
    prompt = messages[0].text if messages else request.prompt
    if not arguments and not request.kwargs and prompt and _takes_one(function):
        arguments = (str.__str__(prompt),)
    step = run.context.next_step()
    run.context.slot.begin_calls()  # It counts as one call, so that it holds no slot while it waits for children.
    token = current_call.set(CurrentCall(run.context, CallId(""), step))
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments, **request.kwargs)
        return await run_in_thread(
            run.context, lambda: function(*arguments, **request.kwargs), name=run.agent.name, key=step
        )
    finally:
        current_call.reset(token)
        run.context.slot.end_call()


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind("")
    except (TypeError, ValueError):
        return False
    return True
