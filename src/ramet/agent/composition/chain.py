"""One step after the other: what one leaves is what the next one takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ramet.agent.composition.steps import Composed, composition_input, step_context
from ramet.agent.definition import Agent, as_agent
from ramet.core.errors import InvalidValue

#: What can be a step.
Step = Agent | Mapping[str, Any] | Callable[..., Any]


@dataclass(frozen=True)
class Chain(Composed):
    """Steps in a row. A step that fails ends the chain with StepFailed."""

    steps: tuple[Agent, ...]

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have every step done; what the last one leaves."""
        here, value = step_context(), composition_input(args, kwargs)
        for number, step in enumerate(self.steps):
            value = await here.do(step, value, key=f"{number}:")
        return value

    def parts(self) -> tuple[Agent, ...]:
        """Its steps, in their order."""
        return self.steps


def chain(*steps: Step, name: str = "chain", description: str = "") -> Agent:
    """An agent that does its steps one after the other: what each leaves is the prompt, or argument, of the next.

    Steps are agents, dicts of their fields, functions, and compositions. Raises InvalidValue for none.
    """
    if not steps:
        raise InvalidValue("steps", steps, "one step or more")
    return Agent(name=name, description=description, function=Chain(tuple(map(as_agent, steps))))
