"""Find runs by a prefix of their ids."""

from __future__ import annotations

from ramet.cli.run_ids import ambiguous_prefix
from ramet.cli.sources.contract import Source
from ramet.core.errors import InvalidValue, Unknown


async def full_id(source: Source, prefix: str) -> str:
    """Return the id of the only run with this prefix; a complete id, or an unknown prefix, is returned unchanged.

    Raises InvalidValue if several runs match.
    """
    try:
        await source.root_of(prefix)
        return prefix
    except Unknown:
        matches = [row.id for row in await source.runs(ended=True) if row.id.startswith(prefix)]
    if len(matches) < 2:
        return matches[0] if matches else prefix
    raise InvalidValue("ID", prefix, ambiguous_prefix(matches))
