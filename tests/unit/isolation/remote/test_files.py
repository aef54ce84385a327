"""Tests of copied folders: they arrive as sent, and a hostile archive stays in its folder."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue, OutputTooLarge
from ramet.isolation.remote import file_sync
from ramet.isolation.remote.file_sync import KnownFiles, PackResult

MAX_BYTES = 1024 * 1024


def pack_folder(
    folder: Path, known: KnownFiles | None = None, *, max_bytes: int = MAX_BYTES
) -> tuple[bytes, PackResult]:
    """Return a folder as a tar, with the report of packing."""
    pieces: list[bytes] = []
    changes = file_sync.pack(folder, pieces.append, known, max_bytes=max_bytes)
    return b"".join(pieces), changes


def unpack_tar(
    tar: bytes, folder: Path, *, whole: bool = False, max_bytes: int = MAX_BYTES, max_entries: int = 1000
) -> tuple[str, ...]:
    """Unpack a tar into a folder, and return the refused paths."""
    return file_sync.unpack(io.BytesIO(tar).read, folder, max_bytes=max_bytes, max_entries=max_entries, whole=whole)


def make_tar(*members: tuple[str, str, str]) -> bytes:
    """Build a tar by the standard library from names, types, and contents or link targets."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind.encode()
            info.mode = 0o7777
            if kind == "0":
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))
            else:
                info.linkname = content
                tar.addfile(info)
    return out.getvalue()


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def test_a_folder_arrives_unchanged(source_folder: Path, target_folder: Path) -> None:
    """Files, folders, inner links, modes, and names of any bytes and lengths arrive."""
    name = os.fsdecode(b"\xff\xfe")
    long = "l" * 200
    (source_folder / "below" / long).mkdir(parents=True)
    (source_folder / "below" / long / long).write_bytes(b"deep" * 300)
    (source_folder / name).write_text("bytes")
    (source_folder / "run").write_text("program")
    (source_folder / "run").chmod(0o750)
    (source_folder / "shut").mkdir()
    (source_folder / "shut" / "file").touch()
    (source_folder / "link").symlink_to(f"below/{long}")

    problems = unpack_tar(pack_folder(source_folder)[0], target_folder)

    assert problems == ()
    assert (target_folder / "below" / long / long).read_bytes() == b"deep" * 300
    assert (target_folder / name).read_text() == "bytes"
    assert stat.S_IMODE((target_folder / "run").stat().st_mode) == 0o750
    assert (target_folder / "link").readlink() == Path(f"below/{long}")
    assert sorted(each.name for each in target_folder.rglob("*")) == sorted(
        each.name for each in source_folder.rglob("*")
    )


def test_only_changes_are_packed_again(source_folder: Path, target_folder: Path) -> None:
    """Known unchanged files are left out, and removed files are listed."""
    for name in ("same", "changed", "gone"):
        (source_folder / name).write_text("first")
    scanned = file_sync.scan(source_folder)
    unpack_tar(pack_folder(source_folder)[0], target_folder)
    (source_folder / "changed").write_text("second, and longer")
    (source_folder / "gone").unlink()
    (source_folder / "new").write_text("new")

    tar, changes = pack_folder(source_folder, scanned)
    unpack_tar(tar, target_folder)
    file_sync.remove(target_folder, [os.fsencode(path) for path in changes.removed_paths])

    assert changes.removed_paths == ("gone",)
    assert b"first" not in tar
    assert {each.name: each.read_text() for each in target_folder.iterdir()} == {
        "same": "first",
        "changed": "second, and longer",
        "new": "new",
    }


