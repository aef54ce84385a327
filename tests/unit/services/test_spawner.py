"""The AgentSpawnerService on real stores and a real runtime: capacity and records are always exact."""

from __future__ import annotations

import asyncio
import math
import pathlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ramet.core.errors import (
    Aborted,
    InvalidValue,
    ModelFailed,
    NotYours,
    OverCapacity,
    RametError,
    SpawnRefused,
    StoreFailed,
    Unknown,
)
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Policy
from ramet.core.policy.reservation import Reservation
from ramet.isolation.local import LocalBackend
from ramet.services.contract import AgentSpec, CreateTeam, ListAgents, RunningAgent, SpawnAgent, SpawnedAgent
from ramet.services.rules import Rules
from ramet.services.teams import agent_lifecycle
from ramet.services.teams.tables import TeamTables
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore
from tests.support.echo_agents import Echo
from tests.support.sites import OPERATOR, Site
from tests.support.waiting import eventually

NOTHING: tuple[list[str], list[str]] = ([], [])


@pytest.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    async with Site(tmp_path) as site:
        yield site


@pytest.fixture(params=["memory", "sqlite"])
async def stored_site(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    store: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "journal.db")
    async with Site(tmp_path, store) as site:
        yield site


async def turn(agent: Echo, body: bytes) -> bytes:
    return b" ".join([chunk async for chunk in agent.turn(body, "words")])


async def kill_by_turn(site: Site, agent: SpawnedAgent) -> None:
    """Let an agent die, and wait until its failure is handled."""
    living = site.spawner.agents.authorize(agent.agent.id, agent.nonce, "info").entry
    with pytest.raises(ModelFailed):
        await turn(site.opened(agent), b"die")
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())


# ---- capacity


async def test_a_full_team_refuses_a_spawn_until_an_agent_is_killed(stored_site: Site) -> None:
    """AC-S3-3: The refusal gives the free capacity; nothing of the killed agent is left."""
    site, team = stored_site, await stored_site.team("crew")
    agents = [await site.agent(team, name) for name in "abc"]
    assert [each.agent.path for each in agents] == ["crew/a", "crew/b", "crew/c"]
    assert {each.agent.state for each in agents} == {"idle"}
    with pytest.raises(OverCapacity) as full:
        await site.agent(team, "d")
    assert (full.value.team, full.value.resource, full.value.asked, full.value.room) == (
        "crew",
        "agents",
        1,
        {"agents": 0},
    )
    await site.spawner.kill_agent(agents[0].agent.id, agents[0].nonce)
    assert await site.free(team) == 1
    assert site.opened(agents[0]).end.done()
    ids = sorted(each.agent.id for each in agents[1:])
    assert await site.left() == (ids, ids)
    assert (await site.agent(team, "a")).agent.path == "crew/a"


async def test_ten_of_a_hundred_spawns_into_ten_slots_succeed(stored_site: Site) -> None:
    """AC-S3-3: The other 90 are refused and leave nothing."""
    team = await stored_site.team(agents=10)
    outcomes = await asyncio.gather(*(stored_site.agent(team, f"a{n}") for n in range(100)), return_exceptions=True)
    ids = sorted(each.agent.id for each in outcomes if isinstance(each, SpawnedAgent))
    assert len(ids) == 10
    assert sum(isinstance(each, OverCapacity) for each in outcomes) == 90
    assert await stored_site.left() == (ids, ids)
    assert await stored_site.free(team) == 0


async def test_an_agent_reserves_by_its_policy_and_limits(site: Site) -> None:
    """The policy gives processors and memory, the limits tokens and money; other resources count if stated."""
    team = await site.team(cpu=4, memory_mb=1024, tokens=1000, usd=2, gpu=1)
    limits = {"tokens": 400.0, "usd": 0.5, "model_calls": 3.0}
    await site.agent(team, "a", policy=Policy(cpu_cores=1.5, memory_mb=512), limits={**limits, "gpu": 1.0})
    await site.agent(team, "b", policy=Policy(), limits=limits)
    info = await site.spawner.get_team(team.team.id, team.key)
    assert info.held == {"agents": 2, "cpu": 2.5, "memory_mb": 768, "tokens": 800, "usd": 1.0, "gpu": 1}
    assert info.free == {"agents": 1, "cpu": 1.5, "memory_mb": 256, "tokens": 200, "usd": 1.0, "gpu": 0}
    opening = site.echo.opened[0].opening
    assert (opening.limits.tokens, opening.limits.usd, opening.limits.model_calls) == (400, 0.5, 3)
    with pytest.raises(OverCapacity) as refusal:
        await site.agent(team, "c", policy=Policy(memory_mb=257), limits={"tokens": 1.0, "usd": 0.0})
    assert (refusal.value.resource, refusal.value.asked, refusal.value.room) == ("memory_mb", 257, info.free)


