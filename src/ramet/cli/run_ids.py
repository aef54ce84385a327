"""Run ids on the command line: a unique prefix is accepted for an id."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 5  #: maximum ids in an error


def several(found: Sequence[str]) -> str:
    """Return the accepted input for an ambiguous prefix of several ids."""
    more = f", and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"the id of a run, or a prefix of exactly one id: {', '.join(found[:_MOST])}{more}"
