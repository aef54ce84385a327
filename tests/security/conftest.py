"""Kernels that attacks run against: one for each user and backend, shared by the tests."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from tests.security.kit import KERNELS, Kernel

_kernels: dict[tuple[str, str], Kernel] = {}


def why_not(user: str, backend: str) -> str | None:
    """Return why this machine cannot show an attack as this user on this backend, or None if it can."""
    if not pathlib.Path("/proc/self/ns").exists():
        return "not Linux: nothing to attack"
    if backend == "bwrap" and shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    if user != "me" and os.geteuid() != 0:
        return "only root can become another user; 'me' is an ordinary one already"
    return None


@pytest.fixture(scope="session", params=KERNELS, ids="-".join)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Start a kernel of one user with one backend, in a process of its own."""
    user, backend = request.param
    if reason := why_not(user, backend):
        pytest.skip(reason)
    found = _kernels[user, backend] = Kernel(user, backend)
    found.start()
    found.begin_slow_ones()
    yield found
    found.stop()
    found.remove()


@pytest.fixture(scope="module", params=KERNELS, ids="-".join)
def kernel_with_disk(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Start a kernel whose runs have a file system for themselves: what other programs remove does not count."""
    user, backend = request.param
    reason = why_not(user, backend) or ("only root can mount a file system" if os.geteuid() else None)
    if reason:
        pytest.skip(reason)
    found = Kernel(user, backend, disk_mb=512)
    found.start()
    yield found
    found.stop()
    found.remove()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Restart a kernel that an earlier test lost, before any test counts open files."""
    for found in _kernels.values():
        if found.was_lost:
            found.start()