@pytest.mark.parametrize("resource", ["cpu", "memory_mb"])
async def test_a_team_may_have_more_capacity_than_any_machine(site: Site, resource: str) -> None:
    """Agents of the team start, since the shared limit is capped at its maximum."""
    team = await site.team("", **{resource: 2.0**40})
    await site.agent(team, policy=Policy(cpu_cores=1, memory_mb=64))
    assert await site.free(team, resource) == 2.0**40 - {"cpu": 1, "memory_mb": 64}[resource]


async def test_a_server_bounds_the_agents_of_all_teams_together(tmp_path: pathlib.Path) -> None:
    """The bound holds whatever the teams allow; a killed agent makes room."""
    async with Site(tmp_path, rules=Rules(agents=2)) as site:
        team, other = await site.team(), await site.team()
        first = await site.agent(team)
        spawns = [site.agent(each, name) for each in (team, other) for name in "bcd"]
        outcomes = await asyncio.gather(*spawns, return_exceptions=True)
        assert sum(isinstance(each, SpawnedAgent) for each in outcomes) == 1
        assert len((await site.left())[0]) == 2
        await site.spawner.kill_agent(first.agent.id, first.nonce)
        await site.agent(other, "e")
        assert await site.free(team) + await site.free(other) == 4


async def test_tokens_that_an_agent_used_stay_spent(site: Site) -> None:
    """An agent that is killed after three tokens of ten returns seven."""
    team = await site.team(tokens=10)
    spawned_agent = await site.agent(team, limits={"tokens": 10})
    await turn(site.opened(spawned_agent), b"one two three")
    await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
    info = await site.spawner.get_team(team.team.id, team.key)
    assert (info.free, info.spent) == ({"agents": 3, "tokens": 7}, {"agents": 0, "tokens": 3})


# ---- standing in line


async def test_waiting_spawns_are_admitted_in_order(site: Site) -> None:
    """Each end of an agent admits the first waiting spawn."""
    team = await site.team(agents=1)
    first = await site.agent(team, "first")
    waiting: list[asyncio.Task[SpawnedAgent]] = []
    for name in ("second", "third"):
        waiting.append(asyncio.create_task(site.agent(team, name, wait_s=60)))
        await eventually(lambda: site.clock.sleeping == len(waiting))
    await site.spawner.kill_agent(first.agent.id, first.nonce)
    second = await waiting[0]
    assert not waiting[1].done()
    await kill_by_turn(site, second)
    assert (await waiting[1]).agent.name == "third"
    assert await site.free(team) == 0


async def test_a_spawn_that_waited_too_long_is_refused(site: Site) -> None:
    """Nothing of the spawn is left, and its name is free."""
    team = await site.team(agents=1)
    await site.agent(team, "first")
    waiting = asyncio.create_task(site.agent(team, "second", wait_s=60))
    await eventually(lambda: site.clock.sleeping)
    await site.clock.advance(59)
    assert not waiting.done()
    await site.clock.advance(1)
    with pytest.raises(OverCapacity):
        await waiting
    with pytest.raises(OverCapacity):
        await site.agent(team, "second")


async def test_a_cancelled_spawn_leaves_the_line(site: Site) -> None:
    """The next waiting spawn is admitted."""
    team = await site.team(agents=1)
    first = await site.agent(team, "first")
    waiting: list[asyncio.Task[SpawnedAgent]] = []
    for name in ("second", "third"):
        waiting.append(asyncio.create_task(site.agent(team, name, wait_s=60)))
        await eventually(lambda: site.clock.sleeping == len(waiting))
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    await site.spawner.kill_agent(first.agent.id, first.nonce)
    assert (await waiting[1]).agent.name == "third"
    assert waiting[0].cancelled()


