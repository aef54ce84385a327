"""Results of runs and of their turns: built, recorded, and reported."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ramet.agent.result_codec import encode_result
from ramet.core.errors import BudgetExceeded, RametError
from ramet.core.events import RunPaused
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.spawn.lifecycle.tree_pauses import pause_reason
from ramet.spawn.masking import masked_error, masked_text
from ramet.spawn.run import Run, TurnResult
from ramet.spawn.verdict import partial_text

#: The number of characters of a sandboxed run's printed text that are recorded; the rest is in its folder.
RECORDED_CHARS = 2_000


def result_of(run: Run, verdict: TurnResult) -> Result:
    """Return the result of a turn with its usage, with private values masked in texts for people."""
    return Result(
        status=verdict.status,
        value=verdict.value,
        error=masked_error(run, verdict.error),
        partial=verdict.partial,
        usage=run.context.usage,
        usage_subtree=run.subtree,
        artifacts=run.artifacts,
        files=run.sandbox.output.files,
        stdout=masked_text(run, run.sandbox.output.stdout),
        stderr=masked_text(run, run.sandbox.output.stderr),
    )


def recorded_form(run: Run, result: Result) -> Result:
    """Return a result as it is recorded: its value encoded, and only the newest text that it printed."""
    value = encode_result(run.agent, result.value)
    stdout, stderr = result.stdout[-RECORDED_CHARS:], result.stderr[-RECORDED_CHARS:]
    if value is result.value and stdout is result.stdout and stderr is result.stderr:
        return result
    return replace(result, value=value, stdout=stdout, stderr=stderr)


def paused_result(run: Run, living: Iterable[Run]) -> Result:
    """Return a result that is not final, of a run whose tree is paused: with the limit, or the run that is paused."""
    error = None
    for other in living:
        if (refusal := other.pauses.refusal) is not None:
            error = ErrorInfo(type=BudgetExceeded.__name__, message=str(refusal), scope=refusal.scope)
            break
        if other.pauses.reason is not None:
            error = ErrorInfo(type=RunPaused.__name__, message=pause_reason(other), scope=other.path)
    return Result(
        status=Status.PAUSED,
        error=error,
        partial=partial_text(run),
        usage=run.context.usage,
        usage_subtree=run.subtree,
    )


def reported_result(result: Result, failure: RametError | None) -> Result:
    """Return the result, or a failed one if it cannot be recorded, so that no caller takes it for a result."""
    if failure is None:
        return result
    error = ErrorInfo(type=type(failure).__name__, message=str(failure))
    return replace(result, status=Status.FAILED, value=None, error=error, partial=result.text)
