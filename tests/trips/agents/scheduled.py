"""Functions that tests put on a schedule: found again by name, as a schedule needs them."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable

#: What was called, in order.
CALLS: list[object] = []
#: A gate at which `waits` waits; a test that uses it makes one.
GATE = asyncio.Event()


def at_gate() -> int:
    """How many wait at the gate, or were cancelled there."""
    return CALLS.count("began") - CALLS.count("ended")


async def note(word: str = "note", *, times: int = 1) -> str:
    """Say that it was called."""
    CALLS.extend([word] * times)
    return f"noted {word}"


def note_in_thread() -> int:
    """The same, synchronously."""
    CALLS.append("thread")
    return 7


def tell(effects: str) -> str:
    """Leave a line in a file, which counts how often it was called, in whichever process."""
    with pathlib.Path(effects).open("a") as file:
        file.write("done\n")
    return "told"


async def waits() -> None:
    """Run until the test opens the gate."""
    CALLS.append("began")
    await GATE.wait()
    CALLS.append("ended")


async def breaks() -> None:
    """Fail."""
    CALLS.append("broke")
    raise ValueError("no \ud800 luck")


def triples(number: int) -> int:
    """Work that a sandbox does."""
    return 3 * number


def make() -> Callable[[], None]:
    """A function that lives inside another."""

    def inner() -> None:
        """Not to be found by name."""

    return inner


class Desk:
    """An object with a method."""

    def work(self) -> None:
        """A method of a live object."""

    @staticmethod
    def rest() -> None:
        """Found by name, though it is written inside a class."""


nameless = lambda: None  # noqa: E731 - the point
