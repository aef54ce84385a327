"""Shared code of a team: it splits texts, counts their words, and merges counts.

`architect` and `worker` are the functions of the members of the team if there is no model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator


def split_text(text: str) -> tuple[str, str]:
    """Return two parts of a text of about the same length, split between two lines."""
    lines = text.strip().splitlines()
    middle = len(lines) // 2
    return "\n".join(lines[:middle]), "\n".join(lines[middle:])


def count(text: str) -> Counter[str]:
    """Return the number of occurrences of each word in a text, without regard to case."""
    return Counter(re.findall(r"[^\W\d_]+", text.lower()))


def format_counts(counts: Counter[str]) -> str:
    """Return counts as lines of `word number`, the most frequent first."""
    return "\n".join(f"{word} {number}" for word, number in sorted(counts.items(), key=lambda it: (-it[1], it[0])))


def merge_counts(parts: Iterable[str]) -> Counter[str]:
    """Return the sum of formatted counts. Other lines of the parts are ignored."""
    total = Counter[str]()
    for part in parts:
        for word, number in re.findall(r"^([^\W\d_]+) (\d+)$", part, re.MULTILINE):
            total[word] += int(number)
    return total


def architect(request: str) -> Iterator[str]:
    """Split a text for two workers, or merge their counts."""
    task, _, text = request.partition("\n\n")
    if task.startswith("Split"):
        first, second = split_text(text)
        yield f"{first}\n"
        yield "---\n"
        yield second
    else:
        total = merge_counts([text])
        yield f"{sum(total.values())} words, {len(total)} different; the most frequent:\n"
        yield "\n".join(format_counts(total).splitlines()[:3])


def worker(request: str) -> Iterator[str]:
    """Count the words of a part."""
    _, _, part = request.partition("\n\n")
    for line in format_counts(count(part)).splitlines():
        yield f"{line}\n"
