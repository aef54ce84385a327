"""Hostile workspaces give up their plain files, and get nothing of the host in return.

Each attack is shown to be real: a reader without our care falls for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.core.errors import OutputTooLarge
from ramet.isolation.workspace import artifacts
from ramet.isolation.workspace.artifacts import collect
from tests.support.hostile import field, fill

SECRET = "the-secret-of-the-host"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Make a folder of the host, with a secret in it."""
    path = tmp_path / "host"
    path.mkdir()
    (path / "secret").write_text(SECRET)
    return path


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    (path / "mine").write_text("plain")
    return path


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def read(folder: Path) -> str:
    """Return the text of each file that was copied."""
    return "".join(each.read_text(errors="replace") for each in sorted(folder.rglob("*")) if each.is_file())


def link_to_file(workspace: Path, host: Path) -> None:
    (workspace / "x").symlink_to(host / "secret")


def link_to_folder(workspace: Path, host: Path) -> None:
    (workspace / "x").symlink_to(host, target_is_directory=True)


def relative_link(workspace: Path, host: Path) -> None:
    (workspace / "x").symlink_to("../host/secret")


def second_name(workspace: Path, host: Path) -> None:
    (workspace / "x").hardlink_to(host / "secret")


@pytest.mark.parametrize("attack", [link_to_file, link_to_folder, relative_link, second_name])
def test_no_link_leads_to_a_file_of_the_host(
    workspace: Path, host: Path, into: Path, tmp_path: Path, attack: Callable[[Path, Path], None]
) -> None:
    """The host refuses and lists a link, and copies the plain file beside it."""
    attack(workspace, host)
    shutil.copytree(workspace, tmp_path / "naive")
    assert SECRET in read(tmp_path / "naive")

    found = collect(workspace, into, max_bytes=1000)

    assert read(into) == "plain"
    assert [line.split(",")[0] for line in found.refused_lines] == [
        "x: it has 2 names" if attack is second_name else "x: a link"
    ]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
        server.bind(path.name)


def device(path: Path) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("making a device takes root")


@pytest.mark.parametrize(("make", "kind"), [(fifo, "a FIFO"), (listener, "a socket"), (device, "a device")])
def test_a_fifo_or_device_is_not_opened(workspace: Path, into: Path, make: Callable[[Path], None], kind: str) -> None:
    """The host refuses a FIFO, a socket and a device, on which a reader could wait or read without end."""
    make(workspace / "x")

    found = collect(workspace, into, max_bytes=1000)

    assert found.refused_lines == (f"x: {kind}",)
    assert [each.name for each in found.artifacts] == ["mine"]


def test_a_workspace_full_of_hostile_names_gives_its_plain_files(host: Path) -> None:
    """The host copies the plain files, and lists each refused entry as printable text."""
    with field() as path:
        workspace, into = path / "workspace", path / "artifacts"
        workspace.mkdir()
        fill(workspace, host)

        found = collect(workspace, into, max_bytes=1000)

        assert {each.name for each in found.artifacts} == {
            "plain",
            "Ä.txt",
            "A\u0308.txt",
            "x",
            "X",
            "locked/inside",
            "read only/kept",
        }
        refused = "\n".join(found.refused_lines)
        for name in ("link to file", "link to folder", "link to itself", "fifo", "socket", "hard", "hard too"):
            assert f"{name}: " in refused
        for shown in ("\\udcff utf-8: its name is not UTF-8", "two\\nlines\\x1b[31m", "\\u202egnp.exe", "too deep"):
            assert shown in refused
        assert all(line.isprintable() for line in found.refused_lines)
        assert SECRET not in read(into)


def test_a_long_list_of_refusals_is_cut(workspace: Path, into: Path) -> None:
    """The list of refusals has a bound, so that a workspace cannot fill the host's memory. It counts the rest."""
    for number in range(artifacts.MAX_REFUSED + 7):
        os.mkfifo(workspace / f"{number}{'n' * 200}")

    refused = collect(workspace, into, max_bytes=1000).refused_lines

    assert len(refused) == artifacts.MAX_REFUSED + 1
    assert refused[-1] == "… and 7 more"
    assert all(len(line) < 250 for line in refused)


def test_a_name_too_long_for_a_path_is_refused(workspace: Path, into: Path) -> None:
    """The host refuses a file whose path is too long to open."""
    folder = workspace.joinpath(*["n" * 200] * 6)
    folder.mkdir(parents=True)
    (folder / "file").touch()

    [line] = collect(workspace, into, max_bytes=1000).refused_lines

    assert "bytes, at most" in line


