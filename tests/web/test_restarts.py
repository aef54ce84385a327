"""A question of a run whose server was killed: the inbox of a page that stays open shows and answers it."""

from __future__ import annotations

import asyncio
import pathlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import ramet
from ramet.core.events import ApprovalAnswered, ApprovalAsked, Event, ToolEnded
from ramet.core.safety import SafetyPolicy
from ramet.host.control.run_queries import journal_reader
from ramet.web.forwarding_api import ForwardingApi
from ramet.web.ui_server import UiServer
from tests.support.kernels import ENTRY_POINTS
from tests.support.serve_process import plugin, serve
from tests.support.serving import short_folder
from tests.support.turns import Reader
from tests.web.conftest import Problems

if TYPE_CHECKING:
    from playwright.async_api import Page

PROMPT = b'{"messages": [{"role": "user", "content": "remember the milk"}]}'
WRITES = {"model": "writing", "tools": ["Write"], "gate": "house"}


@contextmanager
def own_executor() -> Iterator[None]:
    """Give the loop, which lives as long as the browser, threads that end here."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor() as executor:
        loop.set_default_executor(executor)
        yield
        loop.set_default_executor(ThreadPoolExecutor())


async def recorded(folder: pathlib.Path, root: str) -> list[Event]:
    """Return the events of a tree in the journal of a folder."""
    async with await journal_reader(folder) as reader:
        return [each async for each in reader.events(root)]


async def test_a_question_from_before_the_kill_of_its_server_is_answered(page: Page, problems: Problems) -> None:
    """The same question waits at the next server. Allowed in the browser, its call runs and the agent answers."""
    problems.expect("Failed to load resource")
    with short_folder() as folder, own_executor():
        plugin(folder, ENTRY_POINTS)
        env = {"RAMET_RULES_SANDBOXED": "false", "RAMET_BACKEND": "local"}
        socket = folder / ".ramet" / "serve.sock"
        async with ForwardingApi(str(socket)) as api, UiServer(api, "a folder", idle_minutes=60) as page_server:
            async with serve(folder, **env) as first, ramet.connect(socket) as client:
                await client.kernel.put_policy("house", SafetyPolicy(otherwise="ask"), expected=0)
                team = await client.create_team({"agents": 1}, name="red")
                writer = await client.spawn_agent("red", "writer", "slow", WRITES, key=team.key)
                turn = Reader(client, writer, PROMPT)
                await page.goto(page_server.new_link())
                await page.get_by_role("link", name="Inbox 1").click()
                card = page.get_by_role("article", name="Question")
                await card.get_by_text("Write").first.wait_for()
                (question,) = await client.kernel.approvals()
                await first.end(signal.SIGKILL)
                await page.get_by_role("alert").first.wait_for()
                await turn.leave()
            assert not any(isinstance(each, ToolEnded) for each in await recorded(folder, question.run))
            async with serve(folder, **env), ramet.connect(socket) as client:
                await page.get_by_role("alert").first.wait_for(state="hidden")
                assert [each.id for each in await client.kernel.approvals()] == [question.id]
                await card.get_by_placeholder("Reason").fill("it is harmless")
                await card.get_by_role("button", name="Allow", exact=True).click()
                await page.get_by_text("Nothing waits for a person.").wait_for()
                await page.get_by_role("region", name="Receipts").get_by_role("listitem").wait_for()
                await page.get_by_role("link", name="Trees").click()
                await page.get_by_role("row", name="writer").get_by_role("link").first.click()
                await page.get_by_role("article", name="Agent").get_by_text("heard").wait_for()
                assert "heard" in str((await client.history(writer.agent.id, last=1, key=writer.nonce))[0])
            await page.close()
        events = await recorded(folder, question.run)
    (answer,) = [each for each in events if isinstance(each, ApprovalAnswered)]
    assert (answer.approval_id, answer.allowed, answer.reason) == (question.id, True, "it is harmless")
    assert [each.approval_id for each in events if isinstance(each, ApprovalAsked)] == [question.id]
    assert [(each.tool, each.status) for each in events if isinstance(each, ToolEnded)] == [("Write", "ok")]
