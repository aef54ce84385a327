"""The paths of a server's agents, from the journal of the served folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ramet.core.errors import Damaged
from ramet.host.control.run_queries import RunRow
from ramet.store.contract import Store

#: As in `ramet.services.teams.tables`, whose import alone takes longer than most commands.
_SERVED: Final = "served"


class _Served(Struct):
    """The document of an agent, as far as it describes its tree."""

    path: str
    run: str = ""


async def with_agent_paths(store: Store, rows: Sequence[RunRow]) -> list[RunRow]:
    """Return rows with the paths of agents of a server: their roots are all called `main`."""
    paths = dict[str, str]()
    for document in await store.list(_SERVED):
        with suppress(Damaged):  # The server says so; the run is shown all the same.
            served = document.decode(_Served)
            paths[served.run] = served.path
    return [replace(row, agent_path=paths[row.root]) if row.root in paths else row for row in rows]
