"""Which kernels live: those whose process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ramet.isolation.kubernetes.kernel_lease import KernelLease

_KERNEL = """
import pathlib, sys
from ramet.isolation.kubernetes.kernel_lease import KernelLease
print(KernelLease(pathlib.Path(sys.argv[1])).kernel, flush=True)
sys.stdin.read()
"""


def test_a_kernel_lives_until_it_leaves(tmp_path: Path) -> None:
    one, other = KernelLease(tmp_path), KernelLease(tmp_path)
    try:
        assert one.place == other.place
        assert one.kernel != other.kernel
        assert one.lives(other.kernel)
        assert one.lives(one.kernel)
        other.leave()
        other.leave()
        assert not one.lives(other.kernel)
        assert one.known() == [one.kernel]
    finally:
        one.leave()
        other.leave()


def test_a_kernel_that_was_killed_does_not_live(tmp_path: Path) -> None:
    """Without a word of it, and without waiting for anything to run out."""
    presence = KernelLease(tmp_path)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _KERNEL, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None, "asked for above"
            kernel = process.stdout.readline().strip()
            assert presence.lives(kernel)
            process.kill()
            process.wait()
        assert not presence.lives(kernel)
        assert kernel in presence.known()
        presence.forget(kernel)
        presence.forget(kernel)
        assert kernel not in presence.known()
    finally:
        presence.leave()


def test_places_are_told_apart(tmp_path: Path) -> None:
    """Two folders of one path on two machines: neither clears up after the other."""
    one, other = KernelLease(tmp_path / "a"), KernelLease(tmp_path / "b")
    try:
        assert one.place != other.place
        assert not one.lives(other.kernel)
    finally:
        one.leave()
        other.leave()
