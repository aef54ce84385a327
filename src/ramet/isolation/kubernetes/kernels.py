"""This kernel among those of its place: what it is called there, and which others live."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.kernel_lease import KernelLease


class KernelIdentity(NamedTuple):
    """A kernel among those of a place, where they share a database and no disk."""

    place: str
    kernel: str  #: a name that no other process has, or has had
    living: Collection[str]  #: kernels that live, by such names


class Kernels:
    """Those of a place. They share a database, or else the folder of all workspaces, where each that lives has a lock.

    No clock is asked.
    """

    def __init__(
        self,
        presence: KernelLease,
        standing: KernelIdentity | None,
        ask: Callable[[], Awaitable[KernelIdentity]] | None,
    ) -> None:
        """`standing` is what `ask` has answered first; None of both: there is no database."""
        self._presence, self._ask = presence, ask
        self.place = presence.place if standing is None else standing.place
        self.kernel = presence.kernel if standing is None else standing.kernel

    def owner(self, namespace: str, kernel: str | None = None) -> str:
        """What a kernel's pods there bear as their owner; this one's if none is named."""
        return labels.digest(namespace, self.place, kernel or self.kernel)

    async def living(self) -> frozenset[str]:
        """Their names, with this one's."""
        if self._ask is not None:
            return frozenset((self.kernel, *(await self._ask()).living))
        return frozenset(each for each in self._presence.known() if self._presence.lives(each)) | {self.kernel}

    async def owners(self, namespace: str) -> frozenset[str]:
        """What pods there bear whose kernels live."""
        return frozenset(self.owner(namespace, each) for each in await self.living())

    def dead(self) -> list[str]:
        """Kernels that have left a lock which nobody holds."""
        return [each for each in self._presence.known() if not self._presence.lives(each)] if self._ask is None else []

    def forget(self, kernel: str) -> None:
        """One of those has left nothing any more."""
        self._presence.forget(kernel)

    def leave(self) -> None:
        """This one lives no more. Idempotent."""
        self._presence.leave()
