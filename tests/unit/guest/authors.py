"""Functions that run as agents in the tests of this folder and create agents."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

from ramet.agent.definition import Agent
from ramet.core.errors import RametError


@dataclasses.dataclass
class Point:
    """A value of a task."""

    x: float
    label: str = ""


def solver() -> Any:
    """Create an agent at the host and return its task."""
    with Agent(name="solver", primer="You solve.") as agent:
        agent.module("math", include=["sin"])

        @agent.task
        def solve(equation: str, guess: Point | None = None) -> list[Point]:  # type: ignore[empty-body]
            """Solve it."""

    return agent.tasks["solve"]


def makes_and_calls() -> list[Any]:
    task = solver()
    first = task("x = 1", guess=Point(2))
    return [str(task.agent.ref), first[0].x, first[0].label, type(first[0]).__name__]


async def awaits() -> list[Any]:
    task = await asyncio.to_thread(solver)
    handle = await task.submit("x = 1")
    return [(await handle.result())[0].x, (await task("x = 2"))[0].x, await handle.exception()]


def in_a_thread() -> float:
    """Call a task in a thread, which has no context variables of the code that started it."""
    roots: list[float] = []
    thread = threading.Thread(target=lambda: roots.append(solver()("x = 1")[0].x))
    thread.start()
    thread.join()
    return roots[0]


def fails() -> list[str]:
    problems = []
    for _ in range(2):
        try:
            solver()("x = 1")
        except RametError as problem:
            problems += [type(problem).__name__, str(problem)]
    return problems


def maps() -> list[Any]:
    outcomes = solver().map(["a", "b", "c"], max_parallel=2)
    return [type(each.exception()).__name__ if each.exception() else each.result()[0].x for each in outcomes]
