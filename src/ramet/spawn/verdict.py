"""The results of turns, as the supervisor receives them."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.messages import AIMessage, BaseMessage

from ramet.core.errors import Aborted, BudgetExceeded, NeedsInput, RametError, StepFailed, TaskFailed
from ramet.core.outcome import ErrorInfo, Status
from ramet.core.replay.run_replay import RunReplay
from ramet.models.messages import decode
from ramet.spawn.final_answer import answer
from ramet.spawn.run import Run, TurnResult
from ramet.tools.agents.task_result import CONCLUSIONS, find_declared_result
from ramet.tools.context import DeclaredResult


def cancelled_result(
    run: Run, status: Status, reason: str, *, scope: str | None = None, error_type: str = "Aborted"
) -> TurnResult:
    """Return the result of a stopped run, with its partial text; `scope` is that of `ErrorInfo`."""
    return TurnResult(status, error=ErrorInfo(type=error_type, message=reason, scope=scope), partial=partial_text(run))


def lost_result(run: Run, why: str) -> TurnResult:
    """Return the result of a function that was interrupted and must not be called again."""
    message = f"it was cut off, its effects are unknown, and it is not to be called again: {why}"
    return TurnResult(Status.LOST, error=ErrorInfo(type="Lost", message=message), partial=partial_text(run))


def partial_text(run: Run) -> str:
    """Return the newest text of this turn, streaming or recorded."""
    if run.activity.streamed_text:
        return "".join(run.activity.streamed_text)
    return newest_text(reversed(run.context.history[run.turn_began_at :]))


def newest_text(messages: Iterable[BaseMessage]) -> str:
    """Return the text of the first reply that has text; `messages` start with the newest."""
    for message in messages:
        if isinstance(message, AIMessage) and message.text:
            return str.__str__(message.text)
    return ""


_STATUS: dict[type[BaseException], Status] = {
    Aborted: Status.CANCELLED,
    BudgetExceeded: Status.BUDGET_EXHAUSTED,
    NeedsInput: Status.NEEDS_INPUT,
}


def error_result(run: Run, error: BaseException) -> TurnResult:
    """Return the result of a turn that raised an error."""
    status = _STATUS.get(type(error), Status.FAILED)
    if isinstance(error, StepFailed) and error.status == Status.BUDGET_EXHAUSTED:
        status = Status.BUDGET_EXHAUSTED
    scope = error.scope if isinstance(error, BudgetExceeded) else None
    info = ErrorInfo(type=type(error).__name__, message=str(error), scope=scope)
    return TurnResult(status, error=info, partial=partial_text(run))


def recorded_verdict(run: Run, replay: RunReplay) -> TurnResult:
    """Return the result of a turn that ended in another process, as far as the record shows it."""
    status, text = Status(replay.turn_status), _recorded_text(run, replay) or None
    if status is Status.COMPLETED:
        is_text = run.agent.output is None and _declared_result(replay) is None
        return TurnResult(status, text if is_text else _value_of(run, text))
    return TurnResult(status, error=_error_of(run, replay, status), partial=text or "")


def recorded_refusal(replay: RunReplay) -> BudgetExceeded | None:
    """Return the last budget refusal that another process raised or sent to a guest, as far as it is recorded."""
    refusal = replay.refusal
    if refusal is None:
        return None
    return BudgetExceeded(refusal.resource, asked=refusal.asked, left=refusal.left, scope=refusal.scope)


def _recorded_text(run: Run, replay: RunReplay) -> str:
    """Return the text of the newest reply of the newest turn that has text. Plain text is not decoded as a message."""
    for each in reversed(replay.conversation[run.turn_began_at :]):
        if each.kind == "ai":
            content = each.data.get("content")
            text = content if isinstance(content, str) else newest_text([decode(each.data)])
            if text:
                return text
    return ""


def _declared_result(replay: RunReplay) -> DeclaredResult | None:
    """Return the conclusion in the newest reply. For most idle runs no message is decoded."""
    conversation = replay.conversation
    at = next((at for at in reversed(range(len(conversation))) if conversation[at].kind != "tool"), len(conversation))
    answers = conversation[at + 1 :]
    calls = conversation[at].data.get("tool_calls") if answers else None
    if not any(call.get("name") in CONCLUSIONS for call in calls or ()):
        return None
    return find_declared_result([decode(each.data) for each in conversation[at:]])


def _value_of(run: Run, text: str | None) -> object:
    try:
        return answer(run)
    except RametError:  # A value that its definition would not accept today stays as it was written.
        return text


def _error_of(run: Run, replay: RunReplay, status: Status) -> ErrorInfo:
    refusal = recorded_refusal(replay)
    if refusal is not None and status is Status.BUDGET_EXHAUSTED:
        return ErrorInfo(type="BudgetExceeded", message=str(refusal), scope=refusal.scope)
    try:
        answer(run)
    except (TaskFailed, NeedsInput) as error:
        return ErrorInfo(type=type(error).__name__, message=str(error))
    except RametError:
        pass
    return ErrorInfo(type="RametError", message="its process was killed before the reason was recorded")
