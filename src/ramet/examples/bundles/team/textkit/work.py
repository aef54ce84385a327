"""What the members of the team do without a model: each a function from what it is asked to what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .words import count, halves, together, written


def architect(asked: str) -> Iterator[str]:
    """Split a text for two workers, or put together what they have counted."""
    task, _, given = asked.partition("\n\n")
    if task.startswith("Split"):
        first, second = halves(given)
        yield f"{first}\n"
        yield "---\n"
        yield second
    else:
        total = together([given])
        yield f"{sum(total.values())} words, {len(total)} different; the most frequent:\n"
        yield written(Counter(dict(sorted(total.items(), key=lambda it: (-it[1], it[0]))[:3])))


def worker(asked: str) -> Iterator[str]:
    """Count the words of a part."""
    _, _, part = asked.partition("\n\n")
    for line in written(count(part)).splitlines():
        yield f"{line}\n"
