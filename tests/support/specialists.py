"""Two agents of one module: the task of the specialist is a function in the code of the lead."""

from __future__ import annotations

from dataclasses import dataclass

import ramet
from ramet.tools.python import python_tool

specialist = ramet.Agent(name="specialist", instructions="Solve what you are asked.")
lead = ramet.Agent(
    name="lead",
    description="Writes code",
    instructions="Write code.",
    tools=(python_tool(),),
    policy=ramet.Policy(allow_sub_agents=True),
)


@dataclass
class Solution:
    """What the specialist found."""

    value: float
    steps: list[str]


@lead.fn
@specialist.task
def solve(equation: str, digits: int = 2) -> Solution:  # type: ignore[empty-body]  # the specialist's work
    """Solve an equation."""


@lead.fn
def half(number: float) -> float:
    """Return half of a number."""
    return number / 2
