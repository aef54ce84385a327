"""Costs of a bundle: to read its manifest and requirements, to keep it, and to list all bundles."""

from __future__ import annotations

import json
import tomllib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.files import safe_yaml
from ramet.agent.files.dialects.toml_marks import marks_of
from ramet.core.errors import InvalidValue
from ramet.services.packaging.bundles.manifest import MANIFEST, manifest_of
from ramet.services.packaging.bundles.requirements import Installs
from ramet.services.packaging.contract import BundleLimits, BundleTooLarge
from ramet.services.packaging.service import PackagingService
from tests.support.image_jobs import wait_finished
from tests.support.tars import tar

LARGE = 8_000_000
KB = 1024


async def peak_of(work: Callable[[], Any]) -> int:
    """Return the peak of memory in bytes while `work` runs."""
    tracemalloc.start()
    try:
        await work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- manifests ------------------------------------------------------------------------------------------------------

#: Each is refused by its marks, whether or not it is TOML.
COSTLY = {
    "dotted-key": ".".join(["a"] * 2_000) + " = 1",
    "quoted-parts": ".".join(["'a'", '"b"'] * 50) + " = 1",
    "spaced-parts": " . ".join(["a"] * 100) + " = 1",
    "table": "[" + ".".join(["a"] * 100) + "]",
    "inline-table": "tools = { " + ".".join(["a"] * 100) + " = 1 }",
    "many-short-keys": "\n".join(f"a{number}.b = 1" for number in range(100)),
    "nested-arrays": "tools = " + "[" * 100 + "]" * 100,
    "nested-inline-tables": "tools = " + "{a = " * 100 + "1" + "}" * 100,
    "many-tables": "\n".join(f"[a{number}]" for number in range(100)),
    "after-a-text-with-four-quotes": 'tools = { a = """x"""", ' + ".".join(["a"] * 100) + " = 1 }",
    "after-a-text-with-five-quotes": 'tools = { a = """x""""", ' + ".".join(["a"] * 100) + " = 1 }",
    "after-a-literal-with-four-quotes": "tools = { a = '''x'''', " + ".".join(["a"] * 100) + " = 1 }",
    "after-an-escaped-quote": 'tools = { a = "\\"", ' + ".".join(["a"] * 100) + " = 1 }",
    "after-an-escaped-backslash": 'tools = { a = "\\\\", ' + ".".join(["a"] * 100) + " = 1 }",
    "after-a-comment": "# '''\n" + ".".join(["a"] * 100) + " = 1",
}


@pytest.mark.parametrize("name", sorted(COSTLY))
def test_a_costly_manifest_is_refused_before_it_is_parsed(tmp_path: Path, name: str) -> None:
    """Keys of many parts take quadratic time and memory: 47 s and 4 GB for 64 KB."""
    (tmp_path / MANIFEST).write_text(COSTLY[name])

    with pytest.raises(InvalidValue, match="dots and brackets outside of texts"):
        manifest_of(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "tools = [" + ", ".join(f'"a.b.c.d:f{number}"' for number in range(256)) + "]", id="dots-in-names"
        ),
        pytest.param("# see https://example.org/a.b.c[1].d" * 50 + "\ntools = []\n", id="comments"),
        pytest.param(
            "tools = ['a:b',\n '''c:d''',\n \"\"\"e:f\"\"\",\n]\n\"skills\" = ['x.y.z']\n", id="each-kind-of-text"
        ),
    ],
)
def test_marks_within_names_and_comments_do_not_count(tmp_path: Path, text: str) -> None:
    """A manifest with many marks in texts and comments is read."""
    (tmp_path / MANIFEST).write_text(text)

    assert manifest_of(tmp_path).tools == tuple(tomllib.loads(text)["tools"])


@pytest.mark.parametrize(
    "text", ["tools = " + "1" * 5_000, "tools = 1979-99-99", "tools = 0x" + "f" * 5_000, "\ufeff[", '"']
)
def test_an_invalid_manifest_is_refused_by_its_file_name(tmp_path: Path, text: str) -> None:
    """The error is InvalidValue, whatever Python's parser raises."""
    (tmp_path / MANIFEST).write_text(text)

    with pytest.raises(InvalidValue, match=r"bundle\.toml"):
        manifest_of(tmp_path)


def depth_of(data: object) -> int:
    """Return the depth of nested tables and lists."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return (
        1 + max(map(depth_of, inner)) if isinstance(data, dict | list) and data else int(isinstance(data, dict | list))
    )


PIECES = st.sampled_from(
    [
        "a",
        "b.c",
        ".",
        " = ",
        "=",
        "1",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\n",
        "#",
        '"',
        "'",
        '"""',
        "'''",
        "\\",
        '\\"',
        " ",
        "\r\n",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join))
def test_no_manifest_is_deeper_than_its_marks_say(text: str) -> None:
    """The marks are counted without a TOML parser, and are at least as many as the tables and keys that it finds."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError):
        return

    assert depth_of(data) <= marks_of(text) + 1


async def test_only_the_beginning_of_a_large_manifest_is_read(tmp_path: Path) -> None:
    """A file of a bundle may be a thousand times as large as a manifest may be."""
    (tmp_path / MANIFEST).write_bytes(b"#" * LARGE)

    async def read() -> None:
        with pytest.raises(InvalidValue, match="at most 65536"):
            manifest_of(tmp_path)

    assert await peak_of(read) < LARGE // 10


async def test_only_the_beginning_of_large_requirements_is_read(tmp_path: Path) -> None:
    """Many requests for images of such a bundle do not fill the kernel's memory."""
    async with PackagingService(tmp_path, installs=Installs()) as service:
        bundle = await service.upload(tar({"requirements.txt": b"#" * LARGE}))

        async def make() -> None:
            with pytest.raises(InvalidValue, match="at most 262144"):
                await service.create_image("", [bundle.id])

        assert await peak_of(make) < LARGE // 4


