"""Tests of the zygote's check of the mounts that bubblewrap made."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.isolation.assignment import ZygoteConfig
from ramet.isolation.zygote.main import check_mounts


def test_a_mount_that_was_exchanged_while_it_was_bound_is_refused(tmp_path: Path) -> None:
    """The zygote alone can see the source of the bind mount."""
    path, about = str(tmp_path), tmp_path.stat()
    config = ZygoteConfig("bwrap", "/runs", (), {path: path}, "bare", identities={path: [about.st_dev, about.st_ino]})

    check_mounts(config)
    with pytest.raises(OSError, match="exchanged"):
        check_mounts(config._replace(identities={path: [about.st_dev, about.st_ino + 1]}))
