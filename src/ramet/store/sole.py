"""The one kernel of a store that has exactly one: every tree that is at work is its own."""

from __future__ import annotations

from ramet.store.contract import Seat
from ramet.store.intake import checked_name


class Sole:
    """What such a store says of kernels. It keeps nothing: all that it knows ends with its process."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self._address = ""
        self._trees: set[str] = set()

    @property
    def seat(self) -> Seat:
        """The one kernel."""
        return Seat(self.kernel, 1, self._address, alive=True)

    def announce(self, address: str) -> None:
        """It answers there."""
        self._address = checked_name("address", address)

    def own(self, *trees: str) -> list[str]:
        """It has these trees."""
        self._trees.update(checked_name("tree", tree) for tree in trees)
        return sorted(set(trees))

    def own_one(self, tree: str) -> None:
        """It has this tree, whose name was checked."""
        self._trees.add(tree)

    def owner_of(self, tree: str) -> Seat | None:
        """Whose a tree is."""
        return self.seat if checked_name("tree", tree) in self._trees else None

    def let_go(self, tree: str) -> None:
        """It has that one no longer."""
        self._trees.discard(checked_name("tree", tree))

    def close(self) -> None:
        """It ends."""
        self._address = ""
        self._trees.clear()