# --- while it is being read -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def just_before_copying(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` after the host has checked each file, and before it copies any."""
    copied = artifacts._copy_files

    def later(*args: object) -> object:
        act()
        return copied(*args)  # type: ignore[arg-type]  # passed on as they came

    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "_copy_files", later)
        yield


def test_a_file_that_grows_is_cut_at_its_checked_size(
    workspace: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host copies no more of a growing file than the checked size."""
    with just_before_copying(monkeypatch, lambda: (workspace / "mine").write_text("plain" * 1000)):
        found = collect(workspace, into, max_bytes=5)

    assert (read(into), found.total) == ("plain", 5)
    with pytest.raises(OutputTooLarge):
        collect(workspace, into, max_bytes=5)


def test_a_file_that_shrinks_is_listed_with_its_copied_size(
    workspace: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of an artifact is the size of the copy."""
    with just_before_copying(monkeypatch, lambda: (workspace / "mine").write_text("pl")):
        found = collect(workspace, into, max_bytes=5)

    assert ([each.size for each in found.artifacts], found.total) == ([2], 2)


def swap_for_link(workspace: Path, host: Path) -> None:
    (workspace / "mine").unlink()
    (workspace / "mine").symlink_to(host / "secret")


def swap_for_hard_link(workspace: Path, host: Path) -> None:
    (workspace / "mine").unlink()
    (workspace / "mine").hardlink_to(host / "secret")


def swap_for_other_file(workspace: Path, host: Path) -> None:
    (workspace / "other").write_text("other")
    (workspace / "other").rename(workspace / "mine")


def swap_for_fifo(workspace: Path, host: Path) -> None:
    (workspace / "mine").unlink()
    os.mkfifo(workspace / "mine")


def second_name_too_late(workspace: Path, host: Path) -> None:
    (workspace / "again").hardlink_to(workspace / "mine")


def gone(workspace: Path, host: Path) -> None:
    (workspace / "mine").unlink()


@pytest.mark.parametrize(
    "swap", [swap_for_link, swap_for_hard_link, swap_for_other_file, swap_for_fifo, second_name_too_late, gone]
)
def test_a_swapped_file_is_refused(
    workspace: Path, host: Path, into: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path, Path], None]
) -> None:
    """The host copies the file that it checked, or nothing."""
    with just_before_copying(monkeypatch, lambda: swap(workspace, host)):
        found = collect(workspace, into, max_bytes=1000)

    assert found.artifacts == ()
    assert [line.split(":")[0] for line in found.refused_lines] == ["mine"]
    assert read(into) == ""


def test_a_folder_swapped_for_a_link_is_refused(
    workspace: Path, host: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host follows no link in any part of a path."""
    (workspace / "folder").mkdir()
    (workspace / "folder" / "secret").write_text("my own")

    def swap() -> None:
        shutil.rmtree(workspace / "folder")
        (workspace / "folder").symlink_to(host, target_is_directory=True)

    with just_before_copying(monkeypatch, swap):
        found = collect(workspace, into, max_bytes=1000)

    assert read(into) == "plain"
    assert [line.split(":")[0] for line in found.refused_lines] == ["folder/secret"]


def test_a_link_to_the_moved_folder_is_refused(
    workspace: Path, host: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host refuses a link in a path, even where the link leads to the checked file."""
    (workspace / "folder").mkdir()
    (workspace / "folder" / "report").write_text("my own")

    def move() -> None:
        (workspace / "folder").rename(host / "moved")
        (workspace / "folder").symlink_to(host / "moved", target_is_directory=True)

    with just_before_copying(monkeypatch, move):
        found = collect(workspace, into, max_bytes=1000)

    assert read(into) == "plain"
    assert [line.split(":")[0] for line in found.refused_lines] == ["folder/report"]


def folder_at(path: Path) -> None:
    path.mkdir()
    (path / "secret").write_text("mine")


def test_a_changing_workspace_never_reveals_the_secret(workspace: Path, host: Path, into: Path) -> None:
    """A thread swaps a file, links and a folder without pause. The collection follows no link, and never fails."""
    over = threading.Event()

    def move() -> None:
        target = workspace / "moving"
        while not over.is_set():
            for make in (
                lambda: target.write_text("plain"),
                lambda: target.symlink_to(host / "secret"),
                lambda: folder_at(target),
                lambda: target.symlink_to(host),
                lambda: target.hardlink_to(host / "secret"),
            ):
                make()
                if target.is_dir() and not target.is_symlink():
                    target.rename(workspace / "aside")
                    shutil.rmtree(workspace / "aside")
                else:
                    target.unlink()

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(300):
            collect(workspace, into, max_bytes=10_000)
            assert SECRET not in read(into)
    finally:
        over.set()
        mover.join()
