"""Tests of the sources of mounts: links of an operator's grant are resolved once, and links below it never."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.isolation.mounts import (
    check_readable,
    identities_of,
    is_private,
    roots_of,
    sources_by_mount,
    sources_of,
    states_in,
)


@pytest.fixture
def mount_root(tmp_path: Path) -> Path:
    """Create a folder with a repository, a link to the repository, and a link out of it."""
    mount_root = tmp_path.resolve()
    (mount_root / "repo" / "sub").mkdir(parents=True)
    (mount_root / "repo" / "file").write_text("text")
    (mount_root / "other").mkdir()
    (mount_root / "granted").symlink_to("repo")
    (mount_root / "repo" / "out").symlink_to("../other")
    (mount_root / "repo" / "inner").symlink_to("sub")
    return mount_root


def test_a_root_is_resolved_once(mount_root: Path) -> None:
    """A later target of the link was not granted."""
    roots = roots_of([str(mount_root / "granted")])
    (mount_root / "granted").unlink()
    (mount_root / "granted").symlink_to("other")

    assert roots == {str(mount_root / "granted"): str(mount_root / "repo")}
    assert sources_of([str(mount_root / "granted" / "sub")], roots, "") == {
        str(mount_root / "granted" / "sub"): str(mount_root / "repo" / "sub")
    }


def test_the_nearest_root_counts(mount_root: Path) -> None:
    """An operator may grant a link of a repository in addition to the repository."""
    (mount_root / "other" / "deep").mkdir()
    roots = roots_of([str(mount_root / "repo"), str(mount_root / "repo" / "out")])

    sources = sources_of([str(mount_root / "repo" / "out" / "deep"), str(mount_root / "repo" / "sub")], roots, "")

    assert list(sources.values()) == [str(mount_root / "other" / "deep"), str(mount_root / "repo" / "sub")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_mount_that_only_its_owner_may_open_is_refused_with_the_remedy(mount_root: Path) -> None:
    """A sandbox of root is another user; what this other one shares with everybody is mounted, and so is root's own."""
    folder, file = mount_root / "repo", mount_root / "repo" / "file"
    folder.chmod(0o700)
    file.chmod(0o600)
    check_readable({str(each): str(each) for each in (folder, file)})
    for path, shared in ((file, 0o604), (folder, 0o701)):
        os.chown(path, 12345, 12345)
        with pytest.raises(InvalidValue, match=r"readonly_mounts: .*only the user 12345, .*: start ramet as that user"):
            check_readable({str(path): str(path)})
        path.chmod(shared)
        check_readable({str(path): str(path)})


@pytest.mark.parametrize("path", ["repo/out", "repo/inner", "repo/inner/below", "granted/out"])
def test_a_link_below_a_root_is_refused(mount_root: Path, path: str) -> None:
    roots = roots_of([str(mount_root / "repo"), str(mount_root / "granted")])

    with pytest.raises(InvalidValue, match="symbolic link") as refusal:
        sources_of([str(mount_root / path)], roots, "")

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", str(mount_root / path))


def test_a_mount_below_no_root_is_refused(mount_root: Path) -> None:
    """A path that begins with the letters of a root is refused, too."""
    for path in (mount_root / "other", mount_root / "repository", mount_root):
        with pytest.raises(InvalidValue, match="no mount that the operator granted"):
            sources_by_mount([str(path)], roots_of([str(mount_root / "repo")]))


def test_no_link_below_a_rule_is_followed(mount_root: Path) -> None:
    """A rule is the operator's, and requests below it are not; a separate mount is the operator's own."""
    rules = roots_of([str(mount_root / "repo")])

    roots = roots_of([str(mount_root / "repo" / "out"), str(mount_root / "granted")], rules)

    assert roots == {
        str(mount_root / "repo" / "out"): str(mount_root / "repo" / "out"),
        str(mount_root / "granted"): str(mount_root / "repo"),
    }
    with pytest.raises(InvalidValue, match="symbolic link"):
        sources_of([str(mount_root / "repo" / "out")], roots, "")


