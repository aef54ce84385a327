"""The liveness of the kernels of a working directory: each kernel holds the lock of a file until it ends.

No clock is used, and nothing is renewed. The operating system releases a lock when its process ends, for any reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

_FOLDER = ".kernels"  #: below the folder of all workspaces
_PLACE = "place"


class KernelLease:
    """The proof that this kernel is alive, from construction until `release`."""

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
