"""A server's rule for mounts applies to the target of a path, not to its name alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.core.errors import SpawnRefused
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
