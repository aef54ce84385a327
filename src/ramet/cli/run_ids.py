"""Run ids on the command line: a unique prefix is accepted for an id."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_SHOWN = 5  #: maximum ids in an error


def ambiguous_prefix(ids: Sequence[str]) -> str:
    """Return the accepted input for an ambiguous prefix of several ids."""
    others = f", and {len(ids) - _MAX_SHOWN} more" if len(ids) > _MAX_SHOWN else ""
    return f"the id of a run, or a prefix of exactly one id: {', '.join(ids[:_MAX_SHOWN])}{others}"
