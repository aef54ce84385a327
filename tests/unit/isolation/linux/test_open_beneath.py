"""Tests of opening files beneath a folder by descriptor: no link is followed, and no path leaves the folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.isolation.linux import calls
from ramet.isolation.linux.beneath import open_beneath, open_without_links, walk_beneath

Open = Callable[[int, str], int]

#: With `openat2`, and as it is done where that is missing.
both_ways = pytest.mark.parametrize("open_it", [open_beneath, walk_beneath])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    """Yield the descriptor of a folder with a file, a subfolder, and links to both."""
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "file").write_text("text")
    (tmp_path / "to folder").symlink_to("sub")
    (tmp_path / "to file").symlink_to("sub/file")
    (tmp_path / "to nothing").symlink_to("nothing")
    (tmp_path / "sub" / "out").symlink_to("/etc")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    yield fd
    os.close(fd)


@both_ways
@pytest.mark.parametrize("path", ["sub", "sub/deep", "sub/file", "sub//deep/", "./sub"])
def test_a_path_beneath_the_folder_is_opened(folder: int, open_it: Open, path: str) -> None:
    fd = open_it(folder, path)

    try:
        assert os.path.samestat(os.fstat(fd), os.stat(path, dir_fd=folder))
        assert not os.get_inheritable(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):  # A handle: nothing is read by it.
            os.read(fd, 1)
    finally:
        os.close(fd)


@both_ways
@pytest.mark.parametrize("path", ["to folder", "to folder/deep", "to file", "to nothing", "sub/out", "sub/out/passwd"])
def test_a_symbolic_link_is_never_followed(folder: int, open_it: Open, path: str) -> None:
    """Links at the end, on the way, and inside the folder are refused."""
    with pytest.raises(OSError) as problem:  # noqa: PT011
        open_it(folder, path)

    assert problem.value.errno == errno.ELOOP


@both_ways
@pytest.mark.parametrize(
    ("path", "number"),
    [("..", errno.EXDEV), ("/etc", errno.EXDEV), ("none", errno.ENOENT), ("sub/file/below", errno.ENOTDIR)],
)
def test_a_path_out_of_the_folder_is_an_error(folder: int, open_it: Open, path: str, number: int) -> None:
    with pytest.raises(OSError) as problem:  # noqa: PT011
        open_it(folder, path)

    assert problem.value.errno == number


def test_a_magic_link_of_proc_is_not_followed(folder: int) -> None:
    """A magic link leads to a file without any path."""
    for path in ("/proc/self/root", f"/proc/self/fd/{folder}/sub", "/proc/self/cwd"):
        with pytest.raises(OSError) as problem:  # noqa: PT011
            open_without_links(path)
        assert problem.value.errno == errno.ELOOP


def test_an_absolute_path_without_links_is_opened(tmp_path: Path) -> None:
    fd = open_without_links(str(tmp_path.resolve()))

    try:
        assert os.path.samestat(os.fstat(fd), tmp_path.stat())
    finally:
        os.close(fd)


def test_a_failed_open_leaves_no_descriptor(folder: int) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    for open_it in (open_beneath, walk_beneath):
        for path in ("to folder/deep", "none", ".."):
            with pytest.raises(OSError):  # noqa: PT011
                open_it(folder, path)

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_an_error_of_openat2_names_the_call(folder: int) -> None:
    with pytest.raises(OSError, match="openat2: Invalid argument"):
        calls.openat2(folder, "sub", os.O_RDONLY, 1 << 40)
