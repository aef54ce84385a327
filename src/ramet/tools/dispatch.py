"""`run_tools`: every call of a turn is answered, in order, whatever the outcome of each.

Consecutive calls of tools declared safe run concurrently, up to a bound; any other call runs alone, in its place. A
refusal or failure is an error result for that call only. A tool may declare in `BaseTool.metadata`:

    concurrency_safe   may run concurrently with other calls (default: no)
    waits              only waits for other runs: not counted against the bound, and without our timeout
    timeout_s          its own time limit, instead of the context's
    repeatable         may be run again after a crash interrupted it
    read_only          changes nothing: need not wait until its start is persisted
    recorded           changes only what it records itself, after its start: need not wait for the latter either
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, ValidationError

from ramet.concurrency.cancel import is_being_cancelled
from ramet.concurrency.cuts import WorkCut
from ramet.core.budget import Hold
from ramet.core.errors import Aborted, BudgetExceeded, Bug, InvalidValue, RametError, StoreFailed
from ramet.core.events import ToolEnded, ToolStarted
from ramet.core.ids import CallId, StepId
from ramet.core.limits import Amount
from ramet.core.media.blocks import checked_content, is_media, label
from ramet.core.outcome import Usage
from ramet.core.tool_names import ALIASES as ALIASES
from ramet.core.tool_names import TOOL_SEARCH
from ramet.tools.context import CurrentCall, ToolUseContext, current_call
from ramet.tools.decisions import HookDecision
from ramet.tools.permission_checks import narrow_decision
from ramet.tools.workers.invocation import invoke, invoke_async
from ramet.tools.workers.process_tools import process_proxy
from ramet.tools.workers.start_check import NotStarted
from ramet.tools.workers.thread_tools import is_async as is_async
from ramet.tools.workers.thread_tools import run_in_thread
from ramet.wire.values.first_errors import check_large, is_small
from ramet.wire.values.hash_bounds import ACCEPTED, can_be_hashed

if TYPE_CHECKING:
    from langchain_core.messages import ToolCall

_log = logging.getLogger("ramet.tools")

PREVIEW_CHARS = 2_000
#: The model's result for a call whose effect is unknown.
INTERRUPTED_CALL = (
    "{name} was cut off: the process that ran it ended in the middle of it. Whether it took effect is not known; look "
    "before you do it again."
)
#: The model's result for a call that a person's pause cut.
CUT_CALL = "{name} was cut off by a pause. Whether it took effect is not known; look before you do it again."
_ONE_TOOL_CALL = Amount(tool_calls=1)
_TOOL_CALL_USAGE = Usage(tool_calls=1)


def tool_flag(tool: BaseTool, name: str, default: Any = False) -> Any:
    return (tool.metadata or {}).get(name, default)


def find_tool(by_name: dict[str, BaseTool], name: str) -> BaseTool | None:
    """Return the tool with this name, otherwise the tool of which it is an alias."""
    return by_name.get(name) or by_name.get(ALIASES.get(name, name))


#: A function that records an answer and returns it in its recordable form.
RecordAnswer = Callable[[ToolMessage], ToolMessage]


async def run_tools(
    context: ToolUseContext, calls: Sequence[ToolCall], record_answer: RecordAnswer | None = None
) -> list[ToolMessage]:
    """Answer every call, in order. Raises if the run is stopped or for a bug of ours, never for an error of a tool.

    An answer is added to `context.answered` at once, so that an interrupted turn keeps it, and passed to
    `record_answer`, so that an interrupted process does. Raises StoreFailed, before a tool runs, if nothing can be
    recorded.
    """
    by_name = {tool.name: tool for tool in context.tools}
    answers: list[ToolMessage] = []
    for batch in _batches(context, by_name, calls):
        context.abort.raise_if_aborted()
        await context.slot.acquire()  # at once, unless it was released while all calls only waited
        with context.slot.calls(len(batch)) as end_call:
            if len(batch) == 1:
                answers.append(await _answer(context, by_name, batch[0], end_call, record_answer))
                continue
            bound = asyncio.Semaphore(context.max_parallel_tools)
            try:
                async with asyncio.TaskGroup() as group:
                    answering = [_answer(context, by_name, call, end_call, record_answer, bound) for call in batch]
                    tasks = [group.create_task(each) for each in answering]
            except* (Bug, Aborted, StoreFailed) as raised:
                raise raised.exceptions[0] from None
            answers += [task.result() for task in tasks]
    await context.slot.acquire()
    context.answers.clear()
    return answers


def _batches(
    context: ToolUseContext, by_name: dict[str, BaseTool], calls: Sequence[ToolCall]
) -> Iterator[list[ToolCall]]:
    """Yield runs of safe calls together, every other call alone."""

    def is_safe(call: ToolCall) -> bool:
        tool = find_tool(by_name, call["name"])
        return tool is not None and bool(tool_flag(tool, "concurrency_safe"))

    for safe, group in groupby(calls, key=is_safe):
        if safe:
            yield list(group)
        else:
            yield from ([call] for call in group)


async def _answer(
    context: ToolUseContext,
    by_name: dict[str, BaseTool],
    call: ToolCall,
    end_call: Callable[[], None],
    keep: RecordAnswer | None = None,
    bound: asyncio.Semaphore | None = None,
) -> ToolMessage:
    tool = find_tool(by_name, call["name"])
    try:
        if call["id"] in context.interrupted_calls:
            answer = await _repeat(context, tool, call)
        elif tool is None:
            answer = _refuse(context, call, _unknown_tool(by_name, call["name"][:200]))
        elif bound is None or tool_flag(tool, "waits"):
            answer = await _run_gated(context, tool, call)
        else:
            async with bound:
                answer = await _run_gated(context, tool, call)
        if keep is not None:
            answer = keep(answer)
        context.answers[call["id"] or ""] = answer
        return answer
    finally:
        end_call()


async def _repeat(context: ToolUseContext, tool: BaseTool | None, call: ToolCall) -> ToolMessage:
    """Answer a call that was active when a process ended: repeat it, as the same step, if its tool is repeatable.

    The call passed its gates and was counted when it began.
    """
    if tool is None or not tool_flag(tool, "repeatable"):
        del context.interrupted_calls[CallId(call["id"] or "")]
        return _refuse(context, call, INTERRUPTED_CALL.format(name=call["name"][:200]))
    await context.wait_unpaused(is_counted=True)
    return await _run(context, tool, call, None)


async def _run_gated(context: ToolUseContext, tool: BaseTool, call: ToolCall) -> ToolMessage:
    """Run a call: ask the gates, reserve, run, settle, and notify the hooks."""
    if call.get("error"):
        return _refuse(context, call, f"The arguments of {tool.name} could not be read: {call['error']}")  # type: ignore[typeddict-item]  # set by the loop on calls whose JSON was broken
    note = ""
    if context.permissions or (context.hooks is not None and context.hooks.listens("PreToolUse")):
        hook_result = await _ask_hooks(context, tool, call)
        if isinstance(hook_result, ToolMessage):
            return hook_result
        note = hook_result
    if context.safety is not None:
        safety_decision = await context.safety(
            context, call_id=CallId(call["id"] or ""), tool=tool.name, args=call["args"]
        )
        if not safety_decision.is_committed:
            return _refuse(
                context,
                call,
                f"Blocked by the safety gate: {safety_decision.reason or 'no reason given'}",
                status="denied",
            )
        await context.slot.acquire()  # Waiting for a person released it, unless other calls are active.
    try:
        hold = await context.reserve(lambda: context.budget.reserve(_ONE_TOOL_CALL), Hold.refund, is_counted=True)
    except BudgetExceeded as refusal:
        context.final_refusal = refusal
        context.record_refusal(refusal)
        return _refuse(context, call, str(refusal))
    answer = await _run(context, tool, call, hold)
    if note:
        _append(answer, note)
    return answer


def _append(answer: ToolMessage, note: str) -> None:
    """Append a text to a result."""
    if isinstance(answer.content, str):
        answer.content += f"\n\n{note}"
    else:
        answer.content = [*answer.content, {"type": "text", "text": note}]


async def _ask_hooks(context: ToolUseContext, tool: BaseTool, call: ToolCall) -> ToolMessage | str:
    """Let the hooks deny, rewrite, or ask a person; return a refusal, or their addition to the result.

    Permission rules are applied to the call after the hooks' changes.
    """
    decision = HookDecision()
    if context.hooks is not None and context.hooks.listens("PreToolUse"):
        payload = {"tool_name": tool.name, "tool_input": call["args"], "tool_use_id": call["id"]}
        decision = await context.hooks.fire("PreToolUse", context, payload, matcher=tool.name)
        if decision.updated_input is not None:
            call["args"] = decision.updated_input
    decision = narrow_decision(context, tool.name, call["args"], decision)
    if decision.verdict == "deny":
        return _refuse(context, call, f"Denied: {decision.reason or 'a hook denied it'}", status="denied")
    if decision.verdict == "ask":
        denied = await _ask_person(context, tool, call, decision.reason)
        if denied is not None:
            return denied
    return decision.context


async def _ask_person(context: ToolUseContext, tool: BaseTool, call: ToolCall, question: str) -> ToolMessage | None:
    """Ask a person; return a refusal without an approval."""
    if context.hooks is not None and context.hooks.listens("Notification"):
        payload = {"message": f"{tool.name} waits for approval: {question}", "notification_type": "permission_prompt"}
        await context.hooks.fire("Notification", context, payload, matcher="permission_prompt")
    if context.approve is None:
        return _refuse(context, call, "Denied: there is no approver", status="denied")
    token = current_call.set(CurrentCall(context, CallId(call["id"] or ""), StepId("")))  # the asking run
    try:
        approved = await context.approve(
            context, tool=tool.name, question=question, args=call["args"], can_be_for_run=True
        )
    finally:
        current_call.reset(token)
    if not approved:
        return _refuse(context, call, f"Denied: {approved.denial}", status="denied")
    await context.slot.acquire()  # Waiting for the approval released it, unless other calls are active.
    return None


async def _run(context: ToolUseContext, tool: BaseTool, call: ToolCall, hold: Hold | None) -> ToolMessage:
    """Run a tool; a call without a hold was counted before, and keeps its step."""
    call_id = CallId(call["id"] or "")
    step = context.interrupted_calls.pop(call_id, None) or context.next_step()
    context.emit(ToolStarted, call_id=call_id, tool=tool.name, step_id=step, args=call["args"])
    if hold is not None:
        hold.settle(_ONE_TOOL_CALL)  # From here on it counts, however it ends.
        context.spend(_TOOL_CALL_USAGE)
    started_s = context.clock.monotonic()
    status = "cancelled"
    spilled: str | None = None
    preview = ""
    try:
        try:
            if _has_effects(tool):
                with context.cuts.cuttable(step):
                    await context.wait_persisted()
            answer = await _outcome(context, tool, call, step)
        except WorkCut:
            answer = _error(call, CUT_CALL.format(name=tool.name))
        if context.hooks is not None:
            await _notify_hooks(context, tool, call, answer)
        if (content := await checked_content(answer.content, context.store_blob)) is not None:
            answer.content = content
        spilled = _bound_size(context, answer)
        await _store_artifact(context, answer)
        status, preview = answer.status, _text(answer)[:PREVIEW_CHARS]
        return answer
    finally:
        context.emit(
            ToolEnded,
            call_id=call_id,
            tool=tool.name,
            status="ok" if status == "success" else status,
            preview=preview,
            elapsed_ms=round((context.clock.monotonic() - started_s) * 1000, 3),
            spilled_to=spilled,
        )


def _has_effects(tool: BaseTool) -> bool:
    return not (tool_flag(tool, "read_only") or tool_flag(tool, "recorded"))


async def _outcome(context: ToolUseContext, tool: BaseTool, call: ToolCall, step: StepId) -> ToolMessage:
    """Run the tool; an exception becomes an error result, unless it is a bug in ramet or the run is being stopped."""
    limit = None if tool_flag(tool, "waits") else tool_flag(tool, "timeout_s", context.tool_timeout_s)
    timeout = asyncio.timeout(limit)
    current = CurrentCall(context, CallId(call["id"] or ""), step)
    _log.debug("%s calls %s with %.2000r", context.run.path, tool.name, call["args"])
    if not _can_be_hashed(call["args"]):
        return _error(call, f"{tool.name} was not called: its arguments may have {ACCEPTED}")
    token = current_call.set(current)
    try:
        request: ToolCall = {**call, "type": "tool_call"}
        _check_large(tool, call["args"])
        async with timeout:
            with contextlib.nullcontext() if tool_flag(tool, "waits") else context.cuts.cuttable(step):
                if is_async(tool):
                    returned = await invoke_async(
                        tool, request, context.confirm_ownership if _has_effects(tool) else None
                    )
                elif context.processes is not None:
                    returned = await process_proxy(tool, context.processes, current).ainvoke(request)
                else:
                    work: Callable[[], Any] = lambda: invoke(tool, request)  # noqa: E731 - one expression, run elsewhere
                    returned = await run_in_thread(context, work, name=tool.name, key=call["id"] or "")
    except (WorkCut, Bug):
        raise
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return _error(call, f"{tool.name} cancelled itself")
    except NotStarted as check:
        raise check.error from None
    except (RametError, ToolException) as refusal:
        return _error(call, str(refusal))
    except (Exception, SystemExit) as error:
        if isinstance(error, TimeoutError) and timeout.expired():
            return _error(call, f"{tool.name} did not finish within {limit:g} s and was stopped.")
        if not _is_of_arguments(error, tool):
            _log.warning("the tool %s of %s failed", tool.name, context.run.path, exc_info=error)
        return _error(call, f"{type(error).__name__}: {error}")
    finally:
        current_call.reset(token)
    if isinstance(returned, ToolMessage):
        returned.tool_call_id = call["id"] or ""  # A tool may return its own message, for this call only.
        return returned
    return ToolMessage(content=str(returned), tool_call_id=call["id"] or "", name=tool.name)


def _can_be_hashed(arguments: Any) -> bool:
    """Return whether sets built from the arguments take no time that grows with their square."""
    try:
        return can_be_hashed(arguments)
    except RecursionError:
        return False


def _check_large(tool: BaseTool, arguments: Any) -> None:
    """Raise ValidationError for the first error of large arguments: all errors may take too much memory."""
    schema: Any = tool.args_schema
    if isinstance(schema, type) and issubclass(schema, BaseModel) and not is_small(arguments):
        tool_schema: Any = tool.tool_call_schema  # without LangChain's additions to the model's arguments
        check_large(schema if tool_schema.model_fields.keys() == schema.model_fields.keys() else tool_schema, arguments)


def _is_of_arguments(error: BaseException, tool: BaseTool) -> bool:
    """Return whether the model's arguments were invalid: the tool was not called."""
    return isinstance(error, ValidationError) and error.title == getattr(tool.args_schema, "__name__", None)


