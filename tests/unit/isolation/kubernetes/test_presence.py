"""Tests of kernel leases: a kernel lives while its process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ramet.isolation.kubernetes.kernels import KernelLease

_KERNEL = """
import pathlib, sys
from ramet.isolation.kubernetes.kernels import KernelLease
print(KernelLease(pathlib.Path(sys.argv[1])).kernel, flush=True)
sys.stdin.read()
"""


def test_a_kernel_lives_until_it_leaves(tmp_path: Path) -> None:
    one, other = KernelLease(tmp_path), KernelLease(tmp_path)
    try:
        assert one.place == other.place
        assert one.kernel != other.kernel
        assert one.is_alive(other.kernel)
        assert one.is_alive(one.kernel)
        other.release()
        other.release()
        assert not one.is_alive(other.kernel)
        assert one.list_kernels() == [one.kernel]
    finally:
        one.release()
        other.release()


def test_a_killed_kernel_does_not_live(tmp_path: Path) -> None:
    """The end is known without a message and without a timeout."""
    presence = KernelLease(tmp_path)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _KERNEL, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None, "asked for above"
            kernel = process.stdout.readline().strip()
            assert presence.is_alive(kernel)
            process.kill()
            process.wait()
        assert not presence.is_alive(kernel)
        assert kernel in presence.list_kernels()
        presence.forget(kernel)
        presence.forget(kernel)
        assert kernel not in presence.list_kernels()
    finally:
        presence.release()


def test_leases_of_different_folders_are_separate(tmp_path: Path) -> None:
    """Equal paths on two machines are different places, and their kernels do not reap each other."""
    one, other = KernelLease(tmp_path / "a"), KernelLease(tmp_path / "b")
    try:
        assert one.place != other.place
        assert not one.is_alive(other.kernel)
    finally:
        one.release()
        other.release()
