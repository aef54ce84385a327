"""Which kernels of a working directory live: each holds the lock of a file there, and whoever ends lets go of it.

No clock is asked, and nothing is renewed: a lock is let go of when its process ends, however that is.
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
    """That this kernel lives, from now until `leave`."""

    def __init__(self, runs: Path) -> None:
        self._folder = runs / _FOLDER
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.place = _place(self._folder)
        self.kernel = secrets.token_hex(8)
        new = self._folder / f".{self.kernel}"  # Under its name it is locked from the first moment on.
        self._fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        new.rename(self._folder / self.kernel)

    def lives(self, kernel: str) -> bool:
        """Whether a kernel of this place does."""
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
        """One that does not live has left nothing any more."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / kernel).unlink()

    def known(self) -> list[str]:
        """All kernels that have left a word here."""
        return [each.name for each in self._folder.iterdir() if each.name != _PLACE and each.name[0] != "."]

    def leave(self) -> None:
        """This one lives no more. Idempotent."""
        if self._fd >= 0:
            self.forget(self.kernel)
            os.close(self._fd)
            self._fd = -1


def _place(folder: Path) -> str:
    """The name of a working directory: another one at the same path of another machine has another."""
    file = folder / _PLACE
    with contextlib.suppress(FileExistsError):
        made = folder / f".{secrets.token_hex(8)}"
        made.write_text(secrets.token_hex(16))
        try:
            os.link(made, file)
        finally:
            made.unlink()
    return file.read_text()
