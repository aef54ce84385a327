"""Where mounts lie: links are followed once for what an operator grants, and never below."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.isolation.mounts import identities_of, is_private, roots_of, sources_by_mount, sources_of, states_in


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a repository, a link to the repository, and a link out of it."""
    place = tmp_path.resolve()
    (place / "repo" / "sub").mkdir(parents=True)
    (place / "repo" / "file").write_text("text")
    (place / "other").mkdir()
    (place / "granted").symlink_to("repo")
    (place / "repo" / "out").symlink_to("../other")
    (place / "repo" / "inner").symlink_to("sub")
    return place


def test_a_root_is_resolved_once(place: Path) -> None:
    """What its link leads to later is not what was granted."""
    roots = roots_of([str(place / "granted")])
    (place / "granted").unlink()
    (place / "granted").symlink_to("other")

    assert roots == {str(place / "granted"): str(place / "repo")}
    assert sources_of([str(place / "granted" / "sub")], roots, "") == {
        str(place / "granted" / "sub"): str(place / "repo" / "sub")
    }


def test_the_nearest_root_counts(place: Path) -> None:
    """An operator may grant a link of a repository beside the repository."""
    (place / "other" / "deep").mkdir()
    roots = roots_of([str(place / "repo"), str(place / "repo" / "out")])

    found = sources_of([str(place / "repo" / "out" / "deep"), str(place / "repo" / "sub")], roots, "")

    assert list(found.values()) == [str(place / "other" / "deep"), str(place / "repo" / "sub")]


@pytest.mark.parametrize("path", ["repo/out", "repo/inner", "repo/inner/below", "granted/out"])
def test_a_link_below_a_root_is_refused(place: Path, path: str) -> None:
    roots = roots_of([str(place / "repo"), str(place / "granted")])

    with pytest.raises(InvalidValue, match="symbolic link") as refusal:
        sources_of([str(place / path)], roots, "")

    assert (refusal.value.field, refusal.value.value) == ("readonly_mounts", str(place / path))


def test_a_mount_below_no_root_is_refused(place: Path) -> None:
    """Not even a path that begins with the same letters."""
    for path in (place / "other", place / "repository", place):
        with pytest.raises(InvalidValue, match="no mount that the operator granted"):
            sources_by_mount([str(path)], roots_of([str(place / "repo")]))


def test_below_a_rule_no_link_is_followed(place: Path) -> None:
    """A rule is the operator's, and what others ask for below it is not: a mount beside it is the operator's own."""
    rules = roots_of([str(place / "repo")])

    roots = roots_of([str(place / "repo" / "out"), str(place / "granted")], rules)

    assert roots == {
        str(place / "repo" / "out"): str(place / "repo" / "out"),
        str(place / "granted"): str(place / "repo"),
    }
    with pytest.raises(InvalidValue, match="symbolic link"):
        sources_of([str(place / "repo" / "out")], roots, "")


def test_every_folder_may_be_a_root_of_rules(place: Path) -> None:
    """Also the topmost one."""
    assert sources_by_mount([str(place / "repo")], {"/": "/"}) == {str(place / "repo"): str(place / "repo")}


@pytest.mark.parametrize("target", ["/proc/self", "/sys/kernel", "/dev/shm", "/run", "/var/run", "/", "/tmp"])
def test_a_link_to_a_tree_that_a_sandbox_has_of_its_own_is_refused(place: Path, target: str) -> None:
    """Its name says nothing: what it leads to counts, also for an operator."""
    (place / "innocent").symlink_to(target)

    with pytest.raises(InvalidValue, match="a sandbox has its own"):
        sources_of([str(place / "innocent")], None, "")


def test_private_files_of_the_kernel_are_refused(place: Path) -> None:
    """By its real path, for an operator's link as well; what a project keeps in the same folder is not private."""
    state = place / "repo" / ".ramet"
    for name in ("runs/one/workspace", "transcripts/one", "skills/mine", "worktrees/one", "agents"):
        (state / name).mkdir(parents=True)
    (state / "journal.db-wal").touch()
    (place / "innocent").symlink_to(state / "transcripts")
    runs = str(place / "granted" / ".ramet" / "runs")

    for path in (state, state / "runs" / "one" / "workspace", state / "journal.db-wal", place / "innocent"):
        with pytest.raises(InvalidValue, match="private to a kernel"):
            sources_of([str(path)], None, runs)
    for path in (place / "repo", state / "skills" / "mine", state / "worktrees" / "one", state / "agents"):
        assert not is_private(str(path), runs)


def test_private_files_of_other_kernels_are_refused(place: Path) -> None:
    """Whatever kernel keeps them; a folder in a worktree or workspace of another is that of a kernel there."""
    other = place / "other" / ".ramet"
    for name in ("runs/one/workspace/mine", "transcripts/one", "skills/mine", "worktrees/one/.ramet/runs"):
        (other / name).mkdir(parents=True)
    (other / "operator-token").touch()
    runs = str(place / "repo" / ".ramet" / "runs")

    for path in (other, other / "transcripts", other / "operator-token", other / "worktrees" / "one" / ".ramet"):
        with pytest.raises(InvalidValue, match="private to a kernel"):
            sources_of([str(path)], None, runs)
    for path in (other / "skills" / "mine", other / "worktrees" / "one"):
        assert not is_private(str(path), runs)
    nested = other / "runs" / "one" / "workspace"
    assert not is_private(str(nested / "mine"), str(nested / ".ramet" / "runs")), "a kernel may work in a workspace"
    assert is_private(str(other / "runs" / "two"), str(nested / ".ramet" / "runs"))


def test_a_source_that_has_become_a_link_is_named(place: Path) -> None:
    sources = sources_of([str(place / "repo" / "sub")], None, "")
    before = identities_of(sources)
    (place / "repo" / "sub").rename(place / "moved")
    (place / "repo" / "sub").symlink_to("../other")

    with pytest.raises(InvalidValue, match="symbolic link"):
        identities_of(sources)
    assert before[str(place / "repo" / "sub")] == ((place / "moved").stat().st_dev, (place / "moved").stat().st_ino)


def test_mounts_around_the_kernels_folder_are_known(place: Path) -> None:
    """At the path of each mount that holds it, and where it lies."""
    runs = str(place / "repo" / ".ramet" / "runs")
    mounts = [str(place / name) for name in ("granted", "repo", "other")]

    assert states_in(sources_by_mount(mounts, None), runs) == (
        str(place / "granted" / ".ramet"),
        str(place / "repo" / ".ramet"),
    )
    assert states_in(sources_by_mount([str(place / "repo" / "sub")], None), runs) == ()
    assert states_in(sources_by_mount(mounts, None), str(place / "repo" / "elsewhere")) == ()
