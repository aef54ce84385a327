"""Mark tests as slow that start real sandboxes, or ask the kernel for each answer: `make check` leaves them out."""

from __future__ import annotations

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
SLOW = (
    "test_backends_own",
    "test_zygote",
    "test_launch",
    "test_launch_runtime",
    "test_cgroups",
    "test_watchdog",
    "test_probe",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE) and (item.path.stem in SLOW or item.path.parent.name == "linux"):
            item.add_marker(pytest.mark.slow)
