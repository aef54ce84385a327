"""Find runs by a prefix of their ids."""

from __future__ import annotations

from ramet.cli.run_ids import several
from ramet.cli.sources.contract import Source
from ramet.core.errors import InvalidValue, Unknown


async def full_id(source: Source, given: str) -> str:
    """Return the id of the only run with this prefix; a complete id, or an unknown prefix, is returned unchanged.

    Raises InvalidValue if several runs match.
    """
    try:
        await source.root_of(given)
        return given
    except Unknown:
        matches = [row.id for row in await source.runs(ended=True) if row.id.startswith(given)]
    if len(matches) < 2:
        return matches[0] if matches else given
    raise InvalidValue("ID", given, several(matches))
