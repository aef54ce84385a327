"""Functions that tests schedule; a schedule finds each again by its name."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable

#: What was called, in order.
CALLS: list[object] = []
#: A gate at which `waits` waits; a test that uses it makes one.
GATE = asyncio.Event()


def at_gate() -> int:
    """Return how many calls wait at the gate, or were cancelled there."""
    return CALLS.count("began") - CALLS.count("ended")


async def note(word: str = "note", *, times: int = 1) -> str:
    """Record the call."""
    CALLS.extend([word] * times)
    return f"noted {word}"


def note_in_thread() -> int:
    """Record the call, as a synchronous function."""
    CALLS.append("thread")
    return 7


def tell(effects: str) -> str:
    """Append a line to a file, so that calls of every process are counted."""
    with pathlib.Path(effects).open("a") as file:
        file.write("done\n")
    return "told"


async def waits() -> None:
    """Wait until the test opens the gate."""
    CALLS.append("began")
    await GATE.wait()
    CALLS.append("ended")


async def breaks() -> None:
    """Raise ValueError."""
    CALLS.append("broke")
    raise ValueError("no \ud800 luck")


def triples(number: int) -> int:
    """Return three times the number, in a sandbox."""
    return 3 * number


def make() -> Callable[[], None]:
    """Return a function that is defined inside another."""

    def inner() -> None:
        """Do nothing; a schedule cannot find this function by name."""

    return inner


class Desk:
    """An object with a method."""

    def work(self) -> None:
        """Do nothing, as a method of an object."""

    @staticmethod
    def rest() -> None:
        """Do nothing; a schedule finds this static method by name."""


nameless = lambda: None  # noqa: E731 - the point
