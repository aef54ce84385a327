"""Functions that tests compose; the functions are in a module, so that sandboxes and resumes find them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from ramet.compose import agent, cache, policy, retry, timeout
from ramet.core.outcome import StepFailure


@dataclass
class Point:
    """A value of a type of its own."""

    x: int
    y: int = 0


def to_point(number: int) -> Point:
    """Return an object from a number."""
    return Point(number)


def norm(point: Point) -> int:
    """Return a number from an object, and fail for any other value."""
    assert type(point) is Point
    return point.x * point.x + point.y


def untyped(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


async def plus_one(number: int) -> int:
    """Return the number plus one, in the event loop."""
    await asyncio.sleep(0)
    return number + 1


def promises_a_number() -> int:
    """Return a text against the annotation."""
    return "no number"  # type: ignore[return-value]  # that is what is tried


def fails(number: int) -> int:
    """Raise ValueError."""
    raise ValueError(f"{number} is too much")


def describe_branches(values: list[int | StepFailure]) -> list[str]:
    """Return the value of each branch, or its step and error."""
    return [f"{each.step}: {each.message}" if isinstance(each, StepFailure) else str(each) for each in values]


def pid(_: Any = None) -> int:
    """Return the id of the process."""
    return os.getpid()


def may_spawn(_: Any = None) -> bool:
    """Try to spawn another agent, and return whether it completed."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(double, args=(1,)).exit_code == 0


@policy(memory_mb=100)
@agent(name="tripled")
@retry(2, delay_seconds=0.0)
@timeout(30)
def triple(number: int) -> int:
    """Return three times the number.

    Further words.
    """
    return 3 * number


@cache(ttl_seconds=60)
def squared(number: int) -> int:
    """Return the square of the number, with a cache."""
    return number * number
