"""A step of a composition: an agent that is spawned below it, receives a value, and returns one.

Values between steps are data (`ramet.wire.values.values`), whether the steps run in the host or in sandboxes, and
whether the value is new or recorded. So a composition behaves the same after a restart. The types come from
annotations: first of a function's return value, then of the next function's parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ramet.agent.definition import Agent
from ramet.core.errors import Bug, InvalidValue, NotShippable, ProtocolError, RametError, StepFailed
from ramet.core.outcome import Result, Status
from ramet.tools.context import ToolUseContext, Tree, current
from ramet.tools.spawn_request import SpawnHandle, SpawnRequest
from ramet.wire.values import values
from ramet.wire.values.annotations import first_parameter, returned_type
from ramet.wire.values.journal_values import to_record


class _Nothing:
    """The absence of an input, which differs from None."""

    def __repr__(self) -> str:
        return "NOTHING"


NO_INPUT: Final = _Nothing()
#: The encoded key of an object's type where it is a key of a dict. In a text its quotes would be escaped.
_ESCAPED_TYPE_KEY: Final = b'"@@type":'


@dataclass(frozen=True)
class StepContext:
    """The run of a composition, as its steps need it."""

    context: ToolUseContext
    tree: Tree

    async def start_step(self, step: Agent, value: Any, *, key: str, name: str = "") -> SpawnHandle:
        """Spawn a step, or find the one that was spawned under this key before a restart."""
        args, kwargs, prompt = _input(step, value)
        request = SpawnRequest(
            agent=step,
            name=name or step.name,
            description=step.description,
            prompt=prompt,
            args=args,
            kwargs=kwargs,
            background=False,
            key=key,
        )
        return await self.tree.spawn(self.context, request)

    async def run_step(self, step: Agent, value: Any, *, key: str, name: str = "") -> Any:
        """Run a step; return its result.

        Raises StepFailed, SpawnRefused, and InvalidValue for a value that does not fit.
        """
        handle = await self.start_step(step, value, key=key, name=name)
        return step_output(step, handle, await handle.result())


@dataclass(frozen=True)
class Call:
    """The arguments of a composition's call, for its first step."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def step_context() -> StepContext:
    """Return the context of the running composition. Raises RametError if it is called like a plain function."""
    try:
        context = current()
    except LookupError:
        raise RametError(
            "a composition runs where its steps can be spawned: "
            "pass it to a runtime, a session or a schedule of the host"
        ) from None
    if context.tree is None:
        raise RametError("a composition needs a tree of runs, and there is none here")
    return StepContext(context, context.tree)


def composition_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the input of a composition: nothing, one value, or the arguments of the call."""
    if not args and not kwargs:
        return NO_INPUT
    return args[0] if len(args) == 1 and not kwargs else Call(args, kwargs)


def step_output(step: Agent, handle: SpawnHandle, result: Result) -> Any:
    """Return a step's result, in its declared type. Raises StepFailed if the step failed or the value does not fit."""
    if result.status is not Status.COMPLETED:
        reason = result.error.message if result.error is not None else "no reason given"
        raise StepFailed(step.name, status=result.status, path=handle.path, reason=reason)
    try:
        return to_declared_type(step, result.value)
    except (InvalidValue, NotShippable, ProtocolError) as mismatch:
        raise StepFailed(step.name, status=Status.FAILED, path=handle.path, reason=str(mismatch)) from mismatch


def to_declared_type(step: Agent, value: Any) -> Any:
    """Return a copy of a value in the type of its step's annotation, so that steps do not share objects.

    Raises NotShippable if the value is not data, InvalidValue if it does not fit.
    """
    if step.function is None or step.external is not None:
        return value  # Text, or a value checked by its contract.
    returns = None if isinstance(step.function, Composition) else returned_type(step.function)
    return copy_value(value, returns, label="output")


def copy_value(value: Any, hint: Any, *, label: str) -> Any:
    """Return a value encoded and decoded to `hint`; a dict with "@type" becomes an object again."""
    size, body = values.encode(value, label=label)
    if _ESCAPED_TYPE_KEY in body:
        text = body[:size].replace(_ESCAPED_TYPE_KEY, _ESCAPED_TYPE_KEY.replace(b"@@", b"@"))
        size, body = len(text), text + body[size:]
    return values.decode(body, size, returns=hint, label=label, is_bounded=False)


def as_text(value: Any) -> str:
    """Return a value as text for a model: text unchanged, anything else as JSON."""
    if value is NO_INPUT or value is None:
        return ""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(to_record(value, label="input")).decode()


def _input(step: Agent, value: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], str]:
    if step.function is None or step.external is not None:
        if isinstance(value, Call):
            raise InvalidValue("input", value.args or dict(value.kwargs), f"one value: {step.name} receives a prompt")
        return (), {}, as_text(value)
    if isinstance(value, Call):
        return value.args, value.kwargs, ""
    if value is NO_INPUT or not _accepts_argument(step.function):
        return (), {}, ""
    return (copy_value(value, first_parameter(step.function), label="input"),), {}, ""


def _accepts_argument(function: Callable[..., Any]) -> bool:
    """Return whether a function accepts a positional argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL) for each in parameters
    )


class Composition:
    """The base of functions that are compositions: they run in the host, and only run their steps."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the steps; return the result of the last."""
        raise Bug("a class of compositions defines __call__")

    def parts(self) -> tuple[Agent, ...]:
        """Return the steps, in order."""
        raise Bug("a class of compositions defines parts")

    def decision_functions(self) -> tuple[Callable[..., Any], ...]:
        """Return the composition's own functions that decide between steps."""
        return ()


def nesting_depth(function: object) -> int:
    """Return how deep compositions are nested below this one; 0 for any other function."""
    if not isinstance(function, Composition):
        return 0
    return 1 + max((nesting_depth(part.function) for part in function.parts()), default=0)
