"""The trees from which agents of a server continue at their next turn, although the trees have ended."""

from __future__ import annotations

from contextlib import suppress

from ramet.core.errors import Unknown
from ramet.host.control.run_queries import JournalReader
from ramet.services.teams.tables import TeamTables
from ramet.store.contract import Store


async def needed_trees(store: Store) -> list[str]:
    """Return the roots of such trees. Raises Damaged for an agent that cannot be read: its needs are unknown."""
    records, needed_ids = JournalReader(store, ()), list[str]()
    agents = await TeamTables(store).agents()
    for error in agents.errors.values():
        raise error
    for row in agents.readable_rows:
        if row.run and row.state not in ("failed", "ended"):
            with suppress(Unknown):  # Nothing of the tree is left.
                needed_ids.append(await records.tree_of(row.run))
    return needed_ids