async def test_a_large_waiting_spawn_blocks_those_behind_it_only(site: Site) -> None:
    """A spawn that does not wait passes; if the large one is cancelled, the next is admitted at once."""
    team = await site.team(agents=9, gpu=2)
    await site.agent(team, "first", limits={"gpu": 1})
    waiting: list[asyncio.Task[SpawnedAgent]] = []
    for name, gpu in (("much", 2.0), ("little", 1.0)):
        waiting.append(asyncio.create_task(site.agent(team, name, limits={"gpu": gpu}, wait_s=60)))
        await eventually(lambda: site.clock.sleeping == len(waiting))
    passing = await site.agent(team, "passing", limits={"gpu": 1})
    await site.spawner.kill_agent(passing.agent.id, passing.nonce)
    assert not any(each.done() for each in waiting)
    waiting[0].cancel()
    assert (await waiting[1]).agent.name == "little"
    await asyncio.wait(waiting)
    assert await site.free(team, "gpu") == 0


@pytest.mark.parametrize("steps", range(12))
async def test_a_spawn_cancelled_during_its_admission_holds_nothing(site: Site, steps: int) -> None:
    """The cancellation may come before, during or after the admission."""
    team = await site.team(agents=1)
    first = await site.agent(team, "first")
    waiting = asyncio.create_task(site.agent(team, "second", wait_s=60))
    await eventually(lambda: site.clock.sleeping)
    killing = asyncio.create_task(site.spawner.kill_agent(first.agent.id, first.nonce))
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting, killing})
    assert waiting.cancelled()
    assert await site.free(team) == 1
    assert await site.left() == NOTHING


async def test_a_spawn_does_not_wait_for_impossible_capacity(site: Site) -> None:
    """More than the team's total is refused at once; more than can become free is refused once that is known."""
    team = await site.team(agents=2, tokens=10)
    with pytest.raises(OverCapacity):
        await site.agent(team, "greedy", limits={"tokens": 11}, wait_s=60)
    spender = await site.agent(team, "spender", limits={"tokens": 10})
    waiting = asyncio.create_task(site.agent(team, "late", limits={"tokens": 10}, wait_s=60))
    await eventually(lambda: site.clock.sleeping)
    await turn(site.opened(spender), b"word")
    await site.spawner.kill_agent(spender.agent.id, spender.nonce)
    with pytest.raises(OverCapacity) as refusal:
        await waiting
    assert refusal.value.room["tokens"] == 9


# ---- what goes wrong leaves nothing


@pytest.mark.parametrize("trouble", ["check", "open"])
async def test_an_agent_that_cannot_be_opened_leaves_nothing(stored_site: Site, trouble: str) -> None:
    """AC-S3-8: Capacity, record, folder and name are free, at whichever step the agent type refuses."""
    team = await stored_site.team()
    with pytest.raises((InvalidValue, ModelFailed)):
        await stored_site.agent(team, spawn_info=Raw(f'{{"trouble": "{trouble}"}}'.encode()))
    assert await stored_site.free(team) == 3
    assert await stored_site.left() == NOTHING
    await stored_site.agent(team)