def test_a_file_may_become_a_folder_and_a_folder_a_file(source_folder: Path, target_folder: Path) -> None:
    (source_folder / "one").mkdir()
    (source_folder / "one" / "below").write_text("text")
    (source_folder / "other").write_text("text")
    unpack_tar(pack_folder(source_folder)[0], target_folder)
    scanned = file_sync.scan(source_folder)
    (source_folder / "one" / "below").unlink()
    (source_folder / "one").rmdir()
    (source_folder / "one").write_text("a file")
    (source_folder / "other").unlink()
    (source_folder / "other").mkdir()
    (source_folder / "other" / "below").write_text("below")

    tar, changes = pack_folder(source_folder, scanned)
    unpack_tar(tar, target_folder)
    file_sync.remove(target_folder, [os.fsencode(path) for path in changes.removed_paths])

    assert (target_folder / "one").read_text() == "a file"
    assert (target_folder / "other" / "below").read_text() == "below"


def test_a_just_changed_file_is_packed_again(source_folder: Path) -> None:
    """Such a file can change again within one tick of the clock."""
    (source_folder / "young").write_text("first")

    _, changes = pack_folder(source_folder)

    assert changes.known_files == {"young": None}


def test_unpacking_a_whole_folder_removes_other_files(source_folder: Path, target_folder: Path) -> None:
    (source_folder / "file").write_text("new")
    (target_folder / "file").write_text("old")
    (target_folder / "left" / "over").mkdir(parents=True)

    unpack_tar(pack_folder(source_folder)[0], target_folder, whole=True)

    assert [each.name for each in target_folder.iterdir()] == ["file"]
    assert (target_folder / "file").read_text() == "new"


