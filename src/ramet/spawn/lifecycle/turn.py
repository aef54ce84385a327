"""A turn of one run: executes the loop or the function, and returns the result."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage

from ramet.agent.adopted.mark import AdoptedFunction
from ramet.agent.composition.steps import Composition
from ramet.agent.history.compaction import repair
from ramet.agent.loop import QueryParams, ensure_encodable, query, record_message
from ramet.agent.output import OutputContract
from ramet.concurrency.cancel import is_being_cancelled
from ramet.concurrency.threads import owner_loop
from ramet.core.errors import Aborted, BudgetExceeded, Bug, InvalidValue, RametError
from ramet.core.events import MessageRecorded
from ramet.core.ids import CallId
from ramet.core.outcome import Status
from ramet.spawn.final_answer import answer, check_output_size, checked_answer, has_answered
from ramet.spawn.grants import accepts_single_arg
from ramet.spawn.ports import Placement, TreePorts
from ramet.spawn.result_cache import cached_or_run
from ramet.spawn.run import Run, TurnResult
from ramet.spawn.sandbox.executor import run_in_sandbox
from ramet.spawn.verdict import error_result
from ramet.tools.context import CurrentCall, current_call
from ramet.tools.shell import background_commands
from ramet.tools.workers.thread_tools import run_in_thread

_log = logging.getLogger("ramet.turn")
Begin = Callable[[], Awaitable[None]]


async def run_turn(
    run: Run,
    messages: Sequence[BaseMessage],
    begin: Begin,
    services: TreePorts,
    on_wait_began: Callable[[], None],
) -> TurnResult:
    """Execute a turn and return its result; never raises for an error inside the turn."""
    try:
        await _begin(run, messages, begin)
        if run.agent.cache_ttl_seconds is None or services.results is None:
            return await _done(run, messages, services.placement)
        return await cached_or_run(
            run,
            services.results,
            services.recipe,
            lambda: _done(run, messages, services.placement),
            on_wait_began=on_wait_began,
            now=services.clock.now,
        )
    except asyncio.CancelledError:
        if run.turn.stop_result is None and not run.context.abort.aborted and not is_being_cancelled():
            return error_result(run, RuntimeError("it cancelled itself"))
        return run.turn.stop_result or error_result(
            run, Aborted(run.context.abort.reason or "its event loop was stopped")
        )
    except Aborted as stop:
        return run.turn.stop_result or error_result(run, stop)
    except BudgetExceeded as refusal:
        run.context.record_refusal(refusal)
        return error_result(run, refusal)
    except RametError as failure:
        if isinstance(failure, Bug):
            _log.exception("a bug of ramet ended %s", run.info.path)
        return error_result(run, failure)
    except (Exception, SystemExit) as failure:
        _log.exception("%s failed", run.info.path)
        return error_result(run, failure)


async def _begin(run: Run, messages: Sequence[BaseMessage], begin: Begin) -> None:
    """Begin a turn, which may wait for a slot and for hooks; the next turn knows the messages of one that cannot."""
    run.context.abort.raise_if_aborted()
    try:
        await begin()
    except asyncio.CancelledError:
        record_interrupted(run, messages)
        raise
    except Exception:
        _record_unread(run, messages)
        raise


def record_interrupted(run: Run, messages: Sequence[BaseMessage]) -> None:
    """Record the messages of a turn that was interrupted before the agent read them: the next turn has them.

    There is no next turn if the whole run is stopped. If the event loop ends, another kernel would answer them.
    """
    if run.turn.stop_result is not None and not run.context.abort.aborted:
        _record_unread(run, messages)


def _record_unread(run: Run, messages: Sequence[BaseMessage]) -> None:
    if run.agent.function is None:
        with suppress(InvalidValue):  # A message that cannot be recorded is not this turn's outcome.
            for message in messages:
                record_message(run.context, message)


async def _done(run: Run, messages: Sequence[BaseMessage], placement: Placement | None) -> TurnResult:
    """Do the work of a turn in the host or in a sandbox."""
    if run.grant is not None:
        if run.sandbox.replay is None and run.turn.resumes and run.sandbox.capsule is None and has_answered(run):
            return TurnResult(Status.COMPLETED, checked_answer(run))  # It had answered when its process ended.
        assert placement is not None, "a run with a grant has a placement"
        return await run_in_sandbox(run, messages, placement)
    if run.agent.function is not None:
        return TurnResult(Status.COMPLETED, check_output_size(run, await _call(run, messages)))
    return TurnResult(Status.COMPLETED, await _converse(run, messages))


async def _converse(run: Run, messages: Sequence[BaseMessage]) -> Any:
    contract = OutputContract(run.agent.output) if run.agent.output is not None else None
    params = QueryParams(
        context=run.context,
        messages=messages,
        max_turns=run.max_turns,
        compaction=run.compaction,
        output=contract,
        resumes=run.turn.resumes,
        replies=run.turn.replies if run.turn.resumes else 0,
        objections=run.turn.objections if run.turn.resumes else 0,
    )
    async with background_commands(run.context), aclosing(query(params)) as pieces:
        async for _ in pieces:  # The context passes on every chunk, and records every event.
            pass
    return answer(run)


async def _call(run: Run, messages: Sequence[BaseMessage]) -> Any:
    """Run a plain function as an agent: on the event loop if it is async, else in a thread."""
    function, request = run.agent.function, run.request
    assert function is not None
    arguments = request.args
    prompt = messages[0].text if messages else request.prompt
    if not arguments and not request.kwargs and prompt and accepts_single_arg(function):
        arguments = (str.__str__(prompt),)
    if request.late_args is not None:
        arguments = (*arguments, *request.late_args())
    await run.context.wait_persisted()
    step = run.context.next_step()
    run.context.slot.begin_calls()  # The function counts as one call, so it holds no slot while it waits for children.
    owner_loop.set(asyncio.get_running_loop())  # Threads that the function starts find this loop by it.
    token = current_call.set(CurrentCall(run.context, CallId(""), step))
    try:
        if isinstance(function, Composition | AdoptedFunction) or inspect.iscoroutinefunction(function):
            return await function(*arguments, **request.kwargs)
        return await run_in_thread(
            run.context, lambda: function(*arguments, **request.kwargs), name=run.agent.name, key=step
        )
    finally:
        current_call.reset(token)
        run.context.slot.end_call()


def repair_history(run: Run) -> None:
    """Answer the calls that a cut-off turn left open, so that the next request is valid."""
    if not run.context.history:
        return
    known = {id(message) for message in run.context.history}
    answers = list(run.context.answers.values())
    if run.context.durable is None:
        answers = [ensure_encodable(message)[0] for message in answers]  # type: ignore[misc]  # it stays an answer
    else:
        known |= {id(message) for message in answers}  # They were recorded when they came.
    run.context.history[:] = repair([*run.context.history, *answers])
    run.context.answers.clear()
    for message in run.context.history:
        if id(message) not in known:
            call_id = getattr(message, "tool_call_id", None)
            run.context.emit(MessageRecorded, message=ensure_encodable(message)[1], call_id=call_id)


async def start_hook_messages(run: Run) -> list[BaseMessage]:
    """Return the messages of SessionStart or SubagentStart hooks for a run that begins, as data after its brief."""
    event, hooks = "SubagentStart" if run.info.depth else "SessionStart", run.context.hooks
    if hooks is None or not hooks.listens(event):
        return []
    source = run.info.agent if run.info.depth else "startup"
    await run.context.wait_persisted()
    decision = await hooks.fire(event, run.context, {"source": source}, matcher=source)
    return [HumanMessage(content=decision.context)] if decision.context else []
