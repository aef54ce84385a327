"""AC-S3-4: Each operation on an agent or a team needs its key, and no record or answer holds a key."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from ramet.core.errors import InvalidValue, NotYours, Unknown
from ramet.services.contract import RIGHTS, CreateTeam, Delegate, ListAgents, SpawnAgent, SpawnedAgent
from ramet.services.teams.service import AgentSpawnerService
from ramet.store.memory import MemoryStore
from tests.support.sites import OPERATOR, Images, Site


@pytest.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    async with Site(tmp_path) as site:
        yield site


Operation = Callable[[AgentSpawnerService, str, str], Awaitable[Any]]

OF_AN_AGENT: dict[str, Operation] = {
    "kill": lambda spawner, agent, key: spawner.kill_agent(agent, key),
    "get": lambda spawner, agent, key: spawner.get_agent(agent, key),
    "delegate": lambda spawner, agent, key: spawner.owners.delegate(agent, key, Delegate(rights=["turn"])),
    "own": lambda spawner, agent, key: spawner.owners.delegate(agent, key, Delegate(owner=True)),
    "revoke": lambda spawner, agent, key: spawner.owners.revoke(agent, key, "key-1"),
    "rotate": lambda spawner, agent, key: spawner.owners.rotate(agent, key),
}
OF_A_TEAM: dict[str, Operation] = {
    "get": lambda spawner, team, key: spawner.get_team(team, key),
    "delete": lambda spawner, team, key: spawner.delete_team(team, key),
    "spawn": lambda spawner, team, key: spawner.spawn_agent(SpawnAgent(team=team, name="x", agent_type="echo"), key),
    "list": lambda spawner, team, key: spawner.list_agents(ListAgents(team=team), key),
}


async def refusal(call: Awaitable[Any]) -> str:
    """Return the refusal of a request without the name, which the caller gave."""
    with pytest.raises(NotYours) as refusal:
        await call
    return str(refusal.value).replace(f" {refusal.value.name!r}", "")


@pytest.mark.parametrize("operation", OF_AN_AGENT)
async def test_each_operation_on_an_agent_needs_its_key(site: Site, operation: str) -> None:
    """AC-S3-4: Every wrong key and every wrong id get the same refusal as an agent that does not exist."""
    team = await site.team("crew")
    agent, other, dead = [await site.agent(team, name) for name in ("agent", "other", "dead")]
    await site.spawner.kill_agent(dead.agent.id, dead.nonce)
    ask, spawner = OF_AN_AGENT[operation], site.spawner
    of_nobody = await refusal(ask(spawner, "agent-0", agent.nonce))
    for key in ("", other.nonce, team.key, dead.nonce, agent.nonce[:-1], agent.nonce + " ", "\ud800"):
        assert await refusal(ask(spawner, agent.agent.id, key)) == of_nobody
    for id in (dead.agent.id, agent.agent.path, agent.agent.name, ""):
        assert await refusal(ask(spawner, id, agent.nonce)) == of_nobody
    assert (await spawner.get_agent(agent.agent.id, agent.nonce)).state == "idle"
    if operation != "revoke":
        await ask(spawner, agent.agent.id, agent.nonce)


@pytest.mark.parametrize("operation", OF_A_TEAM)
async def test_each_operation_on_a_team_needs_its_key(site: Site, operation: str) -> None:
    """Every wrong key gets the same refusal as a team that does not exist."""
    team, other = await site.team("crew"), await site.team("other")
    agent = await site.agent(team)
    ask = OF_A_TEAM[operation]
    of_nobody = await refusal(ask(site.spawner, "team-0", team.key))
    for key in ("", other.key, agent.nonce, team.key[:-1]):
        for id in (team.team.id, "crew"):
            assert await refusal(ask(site.spawner, id, key)) == of_nobody
    assert await site.free(team) == 2
    await ask(site.spawner, "crew", team.key)


@pytest.mark.parametrize("operation", ["create", "list agents", "list teams"])
async def test_operations_on_all_teams_need_the_operators_key(site: Site, operation: str) -> None:
    """A list with a team's key has that team only."""
    team, other = await site.team("crew"), await site.team("other")
    await site.agent(other)
    if operation == "create":
        for key in ("", team.key):
            await refusal(site.spawner.create_team(CreateTeam(name="new", resources={"agents": 1}), key))
    elif operation == "list agents":
        await refusal(site.spawner.list_agents(ListAgents(), "nobody's"))
        assert await site.spawner.list_agents(ListAgents(), team.key) == []
        assert len(await site.spawner.list_agents(ListAgents(), OPERATOR)) == 1
    else:
        assert await site.spawner.list_teams("nobody's") == []
        assert [each.name for each in await site.spawner.list_teams(team.key)] == ["crew"]