def test_a_single_file_can_be_packed(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("text")

    unpack_tar(pack_folder(tmp_path / "one")[0], tmp_path / "two")

    assert (tmp_path / "two").read_text() == "text"


def test_a_mount_source_behind_a_link_is_not_packed(tmp_path: Path, target_folder: Path) -> None:
    """A path that is a link, or leads through one, is an error, and nothing of it is read."""
    real = tmp_path.resolve() / "real"
    (real / "below").mkdir(parents=True)
    (real / "below" / "file").write_text("text")
    (real.parent / "link").symlink_to("real")
    (real / "name").symlink_to("below/file")
    data = bytearray()

    for path in ("link", "link/below", "link/below/file", "real/name"):
        with pytest.raises(OSError, match="symbolic links"):
            file_sync.pack(real.parent / path, data.extend, max_bytes=MAX_BYTES, is_source=True)
    assert not data

    file_sync.pack(real / "below", data.extend, max_bytes=MAX_BYTES, is_source=True)
    unpack_tar(bytes(data), target_folder)
    assert (target_folder / "file").read_text() == "text"


def test_private_state_of_a_kernel_in_a_mount_is_not_packed(source_folder: Path, target_folder: Path) -> None:
    """The kernel does not matter; project files in the folder are packed, and so is all of a workspace."""
    for name in (".ramet/journal.db", ".ramet/runs/one/file", "sub/.ramet/operator-token", "sub/.ramet/skills/note"):
        (source_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (source_folder / name).write_text("text")
    data = bytearray()

    file_sync.pack(source_folder.resolve(), data.extend, max_bytes=MAX_BYTES, is_source=True)

    unpack_tar(bytes(data), target_folder)
    assert [str(each.relative_to(target_folder)) for each in target_folder.rglob("*") if each.is_file()] == [
        "sub/.ramet/skills/note"
    ]
    assert b"journal.db" in pack_folder(source_folder)[0]


def test_a_fifo_is_not_packed_and_is_reported(source_folder: Path) -> None:
    os.mkfifo(source_folder / "fifo")
    (source_folder / "file").touch()

    tar, changes = pack_folder(source_folder)

    assert b"fifo" not in tar
    assert changes.refused_paths == ("fifo: neither a file nor a folder nor a link",)


def test_a_folder_above_the_size_limit_is_refused(source_folder: Path) -> None:
    (source_folder / "large").write_bytes(bytes(1000))

    with pytest.raises(OutputTooLarge):
        pack_folder(source_folder, max_bytes=999)


HOSTILE_ARCHIVES = [
    pytest.param(make_tar(("../evil", "0", "x")), id="up"),
    pytest.param(make_tar(("a/../../evil", "0", "x")), id="up-from-below"),
    pytest.param(make_tar(("/evil", "0", "x")), id="absolute"),
    pytest.param(make_tar(("a//evil", "0", "x")), id="empty-part"),
    pytest.param(make_tar(("n" * 256, "0", "x")), id="name-too-long"),
    pytest.param(make_tar(("/".join("d" * 200), "0", "x")), id="too-deep"),
    pytest.param(make_tar(("hard", "1", "/etc/passwd")), id="hard-link"),
    pytest.param(make_tar(("fifo", "6", "")), id="fifo"),
    pytest.param(make_tar(("device", "3", "")), id="device"),
    pytest.param(make_tar(("block", "4", "")), id="block-device"),
    pytest.param(make_tar(("file", "0", "x"))[:700], id="cut-short"),
    pytest.param(b"no tar at all" * 100, id="nonsense"),
]


@pytest.mark.parametrize("tar", HOSTILE_ARCHIVES)
def test_a_hostile_archive_is_refused(tar: bytes, target_folder: Path) -> None:
    with pytest.raises(InvalidValue):
        unpack_tar(tar, target_folder)

    assert not [
        each for each in target_folder.parent.rglob("*") if each.name in ("evil", "hard", "fifo", "device", "block")
    ]


def test_a_link_that_leads_out_of_the_folder_is_not_made(target_folder: Path) -> None:
    """The link is reported; one that stays inside is made."""
    tar = make_tar(("out", "2", "/etc"), ("up", "2", "below/../../other"), ("a/in", "2", "../b"), ("empty", "0", ""))

    problems = unpack_tar(tar, target_folder)

    assert [each.split(":")[0] for each in problems] == ["out", "up"]
    assert sorted(each.name for each in target_folder.rglob("*")) == ["a", "empty", "in"]


def test_nothing_is_written_through_a_link(target_folder: Path) -> None:
    """A link on the way, from this archive or an earlier one, is replaced by a folder."""
    target = target_folder.with_name("target")
    target.mkdir()
    (target_folder / "old").symlink_to(target)
    tar = make_tar(("inner", "2", "."), ("inner/file", "0", "x"), ("old/file", "0", "x"), ("old", "5", ""))

    unpack_tar(tar, target_folder)
    file_sync.remove(target_folder, [b"old/file"])
    (target_folder / "link").symlink_to(target)
    (target / "keep").touch()
    file_sync.remove(target_folder, [b"link/keep"])

    assert (target_folder / "inner" / "file").read_text() == "x"
    assert not (target_folder / "inner").is_symlink()
    assert [each.name for each in target.iterdir()] == ["keep"]


def test_special_mode_bits_are_dropped(target_folder: Path) -> None:
    """No setuid, setgid or sticky bit arrives, and an owner can enter its folders."""
    unpack_tar(make_tar(("file", "0", "x"), ("folder", "5", "")), target_folder)

    assert stat.S_IMODE((target_folder / "file").stat().st_mode) == 0o777
    assert stat.S_IMODE((target_folder / "folder").stat().st_mode) == 0o777


@pytest.mark.parametrize(
    "unpack",
    [
        pytest.param(
            lambda target_folder: unpack_tar(make_tar(("file", "0", "x" * 100)), target_folder, max_bytes=99),
            id="bytes",
        ),
        pytest.param(
            lambda target_folder: unpack_tar(make_tar(("a", "5", ""), ("b", "5", "")), target_folder, max_entries=1),
            id="entries",
        ),
    ],
)
def test_an_archive_above_the_limits_is_refused(unpack: Callable[[Path], object], target_folder: Path) -> None:
    with pytest.raises(OutputTooLarge):
        unpack(target_folder)


@pytest.mark.parametrize("path", [b"../other", b"/other", b"", b"a/../../other", b"."])
def test_a_path_outside_of_the_folder_is_not_removed(path: bytes, target_folder: Path) -> None:
    other = target_folder.with_name("other")
    other.touch()

    with pytest.raises(InvalidValue):
        file_sync.remove(target_folder, [path])

    assert other.exists()
