"""How a turn ended, as its run's supervisor is told."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.messages import AIMessage, BaseMessage

from ramet.core.errors import Aborted, BudgetExceeded, NeedsInput, StepFailed
from ramet.core.outcome import ErrorInfo, Status
from ramet.spawn.run import Run, Verdict


def cut(run: Run, status: Status, reason: str) -> Verdict:
    """The verdict of a run that was stopped, with what it had said until then."""
    return Verdict(status, error=ErrorInfo(type="Aborted", message=reason), partial=partial(run))


def lost(run: Run, why: str) -> Verdict:
    """The verdict of a function that was cut off in its middle, and that is not called again."""
    message = f"it was cut off, nobody knows what it had done, and it is not to be called again: {why}"
    return Verdict(Status.LOST, error=ErrorInfo(type="Lost", message=message), partial=partial(run))


def partial(run: Run) -> str:
    """The newest text of this turn, streaming or recorded."""
    if run.heard:
        return "".join(run.heard)
    return newest_text(reversed(run.context.history[run.turn_began_at :]))


def newest_text(messages: Iterable[BaseMessage]) -> str:
    """The text of the first reply that has any; the newest message comes first."""
    for message in messages:
        if isinstance(message, AIMessage) and message.text:
            return str.__str__(message.text)
    return ""


_STATUS: dict[type[BaseException], Status] = {
    Aborted: Status.CANCELLED,
    BudgetExceeded: Status.BUDGET_EXHAUSTED,
    NeedsInput: Status.NEEDS_INPUT,
}


def failed(run: Run, error: BaseException) -> Verdict:
    """The verdict of a turn that raised."""
    status = _STATUS.get(type(error), Status.FAILED)
    if isinstance(error, StepFailed) and error.status == Status.BUDGET_EXHAUSTED:
        status = Status.BUDGET_EXHAUSTED
    scope = error.scope if isinstance(error, BudgetExceeded) else None
    info = ErrorInfo(type=type(error).__name__, message=str(error), scope=scope)
    return Verdict(status, error=info, partial=partial(run))