def test_every_folder_may_be_a_root_of_rules(mount_root: Path) -> None:
    """The topmost folder is accepted, too."""
    assert sources_by_mount([str(mount_root / "repo")], {"/": "/"}) == {
        str(mount_root / "repo"): str(mount_root / "repo")
    }


@pytest.mark.parametrize("target", ["/proc/self", "/sys/kernel", "/dev/shm", "/run", "/var/run", "/", "/tmp"])
def test_a_link_to_a_system_folder_is_refused(mount_root: Path, target: str) -> None:
    """The target of the link counts, also for an operator's link."""
    (mount_root / "innocent").symlink_to(target)

    with pytest.raises(InvalidValue, match="a sandbox has its own"):
        sources_of([str(mount_root / "innocent")], None, "")


def test_private_files_of_the_kernel_are_refused(mount_root: Path) -> None:
    """The real path counts, also behind an operator's link; project files in the same folder are not private."""
    state = mount_root / "repo" / ".ramet"
    for name in ("runs/one/workspace", "transcripts/one", "skills/mine", "worktrees/one", "agents"):
        (state / name).mkdir(parents=True)
    (state / "journal.db-wal").touch()
    (mount_root / "innocent").symlink_to(state / "transcripts")
    runs = str(mount_root / "granted" / ".ramet" / "runs")

    for path in (state, state / "runs" / "one" / "workspace", state / "journal.db-wal", mount_root / "innocent"):
        with pytest.raises(InvalidValue, match="private to a kernel"):
            sources_of([str(path)], None, runs)
    for path in (mount_root / "repo", state / "skills" / "mine", state / "worktrees" / "one", state / "agents"):
        assert not is_private(str(path), runs)


def test_private_files_of_other_kernels_are_refused(mount_root: Path) -> None:
    """A folder in a worktree or workspace of another kernel may itself belong to a kernel."""
    other = mount_root / "other" / ".ramet"
    for name in ("runs/one/workspace/mine", "transcripts/one", "skills/mine", "worktrees/one/.ramet/runs"):
        (other / name).mkdir(parents=True)
    (other / "operator-token").touch()
    runs = str(mount_root / "repo" / ".ramet" / "runs")

    for path in (other, other / "transcripts", other / "operator-token", other / "worktrees" / "one" / ".ramet"):
        with pytest.raises(InvalidValue, match="private to a kernel"):
            sources_of([str(path)], None, runs)
    for path in (other / "skills" / "mine", other / "worktrees" / "one"):
        assert not is_private(str(path), runs)
    nested = other / "runs" / "one" / "workspace"
    assert not is_private(str(nested / "mine"), str(nested / ".ramet" / "runs")), "a kernel may work in a workspace"
    assert is_private(str(other / "runs" / "two"), str(nested / ".ramet" / "runs"))


def test_a_source_that_has_become_a_link_is_refused(mount_root: Path) -> None:
    sources = sources_of([str(mount_root / "repo" / "sub")], None, "")
    before = identities_of(sources)
    (mount_root / "repo" / "sub").rename(mount_root / "moved")
    (mount_root / "repo" / "sub").symlink_to("../other")

    with pytest.raises(InvalidValue, match="symbolic link"):
        identities_of(sources)
    assert before[str(mount_root / "repo" / "sub")] == (
        (mount_root / "moved").stat().st_dev,
        (mount_root / "moved").stat().st_ino,
    )


def test_mounts_that_contain_the_kernels_folder_are_found(mount_root: Path) -> None:
    """The result has the path at each mount and the path at its source."""
    runs = str(mount_root / "repo" / ".ramet" / "runs")
    mounts = [str(mount_root / name) for name in ("granted", "repo", "other")]

    assert states_in(sources_by_mount(mounts, None), runs) == (
        str(mount_root / "granted" / ".ramet"),
        str(mount_root / "repo" / ".ramet"),
    )
    assert states_in(sources_by_mount([str(mount_root / "repo" / "sub")], None), runs) == ()
    assert states_in(sources_by_mount(mounts, None), str(mount_root / "repo" / "elsewhere")) == ()
