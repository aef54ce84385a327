"""The page over streams of many thousand events: it shows the newest ones, and its memory stays bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest
from starlette.types import Receive, Scope, Send

from ramet.web.ui_server import UiServer
from tests.web.test_hostile_answers import ROW, answer, start

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page

FIRST, MORE = 55_000, 20_000  #: events of the run: the page holds 50,000
CHANGES = 10_000  #: of rows, in each half
ROWS = 200
PIECE = 500  #: frames in one piece of a body
DETAIL = "x" * 300  #: of each event
GROWTH = 4_000_000  #: bytes that more events may add; all of them held would add 8 MB


class LongApi:
    """An API with one run of many events, and as many changes of rows. The second half comes once `more` is set."""

    def __init__(self) -> None:
        self.more = asyncio.Event()

    async def has_kernel(self) -> bool:
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode())
        if scope["path"] == "/v1/changes":
            await self._stream(send, self._changes())
        elif scope["path"] != "/v1/runs/r1/events":
            await answer(send, 200, json.dumps(ROW))
        elif query["follow"] == ["true"]:
            await self._stream(send, self._events())
        else:
            frames = [event(number) for number in range(1, FIRST + 1)]
            await answer(send, 200, "".join([*frames, "event: done\ndata: \n\n"]), "text/event-stream")

    async def _stream(self, send: Send, pieces: AsyncIterator[str]) -> None:
        await start(send, 200, "text/event-stream")
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece.encode(), "more_body": True})
        await asyncio.Event().wait()  # The server ends the task when the page leaves.

    async def _events(self) -> AsyncIterator[str]:
        for number in range(1, FIRST + MORE + 1, PIECE):
            if number > FIRST:
                await self.more.wait()
            yield "".join(event(each) for each in range(number, number + PIECE))

    async def _changes(self) -> AsyncIterator[str]:
        rows = [ROW, *({**ROW, "id": f"c{each}", "parent": "r1", "path": f"main/c{each}"} for each in range(ROWS))]
        yield change(0, rows)
        for number in range(1, 2 * CHANGES + 1, PIECE):
            if number > CHANGES:
                await self.more.wait()
            yield "".join(
                change(each, [{**rows[1 + each % ROWS], "description": f"step {each}"}])
                for each in range(number, number + PIECE)
            )


def event(number: int) -> str:
    data = {"type": "notice", "seq": number, "at": "2026-01-01T00:00:00Z", "text": f"notice {number}", "detail": DETAIL}
    return f"event: event\nid: {number}\ndata: {json.dumps(data)}\n\n"


def change(number: int, rows: list[dict[str, object]]) -> str:
    return f"event: changes\nid: 1-{number:08}\ndata: {json.dumps({'runs': rows, 'complete': True})}\n\n"


async def heap_bytes(devtools: CDPSession) -> int:
    """Return the size of what is in use on the page's heap."""
    for _ in range(2):
        await devtools.send("HeapProfiler.collectGarbage")
    return int((await devtools.send("Runtime.getHeapUsage"))["usedSize"])


@asynccontextmanager
async def open_until_the_end(page: Page) -> AsyncIterator[None]:
    """Close the page at the end, before its server ends."""
    try:
        yield
    finally:
        await page.close()


@pytest.mark.larger
async def test_a_run_of_many_events_shows_the_newest_and_holds_a_bounded_number(context: BrowserContext) -> None:
    """Of 75,000 events the newest are shown and earlier ones on demand; more of each stream add no memory."""
    api = LongApi()
    page = await context.new_page()
    page.set_default_timeout(60_000)
    devtools = await context.new_cdp_session(page)
    async with UiServer(api, "a folder") as server, open_until_the_end(page):
        await page.goto(server.new_link())
        await page.get_by_text(f"step {CHANGES}", exact=True).wait_for()
        await page.evaluate("location.hash = '/run/r1'")
        await page.get_by_text(f"notice {FIRST}", exact=True).wait_for()
        await page.get_by_text("49,999 events shown, 5,001 earlier ones not.").wait_for()
        before = await heap_bytes(devtools)

        api.more.set()
        await page.get_by_text(f"notice {FIRST + MORE}", exact=True).wait_for()
        assert await heap_bytes(devtools) - before < GROWTH
        await page.get_by_role("button", name="Show earlier ones").click()
        await page.get_by_text("events shown, from the first one.").wait_for()
        await page.get_by_role("button", name="Show the newest").click()
        await page.get_by_text(f"notice {FIRST + MORE}", exact=True).wait_for()
        await page.evaluate("location.hash = '/'")
        await page.get_by_text(f"step {2 * CHANGES}", exact=True).wait_for()
