"""Which version this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def ramet_version() -> str:
    """The version that is installed."""
    try:
        return version("ramet")
    except PackageNotFoundError:
        return "0"
