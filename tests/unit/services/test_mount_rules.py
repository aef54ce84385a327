"""A server's rule for mounts applies to the target of a path, not to its name alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue, SpawnRefused
from ramet.core.policy.policy import Policy
from ramet.services.rules import Rules


@pytest.mark.parametrize("path", ["link", "link/below", "folder/up"])
def test_a_mount_that_leads_out_of_the_allowed_folder_is_refused(tmp_path: Path, path: str) -> None:
    """Issue 16, line 1: A team's key asks for a path below `rules.mounts` that is a link or goes through one."""
    outside, allowed = tmp_path / "outside", tmp_path / "allowed"
    (outside / "below").mkdir(parents=True)
    (allowed / "folder").mkdir(parents=True)
    (allowed / "link").symlink_to(outside)
    (allowed / "folder" / "up").symlink_to("../../outside")

    with pytest.raises(SpawnRefused, match="symbolic link") as refusal:
        Rules(mounts=(str(allowed),)).grant_of(Policy(readonly_mounts=(str(allowed / path),)))

    assert refusal.value.limit == "policy.readonly_mounts"
    assert str(allowed / path) in refusal.value.reason


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    """Return a folder with others in it, and a link out of it."""
    allowed = tmp_path.resolve() / "allowed"
    (allowed / "folder" / ".git").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (allowed / "link").symlink_to("../outside")
    return allowed


@pytest.mark.parametrize("path", ["", "folder"])
def test_a_folder_of_the_rule_for_writable_mounts_may_be_written_and_read(allowed: Path, path: str) -> None:
    rules, mount = Rules(writable_mounts=(str(allowed),)), str(allowed / path)

    for policy in (Policy(writable_mounts=(mount,)), Policy(readonly_mounts=(mount,))):
        grant = rules.grant_of(policy)
        assert grant is not None
        assert grant.mounts.paths == (mount,)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("link", "symbolic link"),
        ("../outside", "more of the host"),
        ("folder/.git", "obey"),
        ("missing", "No such file"),
    ],
)
def test_a_writable_mount_outside_of_its_rule_is_refused(allowed: Path, path: str, reason: str) -> None:
    mount = str((allowed.parent / "outside") if path.startswith("..") else allowed / path)

    with pytest.raises((SpawnRefused, InvalidValue), match=reason) as refusal:
        Rules(writable_mounts=(str(allowed),)).grant_of(Policy(writable_mounts=(mount,)))

    assert "policy.writable_mounts" in str(refusal.value)


def test_a_folder_that_may_only_be_read_is_no_writable_mount(allowed: Path) -> None:
    """Without its own rule no folder is one."""
    with pytest.raises(SpawnRefused, match=r"rules\.writable_mounts: none") as refusal:
        Rules(mounts=(str(allowed),)).grant_of(Policy(writable_mounts=(str(allowed),)))

    assert refusal.value.limit == "policy.writable_mounts"
