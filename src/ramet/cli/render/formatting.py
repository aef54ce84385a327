"""Format numbers for people: short, and not more exact than they are."""

from __future__ import annotations

import math


def tokens(count: int) -> str:
    """Format a number of tokens: `980`, `1.2k`, `14k`, `3.1M`."""
    if count < 1000:
        return str(count)
    if count < 9_950:
        return f"{count / 1000:.1f}k"
    if count < 999_500:
        return f"{count / 1000:.0f}k"
    return f"{count / 1_000_000:.1f}M"


def money(usd: float) -> str:
    """Format dollars with two significant digits: `$0.00`, `$0.0042`, `$0.31`, `$12.40`."""
    if usd <= 0 or usd >= 0.095:
        return f"${max(usd, 0):.2f}"
    if usd < 0.00001:
        return "<$0.00001"
    return f"${usd:.{1 - math.floor(math.log10(usd))}f}"


def size(count: int) -> str:
    """Format a size: `980 B`, `1.2 kB`, `14 MB`, `3.1 GB`."""
    for unit, step in (("B", 1), ("kB", 10**3), ("MB", 10**6)):
        if count < 999.5 * step:
            return f"{count / step:.{1 if step > 1 and count < 9.95 * step else 0}f} {unit}"
    return f"{count / 10**9:.1f} GB"


def frozen(memory_mb: float) -> str:
    """Format what a frozen process holds: `frozen, 42 MB`."""
    return f"frozen, {memory_mb:.0f} MB"


def duration(seconds: float) -> str:
    """Format a duration: `0.8s`, `12s`, `2m05s`, `1h03m`."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def count(number: int, noun: str) -> str:
    """Format a count with a noun: `1 agent`, `3 agents`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
