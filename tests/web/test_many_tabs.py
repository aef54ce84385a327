"""A hundred tabs of one browser: the server has one stream for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qs

import pytest
from starlette.types import Receive, Scope, Send

from ramet import Agent, ScriptedModel
from ramet.models.scripted.dialogue import Hang
from ramet.web.forwarding_api import ForwardingApi
from tests.support.waiting import eventually
from tests.web.conftest import Problems
from tests.web.test_acts import shown_server

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

TABS = 100
AT_ONCE = 4  #: tabs that load at the same time


class CountingApi(ForwardingApi):
    """The API behind the page, which counts its open streams of changes and records the cursors of all."""

    open_streams: ClassVar[int]
    cursors: ClassVar[list[str]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/v1/changes":
            return await super().__call__(scope, receive, send)
        CountingApi.cursors.append(parse_qs(scope["query_string"].decode()).get("after", [""])[0])
        CountingApi.open_streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            CountingApi.open_streams -= 1


async def opened_tab(context: BrowserContext, link: str) -> Page:
    """Open a tab, and wait until it shows the run `first`.

    Chromium breaks off what it loads whenever a network of this machine changes, as tests of sandboxes do: such a tab
    is loaded again.
    """
    from playwright.async_api import TimeoutError

    tab = await context.new_page()
    tab.set_default_timeout(120_000)
    lost = list[str]()
    tab.on("requestfailed", lambda request: lost.append(request.url))
    row = tab.get_by_role("row", name="first")
    await tab.goto(link)
    while not await row.is_visible():
        if any(each.endswith(".mjs") for each in lost):
            lost.clear()
            await tab.reload()
        with contextlib.suppress(TimeoutError):
            await row.wait_for(timeout=5_000)
    return tab


@pytest.mark.larger
@pytest.mark.timeout(600)
async def test_many_tabs_have_one_stream_also_after_the_leader_closes(
    context: BrowserContext, problems: Problems
) -> None:
    """The server counts one stream. Its tab closes; the next stream begins after a cursor, and every tab shows more."""
    problems.expect("ERR_NETWORK_CHANGED")
    CountingApi.open_streams, CountingApi.cursors = 0, []
    async with shown_server(context, CountingApi) as (server, page_server):
        spawn = server.server.runtime.spawn
        await spawn(Agent(name="first", model=ScriptedModel([Hang()])), "wait")
        tabs = [await opened_tab(context, page_server.new_link())]
        while len(tabs) < TABS:
            number = min(AT_ONCE, TABS - len(tabs))
            tabs += await asyncio.gather(*(opened_tab(context, page_server.new_link()) for _ in range(number)))
        # On a busy machine a tab may have read for itself until the leader answered.
        await eventually(lambda: CountingApi.open_streams == 1)
        asked = len(CountingApi.cursors)

        await tabs.pop(0).close()
        await eventually(lambda: len(CountingApi.cursors) == asked + 1 and CountingApi.open_streams == 1)
        assert CountingApi.cursors[-1]
        await spawn(Agent(name="second", model=ScriptedModel([Hang()])), "wait")
        for each in tabs:
            await each.get_by_role("row", name="second").wait_for()
        assert (CountingApi.open_streams, len(CountingApi.cursors)) == (1, asked + 1)
