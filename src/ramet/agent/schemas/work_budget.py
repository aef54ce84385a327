"""The work of a check, counted: a form and a value from outside cannot make it grow beyond a bound.

A step is about one keyword of a schema, or one choice of a type, held against one value. Checks within a check share
its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MAX_STEPS = 100_000  #: of a check, and one more for each four characters of the value


class TooManySteps(Exception):
    """A check that was stopped. The message says the bound, for a reader who can choose a smaller form or value."""


class Steps:
    """The steps that a check may still take."""

    def __init__(self, characters: int) -> None:
        self._most = self.left = MAX_STEPS + characters // 4

    def take(self, steps: int = 1) -> None:
        """Raises TooManySteps."""
        self.left -= steps
        if self.left < 0:
            raise TooManySteps(f"checking it takes more than {self._most} steps")


_current: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def counted(characters: int = 0) -> Iterator[Steps]:
    """Count what happens inside, for a value of so many characters: as part of the check around it, if there is one."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    steps = Steps(characters)
    token = _current.set(steps)
    try:
        yield steps
    finally:
        _current.reset(token)


def take(steps: int) -> None:
    """Count steps of the check at work, if there is one. Raises TooManySteps."""
    if (current := _current.get()) is not None:
        current.take(steps)
