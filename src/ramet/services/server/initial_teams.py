"""Teams that a server always has: reserved at the start, unless an earlier server has reserved them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ramet.core.errors import InvalidValue
from ramet.services.contract import CreateTeam
from ramet.services.teams.service import AgentSpawnerService

_log = logging.getLogger("ramet.serve")


async def reserve(teams: Mapping[str, Mapping[str, float]], spawner: AgentSpawnerService, operator: str) -> None:
    """Reserve a team of each name, unless this or another kernel has it; an existing team is kept unchanged.

    The keys of these teams are not shown: the operator's key opens them. Raises InvalidValue.
    """
    for name, amounts in teams.items():
        if (reserved := await spawner.reserved_resources(name)) is None:
            try:
                created = await spawner.create_team(CreateTeam(resources=dict(amounts), name=name), operator)
            except InvalidValue:
                reserved = await spawner.reserved_resources(name)
                if reserved is None:  # No other kernel has reserved it concurrently.
                    raise
            else:
                _log.info("team %s: reserved as %s: %s", name, created.team.id, _words(created.team.resources))
                continue
        if reserved != amounts:
            _log.warning(
                "team %s: not changed; it has %s, but the settings have %s", name, _words(reserved), _words(amounts)
            )


def _words(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:.12g}" for name, amount in sorted(amounts.items()))
