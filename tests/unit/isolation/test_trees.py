"""Tests of hostile trees of files: a walk sees all of them, and a removal removes all of them."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.isolation import safe_walk
from tests.support.hostile import DEPTH, field, fill, make_deep_folders, make_immutable, mount_in


@pytest.fixture
def outside_folder(tmp_path: Path) -> Path:
    """Return a folder of the host with a file in it."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("the host's")
    return path


@pytest.fixture
def tree() -> Iterator[Path]:
    with field() as path:
        (path / "tree").mkdir()
        yield path / "tree"


def walked_names(root: Path, *, max_depth: int | None = None) -> list[str]:
    """Return the names that a walk finds, with the problem of each folder that it does not enter."""
    with safe_walk.open_root(root) as fd:
        return [
            entry.path + (f" ({entry.problem})" if entry.problem else "")
            for entry in safe_walk.walk(fd, max_depth=max_depth)
            if entry.stat is not None or entry.problem
        ]


def remove_tree(path: Path) -> bool:
    with safe_walk.open_root(path.parent) as parent:
        safe_walk.remove(parent, path.name)
    return not os.path.lexists(path)


def test_a_walk_finds_each_name_once(tree: Path, outside_folder: Path) -> None:
    """The walk follows no link."""
    fill(tree, outside_folder)

    names = walked_names(tree)

    deep = [name for name in names if name.startswith("d/") or name == "d"]
    assert len(deep) == DEPTH + 10
    assert sorted(set(names) - set(deep)) == sorted(
        [
            "plain",
            "link to file",
            "link to folder",
            "link to itself",
            "fifo",
            "socket",
            "hard",
            "hard too",
            "not \udcff utf-8",
            "two\nlines\x1b[31m",
            "\u202egnp.exe",
            "Ä.txt",
            "A\u0308.txt",
            "x",
            "X",
            "locked",
            "locked/inside",
            "read only",
            "read only/kept",
        ]
    )


def test_a_folder_is_reported_as_finished_after_its_content(tree: Path) -> None:
    """A finished folder can be removed."""
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").write_text("")

    with safe_walk.open_root(tree) as fd:
        order = [(entry.path, entry.stat is None) for entry in safe_walk.walk(fd)]

    assert order[0] == ("a", False)
    assert order[-2:] == [("a/b", True), ("a", True)]
    assert set(order[1:-2]) == {("a/b", False), ("a/file", False)}


def test_a_walk_stops_at_its_maximal_depth(tree: Path) -> None:
    """The walk reports where it stopped."""
    (tree / "d/d/d/d/d").mkdir(parents=True)

    assert walked_names(tree, max_depth=2) == ["d", "d/d", "d/d/d", "d/d/d (too deep)"]


def test_a_walk_holds_few_descriptors_at_any_depth(tree: Path) -> None:
    """A deep tree takes no more descriptors than a flat one."""
    make_deep_folders(tree)

    with safe_walk.open_root(tree) as fd, contextlib.closing(safe_walk.walk(fd)) as entries:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many
        max_open = max(len(os.listdir("/proc/self/fd")) for _ in entries)  # noqa: PTH208

    assert max_open - before <= 3


def test_a_walk_does_not_follow_a_folder_that_is_moved_away(tree: Path, outside_folder: Path) -> None:
    """The walk continues at the folders that the names still lead to."""
    make_deep_folders(tree, depth=4)
    for name in ("a", "z"):
        (tree / name).mkdir()
        (tree / name / "file").write_text("")
    paths: list[str] = []

    with safe_walk.open_root(tree) as fd:
        for entry in safe_walk.walk(fd):
            paths.append(entry.path)
            if entry.path == "d/d/d/d" and entry.stat is not None:
                (tree / "d" / "d").rename(outside_folder / "taken")

    assert {"a/file", "z/file"} <= set(paths)
    assert not any("secret" in name or "taken" in name for name in paths)


@pytest.mark.parametrize("path", ["d", "d/d"])
def test_a_removed_folder_does_not_end_the_walk(tree: Path, path: str) -> None:
    """A folder that is removed before its turn is skipped."""
    make_deep_folders(tree, depth=2)
    (tree / "a").mkdir()
    (tree / "a" / "file").write_text("")
    paths = set()

    with safe_walk.open_root(tree) as fd:
        for entry in safe_walk.walk(fd):
            paths.add(entry.path)
            assert not entry.problem
            if entry.path == path:
                subprocess.run(["rm", "-r", str(tree / "d")], check=False)

    assert "a/file" in paths


