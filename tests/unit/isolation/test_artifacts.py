"""Tests of artifacts: files of a run are copied unchanged or refused by name; limits are checked first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue, OutputTooLarge, SandboxFailed, Unknown
from ramet.core.outcome import Artifact
from ramet.isolation import safe_walk
from ramet.isolation.workspace.artifacts import MAX_DEPTH, collect, read_file

MIB = 1024 * 1024


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def artifacts_folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def test_files_are_copied_unchanged(workspace: Path, artifacts_folder: Path) -> None:
    """Files in any folder are listed with their names, their sizes, and the paths of the copies."""
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "deep.bin").write_bytes(bytes(range(256)) * 10_000)
    (workspace / "report – Ä 👩\u200d🔬.md").write_text("# yes")
    (workspace / "empty").touch()

    collection = collect(workspace, artifacts_folder, max_bytes=4 * MIB)

    names = ["a/b/deep.bin", "empty", "report – Ä 👩\u200d🔬.md"]
    assert collection.artifacts == tuple(
        Artifact(name=name, size=(workspace / name).stat().st_size, path=str(artifacts_folder / name)) for name in names
    )
    assert all((artifacts_folder / name).read_bytes() == (workspace / name).read_bytes() for name in names)
    assert (collection.refused_lines, collection.total) == ((), 2_560_005)


def test_a_copy_has_no_mode_attributes_or_owner_of_its_original(workspace: Path, artifacts_folder: Path) -> None:
    """A copy is readable, not executable, and belongs to the host."""
    tool = workspace / "tool"
    tool.write_text("#!/bin/sh")
    os.setxattr(tool, "user.mine", b"1")
    if os.geteuid() == 0:
        os.chown(tool, 60700, 60700)
    tool.chmod(0o6777)

    collect(workspace, artifacts_folder, max_bytes=MIB)

    copy = (artifacts_folder / "tool").stat()
    assert stat.S_IMODE(copy.st_mode) == 0o644
    assert (copy.st_uid, copy.st_gid) == (os.geteuid(), os.getegid())
    assert os.listxattr(artifacts_folder / "tool") == []


def test_an_empty_workspace_makes_no_artifacts_folder(workspace: Path, artifacts_folder: Path) -> None:
    """`collect` creates no folder for a workspace without files."""
    (workspace / "empty folder").mkdir()

    assert collect(workspace, artifacts_folder, max_bytes=0) == ((), (), 0)
    assert not artifacts_folder.exists()


def test_artifacts_of_an_earlier_attempt_are_replaced(workspace: Path, artifacts_folder: Path) -> None:
    """The folder has files of the latest attempt only."""
    (workspace / "first").touch()
    collect(workspace, artifacts_folder, max_bytes=MIB)
    (workspace / "first").rename(workspace / "second")

    collect(workspace, artifacts_folder, max_bytes=MIB)

    assert [each.name for each in artifacts_folder.iterdir()] == ["second"]


@pytest.mark.parametrize(("extra_bytes", "fits"), [(0, True), (1, False)])
def test_the_total_size_is_bounded(workspace: Path, artifacts_folder: Path, extra_bytes: int, fits: bool) -> None:
    """The limit holds to the byte; above it nothing is copied, and the error has the total size."""
    for name in ("a", "b"):
        (workspace / name).write_bytes(bytes(500))
    (workspace / "c").write_bytes(bytes(extra_bytes))

    if fits:
        assert collect(workspace, artifacts_folder, max_bytes=1000).total == 1000
        return
    with pytest.raises(OutputTooLarge) as refusal:
        collect(workspace, artifacts_folder, max_bytes=1000)
    assert (refusal.value.size, refusal.value.limit) == (1001, 1000)
    assert not artifacts_folder.exists()


def test_a_sparse_file_counts_with_its_full_size(workspace: Path, artifacts_folder: Path) -> None:
    """A file of a terabyte is cheap to make and expensive to copy."""
    with (workspace / "hole").open("wb") as file:
        file.truncate(2**40)

    with pytest.raises(OutputTooLarge):
        collect(workspace, artifacts_folder, max_bytes=MIB)


def test_the_number_of_files_is_bounded(workspace: Path, artifacts_folder: Path) -> None:
    """Too many files are an error, and not a selection."""
    for number in range(11):
        (workspace / str(number)).touch()

    assert len(collect(workspace, artifacts_folder, max_bytes=0, max_files=11).artifacts) == 11
    with pytest.raises(OutputTooLarge) as refusal:
        collect(workspace, artifacts_folder, max_bytes=0, max_files=10)
    assert (refusal.value.what, refusal.value.size, refusal.value.limit) == ("artifacts", 11, 10)


def test_the_number_of_searched_entries_is_bounded(workspace: Path, artifacts_folder: Path) -> None:
    """Many empty folders cannot keep the host busy."""
    for number in range(201):
        (workspace / str(number)).mkdir()

    with pytest.raises(OutputTooLarge, match="entries"):
        collect(workspace, artifacts_folder, max_bytes=0, max_files=2)


def test_a_folder_too_deep_is_refused_by_name(workspace: Path, artifacts_folder: Path) -> None:
    """Files above the folder are copied."""
    deepest = workspace.joinpath(*["d"] * (MAX_DEPTH + 1))
    deepest.mkdir(parents=True)
    (deepest / "hidden").touch()
    (deepest.parent / "seen").touch()

    collection = collect(workspace, artifacts_folder, max_bytes=0)

    assert [Path(each.name).name for each in collection.artifacts] == ["seen"]
    assert [each.endswith(": too deep") for each in collection.refused_lines] == [True]


def test_a_failed_copy_raises_sandbox_failed(workspace: Path, tmp_path: Path) -> None:
    """A missing folder of the host is no fault of the run."""
    (workspace / "file").touch()

    with pytest.raises(SandboxFailed, match="No such file"):
        collect(workspace, tmp_path / "nowhere" / "artifacts", max_bytes=MIB)
    with pytest.raises(SandboxFailed, match="No such file"):
        collect(tmp_path / "nowhere", tmp_path / "artifacts", max_bytes=MIB)


# --- one file of a run that is at work


def test_a_file_is_read_by_its_name_below_the_workspace(workspace: Path) -> None:
    """`read_file` reads a file in any folder of the workspace."""
    (workspace / "a").mkdir()
    (workspace / "a" / "b.bin").write_bytes(bytes(range(256)))

    assert read_file(workspace, "a/b.bin", max_bytes=256) == bytes(range(256))


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "..", "../secret", "a/../../secret", "a//b", "./a", "a/", "a\0b", "a\nb", "x" * 2000]
)
def test_a_name_that_may_lead_outside_is_refused(workspace: Path, name: str) -> None:
    """The refusal says what a valid name is."""
    (workspace.parent / "secret").write_text("secret")

    with pytest.raises(InvalidValue, match=r"path: .* is not accepted; expected the name of a file below"):
        read_file(workspace, name, max_bytes=100)


def test_a_path_that_is_no_plain_file_is_refused(workspace: Path) -> None:
    """Links, linked folders on the way, FIFOs, folders, and files with another name are refused."""
    (workspace.parent / "secret").write_text("secret")
    (workspace / "folder").mkdir()
    (workspace / "link").symlink_to(workspace.parent / "secret")
    (workspace / "way").symlink_to(workspace.parent)
    os.mkfifo(workspace / "pipe")
    os.link(workspace.parent / "secret", workspace / "twin")

    for name, reason in (
        ("link", "a link"),
        ("way/secret", "way is a link"),
        ("pipe", "a FIFO"),
        ("folder", "a folder"),
        ("twin", "it has 2 names"),
    ):
        with pytest.raises(InvalidValue, match=f"path: '{name}' is not accepted; expected .*: {reason}"):
            read_file(workspace, name, max_bytes=100)


def test_a_missing_file_is_unknown(workspace: Path) -> None:
    """A file in a missing folder, or below a file, is unknown too."""
    (workspace / "file").touch()
    for name in ("none", "none/none", "file/none"):
        with pytest.raises(Unknown, match="unknown file"):
            read_file(workspace, name, max_bytes=100)


def test_a_file_above_the_limit_is_not_read(workspace: Path) -> None:
    """The size is checked first, so an endless file is not read to its end."""
    with (workspace / "large").open("wb") as large:
        large.truncate(1 << 40)

    with pytest.raises(OutputTooLarge) as refusal:
        read_file(workspace, "large", max_bytes=100)

    assert (refusal.value.size, refusal.value.limit) == (1 << 40, 100)


@pytest.mark.parametrize("name", ["x" * 256, "a/" + "x" * 256, "x" * 256 + "/a", "ä" * 128])
def test_a_name_with_a_part_above_255_bytes_is_refused(workspace: Path, name: str) -> None:
    """The name is wrong, and not the sandbox: a guest or its owner wrote it."""
    (workspace / "a").mkdir()

    with pytest.raises(InvalidValue, match=r"path: .*: a part of it has 256 bytes, at most 255 are taken"):
        read_file(workspace, name, max_bytes=100)


def test_a_file_that_becomes_a_link_before_it_is_opened_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange between check and open is no failure of the sandbox."""
    (workspace / "file").touch()
    (workspace.parent / "secret").write_text("secret")
    open_file = safe_walk.open_file

    def replaced(folder: int, name: str) -> int:
        (workspace / "file").unlink()
        (workspace / "file").symlink_to(workspace.parent / "secret")
        return open_file(folder, name)

    monkeypatch.setattr(safe_walk, "open_file", replaced)
    with pytest.raises(InvalidValue, match="it was changed meanwhile"):
        read_file(workspace, "file", max_bytes=100)
