"""Who asked to be told, in the order in which they asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Those of one kind of news. Who comes or leaves while they are told does so from the next time on."""

    def __init__(self) -> None:
        self._heard: dict[object, Callable[P, None]] = {}

    def add(self, heard: Callable[P, None]) -> Callable[[], None]:
        """Have `heard` called from now on; returns the way out, which may be called twice."""
        key = object()
        self._heard[key] = heard

        def leave() -> None:
            self._heard.pop(key, None)

        return leave

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all of them. The first that raises ends it."""
        for heard in self:
            heard(*args, **kwargs)

    def clear(self) -> None:
        """Nobody listens any more."""
        self._heard.clear()

    def __iter__(self) -> Iterator[Callable[P, None]]:
        return iter(tuple(self._heard.values()))

    def __len__(self) -> int:
        return len(self._heard)
