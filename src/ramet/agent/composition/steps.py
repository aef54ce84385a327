"""One step of a composition: an agent that is born below it, is given a value, and leaves one.

What passes between steps is data (`ramet.wire.values.values`), whether they work in the host or in sandboxes, and
whether the value has just come or was on record: so a composition does the same after a restart. Types come from
annotations: of what a function returns, then of what the next one takes.
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
from ramet.tools.context import SpawnHandle, SpawnRequest, ToolUseContext, Tree, current
from ramet.wire.values import values
from ramet.wire.values.annotations import first_parameter, returned_type
from ramet.wire.values.journal_values import to_record


class _Nothing:
    """No input at all, which is something else than None."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()
#: How the key of an object's type is written where it is a key of a dict. In a text its quotes would be escaped.
_ESCAPED: Final = b'"@@type":'


@dataclass(frozen=True)
class StepContext:
    """The run that a composition is, as its steps need it."""

    context: ToolUseContext
    tree: Tree

    async def begin(self, step: Agent, value: Any, *, key: str, name: str = "") -> SpawnHandle:
        """Give birth to a step, or find the one that was born under this key before a restart."""
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

    async def do(self, step: Agent, value: Any, *, key: str, name: str = "") -> Any:
        """Have a step done; what it left. Raises StepFailed, SpawnRefused, InvalidValue for what does not fit."""
        handle = await self.begin(step, value, key=key, name=name)
        return step_output(step, handle, await handle.result())


@dataclass(frozen=True)
class Call:
    """Arguments as a composition was called with, for its first step."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def step_context() -> StepContext:
    """Where a composition is being run. Raises RametError where it is called like a plain function."""
    try:
        context = current()
    except LookupError:
        raise RametError(
            "a composition runs where its steps can be born: give it to a runtime, a session or a schedule of the host"
        ) from None
    if context.tree is None:
        raise RametError("a composition needs a tree of runs, and here is none")
    return StepContext(context, context.tree)


def composition_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The input of a composition: nothing, one value, or a call's arguments as they are."""
    if not args and not kwargs:
        return NOTHING
    return args[0] if len(args) == 1 and not kwargs else Call(args, kwargs)


def step_output(step: Agent, handle: SpawnHandle, result: Result) -> Any:
    """What a step left, as the type that it promises. Raises StepFailed."""
    if result.status is not Status.COMPLETED:
        why = result.error.message if result.error is not None else "it says nothing of why"
        raise StepFailed(step.name, status=result.status, path=handle.path, reason=why)
    try:
        return typed(step, result.value)
    except (InvalidValue, NotShippable, ProtocolError) as misfit:
        raise StepFailed(step.name, status=Status.FAILED, path=handle.path, reason=str(misfit)) from misfit


def typed(step: Agent, value: Any) -> Any:
    """A value as its step's annotation has it, and a copy: what one step does with it is nothing to another.

    Raises NotShippable for what is no data, InvalidValue for what does not fit.
    """
    if step.function is None:
        return value  # Text, or what its contract has checked.
    returns = None if isinstance(step.function, Composed) else returned_type(step.function)
    return copied(value, returns, what="output")


def copied(value: Any, hint: Any, *, what: str) -> Any:
    """A value as data, and back as what `hint` says: also an object that came this far as a dict with "@type"."""
    size, body = values.encode(value, what=what)
    if _ESCAPED in body:
        text = body[:size].replace(_ESCAPED, _ESCAPED.replace(b"@@", b"@"))
        size, body = len(text), text + body[size:]
    return values.decode(body, size, returns=hint, what=what, is_bounded=False)


def as_text(value: Any) -> str:
    """A value as a model reads it: text as it is, anything else as JSON."""
    if value is NOTHING or value is None:
        return ""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(to_record(value, what="input")).decode()


def _input(step: Agent, value: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], str]:
    if step.function is None:
        if isinstance(value, Call):
            raise InvalidValue("input", value.args or dict(value.kwargs), f"one value: {step.name} is given a prompt")
        return (), {}, as_text(value)
    if isinstance(value, Call):
        return value.args, value.kwargs, ""
    if value is NOTHING or not _takes_any(step.function):
        return (), {}, ""
    return (copied(value, first_parameter(step.function), what="input"),), {}, ""


def _takes_any(function: Callable[..., Any]) -> bool:
    """Whether a function takes anything by its place."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL) for each in parameters
    )


class Composed:
    """What marks a function as a composition: it works in the host, and what it does is to have its steps done."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have its steps done; what is left behind the last."""
        raise Bug("a composition does something")

    def parts(self) -> tuple[Agent, ...]:
        """Its steps, in their order."""
        raise Bug("a composition has steps")

    def deciders(self) -> tuple[Callable[..., Any], ...]:
        """Functions of its own that decide between steps."""
        return ()


def nesting_depth(function: object) -> int:
    """How deep compositions stand in each other below this one; 0 for what is none."""
    if not isinstance(function, Composed):
        return 0
    return 1 + max((nesting_depth(part.function) for part in function.parts()), default=0)
