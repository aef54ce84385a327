"""The valid keys of a store by what they open. No key and no hash of a key is returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from ramet.services.contract import RIGHTS
from ramet.services.operator.contract import Paging
from ramet.services.operator.records.record_rows import KeyPage, KeyRow
from ramet.services.operator.runs import RecordedTrees, checked_limit
from ramet.services.teams.keys import is_expired
from ramet.services.teams.tables import AgentRow, TeamRow, TeamTables


class KeyViews:
    """The keys of the teams and agents of all kernels. Rows that cannot be read are left out."""

    def __init__(self, journal: RecordedTrees, now: Callable[[], datetime]) -> None:
        """Keep `journal` open during the use of the views."""
        self._journal, self._now = journal, now

    async def page(self, request: Paging) -> KeyPage:
        """Return a page of keys; `after` is the id of a row. Raises InvalidValue."""
        limit, tables = checked_limit(request.limit), TeamTables(self._journal.store)
        teams, agents = (await tables.teams()).readable_rows, (await tables.agents()).readable_rows
        rows = sorted(_rows(teams, agents, self._now()), key=lambda row: row.id)
        later = [each for each in rows if each.id > request.after]
        return KeyPage(keys=later[:limit], more=later[limit - 1].id if later[limit:] else "")


def _rows(teams: list[TeamRow], agents: list[AgentRow], now: datetime) -> Iterator[KeyRow]:
    """Yield the keys; ids begin with a number, in the order in which kinds are listed."""
    yield KeyRow(id="1", kind="operator")
    names = {each.id: each.name or each.id for each in teams}
    for team in teams:
        yield KeyRow(id=f"2/{team.id}", kind="team", team=names[team.id])
    for agent in agents:
        if agent.state == "ended":
            continue
        place, team_name = f"3/{agent.team}/{agent.path}/{agent.id}", names.get(agent.team, agent.team)
        yield KeyRow(id=place, kind="owner", team=team_name, agent=agent.path, rights=RIGHTS)
        for each in agent.keys.delegated:
            if not is_expired(each, now):
                yield KeyRow(
                    id=f"{place}/{each.id}",
                    kind="delegated",
                    team=team_name,
                    agent=agent.path,
                    key=each.id,
                    rights=each.rights,
                    until=each.until,
                    made_by=each.by,
                )
