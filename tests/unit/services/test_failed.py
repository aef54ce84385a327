"""Failed agents that are kept for a while: the place of their files, and their removal in time."""

from __future__ import annotations

import math
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ramet.core.errors import InvalidValue, ModelFailed, NotYours
from ramet.services.contract import AgentInfo, CreatedTeam, Delegate, SpawnedAgent
from ramet.services.rules import Rules
from tests.support.sites import OPERATOR, Site
from tests.support.waiting import eventually

HOUR_S = 3600.0


@pytest.fixture
async def site(tmp_path: pathlib.Path) -> AsyncIterator[Site]:
    """A server that keeps no failed agent for more than an hour."""
    async with Site(tmp_path / "first", rules=Rules(keep_failed_s=HOUR_S)) as site:
        yield site


async def fail_agent(site: Site, team: CreatedTeam, name: str, keep_failed_s: float | None) -> SpawnedAgent:
    """Make an agent that leaves a file in both of its folders and fails."""
    spawned_agent = await site.agent(team, name, keep_failed_s=keep_failed_s)
    echo = site.opened(spawned_agent)
    (echo.opening.folder / "note").write_text("mine")
    folder = site.runtime.sandboxes.folders.create(echo.run)
    (folder.workspace / "note").write_text("mine, too")
    living = site.spawner.agents.find_by_key(spawned_agent.nonce, "info")
    with pytest.raises(ModelFailed):
        async for _ in echo.turn(b"die", "words"):
            pass
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())
    return spawned_agent


async def info(site: Site, spawned_agent: SpawnedAgent) -> AgentInfo:
    """Return the agent's info as its owner sees it."""
    return await site.spawner.get_agent(spawned_agent.agent.id, spawned_agent.nonce)


async def wait_gone(site: Site, *agents: SpawnedAgent) -> None:
    """Wait until neither a record nor a folder of the agents is left."""
    ids = {each.agent.id for each in agents}
    await eventually(lambda: not ids & {living.id for living in site.spawner.agents})
    await eventually(lambda: not any((site.agents / id).exists() for id in ids))
    for each in agents:
        with pytest.raises(NotYours):
            await info(site, each)


async def test_a_failed_agent_is_kept_for_its_time_and_then_removed(site: Site) -> None:
    """The agent's info names the kept folders; a failed agent without a time stays until it is killed."""
    team = await site.team()
    agent, stays = await fail_agent(site, team, "a", 600), await fail_agent(site, team, "b", None)
    agent_folder, sandbox = map(pathlib.Path, (await info(site, agent)).kept)
    assert ((agent_folder / "note").read_text(), (sandbox / "workspace" / "note").read_text()) == ("mine", "mine, too")
    assert (await info(site, agent)).kept_until == "2026-01-01T00:10:00+00:00"
    assert await site.free(team) == 3

    await site.clock.advance(599)
    assert (await info(site, agent)).state == "failed"
    await site.clock.advance(1)
    await wait_gone(site, agent)
    await eventually(lambda: not agent_folder.exists() and not sandbox.exists())
    assert ((await info(site, stays)).kept, (await info(site, stays)).kept_until) == ([], "")
    assert (site.agents / stays.agent.id / "note").exists()


async def test_a_narrower_key_does_not_show_where_files_are_kept(site: Site) -> None:
    """Holders of narrower keys need not know folders of the server's host."""
    spawned_agent = await fail_agent(site, await site.team(), "a", 600)
    narrow = await site.spawner.owners.delegate(spawned_agent.agent.id, spawned_agent.nonce, Delegate(rights=["info"]))
    info = await site.spawner.get_agent(spawned_agent.agent.id, narrow.key)
    assert (info.kept, info.kept_until) == ([], "2026-01-01T00:10:00+00:00")
    assert len((await site.spawner.get_agent(spawned_agent.agent.id, OPERATOR)).kept) == 2


async def test_killing_a_kept_agent_removes_it_at_once(site: Site) -> None:
    """The folders of the agent are removed, and no timer is left."""
    team = await site.team()
    spawned_agent = await fail_agent(site, team, "a", 600)
    sandbox = pathlib.Path((await info(site, spawned_agent)).kept[1])
    await site.spawner.kill_agent(spawned_agent.agent.id, spawned_agent.nonce)
    await wait_gone(site, spawned_agent)
    await eventually(lambda: not sandbox.exists())
    await eventually(lambda: site.clock.sleeping == 0)


async def test_a_kept_agent_outlives_a_killed_server_for_the_rest_of_its_time(
    site: Site, tmp_path: pathlib.Path
) -> None:
    """The time counts from the failure; an agent whose time is over is removed at the start."""
    team = await site.team()
    short, long = await fail_agent(site, team, "a", 60), await fail_agent(site, team, "b", 600)
    next_site = await site.as_killed(tmp_path / "later")
    await next_site.clock.advance(120)
    async with next_site:
        await wait_gone(next_site, short)
        assert (await info(next_site, long)).kept_until == "2026-01-01T00:10:00+00:00"
        assert (pathlib.Path((await info(next_site, long)).kept[0]) / "note").read_text() == "mine"
        await next_site.clock.advance(480)
        await wait_gone(next_site, long)


async def test_an_agent_that_cannot_be_reopened_is_kept_as_well(site: Site, tmp_path: pathlib.Path) -> None:
    """The time counts from the start of the server that found the failure."""
    team = await site.team()
    spawned_agent = await site.agent(team, "a", keep_failed_s=60)
    next_site = await site.as_killed(tmp_path / "later")
    next_site.spawner._checks._types = {}  # a plugin that is not there any more
    await next_site.clock.advance(1000)
    async with next_site:
        agent_info = await info(next_site, spawned_agent)
        assert (agent_info.state, agent_info.kept_until) == ("failed", "2026-01-01T00:17:40+00:00")
        await next_site.clock.advance(60)
        await wait_gone(next_site, spawned_agent)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, HOUR_S + 1, True, "1"])
async def test_an_agent_cannot_be_kept_longer_than_the_server_allows(site: Site, seconds: Any) -> None:
    """The operator sets the bound; an invalid time is refused, and nothing is reserved."""
    team = await site.team()
    with pytest.raises(InvalidValue) as refusal:
        await site.agent(team, "a", keep_failed_s=seconds)
    assert refusal.value.field == "keep_failed_s"
    assert await site.left() == ([], [])
    assert (await site.agent(team, "a", keep_failed_s=HOUR_S)).agent.state == "idle"


async def test_an_agent_that_ended_normally_is_not_kept(site: Site) -> None:
    """The state of the agent is "ended", and no folders are kept."""
    team = await site.team()
    spawned_agent = await site.agent(team, "a", keep_failed_s=60)
    living = site.spawner.agents.find_by_key(spawned_agent.nonce, "info")
    site.opened(spawned_agent).end.set_result(None)
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())
    assert ((await info(site, spawned_agent)).state, (await info(site, spawned_agent)).kept) == ("ended", [])
