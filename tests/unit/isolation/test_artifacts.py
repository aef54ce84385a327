"""Files that a run left arrive as they were, or are refused by name; limits are checked before anything is copied."""

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
def into(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def test_files_arrive_as_they_were(workspace: Path, into: Path) -> None:
    """By name, in whatever folders; with their sizes and where the copies are."""
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "deep.bin").write_bytes(bytes(range(256)) * 10_000)
    (workspace / "report – Ä 👩\u200d🔬.md").write_text("# yes")
    (workspace / "empty").touch()

    found = collect(workspace, into, max_bytes=4 * MIB)

    names = ["a/b/deep.bin", "empty", "report – Ä 👩\u200d🔬.md"]
    assert found.artifacts == tuple(
        Artifact(name=name, size=(workspace / name).stat().st_size, path=str(into / name)) for name in names
    )
    assert all((into / name).read_bytes() == (workspace / name).read_bytes() for name in names)
    assert (found.refused, found.total) == ((), 2_560_005)


def test_a_copy_has_no_mode_attributes_or_owner_of_its_original(workspace: Path, into: Path) -> None:
    """It is readable, and runs as nobody's program."""
    tool = workspace / "tool"
    tool.write_text("#!/bin/sh")
    os.setxattr(tool, "user.mine", b"1")
    if os.geteuid() == 0:
        os.chown(tool, 60700, 60700)
    tool.chmod(0o6777)

    collect(workspace, into, max_bytes=MIB)

    copy = (into / "tool").stat()
    assert stat.S_IMODE(copy.st_mode) == 0o644
    assert (copy.st_uid, copy.st_gid) == (os.geteuid(), os.getegid())
    assert os.listxattr(into / "tool") == []


def test_nothing_left_is_nothing_copied(workspace: Path, into: Path) -> None:
    """No folder is made for it."""
    (workspace / "empty folder").mkdir()

    assert collect(workspace, into, max_bytes=0) == ((), (), 0)
    assert not into.exists()


def test_what_an_earlier_attempt_left_is_replaced(workspace: Path, into: Path) -> None:
    """Only what this one left is there."""
    (workspace / "first").touch()
    collect(workspace, into, max_bytes=MIB)
    (workspace / "first").rename(workspace / "second")

    collect(workspace, into, max_bytes=MIB)

    assert [each.name for each in into.iterdir()] == ["second"]


@pytest.mark.parametrize(("over", "fits"), [(0, True), (1, False)])
def test_the_sum_of_sizes_is_bounded(workspace: Path, into: Path, over: int, fits: bool) -> None:
    """To the byte; above it nothing is copied, and the error says how much there is."""
    for name in ("a", "b"):
        (workspace / name).write_bytes(bytes(500))
    (workspace / "c").write_bytes(bytes(over))

    if fits:
        assert collect(workspace, into, max_bytes=1000).total == 1000
        return
    with pytest.raises(OutputTooLarge) as refusal:
        collect(workspace, into, max_bytes=1000)
    assert (refusal.value.size, refusal.value.limit) == (1001, 1000)
    assert not into.exists()


def test_a_hole_counts_as_what_it_seems(workspace: Path, into: Path) -> None:
    """A file of a terabyte is cheap to make and dear to copy."""
    with (workspace / "hole").open("wb") as file:
        file.truncate(2**40)

    with pytest.raises(OutputTooLarge):
        collect(workspace, into, max_bytes=MIB)


def test_the_number_of_files_is_bounded(workspace: Path, into: Path) -> None:
    """Too many are an error, not a selection."""
    for number in range(11):
        (workspace / str(number)).touch()

    assert len(collect(workspace, into, max_bytes=0, max_files=11).artifacts) == 11
    with pytest.raises(OutputTooLarge) as refusal:
        collect(workspace, into, max_bytes=0, max_files=10)
    assert (refusal.value.what, refusal.value.size, refusal.value.limit) == ("artifacts", 11, 10)


def test_the_work_of_looking_is_bounded(workspace: Path, into: Path) -> None:
    """Empty folders without end are no way to keep the host busy."""
    for number in range(201):
        (workspace / str(number)).mkdir()

    with pytest.raises(OutputTooLarge, match="entries"):
        collect(workspace, into, max_bytes=0, max_files=2)


