"""Retention of the folders of runs: a decision by age, number and size. This module removes no folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from ramet.core.errors import InvalidValue
from ramet.isolation.limits.disk import used_bytes


@dataclass(frozen=True, kw_only=True)
class FolderLimits:
    """The limits for kept folders: a folder is kept if it breaks none of these. None is no limit."""

    days: float | None = 30.0  #: since the run ended, or was last used
    count: int | None = 1_000  #: the maximum number of folders, newest first
    bytes: int | None = None  #: the maximum size on disk of the newest folders together

    def __post_init__(self) -> None:
        if self.days is not None and not self.days >= 0:
            raise InvalidValue("days", self.days, "days from 0, or None for no limit")
        for name in ("count", "bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidValue(name, value, "a number from 0, or None for no limit")


class Age(NamedTuple):
    """The age of a folder, and its path."""

    last: datetime  #: the time when its run ended, or was last used
    run: str
    path: Path


def find_expired(ages: Iterable[Age], limits: FolderLimits, now: datetime) -> list[str]:
    """Return the runs whose folders the limits do not keep, whether or not the runs live; waits for the disk."""
    oldest = None if limits.days is None else now - timedelta(days=limits.days)
    runs, remaining = [], limits.bytes
    for number, age in enumerate(sorted(ages, reverse=True)):
        is_over = limits.count is not None and number >= limits.count
        is_over = is_over or (oldest is not None and age.last < oldest)
        if remaining is not None and not is_over:
            with contextlib.suppress(OSError):  # The folder is being filled, or removed.
                remaining -= used_bytes(age.path, max_bytes=max(remaining, 0))
            is_over = remaining < 0
        if is_over:
            runs.append(age.run)
    return runs
