"""The identity of this kernel among the kernels of its place, the set of living kernels, and how they are known."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import NamedTuple

from ramet.isolation.kubernetes.api import labels

_FOLDER = ".kernels"  #: below the folder of all workspaces
_PLACE = "place"


class KernelLease:
    """The proof that this kernel of a working directory is alive, from construction until `release`: a locked file.

    No clock is used, and nothing is renewed. The operating system releases a lock when its process ends, for any
    reason.
    """

    def __init__(self, runs: Path) -> None:
        self._folder = runs / _FOLDER
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.place = _place(self._folder)
        self.kernel = secrets.token_hex(8)
        new = self._folder / f".{self.kernel}"  # The file is locked before it gets its name.
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        new.rename(self._folder / self.kernel)

    def is_alive(self, kernel: str) -> bool:
        """Check whether a kernel of this place is alive."""
        if kernel == self.kernel:
            return self._fd >= 0
        try:
            fd = os.open(self._folder / kernel, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def forget(self, kernel: str) -> None:
        """Delete the lock file of a kernel that is not alive."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / kernel).unlink()

    def list_kernels(self) -> list[str]:
        """Return the names of all kernels that have a lock file here."""
        return [each.name for each in self._folder.iterdir() if each.name != _PLACE and each.name[0] != "."]

    def release(self) -> None:
        """Mark this kernel as no longer alive. Idempotent."""
        if self._fd >= 0:
            self.forget(self.kernel)
            os.close(self._fd)
            self._fd = -1


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


def _place(folder: Path) -> str:
    """Return the name of a working directory. The same path on another machine has a different name."""
    file = folder / _PLACE
    with contextlib.suppress(FileExistsError):
        draft = folder / f".{secrets.token_hex(8)}"
        draft.write_text(secrets.token_hex(16))
        try:
            os.link(draft, file)
        finally:
            draft.unlink()
    return file.read_text()