async def test_the_operators_key_opens_everything(site: Site) -> None:
    """An operator's key is mandatory for the service."""
    team = await site.team("crew")
    agent = (await site.agent(team)).agent.id
    assert (await site.spawner.get_agent(agent, OPERATOR)).id == agent
    key = await site.spawner.owners.rotate(agent, OPERATOR)
    assert (await site.spawner.get_agent(agent, key)).id == agent
    await site.spawner.kill_agent(agent, OPERATOR)
    await site.spawner.delete_team("crew", OPERATOR)
    with pytest.raises(InvalidValue, match="operator"):
        AgentSpawnerService(site.runtime, {}, Images(), site.folder, "")


async def test_no_key_is_shown_again_or_persisted(site: Site) -> None:
    """Lists, answers and records hold neither keys nor parts of them."""
    team = await site.team("crew")
    agent = await site.agent(team)
    delegation = await site.spawner.owners.delegate(agent.agent.id, agent.nonce, Delegate(rights=["info"]))
    spawner = site.spawner
    answers = [
        await spawner.list_teams(OPERATOR),
        await spawner.list_agents(ListAgents(), OPERATOR),
        await spawner.get_agent(agent.agent.id, delegation.key),
        await spawner.get_team("crew", team.key),
    ]
    store = await site.store()
    documents = [each.data for kind in ("team", "served") for each in await store.list(kind)]
    assert len(documents) == 2
    everything = msgspec.json.encode(answers) + b"".join(documents)
    for key in (team.key, agent.nonce, delegation.key, OPERATOR):
        assert key.encode() not in everything
        assert key.partition("_")[2].encode() not in everything
    assert len({team.key, agent.nonce, delegation.key}) == 3


async def test_an_agent_is_found_by_its_key(site: Site) -> None:
    """The key needs the right; the operator's key belongs to no single agent."""
    team, roster = await site.team(), site.spawner.agents
    agents = [await site.agent(team, name) for name in "abc"]
    delegation = await site.spawner.owners.delegate(agents[1].agent.id, agents[1].nonce, Delegate(rights=["turn"]))
    assert [roster.find_by_key(each.nonce, "kill").id for each in agents] == [each.agent.id for each in agents]
    assert roster.find_by_key(delegation.key, "turn").id == agents[1].agent.id
    for key, right in ((delegation.key, "kill"), (OPERATOR, "turn"), (team.key, "turn"), ("", "turn")):
        with pytest.raises(NotYours):
            roster.find_by_key(key, right)  # type: ignore[arg-type]  # a right it is


# ---- owners


async def with_rights(site: Site, *rights: Any, **options: Any) -> tuple[SpawnedAgent, str, str]:
    """Return an agent, a narrower key of it, and that key's id."""
    agent = await site.agent(await site.team())
    delegation = await site.spawner.owners.delegate(agent.agent.id, agent.nonce, Delegate(rights=rights, **options))
    return agent, delegation.key, delegation.id


def opened_rights(site: Site, agent: SpawnedAgent, key: str) -> Sequence[str]:
    """Return the rights that the roster grants to a key."""
    rights = []
    for right in RIGHTS:
        try:
            site.spawner.agents.authorize(agent.agent.id, key, right)
        except NotYours:
            continue
        rights.append(right)
    return rights


async def test_a_narrower_key_opens_its_rights_only(site: Site) -> None:
    """The owner's key opens all rights."""
    agent, key, _ = await with_rights(site, "info", "turn")
    assert opened_rights(site, agent, key) == ["turn", "info"]
    assert opened_rights(site, agent, agent.nonce) == list(RIGHTS)
    assert (await site.spawner.get_agent(agent.agent.id, key)).id == agent.agent.id
    for operation in ("kill", "delegate", "own", "rotate", "revoke"):
        await refusal(OF_AN_AGENT[operation](site.spawner, agent.agent.id, key))


async def test_a_narrower_key_is_revoked_by_its_id(site: Site) -> None:
    """The key is void at once; an unknown id raises Unknown."""
    agent, key, id = await with_rights(site, "info")
    await site.spawner.owners.revoke(agent.agent.id, agent.nonce, id)
    assert opened_rights(site, agent, key) == []
    with pytest.raises(Unknown):
        await site.spawner.owners.revoke(agent.agent.id, agent.nonce, id)


