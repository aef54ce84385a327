"""Trees that somebody hostile made are seen to the end, and removed to the end."""

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
from tests.support.hostile import DEPTH, bury, field, fill, make_immutable, mount_in


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the host, with a file in it."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("the host's")
    return path


@pytest.fixture
def tree() -> Iterator[Path]:
    with field() as path:
        (path / "tree").mkdir()
        yield path / "tree"


def seen(root: Path, *, max_depth: int | None = None) -> list[str]:
    """The names that a walk finds, with what it says of those that it does not enter."""
    with safe_walk.open_root(root) as fd:
        return [
            entry.path + (f" ({entry.problem})" if entry.problem else "")
            for entry in safe_walk.walk(fd, max_depth=max_depth)
            if entry.stat is not None or entry.problem
        ]


def gone(path: Path) -> bool:
    with safe_walk.open_root(path.parent) as parent:
        safe_walk.remove(parent, path.name)
    return not os.path.lexists(path)


def test_a_walk_sees_what_there_is(tree: Path, outside: Path) -> None:
    """Each name once; nothing beyond a link."""
    fill(tree, outside)

    names = seen(tree)

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


def test_a_folder_is_said_to_be_done_with_after_all_that_is_in_it(tree: Path) -> None:
    """Which is when it can be removed."""
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").write_text("")

    with safe_walk.open_root(tree) as fd:
        order = [(entry.path, entry.stat is None) for entry in safe_walk.walk(fd)]

    assert order[0] == ("a", False)
    assert order[-2:] == [("a/b", True), ("a", True)]
    assert set(order[1:-2]) == {("a/b", False), ("a/file", False)}


def test_a_walk_goes_no_deeper_than_it_may(tree: Path) -> None:
    """And says where it stopped."""
    (tree / "d/d/d/d/d").mkdir(parents=True)

    assert seen(tree, max_depth=2) == ["d", "d/d", "d/d/d", "d/d/d (too deep)"]


def test_a_walk_holds_few_descriptors_at_any_depth(tree: Path) -> None:
    """Deep trees cost no more than flat ones."""
    bury(tree)

    with safe_walk.open_root(tree) as fd, contextlib.closing(safe_walk.walk(fd)) as entries:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many
        most = max(len(os.listdir("/proc/self/fd")) for _ in entries)  # noqa: PTH208

    assert most - before <= 3


def test_a_folder_that_is_moved_out_does_not_take_the_walk_with_it(tree: Path, outside: Path) -> None:
    """It goes on where the names still lead to."""
    bury(tree, depth=4)
    for name in ("a", "z"):
        (tree / name).mkdir()
        (tree / name / "file").write_text("")
    found: list[str] = []

    with safe_walk.open_root(tree) as fd:
        for entry in safe_walk.walk(fd):
            found.append(entry.path)
            if entry.path == "d/d/d/d" and entry.stat is not None:
                (tree / "d" / "d").rename(outside / "taken")

    assert {"a/file", "z/file"} <= set(found)
    assert not any("secret" in name or "taken" in name for name in found)


@pytest.mark.parametrize("what", ["d", "d/d"])
def test_a_folder_that_goes_away_does_not_end_the_walk(tree: Path, what: str) -> None:
    """What is gone when its turn comes is passed over."""
    bury(tree, depth=2)
    (tree / "a").mkdir()
    (tree / "a" / "file").write_text("")
    found = set()

    with safe_walk.open_root(tree) as fd:
        for entry in safe_walk.walk(fd):
            found.add(entry.path)
            assert not entry.problem
            if entry.path == what:
                subprocess.run(["rm", "-r", str(tree / "d")], check=False)

    assert "a/file" in found


