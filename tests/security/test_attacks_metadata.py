"""Guests do not change modes, times, attributes and links of files of the kernel's own user.

Landlock does not decide over these calls. A root file system that is read-only in the guest's mount namespace does.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.security.attacks import metadata
from tests.security.conftest import why_not
from tests.security.kit import ORDINARY, Kernel, assert_refused, assert_works

#: An attempt that some file systems do not know: a refusal of theirs is none of ours.
OPTIONAL = ("setxattr", "file flags")


@pytest.fixture(scope="module", params=("local", "bwrap"))
def owner_kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Start a kernel of an ordinary user who may make user namespaces. Its agents run as that same user."""
    user = "ordinary" if os.geteuid() == 0 else "me"
    if reason := why_not(user, request.param):
        pytest.skip(reason)
    kernel = Kernel(user, request.param)
    kernel.start()
    yield kernel
    kernel.stop()
    kernel.remove()


def plant(kernel: Kernel, name: str) -> list[str]:
    """Make a key, a program and a folder that the kernel's user owns, and return their paths."""
    folder = kernel.base / "scratch" / name
    key, program, inner = folder / "key", folder / "program", folder / "folder"
    inner.mkdir(parents=True)
    for path, mode in ((key, 0o600), (program, 0o755), (inner, 0o700)):
        if path is not inner:
            path.write_text("#!/bin/sh\n")
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, ORDINARY, ORDINARY)
    if os.geteuid() == 0:
        os.chown(folder, ORDINARY, ORDINARY)
    return [str(path) for path in (key, program, inner)]


def metadata_of(paths: list[str]) -> list[Any]:
    """Return the metadata that the calls of the attack could change, the change time included."""
    found: list[Any] = []
    for path in paths:
        about = os.lstat(path)
        found.append((about.st_mode, about.st_uid, about.st_nlink, about.st_mtime_ns, about.st_ctime_ns))
        found.append({name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")})
    return found


def assert_unchanged(kernel: Kernel, paths: list[str], **policy: Any) -> None:
    """Assert that every attempt on these paths is refused, and that the metadata is unchanged."""
    before = metadata_of(paths)

    tried = kernel.attack(metadata.change, paths, **policy)

    for path in paths:
        assert_refused(tried[path])
    assert metadata_of(paths) == before


def test_a_guest_cannot_change_metadata_of_its_users_files(owner_kernel: Kernel) -> None:
    """The control changes modes, times and attributes. The guest is refused, by name and by descriptor."""
    for path, tried in owner_kernel.control(metadata.change, plant(owner_kernel, "unconfined")).items():
        folders = () if pathlib.Path(path).is_file() else ("link",)
        assert_works(tried, *OPTIONAL, *folders)

    assert_unchanged(owner_kernel, plant(owner_kernel, "planted"))


def test_a_read_only_mount_keeps_its_modes_times_and_attributes(owner_kernel: Kernel) -> None:
    """A guest can open the files of a read-only mount, and cannot change their metadata."""
    paths = plant(owner_kernel, "mounted")

    assert_unchanged(owner_kernel, paths, readonly_mounts=[str(pathlib.Path(paths[0]).parent)])


def test_the_workspaces_of_other_runs_keep_their_modes_and_times(owner_kernel: Kernel) -> None:
    """A guest cannot change the metadata of another active run's workspace and of a file in it."""
    agent = "tests.security.attacks.answers:write_and_wait"
    owner_kernel.play("start", key="other", agent=agent, args=["private words", 60, "other.txt"])
    try:
        [workspace] = owner_kernel.play("named", name="other.txt")

        assert_unchanged(owner_kernel, [workspace, f"{workspace}/other.txt"])
    finally:
        owner_kernel.play("cancel", key="other")


def test_a_guest_can_change_its_own_files(owner_kernel: Kernel) -> None:
    """A guest can write and change modes and times in its workspace, in /tmp and in /dev/shm."""
    tried = owner_kernel.attack(metadata.use_own_files)

    assert_works(tried)
