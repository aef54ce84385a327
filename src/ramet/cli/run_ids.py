"""Ids as people type them: the beginning of one may stand for it."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 5  #: ids that an error names


def several(found: Sequence[str]) -> str:
    """Say what would be accepted where several ids begin alike."""
    more = f", and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"the id of a run, or the beginning of one alone: {', '.join(found[:_MOST])}{more}"