def test_a_mount_is_not_entered(tree: Path) -> None:
    """Neither to look nor to remove: what is mounted there is not the tree's."""
    (tree / "mount").mkdir()
    mount_in(tree / "mount")
    try:
        (tree / "mount" / "theirs").write_text("")

        assert seen(tree) == ["mount", "mount (another file system is mounted here)"]
        for name in ("tree", "tree/mount"):
            with pytest.raises(OSError, match="mounted here"):
                gone(tree.parent / name)
        assert (tree / "mount" / "theirs").exists()
    finally:
        subprocess.run(["umount", str(tree / "mount")], check=True)


def test_everything_is_removed_and_nothing_outside(tree: Path, outside: Path) -> None:
    """Whatever its names, modes, links and depth."""
    fill(tree, outside)

    assert gone(tree)
    assert (outside / "secret").read_text() == "the host's"


@pytest.mark.parametrize("what", [".", "folder", "folder/file"])
def test_flags_against_removal_are_overcome(tree: Path, what: str) -> None:
    """Those of root, that is."""
    (tree / "folder").mkdir()
    (tree / "folder" / "file").write_text("")
    make_immutable(tree / what)
    with pytest.raises(PermissionError):
        (tree / what / "new").write_text("") if (tree / what).is_dir() else (tree / what).write_text("")

    assert gone(tree)


@pytest.mark.parametrize("make", [lambda path: path.write_text(""), lambda path: path.symlink_to("/"), os.mkfifo])
def test_what_is_no_folder_is_removed_too(tree: Path, make: object) -> None:
    """A link itself, never what it leads to."""
    assert callable(make)
    make(tree / "it")

    assert gone(tree / "it")
    assert Path("/").is_dir()


def test_nothing_there_is_no_error(tree: Path) -> None:
    """Another may have removed it."""
    assert gone(tree / "never")


def test_a_folder_behind_a_link_is_not_opened(tree: Path, outside: Path) -> None:
    """Not even as the root."""
    (tree / "link").symlink_to(outside)

    with pytest.raises(NotADirectoryError), safe_walk.open_root(tree / "link"):
        pass


def test_a_locked_file_is_opened_and_what_a_link_leads_to_stays_locked(tree: Path, outside: Path) -> None:
    """Only the run's own files are unlocked for reading."""
    (tree / "locked").write_text("mine")
    (tree / "locked").chmod(0)
    (outside / "secret").chmod(0)
    (tree / "link").symlink_to(outside / "secret")
    with safe_walk.open_root(tree) as fd:
        file = safe_walk.open_file(fd, "locked")
        assert os.read(file, 10) == b"mine"
        os.close(file)

        with pytest.raises(OSError, match="symbolic links"):
            safe_walk.open_file(fd, "link")

    assert stat.S_IMODE((outside / "secret").stat().st_mode) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is locked for root")
def test_what_is_no_plain_file_stays_locked(tree: Path) -> None:
    """Opening it could wait, or do something."""
    os.mkfifo(tree / "fifo", 0)
    with safe_walk.open_root(tree) as fd, pytest.raises(PermissionError):
        safe_walk.open_file(fd, "fifo")

    assert stat.S_IMODE((tree / "fifo").stat().st_mode) == 0


_names = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))
_trees = st.recursive(st.none(), lambda below: st.dictionaries(_names, below, max_size=4), max_leaves=20)


@given(plan=st.dictionaries(_names, _trees, max_size=4))
def test_a_walk_finds_exactly_what_was_made(tmp_path_factory: pytest.TempPathFactory, plan: dict[str, object]) -> None:
    """And a removal leaves none of it."""
    root = tmp_path_factory.mktemp("made")

    def make(path: Path, below: dict[str, object]) -> set[str]:
        made = set()
        for name, content in below.items():
            made.add(str((path / name).relative_to(root)))
            if isinstance(content, dict):
                (path / name).mkdir()
                made |= make(path / name, content)
            else:
                (path / name).write_text("")
        return made

    made = make(root, plan)

    found = seen(root)
    assert sorted(found) == sorted(made)
    assert gone(root)
