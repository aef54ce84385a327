"""Folders that travel: what comes is what went, and what an enemy packs stays in its folder."""

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
from ramet.isolation.remote.file_sync import Known, Packed

MOST = 1024 * 1024


def packed(folder: Path, known: Known | None = None, *, max_bytes: int = MOST) -> tuple[bytes, Packed]:
    """A folder as a tar."""
    pieces: list[bytes] = []
    told = file_sync.pack(folder, pieces.append, known, max_bytes=max_bytes)
    return b"".join(pieces), told


def unpacked(
    tar: bytes, folder: Path, *, whole: bool = False, max_bytes: int = MOST, max_entries: int = 1000
) -> tuple[str, ...]:
    """A tar as a folder."""
    return file_sync.unpack(io.BytesIO(tar).read, folder, max_bytes=max_bytes, max_entries=max_entries, whole=whole)


def made(*members: tuple[str, str, str]) -> bytes:
    """A tar by the standard library: of each member its name, its type, and its content or where it leads."""
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
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def test_what_comes_is_what_went(here: Path, there: Path) -> None:
    """Files, folders, links that stay inside, modes, names of any bytes and of any length."""
    name = os.fsdecode(b"\xff\xfe")
    long = "l" * 200
    (here / "below" / long).mkdir(parents=True)
    (here / "below" / long / long).write_bytes(b"deep" * 300)
    (here / name).write_text("bytes")
    (here / "run").write_text("program")
    (here / "run").chmod(0o750)
    (here / "shut").mkdir()
    (here / "shut" / "file").touch()
    (here / "link").symlink_to(f"below/{long}")

    refused = unpacked(packed(here)[0], there)

    assert refused == ()
    assert (there / "below" / long / long).read_bytes() == b"deep" * 300
    assert (there / name).read_text() == "bytes"
    assert stat.S_IMODE((there / "run").stat().st_mode) == 0o750
    assert (there / "link").readlink() == Path(f"below/{long}")
    assert sorted(each.name for each in there.rglob("*")) == sorted(each.name for each in here.rglob("*"))


def test_only_what_changed_goes_again(here: Path, there: Path) -> None:
    """What was known and is as it was stays away; what has gone is told."""
    for name in ("same", "changed", "gone"):
        (here / name).write_text("first")
    known = file_sync.scan(here)
    unpacked(packed(here)[0], there)
    (here / "changed").write_text("second, and longer")
    (here / "gone").unlink()
    (here / "new").write_text("new")

    tar, told = packed(here, known)
    unpacked(tar, there)
    file_sync.remove(there, [os.fsencode(path) for path in told.removed])

    assert told.removed == ("gone",)
    assert b"first" not in tar
    assert {each.name: each.read_text() for each in there.iterdir()} == {
        "same": "first",
        "changed": "second, and longer",
        "new": "new",
    }


def test_a_file_may_become_a_folder_and_a_folder_a_file(here: Path, there: Path) -> None:
    (here / "one").mkdir()
    (here / "one" / "below").write_text("text")
    (here / "other").write_text("text")
    unpacked(packed(here)[0], there)
    known = file_sync.scan(here)
    (here / "one" / "below").unlink()
    (here / "one").rmdir()
    (here / "one").write_text("a file")
    (here / "other").unlink()
    (here / "other").mkdir()
    (here / "other" / "below").write_text("below")

    tar, told = packed(here, known)
    unpacked(tar, there)
    file_sync.remove(there, [os.fsencode(path) for path in told.removed])

    assert (there / "one").read_text() == "a file"
    assert (there / "other" / "below").read_text() == "below"


def test_what_may_still_change_unseen_goes_once_more(here: Path) -> None:
    """A file that was changed this moment can change again within the same tick of the clock."""
    (here / "young").write_text("first")

    _, told = packed(here)

    assert told.known == {"young": None}


def test_a_whole_folder_leaves_nothing_else(here: Path, there: Path) -> None:
    (here / "file").write_text("new")
    (there / "file").write_text("old")
    (there / "left" / "over").mkdir(parents=True)

    unpacked(packed(here)[0], there, whole=True)

    assert [each.name for each in there.iterdir()] == ["file"]
    assert (there / "file").read_text() == "new"


