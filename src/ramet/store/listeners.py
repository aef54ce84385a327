"""A list of listeners, called in the order of their registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """The listeners of one kind of event. Additions and removals during a notification take effect at the next."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[P, None]] = {}

    def add(self, listener: Callable[P, None]) -> Callable[[], None]:
        """Add a listener; return a function that removes it, which may be called twice."""
        key = object()
        self._listeners[key] = listener

        def leave() -> None:
            self._listeners.pop(key, None)

        return leave

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners in order. The first exception stops the calls."""
        for listener in self:
            listener(*args, **kwargs)

    def clear(self) -> None:
        self._listeners.clear()

    def __iter__(self) -> Iterator[Callable[P, None]]:
        return iter(tuple(self._listeners.values()))

    def __len__(self) -> int:
        return len(self._listeners)
