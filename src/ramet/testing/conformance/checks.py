"""The parts that all suites share: the errors of a check, and the list of a module's checks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any


class Violation(AssertionError):
    """A promise of the contract that is not kept."""


class NotHere(Exception):
    """A promise that cannot be checked here, or that is not made; the message is the reason."""


def expect(condition: object, promise: str) -> None:
    """Raise Violation, with the promise, unless the condition holds."""
    if not condition:
        raise Violation(promise)


async def raises(kind: type[Exception], awaitable: Awaitable[object], promise: str) -> Any:
    """Return the error that `awaitable` ends with. Raises Violation if there is none, or another."""
    try:
        outcome = await awaitable
    except kind as error:
        return error
    except Exception as error:
        raise Violation(f"{promise}: {kind.__name__} was expected, {error!r} was raised") from error
    raise Violation(f"{promise}: {kind.__name__} was expected, {outcome!r} was returned")


def raises_now(kind: type[Exception], call: Callable[[], object], promise: str) -> None:
    """Check that a synchronous call raises an error of `kind`. Raises Violation if it raises none, or another."""
    try:
        outcome = call()
    except kind:
        return
    except Exception as error:
        raise Violation(f"{promise}: {kind.__name__} was expected, {error!r} was raised") from error
    raise Violation(f"{promise}: {kind.__name__} was expected, {outcome!r} was returned")


def checks_of(module: str) -> tuple[Any, ...]:
    """Return the checks of a module: the public coroutine functions that it defines, in their order."""
    return tuple(
        each
        for name, each in vars(sys.modules[module]).items()
        if inspect.iscoroutinefunction(each) and each.__module__ == module and not name.startswith("_")
    )


def one_line(problem: BaseException) -> str:
    """Return the message of an error in one line of bounded length."""
    return " ".join(str(problem).split())[:500]
