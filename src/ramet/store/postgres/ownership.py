"""The trees that this kernel owns, confirmed with every commit by the kernel's row in the database.

The owner of a tree is in `trees`. A lookup there for every event would cost each commit one lock per tree. Instead, a
kernel that takes trees from another increments a count in the other kernel's row, which every commit of that kernel
changes anyway. While the count equals the value read here, this kernel still owns all its trees. When it differs, this
kernel checks which trees it still owns before it writes anything. A lost tree is never regained by a write, only by a
claim: it may have ended meanwhile, and have no owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import psycopg

from ramet.core.errors import OwnedElsewhere
from ramet.store.postgres.dsn import Connection
from ramet.store.postgres.sql import Queries
from ramet.store.postgres.types import Texts

T = TypeVar("T")

#: how long, by the server's clock, a kernel may take to reconnect after the server restarted; equal to the limit for a
#: lost machine
GRACE_S = 10.0


class TreeOwnership:
    """The trees of one kernel while its store is open. The writer's thread changes it; others may read `lost_trees`."""

    def __init__(self, queries: Queries, kernel: str) -> None:
        self._queries, self._kernel = queries, kernel
        self.losses = 0  #: known number of times that trees were taken from this kernel
        self.epochs: dict[str, int] = {}  #: of this kernel's trees
        #: trees that are known to be another kernel's, or that were taken away
        self.lost_trees: dict[str, OwnedElsewhere] = {}
        self._new_losses: list[OwnedElsewhere] = []
        self._new_epochs: dict[str, int] = {}  #: by the current transaction
        self._released_trees: set[str] = set()

    # ---- a transaction of the writer

    def begin(self) -> None:
        """Begin a set of changes, which may be rolled back until `settle`."""
        self._new_epochs.clear()
        self._released_trees.clear()

    def settle(self) -> None:
        """Apply the changes since `begin`: they are committed."""
        self.epochs.update(self._new_epochs)
        for tree in self._new_epochs:
            self.lost_trees.pop(tree, None)
        for tree in self._released_trees:
            self.epochs.pop(tree, None)

    def find_unowned(self, trees: Collection[str]) -> list[str]:
        """Return the trees whose owner is unknown; they become this kernel's if no kernel owns them."""
        return [tree for tree in trees if tree not in self.epochs]

    def add_owned(self, trees: Iterable[str]) -> None:
        """Note trees that became this kernel's, each in its first epoch."""
        self._new_epochs.update(dict.fromkeys(trees, 1))

    def refresh(self, connection: Connection, trees: Collection[str] = ()) -> None:
        """Read which trees this kernel still owns, and the owners of the trees in `trees`."""
        row = connection.execute(self._queries["where_we_are"], {"kernel": self._kernel}).fetchone()
        names = sorted({*self.epochs, *trees})
        owners = {each[0]: each for each in self._owners(connection, names)}
        for name in names:
            _, kernel, epoch, address = owners.get(name, (name, "", 0, ""))
            if kernel == self._kernel and self.epochs.get(name, epoch) == epoch:
                self.epochs[name] = epoch
            elif kernel or name in self.epochs:
                self._mark_lost(name, kernel, address)
        # The count was read before the trees: if one was taken in between, the next commit finds another count, and
        # looks again.
        self.losses = row[2] if row is not None else self.losses

    def take_losses(self) -> Sequence[OwnedElsewhere]:
        """Return the trees found to be another kernel's since the last call."""
        losses, self._new_losses = self._new_losses, []
        return losses

    # ---- queued changes, made behind the events of their transaction

    def check_owned(self, connection: Connection, tree: str) -> None:
        """Make a tree this kernel's if it has no owner. Raises OwnedElsewhere if it is another kernel's."""
        if tree in self.lost_trees and tree not in self._new_epochs:
            raise copy_of(self.lost_trees[tree])
        if tree not in self._released_trees and (tree in self.epochs or tree in self._new_epochs):
            return
        row = connection.execute(self._queries["own"], {"tree": tree, "kernel": self._kernel}).fetchone()
        if row is None:
            ((_, kernel, epoch, address),) = self._owners(connection, [tree])
            if kernel != self._kernel:
                raise OwnedElsewhere(tree, kernel, address)
            row = (epoch,)
        self._new_epochs[tree] = row[0]
        self._released_trees.discard(tree)

    def claim(self, connection: Connection, trees: Sequence[str]) -> Sequence[str]:
        """Claim trees that are this kernel's, have no owner, or belong to dead kernels."""
        return self._add_claimed(self._claim(connection, trees))

    def claim_orphaned(self, connection: Connection, limit: int) -> Sequence[str]:
        """Claim trees of dead kernels."""
        values = {"kernel": self._kernel, "grace_s": GRACE_S, "limit": limit}
        return self._add_claimed(dict(connection.execute(self._queries["claim_fallen"], values).fetchall()))

    def take_over(self, connection: Connection, kernel: str, trees: Sequence[str], write: Callable[[], T]) -> T | None:
        """Claim trees and call `write`, if `kernel` is dead and no live one owns a tree. Otherwise change nothing."""
        result: T | None = None
        with connection.transaction():
            values = {"kernel": kernel, "grace_s": GRACE_S}
            if kernel != self._kernel and connection.execute(self._queries["lives"], values).fetchone():
                return None
            written = write()
            claimed_epochs = self._claim(connection, trees)
            if not claimed_epochs.keys() >= set(trees):
                raise psycopg.Rollback
            self._add_claimed(claimed_epochs)
            result = written
        return result

    def release(self, connection: Connection, tree: str) -> None:
        """Release a tree."""
        connection.execute(self._queries["let_go"], {"tree": tree, "kernel": self._kernel})
        self._new_epochs.pop(tree, None)
        self._released_trees.add(tree)

    def _claim(self, connection: Connection, trees: Sequence[str]) -> dict[str, int]:
        values = {"kernel": self._kernel, "grace_s": GRACE_S, "trees": Texts(trees)}
        return dict(connection.execute(self._queries["claim"], values).fetchall())

    def _add_claimed(self, epochs: dict[str, int]) -> Sequence[str]:
        self._new_epochs.update(epochs)
        self._released_trees.difference_update(epochs)
        return sorted(epochs)

    def _owners(self, connection: Connection, names: list[str]) -> list[tuple[str, str, int, str]]:
        return connection.execute(self._queries["owners"], {"trees": names}).fetchall()

    def _mark_lost(self, tree: str, kernel: str, address: str) -> None:
        self.epochs.pop(tree, None)
        if tree not in self.lost_trees:
            self._new_losses.append(OwnedElsewhere(tree, kernel, address))
        self.lost_trees[tree] = OwnedElsewhere(tree, kernel, address)


def copy_of(error: OwnedElsewhere) -> OwnedElsewhere:
    """Return a copy of the error, to raise in another caller."""
    return OwnedElsewhere(error.tree, error.kernel, error.address)