BAD: dict[str, tuple[dict[str, Any], type[RametError], str]] = {
    "type": ({"type": "nobody"}, Unknown, "agent type 'nobody'; known: echo, slow"),
    "info of another shape": ({"spawn_info": Raw(b"[]")}, InvalidValue, "spawn_info"),
    "info with an unknown field": ({"spawn_info": Raw(b'{"prefx": "a"}')}, InvalidValue, "prefx"),
    "info of a wrong type": ({"spawn_info": Raw(b'{"prefix": 3}')}, InvalidValue, r"spawn_info.prefix"),
    "info that is no JSON": ({"spawn_info": Raw(b'{"prefix')}, InvalidValue, "spawn_info"),
    "format": ({"transport_format": "smoke"}, InvalidValue, "one of words, letters"),
    "name": ({"name": "a/b"}, InvalidValue, "name"),
    "no name": ({"name": ""}, InvalidValue, "name"),
    "a name that is taken": ({"name": "taken"}, InvalidValue, "no other agent"),
    "image": ({"image": "sha256:2"}, Unknown, "image 'sha256:2'; known: sha256:1"),
    "limit that there is not": ({"limits": {"tokns": 1.0}}, InvalidValue, "limits.tokns"),
    "limit of the machine": ({"limits": {"cpu": 1.0}}, InvalidValue, "limits.cpu"),
    "limit below none": ({"limits": {"usd": -1.0}}, InvalidValue, "limits.usd"),
    "limit that is no number": ({"limits": {"usd": float("nan")}}, InvalidValue, "limits.usd"),
    "limit in parts": ({"limits": {"tokens": 1.5}}, InvalidValue, "limits.tokens"),
    "variable": ({"env": {"LD_PRELOAD": "x"}}, InvalidValue, "env"),
    "wait below none": ({"wait_s": -1.0}, InvalidValue, "wait_s"),
    "wait without end": ({"wait_s": float("inf")}, InvalidValue, "wait_s"),
    "a folder of the host": ({"policy": Policy(readonly_mounts=["/etc"])}, SpawnRefused, "readonly_mounts"),
    "a folder to write to": ({"policy": Policy(writable_mounts=["/srv"])}, SpawnRefused, "writable_mounts"),
    "a variable of the host": ({"policy": Policy(allowed_env_vars=["HOME"])}, SpawnRefused, "HOME"),
    "a secret without a value": ({"policy": Policy(secrets=["token"])}, InvalidValue, "policy.secrets"),
}


@pytest.mark.parametrize("case", BAD)
async def test_an_invalid_spawn_is_refused_before_anything_is_reserved(site: Site, case: str) -> None:
    """AC-S3-8: A spawn that would wait is refused too, and nothing is opened."""
    changes, error, message = BAD[case]
    fields: dict[str, Any] = {"wait_s": 60.0, "name": "new"} | changes
    team = await site.team(agents=1)
    await site.agent(team, "taken")
    before = await site.left()
    with pytest.raises(error, match=message):
        await site.agent(team, **fields)
    assert await site.left() == before
    assert len(site.echo.opened) == 1


@pytest.mark.parametrize("resource_name", ["cpu", "memory_mb", "tokens", "usd", "model_calls"])
async def test_an_agent_must_state_what_its_team_counts(site: Site, resource_name: str) -> None:
    """Processors and memory need a policy; tokens, money and calls need limits."""
    resources: dict[str, Any] = {resource_name: 10}
    team = await site.team(**resources)
    field = "policy" if resource_name in ("cpu", "memory_mb") else f"limits.{resource_name}"
    with pytest.raises(InvalidValue) as refusal:
        await site.agent(team)
    assert refusal.value.field == field
    assert await site.left() == NOTHING


async def test_the_operator_decides_what_agents_get_of_the_host(tmp_path: pathlib.Path) -> None:
    """The rules name folders and variables, and may demand a sandbox."""
    rules = Rules(sandboxed=True, mounts=["/usr"], variables=["HOME"])
    async with Site(tmp_path, rules=rules) as site:
        team = await site.team()
        asked_nothing = await site.agent(team, "c")
        assert site.opened(asked_nothing).opening.policy == Policy()
        await site.agent(team, policy=Policy(readonly_mounts=["/usr/share"], allowed_env_vars=["HOME"]))
        with pytest.raises(SpawnRefused, match="PATH"):
            await site.agent(team, "b", policy=Policy(allowed_env_vars=["HOME", "PATH"]))


async def test_a_cancelled_spawn_leaves_nothing(stored_site: Site) -> None:
    """The agent type is still opening it; the cancellation returns when everything is removed."""
    team = await stored_site.team()
    asking = asyncio.create_task(stored_site.agent(team, type="slow"))
    await eventually(lambda: stored_site.slow.at_it)
    assert await stored_site.free(team) == 2
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    assert stored_site.slow.left == 1
    assert await stored_site.free(team) == 3
    assert await stored_site.left() == NOTHING
    await stored_site.agent(team)


