"""A little code that a team shares: it splits texts, counts their words, and puts counts together.

`architect` and `worker` are what the members of the team do without a model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator


def halves(text: str) -> tuple[str, str]:
    """A text in two parts of about the same length, apart between two lines."""
    lines = text.strip().splitlines()
    middle = len(lines) // 2
    return "\n".join(lines[:middle]), "\n".join(lines[middle:])


def count(text: str) -> Counter[str]:
    """How often each word is in a text, whatever its case."""
    return Counter(re.findall(r"[^\W\d_]+", text.lower()))


def written(counts: Counter[str]) -> str:
    """Counts as lines of `word number`, the most frequent first."""
    return "\n".join(f"{word} {number}" for word, number in sorted(counts.items(), key=lambda it: (-it[1], it[0])))


def together(parts: Iterable[str]) -> Counter[str]:
    """The sum of counts that were `written`, whatever else the lines around them say."""
    total = Counter[str]()
    for part in parts:
        for word, number in re.findall(r"^([^\W\d_]+) (\d+)$", part, re.MULTILINE):
            total[word] += int(number)
    return total


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
        yield "\n".join(written(total).splitlines()[:3])


def worker(asked: str) -> Iterator[str]:
    """Count the words of a part."""
    _, _, part = asked.partition("\n\n")
    for line in written(count(part)).splitlines():
        yield f"{line}\n"
