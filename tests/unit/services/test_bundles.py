"""Bundles: stored by their content, checked before anything is written, and never outside their folder."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import random
import sys
import tarfile
import tempfile
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import InvalidValue, RametError, StoreInUse, Unknown
from ramet.isolation.limits.disk import ENTRY_BYTES
from ramet.services.errors import InUse
from ramet.services.packaging.bundles.unpack import extract, scan
from ramet.services.packaging.contract import BundleInfo, BundleLimits, BundleTooLarge, Job
from ramet.services.packaging.service import PackagingService
from tests.support.image_jobs import wait_finished
from tests.support.tars import END, header, member, record, tar

SMALL = BundleLimits(upload=400_000, total=100_000, file=60_000, members=50, depth=4)
FILES = {"tools/__init__.py": b"", "tools/sums.py": b"def add(a, b):\n    return a + b\n", "data.txt": b"x" * 700}


def tree(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder with their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def everything(folder: Path) -> list[str]:
    """Return the paths of everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def pieces(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    """Yield the data in pieces, as a connection delivers it."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


# --- what is kept ---------------------------------------------------------------------------------------------------


async def test_an_upload_is_kept_under_the_digest_of_its_files(tmp_path: Path) -> None:
    """The folder has the digest as its name, the files are read-only, and the owner learns the size."""
    async with PackagingService(tmp_path) as service:
        info = await service.upload(tar(FILES))

        folder = tmp_path / "bundles" / info.id
        assert tree(folder) == FILES
        assert (info.size, info.files) == (sum(map(len, FILES.values())), 3)
        assert await service.bundle(info.id) == info
        assert list(await service.list_bundles()) == [info]
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o444}
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "tools")} == {0o555}


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(tar(FILES, packed=True), id="gzip"),
        pytest.param(tar(FILES, mtime=1_700_000_000), id="other-times"),
        pytest.param(tar(dict(reversed(FILES.items()))), id="other-order"),
        pytest.param(tar(FILES, format=tarfile.GNU_FORMAT), id="gnu"),
        pytest.param(tar(FILES, format=tarfile.USTAR_FORMAT), id="ustar"),
        pytest.param(tar(FILES, mode=0o600), id="other-mode"),
        pytest.param(tar({f"./{name}": content for name, content in FILES.items()}), id="dot-slash"),
        pytest.param(header(b"empty/", kind=b"5") + header(b"./", kind=b"5") + tar(FILES), id="empty-folders"),
        pytest.param(member(b"g", record(b"comment", b"a commit"), kind=b"g") + tar(FILES), id="global-comment"),
    ],
)
async def test_the_same_files_are_the_same_bundle(tmp_path: Path, again: bytes) -> None:
    """Times, order, format, modes and empty folders of the archive make no difference."""
    async with PackagingService(tmp_path) as service:
        first = await service.upload(tar(FILES))

        assert await service.upload(again) == first
        assert await service.upload(pieces(again)) == first
        assert len(await service.list_bundles()) == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(tar({**FILES, "data.txt": b"y" * 700}), id="content"),
        pytest.param(tar({**FILES, "more": b""}), id="one-more"),
        pytest.param(
            tar({"tools2" + name.removeprefix("tools"): content for name, content in FILES.items()}), id="name"
        ),
        pytest.param(tar(FILES, mode=0o755), id="executable"),
    ],
)
async def test_other_files_are_another_bundle(tmp_path: Path, other: bytes) -> None:
    """A different byte, name, number of files or executable bit makes another bundle."""
    async with PackagingService(tmp_path) as service:
        assert await service.upload(tar(FILES)) != await service.upload(other)


async def test_only_the_executable_bit_of_a_mode_is_kept(tmp_path: Path) -> None:
    """Set-user-ID and set-group-ID bits are dropped."""
    async with PackagingService(tmp_path) as service:
        info = await service.upload(tar({"run.sh": b"#!/bin/sh\n"}, mode=0o6777))

    assert (tmp_path / "bundles" / info.id / "run.sh").stat().st_mode & 0o7777 == 0o555


@pytest.mark.parametrize("format", ["gnu", "pax", "ustar", "v7", "oldgnu"])
async def test_archives_of_the_tar_program_are_accepted(tmp_path: Path, format: str) -> None:
    """Each format works, with folders and a name that is longer than a header field."""
    long = "d" * 60 + "/" + "f" * (60 if format in ("gnu", "pax", "oldgnu", "ustar") else 30)
    source = tmp_path / "source"
    for name, content in {**FILES, long: b"long"}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    process = await asyncio.create_subprocess_exec(
        "tar", "-C", source, f"--format={format}", "-cz", ".", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()

    async with PackagingService(tmp_path / "kept") as service:
        info = await service.upload(out)

    assert tree(tmp_path / "kept" / "bundles" / info.id) == {**FILES, long: b"long"}


async def test_concurrent_uploads_of_one_bundle_make_one_bundle(tmp_path: Path) -> None:
    """Each upload returns the same info, and no draft is left."""
    async with PackagingService(tmp_path) as service:
        infos = await asyncio.gather(*(service.upload(tar(FILES)) for _ in range(8)))

        assert len(set(infos)) == 1
        assert [path.name for path in sorted((tmp_path / "bundles").iterdir())] == sorted(
            [infos[0].id, f"{infos[0].id}.json"]
        )


async def test_bundles_outlive_a_restart_and_unfinished_drafts_do_not(tmp_path: Path) -> None:
    """The next process removes a draft that a dead process left."""
    async with PackagingService(tmp_path) as service:
        info = await service.upload(tar(FILES))
    draft = tmp_path / "bundles" / ".draft-x" / "deep"
    draft.mkdir(parents=True)
    (draft / "file").write_text("half of it")
    draft.chmod(0o555)

    async with PackagingService(tmp_path) as service:
        assert list(await service.list_bundles()) == [info]
        assert not draft.parent.exists()


KILLED = """
import asyncio, pathlib, sys, time
from ramet.services.packaging import atomic_dirs as folders
from ramet.services.packaging.service import PackagingService

def stuck(*_):
    print("here", flush=True)
    time.sleep(3600)

async def main():
    setattr(folders, sys.argv[2], stuck)
    async with PackagingService(pathlib.Path(sys.argv[1])) as service:
        await service.upload(sys.stdin.buffer.read())

asyncio.run(main())
"""


@pytest.mark.parametrize("step", ["publish", "_sync"])
async def test_a_process_that_is_killed_leaves_no_bundle(tmp_path: Path, step: str) -> None:
    """The lock is free, the draft is removed, and the bundle can be uploaded again."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, tmp_path, step, stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(tar(FILES))
    process.stdin.close()
    assert await process.stdout.readline() == b"here\n"
    process.kill()
    await process.wait()
    assert any(path.name.startswith(".draft-") for path in (tmp_path / "bundles").iterdir())

    async with PackagingService(tmp_path) as service:
        assert await service.list_bundles() == []
        assert not any(path.name.startswith(".draft-") for path in (tmp_path / "bundles").iterdir())
        info = await service.upload(tar(FILES))

    assert tree(tmp_path / "bundles" / info.id) == FILES


async def test_a_bundle_without_its_record_is_restored_by_an_upload(tmp_path: Path) -> None:
    """The bundle is unknown until the upload."""
    async with PackagingService(tmp_path) as service:
        info = await service.upload(tar(FILES))
        (tmp_path / "bundles" / f"{info.id}.json").unlink()

        with pytest.raises(Unknown):
            await service.bundle(info.id)
        assert await service.upload(tar(FILES)) == await service.bundle(info.id)


async def test_a_folder_belongs_to_one_service(tmp_path: Path) -> None:
    """A second service is refused with the process id of the first, which continues."""
    async with PackagingService(tmp_path) as service:
        with pytest.raises(StoreInUse, match=str(os.getpid())):
            await PackagingService(tmp_path).open()
        await service.upload(tar(FILES))
    async with PackagingService(tmp_path):
        pass


@pytest.mark.parametrize("id", ["", "x", "../bundles", "0" * 64, "0" * 64 + "\n", "A" * 64, "/etc", "0" * 63 + "/"])
async def test_an_unknown_bundle_is_unknown(tmp_path: Path, id: str) -> None:
    """An id that is a path is unknown too."""
    async with PackagingService(tmp_path) as service:
        with pytest.raises(Unknown):
            await service.bundle(id)


# --- what is refused ------------------------------------------------------------------------------------------------

GOOD = member(b"good.txt", b"good")
HOSTILE: Mapping[str, tuple[bytes, str]] = {
    "parent": (member(b"../out", b"x"), "lead out"),
    "parent-inside": (member(b"a/../../out", b"x"), "lead out"),
    "parent-that-stays": (member(b"a/../b", b"x"), "lead out"),
    "parent-folder": (header(b"../", kind=b"5"), "lead out"),
    "parent-last": (member(b"a/..", b"x"), "lead out"),
    "parent-after-dot": (member(b"./../out", b"x"), "lead out"),
    "parent-by-prefix": (member(b"out", b"x", prefix=b"../.."), "lead out"),
    "parent-by-long-name": (member(b"L", b"../out\0", kind=b"L") + member(b"fine", b"x"), "lead out"),
    "parent-by-extended-header": (member(b"x", record(b"path", b"../out"), kind=b"x") + member(b"a", b"x"), "lead out"),
    "absolute": (member(b"/etc/passwd", b"x"), "a relative path"),
    "absolute-twice": (member(b"//etc/passwd", b"x"), "a relative path"),
    "absolute-by-prefix": (member(b"passwd", b"x", prefix=b"/etc"), "a relative path"),
    "absolute-by-extended-header": (member(b"x", record(b"path", b"/out"), kind=b"x") + member(b"a"), "a relative"),
    "absolute-after-dot": (member(b".//etc/passwd", b"x"), "empty parts"),
    "dot-inside": (member(b"a/./b", b"x"), "empty parts"),
    "empty-part": (member(b"a//b", b"x"), "empty parts"),
    "empty-name": (member(b"", b"x"), "not empty"),
    "file-without-a-name": (header(b".", kind=b"0"), "a file's name"),
    "backslash": (member(b"..\\..\\out", b"x"), "backslash"),
    "drive": (member(b"C:\\out", b"x"), "backslash"),
    "newline": (member(b"a\nb", b"x"), "printable"),
    "escape": (member(b"a\x1b[2Jb", b"x"), "printable"),
    "delete": (member(b"a\x7f", b"x"), "printable"),
    "right-to-left": (member("a\u202egpj.py".encode(), b"x"), "printable"),
    "zero-width": (member("a\u200bb".encode(), b"x"), "printable"),
    "nul-by-extended-header": (member(b"x", record(b"path", b"a\0b"), kind=b"x") + member(b"a", b"x"), "printable"),
    "latin-1": (member(b"caf\xe9", b"x"), "UTF-8"),
    "surrogate": (member(b"\xed\xa0\x80", b"x"), "UTF-8"),
    "overlong-slash": (member(b"..\xc0\xafout", b"x"), "UTF-8"),
    "long-name": (member(b"L", b"n" * 201, kind=b"L") + member(b"a", b"x"), "200 bytes"),
    "long-path": (member(b"L", b"n/" * 3 + b"n" * 190 + b"/n" * 500, kind=b"L") + member(b"a"), "1024 bytes"),
    "symlink": (header(b"link", kind=b"2", link=b"/etc/passwd"), "not a symbolic link"),
    "symlink-inside": (header(b"link", kind=b"2", link=b"good.txt"), "not a symbolic link"),
    "symlink-then-through-it": (header(b"d", kind=b"2", link=b"/tmp") + member(b"d/x", b"x"), "not a symbolic link"),
    "hard-link": (header(b"link", kind=b"1", link=b"/etc/passwd"), "not a hard link"),
    "hard-link-inside": (header(b"link", kind=b"1", link=b"good.txt"), "not a hard link"),
    "long-link": (member(b"K", b"/etc/passwd\0", kind=b"K") + header(b"link", kind=b"2"), "not a link"),
    "character-device": (header(b"null", kind=b"3"), "not a character device"),
    "block-device": (header(b"disk", kind=b"4"), "not a block device"),
    "fifo": (header(b"pipe", kind=b"6"), "not a fifo"),
    "sparse": (header(b"hole", kind=b"S", size=0), "not a sparse file"),
    "sparse-by-extended-header": (
        member(b"x", record(b"GNU.sparse.realsize", b"1000000"), kind=b"x") + member(b"a", b"x"), "no sparse files",
    ),
    "sparse-map": (
        member(b"x", record(b"GNU.sparse.map", b"0,99999999999"), kind=b"x") + member(b"a", b"x"), "no sparse files",
    ),
    "unknown-type": (header(b"what", kind=b"Z"), "not of type"),
    "contiguous": (header(b"what", kind=b"7"), "not of type"),
    "twice": (member(b"a", b"x") + member(b"a", b"x"), "occurred already"),
    "twice-by-dot": (member(b"a", b"x") + member(b"./a", b"y"), "occurred already"),
    "file-then-folder": (member(b"a", b"x") + header(b"a/", kind=b"5"), "a file already"),
    "file-then-below-it": (member(b"a", b"x") + member(b"a/b", b"x"), "a file already"),
    "folder-then-file": (header(b"a/", kind=b"5") + member(b"a", b"x"), "occurred already"),
    "case": (member(b"Readme", b"x") + member(b"README", b"y"), "case or Unicode"),
    "case-of-a-folder": (member(b"a/x", b"x") + member(b"A/y", b"y"), "case or Unicode"),
    "unicode-form": (member("caf\u00e9".encode(), b"x") + member("cafe\u0301".encode(), b"y"), "case or Unicode"),
    "ligature": (member("\ufb01x".encode(), b"x") + member(b"fix", b"y"), "case or Unicode"),
    "sharp-s": (member("stra\u00dfe".encode(), b"x") + member(b"STRASSE", b"y"), "case or Unicode"),
    "folder-with-content": (member(b"a/", b"x", kind=b"5"), "without content"),
    "two-extended-headers": (
        member(b"x", record(b"path", b"a"), kind=b"x") * 2 + member(b"b", b"x"), "one extended header",
    ),
    "extended-key-twice": (
        member(b"x", record(b"path", b"a") + record(b"path", b"../b"), kind=b"x") + member(b"c"), "each key once",
    ),
    "global-path": (member(b"g", record(b"path", b"../out"), kind=b"g") + member(b"a"), "global header"),
    "global-size": (member(b"g", record(b"size", b"1000000"), kind=b"g") + member(b"a"), "global header"),
    "extended-header-too-large": (header(b"x", kind=b"x", size=100_000), "at most 65536"),
    "extended-header-of-no-records": (member(b"x", b"nonsense", kind=b"x") + member(b"a"), "decimal digits"),
    "extended-record-without-equals": (member(b"x", b"8 path\n", kind=b"x") + member(b"a"), "LENGTH KEY=VALUE"),
    "extended-record-of-length-0": (member(b"x", b"0 path=a\n", kind=b"x") + member(b"a"), "LENGTH KEY=VALUE"),
    "extended-record-too-long": (member(b"x", b"99 path=a\n", kind=b"x") + member(b"a"), "LENGTH KEY=VALUE"),
    "extended-header-at-the-end": (member(b"x", record(b"path", b"a"), kind=b"x"), "after its extended header"),
    "extended-size-negative": (member(b"x", record(b"size", b"-1"), kind=b"x") + member(b"a"), "decimal digits"),
    "extended-size-beyond-the-end": (member(b"x", record(b"size", b"50000"), kind=b"x") + member(b"a"), "cut short"),
    "negative-size": (header(b"a", size=b"-0000000001\0"), "octal"),
    "binary-size": (header(b"a", size=b"\x80" + bytes(10) + b"\x01"), "octal"),
    "binary-negative-size": (header(b"a", size=b"\xff" * 12), "octal"),
    "wrong-checksum": (b"b" + header(b"a")[1:], "no header"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(HOSTILE))
async def test_a_hostile_member_is_refused_by_name_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    """NEG-11: Valid members before it do not help; nothing is written in or beside the service's folder."""
    archive, message = HOSTILE[name]
    async with PackagingService(tmp_path / "kept", limits=BundleLimits(depth=1_000)) as service:
        before = everything(tmp_path)
        for archive_bytes in (GOOD + archive + END, gzip.compress(GOOD + archive + END)):
            with pytest.raises(InvalidValue) as refusal:
                await service.upload(archive_bytes)

            assert message in str(refusal.value)
        assert everything(tmp_path) == before


BROKEN: Mapping[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"hello" * 200,
    "no-files": lambda: END,
    "only-folders": lambda: header(b"a/", kind=b"5") + END,
    "without-an-end": lambda: GOOD,
    "cut-in-a-header": lambda: GOOD[:300],
    "cut-in-a-file": lambda: header(b"a", size=10_000) + b"x" * 600,
    "something-after-the-end": lambda: GOOD + END + member(b"hidden", b"x") + END,
    "gzip-cut": lambda: gzip.compress(GOOD + END)[:-9],
    "gzip-without-its-checksum": lambda: gzip.compress(GOOD + END)[:-4],
    "gzip-wrong-checksum": lambda: gzip.compress(GOOD + END)[:-8] + bytes(8),
    "gzip-of-nothing": lambda: gzip.compress(b""),
    "gzip-header-only": lambda: b"\x1f\x8b",
    "gzip-and-text": lambda: gzip.compress(GOOD + END) + b"more",
    "gzip-twice": lambda: gzip.compress(GOOD) + gzip.compress(END),
    "gzip-in-gzip": lambda: gzip.compress(gzip.compress(GOOD + END)),
    "zip": lambda: b"PK\x03\x04" + bytes(1000),
    "xz": lambda: b"\xfd7zXZ\0" + bytes(1000),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
async def test_an_incomplete_archive_is_refused(tmp_path: Path, name: str) -> None:
    """An upload that was cut short does not become a smaller bundle."""
    async with PackagingService(tmp_path) as service:
        before = everything(tmp_path)

        with pytest.raises(InvalidValue):
            await service.upload(BROKEN[name]())

        assert everything(tmp_path) == before


def bomb(size: int) -> bytes:
    """Return an archive that ends in `size` zeros, compressed about a thousandfold."""
    packer = zlib.compressobj(9, wbits=31)
    piece = bytes(1 << 20)
    compressed = [packer.compress(GOOD + END), *(packer.compress(piece) for _ in range(size >> 20))]
    return b"".join([*compressed, packer.flush()])


TOO_MUCH: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "upload": (lambda: tar({"noise": random.Random(1).randbytes(500_000)}), "bytes of the upload"),
    "members": (lambda: tar({f"f{number}": b"" for number in range(51)}), "members"),
    "folders": (lambda: b"".join(header(b"d%d/" % n, kind=b"5") for n in range(51)) + END, "members"),
    "depth": (lambda: tar({"a/b/c/d/e": b""}), "depth"),
    "depth-of-folders": (lambda: header(b"a/b/c/d/e/", kind=b"5") + END, "depth"),
    "file": (lambda: tar({"large": bytes(60_001)}), "'large'"),
    "file-that-only-says-so": (lambda: header(b"large", size=8**11 - 1), "'large'"),
    "file-by-extended-header": (
        lambda: member(b"x", record(b"size", b"9" * 17), kind=b"x") + member(b"large"), "'large'",
    ),
    "total": (lambda: tar({"a": bytes(60_000), "b": bytes(60_000)}), "bundle's files"),
    "gzip-bomb": (lambda: bomb(64 << 20), "unpacked archive"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TOO_MUCH))
async def test_a_bundle_beyond_a_limit_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    """The error names the limit, the size and the accepted size."""
    archive, message = TOO_MUCH[name]
    async with PackagingService(tmp_path, limits=SMALL) as service:
        before = everything(tmp_path)
        for data in (archive(), pieces(archive(), 50_000)):
            with pytest.raises(BundleTooLarge) as refusal:
                await service.upload(data)

            assert message in str(refusal.value)
            assert refusal.value.size > refusal.value.limit
            assert "are accepted" in str(refusal.value)
        assert everything(tmp_path) == before


async def test_a_bundle_exactly_at_its_limits_is_accepted(tmp_path: Path) -> None:
    """Each limit is the largest accepted value."""
    files = {f"a/b/c/f{number}": b"" for number in range(48)} | {"a/b/c/d": bytes(40_000), "large": bytes(60_000)}
    async with PackagingService(tmp_path, limits=SMALL) as service:
        info = await service.upload(tar(files, packed=True))

    assert (info.size, info.files) == (100_000, 50)


def test_a_bomb_is_unpacked_in_small_pieces() -> None:
    """Memory holds a few pieces, however large the limit or the size in a header is."""
    tracemalloc.start()
    try:
        with pytest.raises(BundleTooLarge):
            scan(io.BytesIO(bomb(48 << 20)), BundleLimits(total=32 << 20, members=1))
        with pytest.raises(InvalidValue, match="cut short"):
            scan(io.BytesIO(header(b"a", size=1 << 30)), BundleLimits(total=1 << 31, file=1 << 31))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


async def test_an_upload_whose_connection_breaks_leaves_nothing(tmp_path: Path) -> None:
    """The caller gets the connection's error, and the received part is removed."""

    async def broken() -> AsyncIterator[bytes]:
        yield tar(FILES)[:1000]
        raise ConnectionResetError("gone")

    async with PackagingService(tmp_path) as service:
        before = everything(tmp_path)
        with pytest.raises(ConnectionResetError):
            await service.upload(broken())

        assert everything(tmp_path) == before


async def test_a_cancelled_upload_leaves_nothing(tmp_path: Path) -> None:
    """An upload that is cancelled while it waits for data leaves nothing on the disk."""
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield tar(FILES)[:1000]
        waiting.set()
        await asyncio.Event().wait()

    async with PackagingService(tmp_path) as service:
        before = everything(tmp_path)
        upload = asyncio.create_task(service.upload(endless()))
        await waiting.wait()
        upload.cancel()
        await asyncio.wait({upload})

        assert upload.cancelled()
        assert everything(tmp_path) == before


async def test_a_failed_extraction_leaves_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves neither a bundle nor a part of it; a later upload succeeds."""

    def full(archive: object, folder: Path, limits: object) -> None:
        (folder / "half").write_text("half of it")
        raise OSError(28, "No space left on device")

    async with PackagingService(tmp_path) as service:
        before = everything(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr("ramet.services.packaging.bundles.store.extract", full)
            with pytest.raises(OSError, match="No space"):
                await service.upload(tar(FILES))

        assert everything(tmp_path) == before
        assert (await service.upload(tar(FILES))).files == 3


# --- whatever comes -------------------------------------------------------------------------------------------------

_parts = st.text(
    st.characters(codec="ascii", categories=("Ll", "Nd")) | st.sampled_from(".-_ é漢"), min_size=1, max_size=8
)
_trees = st.dictionaries(
    st.lists(_parts, min_size=1, max_size=3).map("/".join).filter(lambda path: not path.startswith("./")),
    st.binary(max_size=2000),
    max_size=8,
)


@given(_trees, st.booleans(), st.randoms())
def test_an_accepted_archive_is_extracted_as_it_was_packed(
    files: dict[str, bytes], packed: bool, order: random.Random
) -> None:
    """Any tree comes out unchanged, with the same id in any order, or the archive is refused."""
    shuffled = list(files.items())
    order.shuffle(shuffled)
    archive = io.BytesIO(tar(files, packed=packed))
    try:
        content = scan(archive, SMALL)
    except InvalidValue:
        return
    with tempfile.TemporaryDirectory() as folder:
        extract(archive, Path(folder), SMALL)

        assert tree(Path(folder)) == files
    assert set(content.files) == files.keys()
    assert content.size == sum(map(len, files.values()))
    assert scan(io.BytesIO(tar(dict(shuffled))), SMALL) == content


_wild = st.lists(
    st.sampled_from(
        [b"..", b".", b"", b"/", b"a", b"A", b"etc", b"~", b"\\", b"..\\", b"\n", b"\xff", b"\0", b"\xe2\x80\xae"]
    )
    | st.binary(max_size=6),
    max_size=6,
).map(b"/".join)


@given(
    st.lists(st.tuples(_wild, st.sampled_from(b"0125\0xgLKS7"), _wild, st.binary(max_size=40)), min_size=1, max_size=4),
    st.booleans(),
)
def test_no_name_of_a_member_leaves_the_folder(members: list[tuple[bytes, int, bytes, bytes]], long: bool) -> None:
    """Random members with hostile names raise a typed error, or lie inside the folder."""
    archive = b""
    for name, kind, prefix, content in members:
        if long:
            archive += member(b"L", name + b"\0", kind=b"L")
        archive += member(name, content, kind=bytes([kind]), prefix=prefix)
    source = io.BytesIO(archive + END)
    with tempfile.TemporaryDirectory() as around:
        folder = Path(around, "a", "b", "c")
        folder.mkdir(parents=True)
        try:
            content_ = scan(source, SMALL)
        except RametError:
            return
        extract(source, folder, SMALL)

        assert sorted(tree(Path(around))) == sorted(f"a/b/c/{file}" for file in content_.files)
        assert not any(path.is_symlink() for path in Path(around).rglob("*"))


@given(st.binary(max_size=1500), st.integers(0, 1600), st.booleans())
def test_damaged_archives_are_refused_or_read(noise: bytes, at: int, packed: bool) -> None:
    """Changed bytes anywhere lead to a typed error or to another bundle, never to another error."""
    archive = tar(FILES, packed=packed)
    damaged = archive[:at] + noise + archive[at + len(noise) :]
    try:
        scan(io.BytesIO(damaged), SMALL)
    except RametError:
        pass


# --- what all of them together may be, and how they go ---------------------------------------------------------------


async def test_bundles_together_stay_below_the_kept_limit(tmp_path: Path) -> None:
    """Concurrent uploads count, a restart changes nothing, and a deletion makes room."""
    entries, names = 4 * 2 * ENTRY_BYTES, len("aaarest")
    limits = BundleLimits(quota=entries + names + 3 * 300 + 100)
    async with PackagingService(tmp_path, limits=limits) as service:
        came = await asyncio.gather(
            *(service.upload(tar({"a": bytes([each]) * 300})) for each in range(5)), return_exceptions=True
        )
        assert sum(isinstance(each, BundleTooLarge) for each in came) == 2
        first, *_ = infos = [each for each in came if isinstance(each, BundleInfo)]
        assert len(infos) == 3
        with pytest.raises(InvalidValue):
            await service.upload(tar({"bundle.toml": b"wrong"}))
        assert await service.upload(tar({"a": (tmp_path / "bundles" / first.id / "a").read_bytes()})) == first
        await service.upload(tar({"rest": b"x" * 100}))
    async with PackagingService(tmp_path, limits=limits) as service:
        message = f"of all bundles that are kept: {limits.quota + 2 * ENTRY_BYTES + 2} or more, at most {limits.quota}"
        with pytest.raises(BundleTooLarge, match=message):
            await service.upload(tar({"c": b"x"}))
        await service.delete_bundle(first.id)
        with pytest.raises(Unknown):
            await service.bundle(first.id)
        assert first.id not in {each.name.removesuffix(".json") for each in (tmp_path / "bundles").iterdir()}
        await service.upload(tar({"d": b"y" * 300}))


async def test_a_bundle_is_not_deleted_while_an_image_is_made_of_it(tmp_path: Path) -> None:
    """An image cannot be made of a bundle that is being deleted either: the first request wins."""
    async with PackagingService(tmp_path) as service:
        id = (await service.upload(tar(FILES))).id
        build, removal = await asyncio.gather(
            service.create_image("", [id]), service.delete_bundle(id), return_exceptions=True
        )
        assert isinstance(build, Job)
        assert isinstance(removal, InUse)
        await wait_finished(service, build.id)
        with pytest.raises(InUse, match=build.id):
            await service.delete_bundle(id)
        await service.delete_image(build.id)
        removal, build = await asyncio.gather(
            service.delete_bundle(id), service.create_image("", [id]), return_exceptions=True
        )
        assert removal is None
        assert isinstance(build, Unknown)


async def test_every_team_that_uploads_the_same_files_has_the_bundle(tmp_path: Path) -> None:
    """A concurrent upload takes the bundle from no other team; a team without an upload does not have it."""
    teams = [f"team-{number}" for number in range(8)]
    async with PackagingService(tmp_path) as service:
        infos = await asyncio.gather(*(service.upload(tar({"kit.py": b"x = 1\n"}), each) for each in teams))

        assert [list(await service.list_bundles(each)) for each in teams] == [[infos[0]]] * len(teams)
        assert list(await service.list_bundles("team-of-nobody")) == []


async def test_a_bundle_record_without_owners_belongs_to_every_team(tmp_path: Path) -> None:
    """An older version recorded no owners; agents of its images continue."""
    async with PackagingService(tmp_path) as service:
        bundle = await service.upload(tar({"kit.py": b"x = 1\n"}), "team-1")
        record = tmp_path / "bundles" / f"{bundle.id}.json"
        record.write_text(json.dumps({"size": bundle.size, "files": ["kit.py"]}))

        assert list(await service.list_bundles("team-2")) == [bundle]


async def test_owners_of_a_deleted_bundle_do_not_come_back(tmp_path: Path) -> None:
    """A server that died between removing the folder and removing the record makes no difference."""
    data = tar({"kit.py": b"x = 1\n"})
    async with PackagingService(tmp_path) as service:
        bundle = await service.upload(data)
        record = tmp_path / "bundles" / f"{bundle.id}.json"
        content = record.read_bytes()
        await service.delete_bundle(bundle.id)
    record.write_bytes(content)

    async with PackagingService(tmp_path) as service:
        await service.upload(data, "team-1")

        assert list(await service.list_bundles("team-1")) == [bundle]
        assert list(await service.list_bundles("team-2")) == []