@pytest.mark.parametrize("steps", range(25))
async def test_a_spawn_can_be_cancelled_at_any_step(tmp_path: pathlib.Path, steps: int) -> None:
    """The result is an agent with its nonce, or nothing."""
    async with Site(tmp_path, SqliteStore(tmp_path / "journal.db")) as site:
        team = await site.team()
        asking = asyncio.create_task(site.agent(team))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        if asking.cancelled():
            assert await site.free(team) == 3
            assert await site.left() == NOTHING
            assert all(each.end.done() for each in site.echo.opened)
            await site.agent(team)
        else:
            await site.spawner.get_agent(asking.result().agent.id, asking.result().nonce)


async def test_a_cancelled_spawn_that_fails_meanwhile_is_cancelled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has gone: the error of the agent type is nobody's, and other agents stay."""
    team = await site.team()
    other = await site.agent(team, "b")

    async def open(opening: AgentSpec) -> RunningAgent:
        try:
            site.slow.at_it += 1
            await site.slow.go_on.wait()
        except asyncio.CancelledError:
            raise SpawnRefused("agents", "it cannot be opened", free=0) from None
        raise AssertionError

    monkeypatch.setattr(site.slow, "open", open)
    asking = asyncio.create_task(site.agent(team, type="slow"))
    await eventually(lambda: site.slow.at_it)

    asking.cancel()
    await asyncio.wait({asking})

    assert asking.cancelled()
    assert await site.free(team) == 2
    await site.spawner.get_agent(other.agent.id, other.nonce)


async def test_an_agent_that_opens_after_its_spawn_was_cancelled_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service waits for an agent type that cannot stop midway."""

    async def open(opening: AgentSpec) -> RunningAgent:
        while not site.slow.go_on.is_set():
            try:
                site.slow.at_it += 1
                await site.slow.go_on.wait()
            except asyncio.CancelledError:
                site.slow.left += 1
        site.slow.opened.append(Echo(opening))
        return site.slow.opened[-1]

    monkeypatch.setattr(site.slow, "open", open)
    team = await site.team()
    asking = asyncio.create_task(site.agent(team, type="slow"))
    await eventually(lambda: site.slow.at_it)
    asking.cancel()
    await eventually(lambda: site.slow.left)
    assert not asking.done()
    assert await site.free(team) == 2
    site.slow.go_on.set()
    await asyncio.wait({asking})
    assert asking.cancelled()
    assert site.slow.opened[0].end.done()
    assert await site.free(team) == 3
    assert await site.left() == NOTHING


# ---- ends


async def test_an_agent_that_dies_is_failed_and_frees_its_capacity(stored_site: Site) -> None:
    """AC-S3-10: The agent stays listed with its error until it is killed; used tokens stay spent."""
    team = await stored_site.team(tokens=10)
    spawned_agent = await stored_site.agent(team, limits={"tokens": 10})
    await kill_by_turn(stored_site, spawned_agent)
    [info] = await stored_site.spawner.list_agents(ListAgents(team=team.team.id, state="failed"), team.key)
    assert info == await stored_site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)
    assert info.error is not None
    assert info.error.type == "Crashed"
    assert await stored_site.free(team) == 3
    assert await stored_site.free(team, "tokens") == 9
    with pytest.raises(InvalidValue):
        await stored_site.agent(team, limits={"tokens": 1})
    await stored_site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
    assert await stored_site.left() == NOTHING
    assert await stored_site.free(team, "tokens") == 9


async def test_an_agent_that_ends_while_it_opens_holds_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spawner has its nonce, and sees that the agent failed."""

    async def open(opening: AgentSpec) -> RunningAgent:
        echo = Echo(opening)
        echo.end.set_result(ErrorInfo(type="Crashed", message="at once"))
        return echo

    monkeypatch.setattr(site.echo, "open", open)
    team = await site.team()
    spawned_agent = await site.agent(team)
    living = site.spawner.agents.find_by_key(spawned_agent.nonce, "info")
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())
    assert (await site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)).state == "failed"
    assert await site.free(team) == 3


