"""Which trees are this kernel's, as its row in the database confirms with every commit.

A tree's owner is in `trees`. Looking there for every event would cost each commit a lock a tree; instead, whoever takes
trees from a kernel counts that in the kernel's own row, which every commit of that kernel changes anyway. As long as
the count is the one that was read here, all that was this kernel's still is. When it is another, this kernel looks,
before it writes anything, which of its trees are left to it. A tree that was lost is never taken back by writing to it,
only by a claim: it may be over meanwhile, and have no owner at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ramet.core.errors import Conflict, OwnedElsewhere, RametError

if TYPE_CHECKING:
    from ramet.store.postgres.dsn import Connection
    from ramet.store.postgres.sql import Queries

T = TypeVar("T")

#: What a kernel has, by the server's clock, to come back after the server began anew; as long as for a lost machine.
GRACE_S = 10.0


class _Undo(Exception):
    """A change that is not to be made after all."""


class TreeOwnership:
    """The trees of one kernel while its store is open. The writer's thread changes it; others may ask for `lost`."""

    def __init__(self, queries: Queries, kernel: str) -> None:
        self._queries, self._kernel = queries, kernel
        self.losses = 0  #: how often trees were taken from this kernel, as it knows
        self.epochs: dict[str, int] = {}  #: of trees that are this kernel's
        self.lost: dict[str, OwnedElsewhere] = {}  #: trees that are known to be another's, or were taken away
        self._news: list[OwnedElsewhere] = []
        self._gained: dict[str, int] = {}  #: by the transaction that is under way
        self._dropped: set[str] = set()

    # ---- a transaction of the writer

    def begin(self) -> None:
        """Nothing of what follows is true before `settle`: it may be rolled back."""
        self._gained.clear()
        self._dropped.clear()

    def settle(self) -> None:
        """What was changed since `begin` is committed."""
        self.epochs.update(self._gained)
        for tree in self._gained:
            self.lost.pop(tree, None)
        for tree in self._dropped:
            self.epochs.pop(tree, None)

    def fresh(self, trees: Collection[str]) -> list[str]:
        """Those of these trees of which is not known whose they are; they are this kernel's if nobody has them."""
        return [tree for tree in trees if tree not in self.epochs]

    def gained(self, trees: Iterable[str]) -> None:
        """These became this kernel's, each as its first."""
        self._gained.update(dict.fromkeys(trees, 1))

    def look(self, connection: Connection, asked: Collection[str] = ()) -> None:
        """See which trees are left to this kernel, and whose those are that it asks about."""
        row = connection.execute(self._queries["where_we_are"], {"kernel": self._kernel}).fetchone()
        names = sorted({*self.epochs, *asked})
        found = {each[0]: each for each in self._owners(connection, names)}
        for name in names:
            _, kernel, epoch, address = found.get(name, (name, "", 0, ""))
            if kernel == self._kernel and self.epochs.get(name, epoch) == epoch:
                self.epochs[name] = epoch
            elif kernel or name in self.epochs:
                self._lose(name, kernel, address)
        # Read before the trees: if any were taken in between, the next commit finds another count, and looks again.
        self.losses = row[2] if row is not None else self.losses

    def news(self) -> Sequence[OwnedElsewhere]:
        """The trees that were found to be another's since this was asked last."""
        news, self._news = self._news, []
        return news

    # ---- changes, made behind the events of their transaction

    def holding(self, tree: str, make: Callable[[Connection], T]) -> Callable[[Connection], T | RametError]:
        """A change that is only made if the tree is this kernel's, or nobody's: then it becomes this kernel's."""

        def made(connection: Connection) -> T | RametError:
            return self._refused(connection, tree) or make(connection)

        return made

    def claim(self, trees: Sequence[str]) -> Callable[[Connection], Sequence[str]]:
        """Take trees that are this kernel's, nobody's, or those of dead ones."""
        from ramet.store.postgres.types import Texts  # psycopg is an extra

        return self._taking("claim", {"trees": Texts(trees)})

    def claim_fallen(self, limit: int) -> Callable[[Connection], Sequence[str]]:
        """Take trees of dead kernels."""
        return self._taking("claim_fallen", {"limit": limit})

    def take_over(
        self, kernel: str, trees: Sequence[str], put: Callable[[Connection], T | Conflict]
    ) -> Callable[[Connection], T | Conflict | None]:
        """Claim trees and make another change, if `kernel` does not live, and nobody else that does has a tree."""
        from ramet.store.postgres.types import Texts  # psycopg is an extra

        claiming = {"kernel": self._kernel, "grace_s": GRACE_S, "trees": Texts(trees)}

        def make(connection: Connection) -> T | Conflict | None:
            lives = {"kernel": kernel, "grace_s": GRACE_S}
            if kernel != self._kernel and connection.execute(self._queries["lives"], lives).fetchone():
                return None
            done = put(connection)
            if isinstance(done, Conflict):
                return done
            taken: dict[str, int] = dict(connection.execute(self._queries["claim"], claiming).fetchall())
            if not taken.keys() >= set(trees):
                raise _Undo
            self._gained.update(taken)
            self._dropped.difference_update(taken)
            return done

        def made(connection: Connection) -> T | Conflict | None:
            try:
                with connection.transaction():
                    return make(connection)
            except _Undo:
                return None

        return made

    def let_go(self, tree: str) -> Callable[[Connection], None]:
        """Have a tree no longer."""

        def make(connection: Connection) -> None:
            connection.execute(self._queries["let_go"], {"tree": tree, "kernel": self._kernel})
            self._gained.pop(tree, None)
            self._dropped.add(tree)

        return make

    def _taking(self, query: str, values: dict[str, object]) -> Callable[[Connection], Sequence[str]]:
        known = {"kernel": self._kernel, "grace_s": GRACE_S}

        def make(connection: Connection) -> Sequence[str]:
            taken: dict[str, int] = dict(connection.execute(self._queries[query], {**known, **values}).fetchall())
            self._gained.update(taken)
            self._dropped.difference_update(taken)
            return sorted(taken)

        return make

    def _refused(self, connection: Connection, tree: str) -> OwnedElsewhere | None:
        if tree in self.lost and tree not in self._gained:
            return self.lost[tree]
        if tree not in self._dropped and (tree in self.epochs or tree in self._gained):
            return None
        row = connection.execute(self._queries["own"], {"tree": tree, "kernel": self._kernel}).fetchone()
        if row is None:
            ((_, kernel, epoch, address),) = self._owners(connection, [tree])
            if kernel != self._kernel:
                return OwnedElsewhere(tree, kernel, address)
            row = (epoch,)
        self._gained[tree] = row[0]
        self._dropped.discard(tree)
        return None

    def _owners(self, connection: Connection, names: list[str]) -> list[tuple[str, str, int, str]]:
        return connection.execute(self._queries["owners"], {"trees": names}).fetchall()

    def _lose(self, tree: str, kernel: str, address: str) -> None:
        self.epochs.pop(tree, None)
        if tree not in self.lost:
            self._news.append(OwnedElsewhere(tree, kernel, address))
        self.lost[tree] = OwnedElsewhere(tree, kernel, address)
