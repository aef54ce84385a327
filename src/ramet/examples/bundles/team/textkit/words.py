"""Splits texts, counts their words, and puts counts together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable


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
