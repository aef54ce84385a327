"""The identity of this kernel among the kernels of its place, and the set of living kernels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.kernel_lease import KernelLease


class KernelIdentity(NamedTuple):
    """A kernel's identity in a place whose kernels share a database but no disk."""

    place: str
    kernel: str  #: a name that no other process has or ever had
    living: Collection[str]  #: the names of the kernels that are alive


class Kernels:
    """The kernels of one place. They share either a database or the folder of all workspaces.

    Without a database, each living kernel holds a lock in that folder. No clock is used.
    """

    def __init__(
        self,
        lease: KernelLease,
        standing: KernelIdentity | None,
        ask: Callable[[], Awaitable[KernelIdentity]] | None,
    ) -> None:
        """Create the registry. `standing` is the first answer of `ask`; both are None without a database."""
        self.lease, self._ask = lease, ask
        self.place, self.kernel = (lease.place, lease.kernel) if standing is None else standing[:2]

    def owner(self, namespace: str, kernel: str | None = None) -> str:
        """Return the owner label of a kernel's pods in `namespace`; the default is this kernel."""
        return labels.digest(namespace, self.place, kernel or self.kernel)

    async def living(self) -> frozenset[str]:
        """Return the names of all living kernels, including this one."""
        if self._ask is not None:
            return frozenset((self.kernel, *(await self._ask()).living))
        return frozenset((self.kernel, *(each for each in self.lease.list_kernels() if self.lease.is_alive(each))))

    async def owners(self, namespace: str) -> frozenset[str]:
        """Return the owner labels in `namespace` of all living kernels."""
        return frozenset(self.owner(namespace, each) for each in await self.living())

    def dead(self) -> list[str]:
        """Return the kernels whose lock file exists but is held by no process."""
        if self._ask is not None:
            return []
        return [each for each in self.lease.list_kernels() if not self.lease.is_alive(each)]