def test_line_numbers_of_keys_are_collected_only_on_request() -> None:
    """Line numbers hold the whole path of each key, which may be a thousand times the text."""
    text = f"? {'k' * 2_000}\n:\n" + "".join(f"  a{number}: 1\n" for number in range(100))

    assert safe_yaml.read(text).lines == {}
    assert safe_yaml.read(text, lines=True).lines[f"{'k' * 2_000}.a7"] == 10


# --- what is kept ---------------------------------------------------------------------------------------------------


async def test_files_without_content_count_towards_the_limit_of_kept_bytes(tmp_path: Path) -> None:
    """Each file counts with its name and an entry, after a restart too."""
    limits = BundleLimits(quota=64 * KB)
    async with PackagingService(tmp_path, limits=limits) as service:
        info = await service.upload(tar({f"a{number}": b"" for number in range(40)}))
        assert info.size == 0
        with pytest.raises(BundleTooLarge, match="of all bundles that are kept"):
            await service.upload(tar({f"b{number}": b"" for number in range(40)}))
    async with PackagingService(tmp_path, limits=limits) as service:
        with pytest.raises(BundleTooLarge, match="of all bundles that are kept"):
            await service.upload(tar({f"b{number}": b"" for number in range(40)}))
        await service.delete_bundle(info.id)
        await service.upload(tar({f"b{number}": b"" for number in range(40)}))


async def test_names_and_folders_count_towards_the_limit_of_kept_bytes(tmp_path: Path) -> None:
    """Folders that only a file's path implies count too."""
    async with PackagingService(tmp_path, limits=BundleLimits(quota=64 * KB)) as service:
        for files in (
            {f"{number}/{'/'.join('abcdefghij')}/x": b"" for number in range(8)},
            {f"{'d' * 200}/{'e' * 200}/{'f' * 200}/{number}": b"" for number in range(40)},
        ):
            with pytest.raises(BundleTooLarge, match="of all bundles that are kept"):
                await service.upload(tar(files))


async def test_a_bundle_has_no_more_folders_than_members(tmp_path: Path) -> None:
    """One file may imply many folders."""
    files = {f"{number}/a/b/c/d/x": b"" for number in range(11)}
    async with PackagingService(tmp_path, limits=BundleLimits(members=50)) as service:
        with pytest.raises(BundleTooLarge, match="folders of the bundle"):
            await service.upload(tar(files))


async def test_a_record_of_an_older_version_counts_as_much(tmp_path: Path) -> None:
    """An old record has the names of all files, and not the cost of the bundle."""
    limits = BundleLimits(quota=64 * KB)
    async with PackagingService(tmp_path, limits=limits) as service:
        names = [f"a{number:02}" for number in range(40)]
        info = await service.upload(tar(dict.fromkeys(names, b"")), "team-1")
    old = {"size": 0, "files": names, "owners": ["team-1"]}
    (tmp_path / "bundles" / f"{info.id}.json").write_text(json.dumps(old))

    async with PackagingService(tmp_path, limits=limits) as service:
        assert list(await service.list_bundles("team-1")) == [info]
        with pytest.raises(BundleTooLarge, match="of all bundles that are kept"):
            await service.upload(tar({f"b{number}": b"" for number in range(40)}))
        await service.upload(tar(dict.fromkeys(names, b"")), "team-2")
        assert list(await service.list_bundles("team-2")) == [info]


async def test_listing_bundles_reads_no_names_of_files(tmp_path: Path) -> None:
    """The cost of a list does not depend on the bundles' content, for records of older versions too."""
    async with PackagingService(tmp_path) as service:
        long = "n" * 150
        for each in "ab":
            info = await service.upload(tar({f"{each}{long}/{number}{long}": b"" for number in range(3_000)}))
    record = tmp_path / "bundles" / f"{info.id}.json"
    names = sorted(
        str(path.relative_to(tmp_path / "bundles" / info.id)) for path in (record.parent / info.id).glob("*/*")
    )
    record.write_text(json.dumps({"size": 0, "files": names, "owners": [""]}))

    async with PackagingService(tmp_path) as service:
        results: list[object] = []

        async def ask() -> None:
            results.extend(await service.list_bundles())

        assert await peak_of(ask) < 200 * KB
    assert len(results) == 2


async def test_bundles_that_are_used_together_have_a_bounded_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of their files are compared; too many are refused before they are read."""
    monkeypatch.setattr("ramet.services.packaging.build.MAX_FILES", 5)
    async with PackagingService(tmp_path) as service:
        one, two, small = [
            (await service.upload(tar({f"{name}{number}": b"" for number in range(count)}))).id
            for name, count in (("a", 3), ("b", 3), ("c", 2))
        ]
        for call in (service.create_image("", [one, two]), service.loadable(two, [one])):
            with pytest.raises(InvalidValue, match=r"6 files' is not accepted; expected .* at most 5 files together"):
                await call

        assert (await wait_finished(service, (await service.create_image("", [one, small])).id)).state == "done"
        assert (await service.loadable(small, [one])).id == small
