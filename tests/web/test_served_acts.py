"""Acts on what a server has besides trees: schedules, kept trees and agents of teams, proven by its journal."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import TYPE_CHECKING

import ramet
from ramet.host.journal.journal import TREES
from ramet.services.rules import Rules
from tests.support.slow_agents import SlowType
from tests.support.turns import Reader, counting
from tests.support.waiting import eventually
from tests.trips.agents import scheduled
from tests.web.test_acts import shown_server

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page


async def confirm(page: Page, button: Locator, label: str) -> str:
    """Press a button of the page, confirm the act in its dialog, and return the receipt."""
    await button.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=label).click()
    receipt = await dialog.get_by_role("status").inner_text()
    await dialog.get_by_role("button", name="Close").click()
    await dialog.wait_for(state="hidden")
    return receipt


async def test_a_schedule_is_triggered_a_tree_kept_and_an_agent_interrupted(page: Page) -> None:
    """One run of the schedule ends, its tree is kept in the journal, and the turn of the agent ends as interrupted."""
    types = {"slow": SlowType()}
    async with shown_server(page.context, types=types, rules=Rules(sandboxed=False)) as (echo_server, page_server):
        server, wait_folder = echo_server.server, pathlib.Path(echo_server.server.dir)
        async with ramet.connect(server.listen_address, server.operator) as client:
            function = f"{scheduled.__name__}:note"
            await client.kernel.add_schedule(function, every_s=86_400, name="nightly", in_process=True)
            team = await client.create_team({"agents": 1}, name="red")
            counter = await client.spawn_agent("red", "counter", "slow", {}, key=team.key)
            turn = Reader(client, counter, counting(3, 2, wait_folder))
            await eventually(lambda: (wait_folder / "asked-0").exists())

            await page.goto(page_server.new_link())
            await page.get_by_role("link", name="Schedules").click()
            button = page.get_by_role("button", name="Trigger")
            assert "requested" in await confirm(page, button, "Trigger")
            await page.get_by_text("Last tick: completed").wait_for()
            (tick,) = await client.kernel.schedule_results("nightly")
            assert (tick.status, tick.text) == ("completed", "noted note")

            await page.get_by_text("Ticks and definition").click()
            await page.get_by_role("link", name="run", exact=True).click()
            button = page.get_by_role("button", name="Keep")
            assert "The tree is kept." in await confirm(page, button, "Keep")
            store = await server.runtime.open_store()
            document = await store.get(TREES, str(tick.run))
            assert document is not None
            assert json.loads(document.data)["keep"] is True

            await page.get_by_role("link", name="Agents").click()
            button = page.get_by_role("button", name="Interrupt")
            assert "The turn has ended." in await confirm(page, button, "Interrupt")
            await asyncio.wait({turn.done})
            assert [each.kind for each in turn.chunks if each.kind in ("done", "error")] == ["error"]
            assert (await client.get_agent(counter.agent.id, key=counter.nonce)).state == "idle"
