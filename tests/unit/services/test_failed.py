"""Agents that failed and are kept for a while: where what they left is, and that all of it goes in time."""

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


async def failed(site: Site, team: CreatedTeam, name: str, keep_failed_s: float | None) -> SpawnedAgent:
    """One that has left something in both of its folders."""
    spawned = await site.agent(team, name, keep_failed_s=keep_failed_s)
    echo = site.opened(spawned)
    (echo.opening.folder / "note").write_text("mine")
    folder = site.runtime.sandboxes.folders.create(echo.run)
    (folder.workspace / "note").write_text("mine, too")
    living = site.spawner.agents.find_by_key(spawned.nonce, "info")
    with pytest.raises(ModelFailed):
        async for _ in echo.turn(b"die", "words"):
            pass
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())
    return spawned


async def info(site: Site, spawned: SpawnedAgent) -> AgentInfo:
    """What its owner is told."""
    return await site.spawner.get_agent(spawned.agent.id, spawned.nonce)


async def gone(site: Site, *agents: SpawnedAgent) -> None:
    """Until neither a record nor a folder of them is left."""
    ids = {each.agent.id for each in agents}
    await eventually(lambda: not ids & {living.id for living in site.spawner.agents})
    await eventually(lambda: not any((site.agents / id).exists() for id in ids))
    for each in agents:
        with pytest.raises(NotYours):
            await info(site, each)


async def test_it_is_kept_for_its_time_and_then_gone(site: Site) -> None:
    """With what it left, which whoever looks is told of; another one without a time stays until it is killed."""
    team = await site.team()
    kept, stays = await failed(site, team, "a", 600), await failed(site, team, "b", None)
    own, sandbox = map(pathlib.Path, (await info(site, kept)).kept)
    assert ((own / "note").read_text(), (sandbox / "workspace" / "note").read_text()) == ("mine", "mine, too")
    assert (await info(site, kept)).kept_until == "2026-01-01T00:10:00+00:00"
    assert await site.free(team) == 3

    await site.clock.advance(599)
    assert (await info(site, kept)).state == "failed"
    await site.clock.advance(1)
    await gone(site, kept)
    await eventually(lambda: not own.exists() and not sandbox.exists())
    assert ((await info(site, stays)).kept, (await info(site, stays)).kept_until) == ([], "")
    assert (site.agents / stays.agent.id / "note").exists()


async def test_where_it_is_kept_is_not_told_to_a_narrower_key(site: Site) -> None:
    """Its holder may be anybody, and need not know where on its host a server keeps things."""
    spawned = await failed(site, await site.team(), "a", 600)
    narrow = await site.spawner.delegate(spawned.agent.id, spawned.nonce, Delegate(rights=["info"]))
    told = await site.spawner.get_agent(spawned.agent.id, narrow.key)
    assert (told.kept, told.kept_until) == ([], "2026-01-01T00:10:00+00:00")
    assert len((await site.spawner.get_agent(spawned.agent.id, OPERATOR)).kept) == 2


async def test_whoever_kills_it_need_not_wait(site: Site) -> None:
    """All of it goes at once, and nobody waits for its time any more."""
    team = await site.team()
    spawned = await failed(site, team, "a", 600)
    sandbox = pathlib.Path((await info(site, spawned)).kept[1])
    await site.spawner.kill_agent(spawned.agent.id, spawned.nonce)
    await gone(site, spawned)
    await eventually(lambda: not sandbox.exists())
    await eventually(lambda: site.clock.sleeping == 0)


async def test_a_server_that_was_killed_in_between(site: Site, tmp_path: pathlib.Path) -> None:
    """The next one keeps it for what is left of its time, counted from its failure; one whose time is over is gone."""
    team = await site.team()
    short, long = await failed(site, team, "a", 60), await failed(site, team, "b", 600)
    again = await site.as_killed(tmp_path / "later")
    await again.clock.advance(120)
    async with again:
        await gone(again, short)
        assert (await info(again, long)).kept_until == "2026-01-01T00:10:00+00:00"
        assert (pathlib.Path((await info(again, long)).kept[0]) / "note").read_text() == "mine"
        await again.clock.advance(480)
        await gone(again, long)


async def test_what_cannot_be_opened_again_is_kept_as_well(site: Site, tmp_path: pathlib.Path) -> None:
    """From the moment on that it was found to have failed."""
    team = await site.team()
    spawned = await site.agent(team, "a", keep_failed_s=60)
    again = await site.as_killed(tmp_path / "later")
    again.spawner._checks._types = {}  # a plugin that is not there any more
    await again.clock.advance(1000)
    async with again:
        told = await info(again, spawned)
        assert (told.state, told.kept_until) == ("failed", "2026-01-01T00:17:40+00:00")
        await again.clock.advance(60)
        await gone(again, spawned)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, HOUR_S + 1, True, "1"])
async def test_no_longer_than_the_server_keeps_any(site: Site, seconds: Any) -> None:
    """The bound is its operator's; what is no time is refused, and nothing is taken."""
    team = await site.team()
    with pytest.raises(InvalidValue) as refused:
        await site.agent(team, "a", keep_failed_s=seconds)
    assert refused.value.field == "keep_failed_s"
    assert await site.left() == ([], [])
    assert (await site.agent(team, "a", keep_failed_s=HOUR_S)).agent.state == "idle"


async def test_one_that_ended_in_good_order_has_not_failed(site: Site) -> None:
    """It is not kept for a time."""
    team = await site.team()
    spawned = await site.agent(team, "a", keep_failed_s=60)
    living = site.spawner.agents.find_by_key(spawned.nonce, "info")
    site.opened(spawned).ended.set_result(None)
    await eventually(lambda: living.fail_task is not None and living.fail_task.done())
    assert ((await info(site, spawned)).state, (await info(site, spawned)).kept) == ("ended", [])
