"""The routes of teams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ramet.core.errors import NotYours
from ramet.services.contract import CreatedTeam, CreateTeam, TeamInfo
from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.schemas import TeamList

OPERATIONS: Final = Operations()


def _merge(call: RequestContext, lists: Sequence[TeamList]) -> TeamList:
    teams = {each.id: each for part in lists for each in part.teams}
    return TeamList(sorted(teams.values(), key=lambda each: (each.created_at, each.id)))


@OPERATIONS.add(
    endpoints.CREATE_TEAM,
    "Reserve a team, with the operator's key; the team's own key is shown only once",
    repetition="found",
    begins=True,
    status=201,
    refuses=(409,),
)
async def _create(call: RequestContext) -> CreatedTeam:
    if not call.parts.spawner.agents.is_operator(call.key):  # before reading bytes of a stranger
        raise NotYours("team", "")
    spawner, attempt = call.parts.spawner, call.attempt
    if attempt is not None and attempt.is_repeated:
        if (team := await spawner.find_created_team(call.key, attempt.entropy)) is not None:
            return team
    entropy = attempt.entropy if attempt is not None else None
    return await spawner.create_team(await call.json(CreateTeam), call.key, entropy)


@OPERATIONS.add(endpoints.LIST_TEAMS, "List the teams of the key", of="everyone", merge=_merge)
async def _list(call: RequestContext) -> TeamList:
    return TeamList(await call.parts.spawner.list_teams(call.key))


@OPERATIONS.add(endpoints.GET_TEAM, "Return the resources of a team: total, held and free", of="team")
async def _get(call: RequestContext) -> TeamInfo:
    return await call.parts.spawner.get_team(call.path("team"), call.key)


@OPERATIONS.add(
    endpoints.DELETE_TEAM,
    "End all agents of a team, wait for their end, and remove the team",
    of="team",
    status=204,
    refuses=(409,),
)
async def _delete(call: RequestContext) -> None:
    await call.parts.spawner.delete_team(call.path("team"), call.key)
