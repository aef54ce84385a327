"""The kernel part of a store with exactly one kernel, which owns every active tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ramet.core.errors import OwnedElsewhere, StoreFailed
from ramet.store.contract import Document, DocumentWrite, KernelInfo
from ramet.store.validation import checked_name, checked_number


class SoleKernel(ABC):
    """The kernel methods of such a store. Nothing is persisted: the data ends with the process."""

    kernel = "kernel"
    read_only = False

    def __init__(self) -> None:
        self._address = ""
        self._owned_trees: set[str] = set()

    async def kernels(self) -> Sequence[KernelInfo]:
        """Return this kernel if the store is open for writing; a read-only store knows no kernels."""
        self._check()
        return [self._seat] if not self.read_only else []

    async def announce(self, address: str) -> None:
        """Record this kernel's address, until the store is closed."""
        self._writes()
        self._address = checked_name("address", address)

    def on_kernels(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Return a function without effect: `listener` is never called, because there is no other kernel."""
        return self._never()

    @property
    def is_away(self) -> bool:
        """Return False: there is no session to lose."""
        return False

    async def has_closed(self, kernel: str, epoch: int) -> bool:
        """Return False: earlier kernels are unknown."""
        self._check()
        return False

    async def owner_of(self, tree: str) -> KernelInfo | None:
        """Return this kernel for a tree that it has written to or claimed since the store was opened."""
        self._check()
        return self._seat if checked_name("tree", tree) in self._owned_trees else None

    async def claim(self, trees: Sequence[str]) -> Sequence[str]:
        """Claim trees: all of them become this kernel's."""
        self._writes()
        self._owned_trees.update(checked_name("tree", tree) for tree in trees)
        return sorted(set(trees))

    async def take_over(
        self, kernel: str, trees: Sequence[str], documents: Sequence[DocumentWrite]
    ) -> Sequence[Document] | None:
        """Claim trees and write documents for any kernel, since no other is alive.

        Raises Conflict like `put_together`.
        """
        checked_name("kernel", kernel)
        names = [checked_name("tree", tree) for tree in trees]
        stored_documents = await self.put_together((), documents)
        self._owned_trees.update(names)
        return stored_documents

    async def claim_orphaned(self, limit: int = 16) -> Sequence[str]:
        """Return an empty list: there are no other kernels."""
        checked_number("limit", limit)
        self._writes()
        return []

    async def release(self, tree: str) -> None:
        self._writes()
        self._owned_trees.discard(checked_name("tree", tree))

    def on_tree_loss(self, listener: Callable[[OwnedElsewhere], None]) -> Callable[[], None]:
        """Return a function without effect: `listener` is never called, because no other kernel takes a tree."""
        return self._never()

    def on_loss(self, listener: Callable[[StoreFailed], None]) -> Callable[[], None]:
        """Return a function without effect: `listener` is never called, because nothing else can
        write without a file.
        """
        return self._never()

    @abstractmethod
    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        """Store blobs and write documents, all or none. Raises Conflict if a version is not as expected."""

    @abstractmethod
    def _check(self) -> None:
        """Check that the store is open. Raises StoreFailed otherwise."""

    def _writes(self) -> object:
        """Check that the store can be written. Raises StoreFailed otherwise."""
        return self._check()

    def _end_kernel(self) -> None:
        self._address = ""
        self._owned_trees.clear()

    @property
    def _seat(self) -> KernelInfo:
        return KernelInfo(self.kernel, 1, self._address, alive=True)

    def _never(self) -> Callable[[], None]:
        self._check()
        return lambda: None
