"""The one kernel of a store that has exactly one: every tree that is at work is its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ramet.core.errors import OwnedElsewhere, StoreFailed
from ramet.store.contract import Document, DocumentWrite, KernelInfo
from ramet.store.validation import checked_name, checked_number


class SoleKernel(ABC):
    """What such a store says of kernels. Nothing of it is kept: all that it knows ends with its process."""

    kernel = "kernel"
    read_only = False

    def __init__(self) -> None:
        self._address = ""
        self._owned: set[str] = set()

    async def kernels(self) -> Sequence[KernelInfo]:
        """The one that has it open, where it is this one: whoever only reads knows of none."""
        self._check()
        return [self._seat] if not self.read_only else []

    async def announce(self, address: str) -> None:
        """Say where this kernel answers, until the store is closed."""
        self._writes()
        self._address = checked_name("address", address)

    def on_kernels(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Never calls it: there is no other kernel."""
        return self._never()

    @property
    def is_away(self) -> bool:
        """Never: it has no session."""
        return False

    async def has_left(self, kernel: str, epoch: int) -> bool:
        """Never: what was here before is not known."""
        self._check()
        return False

    async def owner_of(self, tree: str) -> KernelInfo | None:
        """This kernel, for a tree that it has written to or claimed since the store was opened."""
        self._check()
        return self._seat if checked_name("tree", tree) in self._owned else None

    async def claim(self, trees: Sequence[str]) -> Sequence[str]:
        """Make trees this kernel's: all of them."""
        self._writes()
        self._owned.update(checked_name("tree", tree) for tree in trees)
        return sorted(set(trees))

    async def take_over(
        self, kernel: str, trees: Sequence[str], documents: Sequence[DocumentWrite]
    ) -> Sequence[Document] | None:
        """Claim trees and write documents, of whichever kernel: none but this one lives. Raises Conflict."""
        checked_name("kernel", kernel)
        names = [checked_name("tree", tree) for tree in trees]
        written = await self.put_together((), documents)
        self._owned.update(names)
        return written

    async def claim_fallen(self, limit: int = 16) -> Sequence[str]:
        """None: there are no other kernels."""
        checked_number("limit", limit)
        self._writes()
        return []

    async def let_go(self, tree: str) -> None:
        """Own a tree no longer; idempotent."""
        self._writes()
        self._owned.discard(checked_name("tree", tree))

    def on_tree_loss(self, heard: Callable[[OwnedElsewhere], None]) -> Callable[[], None]:
        """Never calls it: nobody else takes a tree."""
        return self._never()

    def on_loss(self, heard: Callable[[StoreFailed], None]) -> Callable[[], None]:
        """Never calls it: nobody else can write where there is no file."""
        return self._never()

    @abstractmethod
    async def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> Sequence[Document]:
        """Keep bytes and write documents, all of them or none. Raises Conflict."""

    @abstractmethod
    def _check(self) -> None:
        """Raises StoreFailed if it is not open."""

    def _writes(self) -> object:
        """Raises StoreFailed if nothing can be written."""
        return self._check()

    def _end_kernel(self) -> None:
        self._address = ""
        self._owned.clear()

    @property
    def _seat(self) -> KernelInfo:
        return KernelInfo(self.kernel, 1, self._address, alive=True)

    def _never(self) -> Callable[[], None]:
        self._check()
        return lambda: None
