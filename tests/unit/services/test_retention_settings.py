"""Settings for how long a server keeps ended runs, and the limits that follow from them."""

from __future__ import annotations

import pathlib

import pytest

from ramet.core.errors import InvalidValue
from ramet.isolation.workspace.folder_retention import FolderLimits
from ramet.services.config.build import folder_limits
from ramet.services.config.load import load
from ramet.services.config.settings import RetentionSettings


def test_the_default_retention_keeps_trees_until_gc() -> None:
    """Trees stay recorded until `ramet gc`; of folders, the newest 1,000 of 30 days stay."""
    config = load(None, {}, {})

    assert config.retention == RetentionSettings()
    assert config.retention.results_s is None
    assert config.retention.memory_trees == 256
    assert folder_limits(config.retention) == FolderLimits() == FolderLimits(days=30, count=1_000, bytes=None)


def test_retention_is_set_like_other_settings(tmp_path: pathlib.Path) -> None:
    """The file and the environment are read, each with its origin."""
    file = tmp_path / "ramet.yaml"
    file.write_text("retention:\n  results_s: 3600\n  folder_days: 2\n  folder_bytes: 1000\n")

    config = load(file, {"RAMET_RETENTION_FOLDER_COUNT": "7", "RAMET_RETENTION_MEMORY_TREES": "0"}, {})

    assert config.retention == RetentionSettings(
        results_s=3600, folder_days=2, folder_count=7, folder_bytes=1000, memory_trees=0
    )
    assert config.origins["retention.folder_days"] == f"{file}:3"
    assert config.origins["retention.folder_count"] == "RAMET_RETENTION_FOLDER_COUNT"
    assert folder_limits(config.retention) == FolderLimits(days=2, count=7, bytes=1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("retention: {folder_days: -1}", "retention.folder_days: -1 is not accepted; expected a whole number from 0"),
        ("retention: {folder_count: many}", "retention.folder_count: 'many' is not accepted"),
        ("retention: {trees: 1}", "a key of retention: results_s, folder_days, folder_count"),
    ],
)
def test_an_invalid_retention_setting_is_refused(tmp_path: pathlib.Path, text: str, message: str) -> None:
    """The error names the setting and the accepted values."""
    file = tmp_path / "ramet.yaml"
    file.write_text(text)

    with pytest.raises(InvalidValue, match=message):
        load(file, {}, {})