def test_a_single_file_travels_too(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("text")

    unpacked(packed(tmp_path / "one")[0], tmp_path / "two")

    assert (tmp_path / "two").read_text() == "text"


def test_the_source_of_a_mount_travels_through_no_link(tmp_path: Path, there: Path) -> None:
    """A folder or file at a path that has become a link, or leads through one, is an error: nothing of it is read."""
    real = tmp_path.resolve() / "real"
    (real / "below").mkdir(parents=True)
    (real / "below" / "file").write_text("text")
    (real.parent / "link").symlink_to("real")
    (real / "name").symlink_to("below/file")
    told = bytearray()

    for path in ("link", "link/below", "link/below/file", "real/name"):
        with pytest.raises(OSError, match="symbolic links"):
            file_sync.pack(real.parent / path, told.extend, max_bytes=MOST, is_source=True)
    assert not told

    file_sync.pack(real / "below", told.extend, max_bytes=MOST, is_source=True)
    unpacked(bytes(told), there)
    assert (there / "file").read_text() == "text"


def test_what_is_private_in_a_state_folder_of_a_mount_does_not_travel(here: Path, there: Path) -> None:
    """Of whatever kernel; what a project keeps in the same folder does, and so does all of a workspace."""
    for name in (".ramet/journal.db", ".ramet/runs/one/file", "sub/.ramet/operator-token", "sub/.ramet/skills/note"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("text")
    told = bytearray()

    file_sync.pack(here.resolve(), told.extend, max_bytes=MOST, is_source=True)

    unpacked(bytes(told), there)
    assert [str(each.relative_to(there)) for each in there.rglob("*") if each.is_file()] == ["sub/.ramet/skills/note"]
    assert b"journal.db" in packed(here)[0]


def test_what_is_no_file_stays_and_is_told(here: Path) -> None:
    os.mkfifo(here / "fifo")
    (here / "file").touch()

    tar, told = packed(here)

    assert b"fifo" not in tar
    assert told.refused == ("fifo: neither a file nor a folder nor a link",)


def test_too_much_is_refused_before_it_is_sent(here: Path) -> None:
    (here / "large").write_bytes(bytes(1000))

    with pytest.raises(OutputTooLarge):
        packed(here, max_bytes=999)


OUTSIDE = [
    pytest.param(made(("../evil", "0", "x")), id="up"),
    pytest.param(made(("a/../../evil", "0", "x")), id="up-from-below"),
    pytest.param(made(("/evil", "0", "x")), id="absolute"),
    pytest.param(made(("a//evil", "0", "x")), id="empty-part"),
    pytest.param(made(("n" * 256, "0", "x")), id="name-too-long"),
    pytest.param(made(("/".join("d" * 200), "0", "x")), id="too-deep"),
    pytest.param(made(("hard", "1", "/etc/passwd")), id="hard-link"),
    pytest.param(made(("fifo", "6", "")), id="fifo"),
    pytest.param(made(("device", "3", "")), id="device"),
    pytest.param(made(("block", "4", "")), id="block-device"),
    pytest.param(made(("file", "0", "x"))[:700], id="cut-short"),
    pytest.param(b"no tar at all" * 100, id="nonsense"),
]


@pytest.mark.parametrize("tar", OUTSIDE)
def test_what_nobody_honest_packs_is_refused(tar: bytes, there: Path) -> None:
    with pytest.raises(InvalidValue):
        unpacked(tar, there)

    assert not [each for each in there.parent.rglob("*") if each.name in ("evil", "hard", "fifo", "device", "block")]


def test_a_link_that_leads_out_is_not_made(there: Path) -> None:
    """And told; one that stays inside is."""
    tar = made(("out", "2", "/etc"), ("up", "2", "below/../../other"), ("a/in", "2", "../b"), ("empty", "0", ""))

    refused = unpacked(tar, there)

    assert [each.split(":")[0] for each in refused] == ["out", "up"]
    assert sorted(each.name for each in there.rglob("*")) == ["a", "empty", "in"]


def test_nothing_is_written_through_a_link(there: Path) -> None:
    """A folder that was a link by then, made by the same archive or an earlier one, is replaced by a folder."""
    target = there.with_name("target")
    target.mkdir()
    (there / "old").symlink_to(target)
    tar = made(("inner", "2", "."), ("inner/file", "0", "x"), ("old/file", "0", "x"), ("old", "5", ""))

    unpacked(tar, there)
    file_sync.remove(there, [b"old/file"])
    (there / "link").symlink_to(target)
    (target / "keep").touch()
    file_sync.remove(there, [b"link/keep"])

    assert (there / "inner" / "file").read_text() == "x"
    assert not (there / "inner").is_symlink()
    assert [each.name for each in target.iterdir()] == ["keep"]


def test_no_mode_gives_anybody_more_than_it_has(there: Path) -> None:
    """No setuid, setgid or sticky bit arrives; a folder stays its owner's to enter."""
    unpacked(made(("file", "0", "x"), ("folder", "5", "")), there)

    assert stat.S_IMODE((there / "file").stat().st_mode) == 0o777
    assert stat.S_IMODE((there / "folder").stat().st_mode) == 0o777


@pytest.mark.parametrize(
    "unpack",
    [
        pytest.param(lambda there: unpacked(made(("file", "0", "x" * 100)), there, max_bytes=99), id="bytes"),
        pytest.param(lambda there: unpacked(made(("a", "5", ""), ("b", "5", "")), there, max_entries=1), id="entries"),
    ],
)
def test_more_than_was_granted_is_refused(unpack: Callable[[Path], object], there: Path) -> None:
    with pytest.raises(OutputTooLarge):
        unpack(there)


@pytest.mark.parametrize("path", [b"../other", b"/other", b"", b"a/../../other", b"."])
def test_what_has_gone_elsewhere_is_not_removed(path: bytes, there: Path) -> None:
    other = there.with_name("other")
    other.touch()

    with pytest.raises(InvalidValue):
        file_sync.remove(there, [path])

    assert other.exists()
