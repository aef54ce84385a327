"""The installed version of ramet."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def ramet_version() -> str:
    """Return the installed version, or "0" if ramet is not installed."""
    try:
        return version("ramet")
    except PackageNotFoundError:
        return "0"