async def _notify_hooks(context: ToolUseContext, tool: BaseTool, call: ToolCall, answer: ToolMessage) -> None:
    assert context.hooks is not None
    event = "PostToolUse" if answer.status == "success" else "PostToolUseFailure"
    if not context.hooks.listens(event):
        return
    payload = {
        "tool_name": tool.name,
        "tool_input": call["args"],
        "tool_response": _text(answer),
        "tool_use_id": call["id"],
    }
    decision = await context.hooks.fire(event, context, payload, matcher=tool.name)
    if decision.updated_output is not None:
        answer.content = decision.updated_output
    notes = [each for each in (decision.context, decision.reason if decision.verdict == "deny" else "") if each]
    if notes:
        _append(answer, "\n".join(notes))


async def _store_artifact(context: ToolUseContext, answer: ToolMessage) -> None:
    """Store the bytes of a result's artifact, and put their name into the message: bytes cannot be recorded."""
    artifact = answer.artifact
    if context.store_blob is None or not isinstance(artifact, bytes | bytearray):
        return
    with contextlib.suppress(InvalidValue):  # More than the store accepts: dropped, as without a store.
        name = await context.store_blob(bytes(artifact))
        answer.response_metadata = {**answer.response_metadata, "artifact": {"blob": name, "bytes": len(artifact)}}