async def test_a_narrower_key_expires(site: Site) -> None:
    """The runtime's clock decides."""
    agent, key, _ = await with_rights(site, "info", seconds=60)
    await site.clock.advance(59)
    assert opened_rights(site, agent, key) == ["info"]
    await site.clock.advance(1)
    assert opened_rights(site, agent, key) == []


async def test_a_key_that_may_delegate_is_not_an_owner(site: Site) -> None:
    """The key can delegate its rights, but cannot transfer ownership or rotate the owner's key."""
    agent, key, id = await with_rights(site, *RIGHTS)
    delegation = await site.spawner.owners.delegate(agent.agent.id, key, Delegate(rights=["turn"]))
    for operation in ("own", "rotate"):
        await refusal(OF_AN_AGENT[operation](site.spawner, agent.agent.id, key))
    await site.spawner.owners.revoke(agent.agent.id, agent.nonce, id)
    assert opened_rights(site, agent, key) == opened_rights(site, agent, delegation.key) == []


async def test_a_transfer_of_ownership_makes_every_older_key_void(site: Site) -> None:
    """Narrower keys become void too, so that the former owner has no access."""
    agent, key, _ = await with_rights(site, "info")
    owner = await site.spawner.owners.delegate(agent.agent.id, agent.nonce, Delegate(owner=True))
    assert opened_rights(site, agent, owner.key) == list(RIGHTS) == list(owner.rights)
    assert opened_rights(site, agent, agent.nonce) == opened_rights(site, agent, key) == []


async def test_there_are_never_two_owners(site: Site) -> None:
    """The first of concurrent transfers and rotations with one key succeeds, and the others are refused."""
    agent = await site.agent(await site.team())
    id, nonce = agent.agent.id, agent.nonce
    calls: list[Awaitable[Any]] = [site.spawner.owners.delegate(id, nonce, Delegate(owner=True)) for _ in range(5)]
    outcomes = await asyncio.gather(
        *calls, *(site.spawner.owners.rotate(id, nonce) for _ in range(5)), return_exceptions=True
    )
    refusals = [each for each in outcomes if isinstance(each, NotYours)]
    keys = [each if isinstance(each, str) else each.key for each in outcomes if not isinstance(each, BaseException)]
    assert (len(refusals), len(keys)) == (9, 1)
    assert opened_rights(site, agent, keys[0]) == list(RIGHTS)
    assert opened_rights(site, agent, nonce) == []


@pytest.mark.parametrize(
    "delegation",
    [
        Delegate(),
        Delegate(owner=True, rights=["turn"]),
        Delegate(owner=True, seconds=5),
        Delegate(rights=["turn"], seconds=0),
        Delegate(rights=["turn"], seconds=float("nan")),
        Delegate(rights=["all"]),  # type: ignore[list-item]  # the point of it
    ],
    ids=["nothing", "an owner of rights", "an owner for a time", "no time", "no number", "no right"],
)
async def test_an_invalid_delegation_is_refused_by_name(site: Site, delegation: Delegate) -> None:
    """No key is made."""
    agent = await site.agent(await site.team())
    with pytest.raises(InvalidValue):
        await site.spawner.owners.delegate(agent.agent.id, agent.nonce, delegation)
    assert site.spawner.agents.authorize(agent.agent.id, agent.nonce, "turn").entry.row.keys.delegated == ()


async def test_keys_outlive_a_killed_server(tmp_path: pathlib.Path) -> None:
    """AC-S3-13: Delegated, revoked and rotated keys stay as they were."""
    store = MemoryStore()
    (tmp_path / "again").mkdir()
    async with Site(tmp_path, store) as site:
        agent, key, id = await with_rights(site, "info")
        delegation = await site.spawner.owners.delegate(agent.agent.id, agent.nonce, Delegate(rights=["turn"]))
        await site.spawner.owners.revoke(agent.agent.id, agent.nonce, delegation.id)
        new = await site.spawner.owners.rotate(agent.agent.id, agent.nonce)
        next_site = await site.as_killed(tmp_path / "again")
        async with next_site:
            assert opened_rights(next_site, agent, key) == ["info"]
            assert opened_rights(next_site, agent, new) == list(RIGHTS)
            assert opened_rights(next_site, agent, agent.nonce) == opened_rights(next_site, agent, delegation.key) == []
            await next_site.spawner.owners.revoke(agent.agent.id, new, id)
            assert opened_rights(next_site, agent, key) == []
