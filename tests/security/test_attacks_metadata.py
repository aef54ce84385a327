"""Modes, times, attributes and links of files that the kernel's own user has on the host: no guest changes them.

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
def owner(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """The kernel of an ordinary user who may make user namespaces, and whose agents run as that same user."""
    user = "ordinary" if os.geteuid() == 0 else "me"
    if reason := why_not(user, request.param):
        pytest.skip(reason)
    kernel = Kernel(user, request.param)
    kernel.start()
    yield kernel
    kernel.stop()
    kernel.remove()


def plant(kernel: Kernel, place: str) -> list[str]:
    """A key, a program and a folder that the kernel's user owns; returns their paths."""
    folder = kernel.base / "scratch" / place
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


def seen(paths: list[str]) -> list[Any]:
    """All that those calls could change, the time of the last change among it."""
    found: list[Any] = []
    for path in paths:
        about = os.lstat(path)
        found.append((about.st_mode, about.st_uid, about.st_nlink, about.st_mtime_ns, about.st_ctime_ns))
        found.append({name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")})
    return found


def assert_unchanged(kernel: Kernel, paths: list[str], **policy: Any) -> None:
    """Every attempt on these paths is refused, and nothing about the files has changed."""
    before = seen(paths)

    tried = kernel.attack(metadata.change, paths, **policy)

    for path in paths:
        assert_refused(tried[path])
    assert seen(paths) == before


def test_a_guest_does_not_change_modes_times_and_attributes_of_its_users_files(owner: Kernel) -> None:
    """The control changes all of them; the guest is refused, by name and by descriptor, and nothing has changed."""
    for path, tried in owner.control(metadata.change, plant(owner, "unconfined")).items():
        folders = () if pathlib.Path(path).is_file() else ("link",)
        assert_works(tried, *OPTIONAL, *folders)

    assert_unchanged(owner, plant(owner, "planted"))


def test_a_read_only_mount_keeps_its_modes_times_and_attributes(owner: Kernel) -> None:
    """A guest that may read a mount can open its files, and still changes nothing about them."""
    paths = plant(owner, "mounted")

    assert_unchanged(owner, paths, readonly_mounts=[str(pathlib.Path(paths[0]).parent)])


def test_the_workspaces_of_other_runs_keep_their_modes_and_times(owner: Kernel) -> None:
    """The folder of another run that lives, and a file in it, stay as they are."""
    agent = "tests.security.attacks.answers:write_and_wait"
    owner.play("start", key="other", agent=agent, args=["private words", 60, "other.txt"])
    try:
        [workspace] = owner.play("named", name="other.txt")

        assert_unchanged(owner, [workspace, f"{workspace}/other.txt"])
    finally:
        owner.play("cancel", key="other")


def test_a_guest_still_changes_files_of_its_own(owner: Kernel) -> None:
    """Its workspace, /tmp and /dev/shm can be written, and modes and times of files there changed."""
    tried = owner.attack(metadata.use_own_files)

    assert_works(tried)
