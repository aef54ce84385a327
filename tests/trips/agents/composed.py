"""Functions that compositions of the tests are made of; of a module, so that they travel and are found again."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from ramet.compose import agent, cache, policy, retry, timeout
from ramet.core.outcome import StepFailure


@dataclass
class Point:
    """Something with a type."""

    x: int
    y: int = 0


def to_point(number: int) -> Point:
    """An object from a number."""
    return Point(number)


def norm(point: Point) -> int:
    """A number from an object; whatever else comes would fail here."""
    assert type(point) is Point
    return point.x * point.x + point.y


def untyped(value: Any) -> Any:
    """What comes, as it comes."""
    return value


def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


async def plus_one(number: int) -> int:
    """One more, in the event loop."""
    await asyncio.sleep(0)
    return number + 1


def promises_a_number() -> int:
    """Does not keep it."""
    return "no number"  # type: ignore[return-value]  # that is what is tried


def fails(number: int) -> int:
    """Fails."""
    raise ValueError(f"{number} is too much")


def told(values: list[int | StepFailure]) -> list[str]:
    """Which of the branches failed, and how."""
    return [f"{each.step}: {each.message}" if isinstance(each, StepFailure) else str(each) for each in values]


def pid(_: Any = None) -> int:
    """Which process this is."""
    return os.getpid()


def may_spawn(_: Any = None) -> bool:
    """A step that would start another agent if it could."""
    from ramet.sub_agent_client import spawn_sub_agent

    return spawn_sub_agent(double, args=(1,)).exit_code == 0


@policy(memory_mb=100)
@agent(name="tripled")
@retry(2, delay_seconds=0.0)
@timeout(30)
def triple(number: int) -> int:
    """Three times as much.

    Further words.
    """
    return 3 * number


@cache(ttl_seconds=60)
def squared(number: int) -> int:
    """By itself."""
    return number * number
