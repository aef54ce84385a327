"""The routes of agents: spawning, listing, killing, and their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ramet.core.errors import InvalidValue
from ramet.services.contract import (
    AgentInfo,
    Delegate,
    DelegatedKey,
    ListAgents,
    SpawnAgent,
    SpawnedAgent,
    SupplyValues,
)
from ramet.services.errors import BodyTooLarge
from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.schemas import AgentFilter, AgentList, Rotated

OPERATIONS: Final = Operations()


def _merge(call: RequestContext, lists: Sequence[AgentList]) -> AgentList:
    agents = {each.id: each for part in lists for each in part.agents}
    return AgentList(sorted(agents.values(), key=lambda each: (each.created_at, each.path)))


@OPERATIONS.add(
    endpoints.SPAWN_AGENT,
    "Start an agent in a team; its nonce, the owner's key, is shown only once",
    repetition="found",
    begins=True,
    of="body",
    status=201,
    refuses=(403, 409, 410, 429, 501, 502),
)
async def _spawn(call: RequestContext) -> SpawnedAgent:
    await call.team()
    request = await call.json(SpawnAgent)
    spawner, attempt = call.parts.spawner, call.attempt
    if attempt is not None and attempt.is_repeated:
        if (agent := spawner.find_spawned_agent(request.team, call.key, attempt.entropy)) is not None:
            return agent
    entropy = attempt.entropy if attempt is not None else None
    return await call.or_disconnect(spawner.spawn_agent(request, call.key, entropy))


@OPERATIONS.add(
    endpoints.LIST_AGENTS, "List the agents of a team, or of all teams of the key", of="query", merge=_merge
)
async def _list(call: RequestContext) -> AgentList:
    query = call.query(AgentFilter)
    labels = {}
    for each in query.label:
        name, equals, value = each.partition("=")
        if not equals:
            raise InvalidValue("label", each, "name=value")
        labels[name] = value
    filters = ListAgents(team=query.team, state=query.state, labels=labels, under=query.under)
    return AgentList(await call.parts.spawner.list_agents(filters, call.key))


@OPERATIONS.add(endpoints.GET_AGENT, "Describe an agent and its state", of="agent")
async def _get(call: RequestContext) -> AgentInfo:
    return await call.parts.spawner.get_agent(call.path("agent"), call.key)


@OPERATIONS.add(
    endpoints.KILL_AGENT,
    "End an agent and all agents below it, wait for their end, and remove it",
    of="agent",
    status=204,
    refuses=(409,),
)
async def _kill(call: RequestContext) -> None:
    await call.parts.spawner.kill_agent(call.path("agent"), call.key)


@OPERATIONS.add(
    endpoints.SUPPLY_VALUES,
    "Resume an agent that waits for values of variables and secrets, which are not recorded",
    repetition="again",
    begins=True,
    of="agent",
    refuses=(403, 409, 410, 429, 501, 502),
)
async def _supply_values(call: RequestContext) -> AgentInfo:
    try:
        request = await call.json(SupplyValues, "delegate")
    except BodyTooLarge:
        raise
    except InvalidValue as error:  # The sent data may be a secret value.
        raise type(error)(error.field, "what was sent", error.accepted) from None
    return await call.parts.spawner.supply_values(call.path("agent"), call.key, request)


@OPERATIONS.add(
    endpoints.DELEGATE,
    "Create a narrower key that can be revoked, or transfer the ownership; the key is shown only once",
    repetition="found",
    ends_key=True,
    of="agent",
    status=201,
    refuses=(409,),
)
async def _delegate(call: RequestContext) -> DelegatedKey:
    request = await call.json(Delegate, "delegate" if call.sender is None else None)
    entropy = call.attempt.entropy if call.attempt is not None else None
    return await call.parts.spawner.owners.delegate(call.path("agent"), call.key, request, entropy)


@OPERATIONS.add(endpoints.REVOKE, "Revoke a narrower key", of="agent", status=204, refuses=(409,))
async def _revoke(call: RequestContext) -> None:
    await call.parts.spawner.owners.revoke(call.path("agent"), call.key, call.path("id"))


@OPERATIONS.add(
    endpoints.ROTATE,
    "Replace the owner's key; the old key is no longer valid",
    repetition="found",
    ends_key=True,
    of="agent",
    refuses=(409,),
)
async def _rotate(call: RequestContext) -> Rotated:
    entropy = call.attempt.entropy if call.attempt is not None else None
    return Rotated(await call.parts.spawner.owners.rotate(call.path("agent"), call.key, entropy))
