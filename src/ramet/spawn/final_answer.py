"""The final answer of a conversation, in the form that its contract requires."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from langchain_core.messages import AIMessage

from ramet.agent.context import calls_of
from ramet.agent.loop import open_calls, stop_events
from ramet.agent.output import DoesNotFit, OutputContract
from ramet.agent.result_codec import encode_result
from ramet.core.errors import NeedsInput, OutputInvalid, ProtocolError, TaskFailed
from ramet.spawn.run import Run
from ramet.tools.agents.task_result import find_declared_result
from ramet.wire.values.values import result_too_large


def has_answered(run: Run) -> bool:
    """Return whether the conversation has ended and its loop would accept the answer.

    Raises as `answer` does, except for an answer that does not have the agreed form.
    """
    context = run.context
    if open_calls(context.history) != [] and find_declared_result(context.history) is None:
        return False
    if context.hooks is not None and any(map(context.hooks.listens, stop_events(context))):
        return False
    try:
        value = answer(run)
    except OutputInvalid:
        return False
    return run.agent.output is not None or not isinstance(value, str) or bool(value.strip())


def answer(run: Run) -> Any:
    """Return the value of the model's last message, or of its call of `task_success`.

    Raises TaskFailed or NeedsInput for such a conclusion. Raises OutputInvalid for an answer that does not have the
    agreed form, BudgetExceeded after a last answer on an exhausted budget. Raises ProtocolError for a conversation that
    did not end.
    """
    if run.context.final_refusal is not None:
        raise run.context.final_refusal
    history = run.context.history
    conclusion = run.context.declared_result or find_declared_result(history)
    if conclusion is not None and conclusion.kind == "fail":
        raise TaskFailed(conclusion.text)
    if conclusion is not None and conclusion.kind == "clarify":
        raise NeedsInput(conclusion.text)
    if conclusion is not None:
        return conclusion.value if run.agent.output is None else _parse(run, json.dumps(conclusion.value))
    newest = history[-1] if history else None
    if not isinstance(newest, AIMessage) or calls_of(newest):
        raise ProtocolError("it ended without an answer from its model")
    text = str.__str__(newest.text)  # exact text: langchain's subclass is not JSON
    return text if run.agent.output is None else _parse(run, text)


def checked_answer(run: Run) -> Any:
    """Return the value of `answer`.

    Raises OutputTooLarge if it is larger than the run may leave, and as `answer` does.
    """
    return check_output_size(run, answer(run))


def check_output_size(run: Run, value: Any) -> Any:
    """Return the value of a run.

    Raises OutputTooLarge if it exceeds `max_output_bytes` of the run's policy. A run in the host has no policy, unless
    it is a composition: then there is no limit.
    """
    grant = run.grant or run.step_ceiling
    if grant is None:
        return value
    data = value if isinstance(value, str) else encode_result(run.agent, value)
    size = len(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else msgspec.json.encode(data))
    if size > grant.max_output_bytes:
        raise result_too_large(size, grant.max_output_bytes)
    return value


def _parse(run: Run, text: str) -> Any:
    assert run.agent.output is not None, "only an answer with an output type is parsed"
    try:
        return OutputContract(run.agent.output).parse(text)
    except DoesNotFit as refusal:
        raise OutputInvalid(refusal.problem, tries=1) from None
