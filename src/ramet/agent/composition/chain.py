"""Run steps in sequence: the result of each is the input of the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ramet.agent.composition.steps import Composition, composition_input, step_context
from ramet.agent.definition import Agent, as_agent
from ramet.core.errors import InvalidValue

#: The objects that can be a step.
Step = Agent | Mapping[str, Any] | Callable[..., Any]


@dataclass(frozen=True)
class Chain(Composition):
    """Steps in sequence. A step that fails ends the chain with StepFailed."""

    steps: tuple[Agent, ...]

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run every step; return the result of the last."""
        composition, value = step_context(), composition_input(args, kwargs)
        for number, step in enumerate(self.steps):
            value = await composition.run_step(step, value, key=f"{number}:")
        return value

    def parts(self) -> tuple[Agent, ...]:
        return self.steps


def chain(*steps: Step, name: str = "chain", description: str = "") -> Agent:
    """Return an agent that runs its steps in sequence: the result of each is the prompt, or argument, of the next.

    Steps are agents, dicts of their fields, functions, and compositions. Raises InvalidValue without steps.
    """
    if not steps:
        raise InvalidValue("steps", steps, "one step or more")
    return Agent(name=name, description=description, function=Chain(tuple(map(as_agent, steps))))