def _bound_size(context: ToolUseContext, answer: ToolMessage) -> str | None:
    """Move a result above the size limit to a file; keep its beginning and the file's path."""
    text = answer.content
    if not isinstance(text, str):
        text = _text(answer)
    if len(text) <= context.max_result_chars:
        return None
    beginning = text[: min(PREVIEW_CHARS, context.max_result_chars)]
    path = None
    if context.spill is not None:
        path = str(context.spill(answer.tool_call_id, text))
        remark = f"The whole result is in {path}; read it in parts."
    else:
        remark = "The rest was dropped: this session has no directory to keep it."
    shortened = f"{beginning}\n… [{len(text)} characters, the first {len(beginning)} shown. {remark}]"
    files = [each for each in answer.content if is_media(each)] if isinstance(answer.content, list) else []
    answer.content = [{"type": "text", "text": shortened}, *files] if files else shortened
    return path


def _text(answer: ToolMessage) -> str:
    if isinstance(answer.content, str):
        return answer.content
    return "\n".join(map(_part_text, answer.content))


def _part_text(part: str | dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    return f"[{label(part)}]" if is_media(part) else part.get("text") or json.dumps(part, default=str)


def _error(call: ToolCall, text: str) -> ToolMessage:
    return ToolMessage(content=text, tool_call_id=call["id"] or "", name=call["name"][:200], status="error")


def _unknown_tool(by_name: dict[str, BaseTool], name: str) -> str:
    """Return the text for a model that called a tool which it does not have, or has not found yet."""
    if TOOL_SEARCH in by_name and name.startswith("mcp__"):
        return f"{name!r} cannot be called before it is found: call {TOOL_SEARCH} with the query 'select:{name}' first."
    return f"There is no tool named {name!r}. Tools here: {', '.join(by_name) or 'none'}."


def _refuse(context: ToolUseContext, call: ToolCall, text: str, *, status: str = "error") -> ToolMessage:
    """Answer a call that never ran."""
    context.emit(
        ToolEnded,
        call_id=CallId(call["id"] or ""),
        tool=call["name"][:200],
        status=status,
        preview=text[:PREVIEW_CHARS],
    )
    return _error(call, text)
