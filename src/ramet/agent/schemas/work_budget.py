"""Count the work of a check, so that no schema and no value from outside can exceed a bound.

A step is about one keyword of a schema, or one choice of a type, applied to one value. Nested checks share the steps of
the outer check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MAX_STEPS = 100_000  #: of a check, plus one for every four characters of the value


class TooManySteps(Exception):
    """The error for a stopped check.

    The message has the bound, for a reader who can choose a smaller schema or value.
    """


class Steps:
    """The remaining steps of a check."""

    def __init__(self, characters: int) -> None:
        self._limit = self.remaining = MAX_STEPS + characters // 4

    def spend(self, steps: int = 1) -> None:
        """Take steps. Raises TooManySteps if none are left."""
        self.remaining -= steps
        if self.remaining < 0:
            raise TooManySteps(f"checking it takes more than {self._limit} steps")


_current: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def count_steps(characters: int = 0) -> Iterator[Steps]:
    """Count the steps inside, for a value of `characters`; in an outer check, its steps are used."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    steps = Steps(characters)
    token = _current.set(steps)
    try:
        yield steps
    finally:
        _current.reset(token)


def spend_steps(steps: int) -> None:
    """Take steps of the current check, if there is one. Raises TooManySteps."""
    if (current := _current.get()) is not None:
        current.spend(steps)