def test_a_mount_is_not_entered(tree: Path) -> None:
    """A mounted file system is neither walked nor removed."""
    (tree / "mount").mkdir()
    mount_in(tree / "mount")
    try:
        (tree / "mount" / "theirs").write_text("")

        assert walked_names(tree) == ["mount", "mount (another file system is mounted here)"]
        for name in ("tree", "tree/mount"):
            with pytest.raises(OSError, match="mounted here"):
                remove_tree(tree.parent / name)
        assert (tree / "mount" / "theirs").exists()
    finally:
        subprocess.run(["umount", str(tree / "mount")], check=True)


def test_a_tree_is_removed_without_files_outside(tree: Path, outside_folder: Path) -> None:
    """Names, modes, links and depth do not matter."""
    fill(tree, outside_folder)

    assert remove_tree(tree)
    assert (outside_folder / "secret").read_text() == "the host's"


@pytest.mark.parametrize("path", [".", "folder", "folder/file"])
def test_immutable_files_are_removed(tree: Path, path: str) -> None:
    """The test covers flags that only root sets."""
    (tree / "folder").mkdir()
    (tree / "folder" / "file").write_text("")
    make_immutable(tree / path)
    with pytest.raises(PermissionError):
        (tree / path / "new").write_text("") if (tree / path).is_dir() else (tree / path).write_text("")

    assert remove_tree(tree)


@pytest.mark.parametrize("make", [lambda path: path.write_text(""), lambda path: path.symlink_to("/"), os.mkfifo])
def test_files_links_and_fifos_are_removed(tree: Path, make: object) -> None:
    """A link itself is removed, and not its target."""
    assert callable(make)
    make(tree / "it")

    assert remove_tree(tree / "it")
    assert Path("/").is_dir()


def test_removing_a_missing_path_is_no_error(tree: Path) -> None:
    """Another process may have removed it."""
    assert remove_tree(tree / "never")


def test_a_folder_behind_a_link_is_not_opened(tree: Path, outside_folder: Path) -> None:
    """A link is refused even as the root."""
    (tree / "link").symlink_to(outside_folder)

    with pytest.raises(NotADirectoryError), safe_walk.open_root(tree / "link"):
        pass


def test_a_locked_file_is_opened_and_the_target_of_a_link_is_not(tree: Path, outside_folder: Path) -> None:
    """The walk unlocks only files of the run itself for reading."""
    (tree / "locked").write_text("mine")
    (tree / "locked").chmod(0)
    (outside_folder / "secret").chmod(0)
    (tree / "link").symlink_to(outside_folder / "secret")
    with safe_walk.open_root(tree) as fd:
        file = safe_walk.open_file(fd, "locked")
        assert os.read(file, 10) == b"mine"
        os.close(file)

        with pytest.raises(OSError, match="symbolic links"):
            safe_walk.open_file(fd, "link")

    assert stat.S_IMODE((outside_folder / "secret").stat().st_mode) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is locked for root")
def test_a_locked_fifo_stays_locked(tree: Path) -> None:
    """Opening a FIFO could block or have an effect."""
    os.mkfifo(tree / "fifo", 0)
    with safe_walk.open_root(tree) as fd, pytest.raises(PermissionError):
        safe_walk.open_file(fd, "fifo")

    assert stat.S_IMODE((tree / "fifo").stat().st_mode) == 0


_names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))
_trees = st.recursive(st.none(), lambda below: st.dictionaries(_names, below, max_size=4), max_leaves=20)


@given(plan=st.dictionaries(_names, _trees, max_size=4))
def test_a_walk_finds_exactly_the_created_files(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[str, object]
) -> None:
    """A removal then removes all of them."""
    root = tmp_path_factory.mktemp("made")

    def make(path: Path, tree_content: dict[str, object]) -> set[str]:
        entries = set()
        for name, content in tree_content.items():
            entries.add(str((path / name).relative_to(root)))
            if isinstance(content, dict):
                (path / name).mkdir()
                entries |= make(path / name, content)
            else:
                (path / name).write_text("")
        return entries

    expected = make(root, plan)

    names = walked_names(root)
    assert sorted(names) == sorted(expected)
    assert remove_tree(root)