def test_a_folder_too_deep_is_refused_by_name(workspace: Path, into: Path) -> None:
    """What is above it is taken."""
    deepest = workspace.joinpath(*["d"] * (MAX_DEPTH + 1))
    deepest.mkdir(parents=True)
    (deepest / "hidden").touch()
    (deepest.parent / "seen").touch()

    found = collect(workspace, into, max_bytes=0)

    assert [Path(each.name).name for each in found.artifacts] == ["seen"]
    assert [each.endswith(": too deep") for each in found.refused] == [True]


def test_a_host_that_cannot_copy_says_so(workspace: Path, tmp_path: Path) -> None:
    """It is not the run's fault."""
    (workspace / "file").touch()

    with pytest.raises(SandboxFailed, match="No such file"):
        collect(workspace, tmp_path / "nowhere" / "artifacts", max_bytes=MIB)
    with pytest.raises(SandboxFailed, match="No such file"):
        collect(tmp_path / "nowhere", tmp_path / "artifacts", max_bytes=MIB)


# --- one file of a run that is at work


def test_a_file_is_read_by_its_name_below_the_workspace(workspace: Path) -> None:
    """Whatever folder it is in."""
    (workspace / "a").mkdir()
    (workspace / "a" / "b.bin").write_bytes(bytes(range(256)))

    assert read_file(workspace, "a/b.bin", max_bytes=256) == bytes(range(256))


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "..", "../secret", "a/../../secret", "a//b", "./a", "a/", "a\0b", "a\nb", "x" * 2000]
)
def test_a_name_that_may_lead_outside_is_refused(workspace: Path, name: str) -> None:
    """The refusal says what a name is."""
    (workspace.parent / "secret").write_text("secret")

    with pytest.raises(InvalidValue, match=r"path: .* is not accepted; expected the name of a file below"):
        read_file(workspace, name, max_bytes=100)


def test_what_is_no_plain_file_is_refused(workspace: Path) -> None:
    """Links, also as folders on the way, FIFOs, folders, and files that have another name."""
    (workspace.parent / "secret").write_text("secret")
    (workspace / "folder").mkdir()
    (workspace / "link").symlink_to(workspace.parent / "secret")
    (workspace / "way").symlink_to(workspace.parent)
    os.mkfifo(workspace / "pipe")
    os.link(workspace.parent / "secret", workspace / "twin")

    for name, why in (
        ("link", "a link"),
        ("way/secret", "way is a link"),
        ("pipe", "a FIFO"),
        ("folder", "a folder"),
        ("twin", "it has 2 names"),
    ):
        with pytest.raises(InvalidValue, match=f"path: '{name}' is not accepted; expected .*: {why}"):
            read_file(workspace, name, max_bytes=100)


def test_a_file_that_is_not_there_is_unknown(workspace: Path) -> None:
    """So is one in a folder that is not there, or below a file."""
    (workspace / "file").touch()
    for name in ("none", "none/none", "file/none"):
        with pytest.raises(Unknown, match="unknown file"):
            read_file(workspace, name, max_bytes=100)


def test_a_file_above_the_limit_is_not_read(workspace: Path) -> None:
    """Its size is looked at first: a file without end is not read to its end."""
    with (workspace / "large").open("wb") as large:
        large.truncate(1 << 40)

    with pytest.raises(OutputTooLarge) as refused:
        read_file(workspace, "large", max_bytes=100)

    assert (refused.value.size, refused.value.limit) == (1 << 40, 100)


@pytest.mark.parametrize("name", ["x" * 256, "a/" + "x" * 256, "x" * 256 + "/a", "ä" * 128])
def test_a_part_that_no_file_system_takes_is_refused(workspace: Path, name: str) -> None:
    """As a name, not as a failure of the sandbox: the guest or its owner wrote it."""
    (workspace / "a").mkdir()

    with pytest.raises(InvalidValue, match=r"path: .*: a part of it has 256 bytes, at most 255 are taken"):
        read_file(workspace, name, max_bytes=100)


def test_a_link_that_comes_in_between_is_refused(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is looked at, and replaced by a link before it is opened: that is no failure of the sandbox."""
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