async def test_repeated_kills_end_an_agent_once(site: Site) -> None:
    """Every kill waits for the same end, even if one is cancelled; then the agent is unknown."""
    team = await site.team()
    spawned_agent = await site.agent(team)
    kills = [
        asyncio.create_task(site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)) for _ in range(3)
    ]
    await asyncio.sleep(0)
    kills[0].cancel()
    outcomes = await asyncio.gather(*kills, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [None, None]
    assert await site.left() == NOTHING
    with pytest.raises(NotYours):
        await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)


async def test_an_agent_killed_while_its_failure_is_handled_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the agent is not written again after the removal."""
    team = await site.team()
    spawned_agent = await site.agent(team)
    closing, go_on = [], asyncio.Event()

    async def close(reason: str) -> None:
        closing.append(reason)
        if len(closing) == 1:
            await go_on.wait()

    monkeypatch.setattr(site.opened(spawned_agent), "close", close)
    site.opened(spawned_agent).end.set_result(None)
    await eventually(lambda: closing)
    assert (await site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)).state == "ended"
    killing = asyncio.create_task(site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce))
    for _ in range(20):
        await asyncio.sleep(0)
    go_on.set()
    await killing
    await site.spawner.close()
    assert await site.left() == NOTHING


async def test_a_name_is_free_once_nothing_of_its_agent_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a killed server could leave two agents of one name in one team."""
    team = await site.team()
    spawned_agent = await site.agent(team)
    await kill_by_turn(site, spawned_agent)
    removing, go_on, remove = threading.Event(), threading.Event(), agent_lifecycle._remove_dir

    def slowly(folder: pathlib.Path, name: str) -> None:
        removing.set()
        go_on.wait(180)
        remove(folder, name)

    monkeypatch.setattr(agent_lifecycle, "_remove_dir", slowly)
    killing = asyncio.create_task(site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce))
    await eventually(removing.is_set)
    try:
        with pytest.raises(InvalidValue, match="name"):
            await site.agent(team)
    finally:
        go_on.set()
        await killing
    await site.agent(team)


@pytest.mark.parametrize("tokens", [math.nan, -1.0, "much", None], ids=repr)
async def test_an_agent_that_fails_to_close_frees_its_capacity(
    site: Site, monkeypatch: pytest.MonkeyPatch, tokens: object
) -> None:
    """Unknown usage counts as all that was reserved."""
    team = await site.team(tokens=10)
    spawned_agent = await site.agent(team, limits={"tokens": 4})

    async def close(reason: str) -> None:
        raise OSError("no")

    monkeypatch.setattr(site.opened(spawned_agent), "close", close)
    monkeypatch.setattr(site.opened(spawned_agent), "usage", lambda: {"tokens": tokens} if tokens else 1 / 0)
    await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
    assert await site.free(team) == 3
    assert await site.free(team, "tokens") == 6
    assert await site.left() == NOTHING


async def test_deleting_a_team_ends_its_agents_and_no_other(stored_site: Site) -> None:
    """AC-S3-3: Failed agents are removed too; the deletion waits for all, and the name can be used again."""
    team, other = await stored_site.team("crew"), await stored_site.team("other")
    agents = [await stored_site.agent(team, name) for name in "ab"]
    stays = await stored_site.agent(other)
    await kill_by_turn(stored_site, agents[1])
    await stored_site.spawner.delete_team(team.team.id, team.key)
    assert stored_site.opened(agents[0]).end.done()
    assert await stored_site.left() == ([stays.agent.id], [stays.agent.id])
    assert not stored_site.opened(stays).end.done()
    assert [each.name for each in await stored_site.spawner.list_teams(OPERATOR)] == ["other"]
    for again in (
        stored_site.spawner.delete_team(team.team.id, team.key),
        stored_site.spawner.get_team(team.team.id, team.key),
        stored_site.spawner.get_agent(agents[0].agent.id, agents[0].nonce),
        stored_site.agent(team),
    ):
        with pytest.raises(NotYours):
            await again
    assert (await stored_site.team("crew")).team.id != team.team.id


