"""Teams that a server always has: reserved when it starts, unless an earlier one has done so."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ramet.services.contract import CreateTeam
from ramet.services.spawning.spawner import AgentSpawnerService

_log = logging.getLogger("ramet.serve")


async def reserve(teams: Mapping[str, Mapping[str, float]], spawner: AgentSpawnerService, operator: str) -> None:
    """See that there is a team of each name; one that is there is kept as it is. Raises InvalidValue.

    Nobody is told their keys: whoever has the operator's uses that.
    """
    there = {each.name: each for each in await spawner.list_teams(operator)}
    for name, wanted in teams.items():
        if name not in there:
            made = await spawner.create_team(CreateTeam(resources=dict(wanted), name=name), operator)
            _log.info("team %s: reserved as %s: %s", name, made.team.id, _words(made.team.resources))
        elif there[name].resources != wanted:
            words = _words(there[name].resources), _words(wanted)
            _log.warning("team %s: kept as it is, with %s; the settings say %s", name, *words)


def _words(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:.12g}" for name, amount in sorted(amounts.items()))
