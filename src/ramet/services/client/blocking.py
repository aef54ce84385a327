"""Wrappers that turn the methods of an async client into blocking methods of a client with its own event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class BlockingClient(Protocol[A_co]):
    """A blocking client."""

    @property
    def client(self) -> A_co:
        """Return the async client."""

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the client's loop, and wait for its result."""


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[A], P], T]:
    """Return a method that calls the async method and waits for its result."""

    def call(self: BlockingClient[A], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(method(self.client, *args, **kwargs))

    return wraps(method)(call)  # type: ignore[return-value]  # the same, but for `self`


def iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[BlockingClient[A], P], Iterator[T]]:
    """Return a method that iterates over the async generator, and waits for each item."""

    def call(self: BlockingClient[A], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self.client, *args, **kwargs)

        async def following() -> tuple[T, ...]:
            async for each in items:
                return (each,)
            return ()

        try:
            while got := self.call(following()):
                yield from got
        finally:
            self.call(items.aclose())

    return wraps(method)(call)  # type: ignore[return-value]  # the same, but for `self`
