"""How long the folders of runs stay: a decision on their ages, their number and their size. Nothing is removed here."""

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
    """Which folders are kept: those that break none of these. None is no limit."""

    days: float | None = 30.0  #: since the run ended, or was last seen
    count: int | None = 1_000  #: of the newest
    bytes: int | None = None  #: that the newest take on the disk, together

    def __post_init__(self) -> None:
        if self.days is not None and not self.days >= 0:
            raise InvalidValue("days", self.days, "days from 0, or None for no limit")
        for name in ("count", "bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidValue(name, value, "a number from 0, or None for no limit")


class Age(NamedTuple):
    """How old a folder is, and where it is."""

    last: datetime  #: when its run ended, or was last seen
    run: str
    path: Path


def expired(ages: Iterable[Age], limits: FolderLimits, now: datetime) -> list[str]:
    """Return the runs whose folders the limits do not keep, whether or not the runs live; waits for the disk."""
    oldest = None if limits.days is None else now - timedelta(days=limits.days)
    found, left = [], limits.bytes
    for number, age in enumerate(sorted(ages, reverse=True)):
        is_over = limits.count is not None and number >= limits.count
        is_over = is_over or (oldest is not None and age.last < oldest)
        if left is not None and not is_over:
            with contextlib.suppress(OSError):  # It is being filled, or goes.
                left -= used_bytes(age.path, most=max(left, 0))
            is_over = left < 0
        if is_over:
            found.append(age.run)
    return found
