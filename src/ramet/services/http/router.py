"""The mapping from paths to routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import unquote

T = TypeVar("T")


class RouteMatch(NamedTuple, Generic[T]):
    """The route of a path, and the values of the names in the path."""

    target: T
    names: Mapping[str, str]


class Routes(Generic[T]):
    """Paths with names in braces, such as `/v1/agents/{agent}/turns`. Each name stands for one part that is not empty.

    A lookup takes as many steps as the path has parts, independent of the number of paths. A literal part takes
    precedence over a name.
    """

    def __init__(self, paths: Mapping[str, T]) -> None:
        self._root = _Fork[T]()
        for path, target in paths.items():
            fork, names = self._root, list[str]()
            for part in path.split("/"):
                if part.startswith("{"):
                    names.append(part.strip("{}"))
                    fork.name_fork = fork.name_fork or _Fork()
                    fork = fork.name_fork
                else:
                    fork = fork.words.setdefault(part, _Fork())
            fork.end = target, names

    def find(self, path: str) -> RouteMatch[T] | None:
        """Return the route of a path, if it has one. A part may have a slash, as it is sent in URLs: `%2F`."""
        fork, values = self._root, list[str]()
        for part in map(unquote, path.split("/")):
            branch = fork.words.get(part)
            if branch is None:
                if fork.name_fork is None or not part:
                    return None
                values.append(part)
                branch = fork.name_fork
            fork = branch
        return None if fork.end is None else RouteMatch(fork.end[0], dict(zip(fork.end[1], values, strict=True)))


class _Fork(Generic[T]):
    """A node of the tree of paths, where a path continues or ends."""

    def __init__(self) -> None:
        self.words: dict[str, _Fork[T]] = {}
        self.name_fork: _Fork[T] | None = None
        self.end: tuple[T, list[str]] | None = None