async def test_a_failed_deletion_of_a_team_can_be_repeated(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised and no agent is admitted while the store fails; then the team is removed."""
    team = await site.team()
    spawned_agent = await site.agent(team)

    async def full(self: TeamTables, *rows: object) -> None:
        raise StoreFailed("the journal", "the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(TeamTables, "write", full)
        for _ in range(2):
            with pytest.raises(StoreFailed):
                await site.spawner.delete_team(team.team.id, team.key)
    with pytest.raises(NotYours):
        await site.agent(team, "b")

    await site.spawner.delete_team(team.team.id, team.key)
    assert site.opened(spawned_agent).end.done()
    assert await site.left() == NOTHING
    assert await (await site.store()).list("team") == []


async def test_deleting_a_team_aborts_its_spawns(stored_site: Site) -> None:
    """Spawns that are opening or waiting raise Aborted, and nothing is left."""
    team = await stored_site.team(agents=1)
    asking = [asyncio.create_task(stored_site.agent(team, type="slow"))]
    await eventually(lambda: stored_site.slow.at_it)
    asking.append(asyncio.create_task(stored_site.agent(team, "b", wait_s=60)))
    await eventually(lambda: stored_site.clock.sleeping)
    deleting = [asyncio.create_task(stored_site.spawner.delete_team(team.team.id, team.key)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NotYours):
        await stored_site.agent(team, "c")
    assert await asyncio.gather(*deleting) == [None, None]
    for each in asking:
        with pytest.raises(Aborted, match="deleted"):
            await each
    assert await stored_site.left() == NOTHING
    assert await (await stored_site.store()).list("team") == []


async def test_closing_ends_every_agent_and_keeps_the_teams(tmp_path: pathlib.Path) -> None:
    """Spawns in progress end too; the next server has the teams with their keys and spent amounts."""
    store = MemoryStore()
    async with Site(tmp_path, store) as site:
        team = await site.team("crew", tokens=10)
        spawned_agent = await site.agent(team, limits={"tokens": 5})
        await turn(site.opened(spawned_agent), b"two words")
        asking = asyncio.create_task(site.agent(team, "b", type="slow", limits={"tokens": 5}))
        await eventually(lambda: site.slow.at_it)
        await site.spawner.close()
        with pytest.raises(Aborted, match="stops"):
            await asking
        with pytest.raises(Aborted):
            await site.agent(team, "c")
        assert await site.left() == NOTHING
    async with Site(tmp_path, store) as site:
        assert await site.spawner.list_agents(ListAgents(), OPERATOR) == []
        info = await site.spawner.get_team("crew", team.key)
        assert (info.id, info.free) == (team.team.id, {"agents": 3, "tokens": 8})


# ---- teams and lists


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resources": {}}, "agents"),
        ({"resources": {"cpu": 1}}, "agents"),
        ({"resources": {"agents": -1}}, "resources.agents"),
        ({"resources": {"agents": 1, "usd": float("nan")}}, "resources.usd"),
        ({"resources": {"agents": 1}, "name": "a b"}, "name"),
        ({"resources": {"agents": 1}, "name": "crew"}, "no other team"),
    ],
    ids=str,
)
async def test_an_invalid_team_is_refused_by_name(site: Site, fields: dict[str, Any], message: str) -> None:
    """AC-S3-3: A second team of a name is refused too, and leaves no record."""
    await site.team("crew")
    with pytest.raises(InvalidValue, match=message):
        await site.spawner.create_team(CreateTeam(**fields), OPERATOR)
    assert len(await site.spawner.list_teams(OPERATOR)) == len(await (await site.store()).list("team")) == 1


async def test_two_concurrent_teams_of_one_name_make_one_team(site: Site) -> None:
    """The second creation is refused."""
    outcomes = await asyncio.gather(site.team("crew"), site.team("crew"), return_exceptions=True)
    assert sum(isinstance(each, InvalidValue) for each in outcomes) == 1
    assert len(await site.spawner.list_teams(OPERATOR)) == 1


async def test_agents_are_listed_by_the_given_filters(site: Site) -> None:
    """The operator sees all agents and a team's key its own, in the order of their creation."""
    team, other = await site.team("crew"), await site.team()
    for name, labels in (("b", {"tier": "1"}), ("a", {"tier": "2", "x": "y"})):
        await site.agent(team, name, labels=labels, metadata={"why": "test"})
        await site.clock.advance(1)
    unnamed = await site.agent(other, "a")

    async def listed(key: str, **filters: Any) -> list[str]:
        return [each.path for each in await site.spawner.list_agents(ListAgents(**filters), key)]

    assert await listed(OPERATOR) == ["crew/b", "crew/a", f"{other.team.id}/a"]
    assert await listed(team.key) == await listed(team.key, team="crew") == ["crew/b", "crew/a"]
    assert await listed(OPERATOR, team=other.team.id) == [unnamed.agent.path]
    assert await listed(OPERATOR, labels={"tier": "2", "x": "y"}) == ["crew/a"]
    assert await listed(OPERATOR, labels={"tier": "2", "x": "z"}) == []
    assert await listed(OPERATOR, under="crew") == ["crew/b", "crew/a"]
    assert await listed(OPERATOR, under="crew/b") == ["crew/b"]
    assert await listed(OPERATOR, under="cre") == []
    assert await listed(OPERATOR, state="failed") == []
    assert [each.metadata for each in await site.spawner.list_agents(ListAgents(), team.key)] == [{"why": "test"}] * 2


async def test_an_agent_gets_what_its_spawn_asked_for(site: Site) -> None:
    """The agent type gets its own structure, a folder, the image, variables and the policy."""
    team = await site.team("crew")
    options: dict[str, Any] = {"env": {"A": "b"}, "image": "sha256:1", "policy": Policy(secrets={"token": "s3cret"})}
    spawned_agent = await site.agent(team, spawn_info=Raw(b'{"prefix": "> "}'), transport_format="letters", **options)
    opening = site.opened(spawned_agent).opening
    assert opening.info.prefix == "> "
    assert (opening.id, opening.name, opening.path) == (spawned_agent.agent.id, "a", "crew/a")
    assert (opening.image.id, opening.env, opening.policy, opening.run) == (
        "sha256:1",
        {"A": "b"},
        options["policy"],
        "",
    )
    assert opening.folder.is_dir()
    assert opening.runtime is site.runtime
    assert (spawned_agent.agent.transport_format, spawned_agent.agent.image) == ("letters", "sha256:1")
    assert (await site.agent(team, "b")).agent.transport_format == "words"


def test_an_unknown_field_of_a_request_is_refused_by_name() -> None:
    """Unknown fields are refused by the structure itself."""
    with pytest.raises(msgspec.ValidationError, match="nme"):
        msgspec.json.decode(b'{"team": "t", "nme": "a", "agent_type": "echo"}', type=SpawnAgent)


# ---- what the machine sets aside


class Machine(LocalBackend):
    """A backend that reserves memory for teams, up to 1 GiB in all."""

    def __init__(self, runs: pathlib.Path) -> None:
        super().__init__(runs)
        self.reserved: dict[str, Reservation] = {}

    async def reserve(self, reservation: Reservation) -> None:
        memory_mb = sum(each.memory_mb or 0 for each in (*self.reserved.values(), reservation))
        if memory_mb > 1024:
            raise SpawnRefused("memory_mb", "this machine has 1024 in all", free=0)
        self.reserved[reservation.name] = reservation

    async def disband(self, name: str) -> None:
        self.reserved.pop(name, None)
        await super().disband(name)


async def test_a_team_reserves_its_capacity_of_the_machine(tmp_path: pathlib.Path) -> None:
    """The reservation lasts until the team is deleted; a team without room on the machine is not made."""
    machine = Machine(tmp_path / "runs")
    async with Site(tmp_path, backend=machine) as site:
        team = await site.team("crew", agents=3, cpu=2, memory_mb=700)
        assert machine.reserved == {
            team.team.id: Reservation(name=team.team.id, cpu_cores=2, memory_mb=700, sandboxes=3)
        }
        with pytest.raises(SpawnRefused, match="1024 in all"):
            await site.team("more", memory_mb=700)
        assert [each.name for each in await site.spawner.list_teams(OPERATOR)] == ["crew"]
        await site.spawner.delete_team(team.team.id, team.key)
        assert machine.reserved == {}
