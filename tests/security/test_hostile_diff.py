"""The diff of a hostile copy: no program of the repository runs, and no change is hidden."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading

import pytest

from ramet.isolation.git import copy_diff
from ramet.isolation.git.clone import source_of
from ramet.isolation.git.copy_diff import ChangedFile, CopyDiff, branch_diff, folder_diff
from ramet.isolation.git.git import Git, NoWorktree
from ramet.isolation.safe_walk import remove_path
from tests.security.hostile_repositories import git
from tests.security.test_hostile_clone import (
    SECRET,
    Made,
    hooks,
    included,
    link_of_clone,
    link_to_file,
    made,
    objects_of_others,
    own_submodule,
    programs,
)

__all__ = ["made"]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
TRUSTING = Git(trusts=lambda folder: True)


def note_threads(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """Return the threads that read what git wrote: that is as large as the repository wants it to be."""
    threads, read = set[threading.Thread](), copy_diff._files_in

    def noted(output: bytes) -> tuple[list[ChangedFile], int]:
        threads.add(threading.current_thread())
        return read(output)

    monkeypatch.setattr(copy_diff, "_files_in", noted)
    return threads


async def diff_of(made: Made) -> CopyDiff:
    return await folder_diff(TRUSTING, made.top, made.clone.base, source_of(made.clone))


def hide_changes(made: Made) -> None:
    """Tell git in every way that the repository has that nothing changed."""
    git(made.top, "update-index", "--assume-unchanged", "a.txt")
    (made.top / ".git" / "info").mkdir(exist_ok=True)
    (made.top / ".git" / "info" / "exclude").write_text("*\n")
    (made.top / ".git" / "info" / "attributes").write_text("* -diff\n")
    objects = made.top / ".git" / "objects"
    [pack] = (objects / "pack").glob("*.pack")
    moved = pack.rename(made.workspace.parent / "moved.pack")
    with moved.open("rb") as file:
        subprocess.run(["git", "unpack-objects", "-q"], cwd=made.top, stdin=file, check=True)
    moved.unlink()
    old, new = git(made.top, "rev-parse", f"{made.clone.base}:a.txt"), git(made.top, "hash-object", "-w", "a.txt")
    (objects / old[:2] / old[2:]).unlink()
    shutil.copyfile(objects / new[:2] / new[2:], objects / old[:2] / old[2:])


async def test_a_hostile_clone_runs_nothing_and_hides_nothing(made: Made) -> None:
    """Programs, links, submodules and a false index of the clone change nothing in its diff; trust does not count."""
    for attack in (hide_changes, own_submodule, link_to_file, objects_of_others, hooks, included, programs):
        attack(made)
    (made.top / "image.png").write_bytes(b"\0binary")
    (made.top / "large.txt").write_text("text\n" * 300_000)
    (made.top / "two\nlines.txt").write_text("new\n")

    diff = await diff_of(made)

    files = {each.path: each for each in diff.files}
    assert files["a.txt"] == ChangedFile("a.txt", "changed", 1, 1)
    assert files["two\nlines.txt"] == ChangedFile("two\nlines.txt", "added", 1, 0)
    for name in ("image.png", "large.txt"):
        assert files[name] == ChangedFile(name, "added", None, None)
    assert {"-one", "+two"} < set(diff.patch.splitlines())
    assert str(made.private / "a.txt") in diff.patch, "a link is shown as its target"
    assert SECRET not in diff.patch
    assert (diff.repositories_left_out, diff.files_left_out, diff.is_cut) == (("sub",), 0, False)
    assert not made.outside.exists(), "it ran on the host"
    assert not (made.top / ".git" / "canary").exists(), "it ran in git's sandbox"


async def test_the_diff_of_a_clone_is_bounded(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and text beyond the limits are left out and counted, and a tree with too many files is refused."""
    monkeypatch.setattr(copy_diff, "MAX_FILES", 3)
    monkeypatch.setattr(copy_diff, "MAX_PATCH", 2_000)
    for number in range(9):
        (made.top / f"{number}.txt").write_text("a line of text\n" * 100)

    threads = note_threads(monkeypatch)

    diff = await diff_of(made)

    assert threads
    assert threading.main_thread() not in threads
    assert (len(diff.files), diff.files_left_out, diff.is_cut) == (3, 7, True)
    assert 1_900 < len(diff.patch) <= 2_000
    assert diff.patch.endswith("\n")

    monkeypatch.setattr(copy_diff, "MAX_ENTRIES", 5)
    with pytest.raises(NoWorktree, match="more than 5 files"):
        await diff_of(made)


async def test_a_link_in_the_place_of_the_clone_is_refused(made: Made) -> None:
    """Another repository of the user's is not read through a link of the run."""
    link_of_clone(made)

    with pytest.raises(NoWorktree, match="no longer a folder"):
        await diff_of(made)


async def test_a_commit_with_one_name_twice_is_compared(made: Made) -> None:
    """A repository whose commit has a name twice, which git accepts, ends in an answer."""
    ids = [git(made.repo, "rev-parse", "HEAD:a.txt"), git(made.repo, "hash-object", "-w", str(made.top / "a.txt"))]
    (made.workspace / "tree").write_bytes(b"".join(b"100644 a.txt\0" + bytes.fromhex(each) for each in ids))
    tree = git(made.repo, "hash-object", "-w", "-t", "tree", "--literally", str(made.workspace / "tree"))
    base = git(made.repo, "commit-tree", tree, "-m", "twice")

    diff = await folder_diff(TRUSTING, made.top, base, source_of(made.clone))

    assert "a.txt" in {each.path for each in diff.files}


async def test_folders_nested_by_the_thousand_are_searched(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository at the bottom of deep folders is found."""
    monkeypatch.setattr(copy_diff, "_MAX_INNER", 0)
    folder = os.open(made.top, os.O_RDONLY)
    for name in ["d"] * 1_200 + [".git"]:
        os.mkdir(name, dir_fd=folder)
        above, folder = folder, os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)

    try:
        with pytest.raises(NoWorktree, match="more than 0 repositories"):
            await diff_of(made)
    finally:
        remove_path(made.top / "d")  # shutil.rmtree fails at the same depth.


async def test_the_diff_of_a_branch(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that a run left is compared in the user's repository; a missing one is None."""
    repo = source_of(made.clone)
    git(made.repo, "checkout", "--quiet", "-b", "ramet/coder-1f")
    (made.repo / "new.txt").write_text("new\n")
    git(made.repo, "add", "new.txt")
    git(made.repo, "commit", "--quiet", "-m", "new")

    threads = note_threads(monkeypatch)

    diff = await branch_diff(TRUSTING, "ramet/coder-1f", made.clone.base, repo)

    assert diff is not None
    assert threads
    assert threading.main_thread() not in threads
    assert diff.files == [ChangedFile("new.txt", "added", 1, 0)]
    assert "+new" in diff.patch
    assert await branch_diff(TRUSTING, "ramet/none", made.clone.base, repo) is None
