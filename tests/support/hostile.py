"""A folder whose contents make careless readers fail."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

#: More levels than a path can name, and than a recursive reader can go down.
DEPTH = 3000


@contextlib.contextmanager
def field() -> Iterator[Path]:
    """Yield a temporary folder for files that pytest cannot remove: in pytest's folder they would fail later runs."""
    path = Path(tempfile.mkdtemp(prefix="ramet-hostile-"))
    try:
        yield path
    finally:
        subprocess.run(["chattr", "-R", "-f", "-i", "-a", str(path)], capture_output=True, check=False)
        subprocess.run(["rm", "-rf", str(path)], check=False)


def make_deep_folders(root: Path, depth: int = DEPTH, name: str = "d") -> None:
    """Make folders in folders, with one file in each of the last ten."""
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for level in range(depth):
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
            if level >= depth - 10:
                os.close(os.open("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    finally:
        os.close(here)


def fill(root: Path, outside: Path) -> None:
    """Make one file of every kind. `outside` is a folder of the host that must not change."""
    (root / "plain").write_text("plain")
    (root / "link to file").symlink_to(outside / "secret")
    (root / "link to folder").symlink_to(outside, target_is_directory=True)
    (root / "link to itself").symlink_to("link to itself")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(root):
        listener.bind("socket")
    (root / "hard").write_text("two names")
    (root / "hard too").hardlink_to(root / "hard")
    os.close(os.open(os.fsencode(root) + b"/not \xff utf-8", os.O_WRONLY | os.O_CREAT))
    (root / "two\nlines\x1b[31m").write_text("")
    (root / "\u202egnp.exe").write_text("")
    (root / "Ä.txt").write_text("composed")
    (root / "A\u0308.txt").write_text("decomposed")
    (root / "x").write_text("lower")
    (root / "X").write_text("upper")
    locked = root / "locked"
    locked.mkdir()
    (locked / "inside").write_text("inside")
    (locked / "inside").chmod(0)
    locked.chmod(0)
    read_only = root / "read only"
    read_only.mkdir()
    (read_only / "kept").write_text("kept")
    read_only.chmod(0o500)
    with contextlib.suppress(OSError):  # a file system without them
        os.setxattr(root / "plain", "user.mine", b"x" * 100)
    make_deep_folders(root)


def make_immutable(path: Path) -> None:
    """Set a flag that prevents removal; skip the test if this is not possible."""
    done = subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("flags need root, and a file system that has them")


def mount_in(path: Path) -> None:
    """Mount a file system on a folder, for `umount` later; skip the test if this is not possible."""
    done = subprocess.run(["mount", "-t", "tmpfs", "none", str(path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {os.strerror(errno.EPERM)}")
