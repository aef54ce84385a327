"""The page with hostile or broken answers and links: it says what it cannot show, and its other parts go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from ramet.web.ui_server import UiServer
from tests.web.conftest import Problems

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

#: A value whose conversion to text is an error, and one that is nested more deeply than a stack.
SHADOWED = {"toString": 1, "valueOf": 1, "constructor": 1, "__proto__": {"polluted": 1}}
DEEP = "[" * 10_000 + "]" * 10_000
ROW = {"id": "r1", "root": "r1", "path": "__proto__", "agent": "constructor", "state": "running", "is_over": False}
EVENTS = [
    {"type": "__proto__", "seq": 1},
    {"type": "constructor", "seq": 2},
    {"type": "message_recorded", "seq": 3, "message": {"type": "__proto__", "content": [
        {"type": SHADOWED, "text": "x"}, {"text": SHADOWED}, {"type": "thinking", "thinking": SHADOWED}]}},
    {"type": "message_recorded", "seq": 4, "message": {"type": "ai", "content": "", "tool_calls": [
        {"id": "__proto__", "name": SHADOWED, "args": SHADOWED}], "invalid_tool_calls": [{"name": SHADOWED}]}},
    {"type": "message_recorded", "seq": 5, "message": {"type": "ai", "tool_calls": 7}},
    {"type": "endpoint_asked", "seq": 6, "at": "no date", "host": "__proto__", "port": SHADOWED, "allowed": True},
    {"type": "command_run", "seq": 7, "argv": 7},
    {"type": "message_recorded", "seq": 9, "message": {"type": "human", "content": "</script><b id=hostile>last"}},
]  # fmt: skip
ASK = {
    "id": "a1", "run": "r1", "path": "main", "agent": "worker", "depth": 0, "tool": "Bash", "question": "May I?",
    "asked_at": "no date", "deadline": None, "usage": {},
    "args": {"note": "x" * 5_000, "command": "rm -rf /srv", "content": "only a harmless text", "__proto__": "hidden"},
}  # fmt: skip


class HostileApi:
    """An API whose answers are hostile. A stream stays open until its reader leaves."""

    def __init__(self) -> None:
        self.streams = list[str]()
        self.keys = list[str]()

    async def has_kernel(self) -> bool:
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/v1/changes":
            change = json.dumps({"runs": [ROW], "complete": True})
            await self._stream(path, [f"event: changes\nid: 1-00000000\ndata: {change}\n\n"], receive, send)
        elif path == "/v1/runs/r1/events":
            deep = f'{{"type": "tool_started", "seq": 8, "call_id": "d", "tool": "Deep", "args": {{"a": {DEEP}}}}}'
            texts = [*(json.dumps(each) for each in EVENTS[:-1]), deep, json.dumps(EVENTS[-1])]
            if b"last-event-id" in dict(scope["headers"]):
                texts = []
            frames = [f"event: event\nid: {number}\ndata: {text}\n\n" for number, text in enumerate(texts, 1)]
            if b"follow=true" in scope["query_string"]:
                await self._stream(path, frames, receive, send)
            else:
                await answer(send, 200, "".join([*frames, "event: done\ndata: {}\n\n"]), "text/event-stream")
        elif path == "/v1/approvals":
            await answer(send, 200, json.dumps({"approvals": [ASK], "more": ""}))
        elif scope["method"] == "POST":
            self.keys.append(dict(scope["headers"])[b"idempotency-key"].decode())
            await answer(send, 200 if len(self.keys) > 1 else 503, json.dumps({"detail": "an answer was lost"}))
        else:
            await answer(send, 200, json.dumps(ROW))

    async def _stream(self, path: str, frames: list[str], receive: Receive, send: Send) -> None:
        self.streams.append(path)
        await start(send, 200, "text/event-stream")
        await send({"type": "http.response.body", "body": "".join(frames).encode(), "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.streams.remove(path)


async def start(send: Send, status: int, media: str) -> None:
    headers = [(b"content-type", media.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(send: Send, status: int, body: str, media: str = "application/json") -> None:
    await start(send, status, media)
    await send({"type": "http.response.body", "body": body.encode()})


@asynccontextmanager
async def shown(context: BrowserContext) -> AsyncIterator[tuple[UiServer, HostileApi]]:
    """Yield a server whose API is hostile; close the pages before it ends."""
    api = HostileApi()
    async with UiServer(api, "a folder") as server:
        try:
            yield server, api
        finally:
            for each in context.pages:
                await each.close()


async def test_hostile_events_and_links_leave_the_page_usable(context: BrowserContext, problems: Problems) -> None:
    """Names of JavaScript's own, values without a text, 10,000 levels, wrong escapes: each is shown, or said to be."""
    async with shown(context) as (server, _):
        page = await context.new_page()
        page.set_default_timeout(60_000)
        await page.goto(server.new_link())
        await page.get_by_role("gridcell", name="__proto__").wait_for()
        await page.evaluate("location.hash = '#/run/%E0%A4%A'")
        await page.get_by_role("link", name="Trees").first.click()
        await page.evaluate("location.hash = '#/run/r1'")
        await page.get_by_text("last").wait_for()
        assert await page.locator("#hostile").count() == 0
        for each in await page.locator("details.call").all():
            await each.locator("summary").click()
        assert await page.get_by_text("nested too deeply").or_(page.get_by_text("[[[[[[")).count() > 0
        for tab, text in (("events", "9 events"), ("rights", "Endpoints asked"), ("files", "Artifacts")):
            await page.evaluate(f"location.hash = '#/run/r1/{tab}'")
            await page.get_by_text(text).first.wait_for()
        # No name has led the page to JavaScript's own objects, which it would then change.
        assert (
            await page.evaluate("(() => { const names = []; for (const each in {}) names.push(each); return names })()")
            == []
        )

        await page.goto(server.address + "#/run/%")  # A link of a stranger, in a tab that is logged in.
        await page.reload()
        await page.get_by_role("navigation", name="Views").wait_for()
        assert problems == []


async def test_an_approval_shows_every_argument_whatever_its_name_is(
    context: BrowserContext, problems: Problems
) -> None:
    """A model cannot fold a command away by an argument that looks like text for a file, or by a long one before it.

    An act whose answer was lost is sent again with its own key.
    """
    problems.expect("503")
    async with shown(context) as (server, api):
        page = await context.new_page()
        page.set_default_timeout(60_000)
        await page.goto(server.new_link())
        await page.get_by_role("gridcell", name="__proto__").wait_for()
        await page.evaluate("location.hash = '#/inbox'")
        for text in ("rm -rf /srv", "only a harmless text", "hidden"):
            await page.get_by_text(text, exact=True).wait_for()
        await page.evaluate("location.hash = '#/'")
        await page.get_by_role("treegrid").press("p")
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Pause").click()
        await dialog.get_by_role("alert").wait_for()
        await dialog.get_by_role("button", name="Pause").click()
        await dialog.get_by_role("button", name="Close").wait_for()
        assert len(api.keys) == 2
        assert len(set(api.keys)) == 1


async def test_a_new_link_opens_in_a_tab_that_was_logged_out(context: BrowserContext, problems: Problems) -> None:
    """The link that `ramet ui` prints after an idle time differs only in its fragment: the tab takes its token."""
    problems.expect("401")
    async with shown(context) as (server, _):
        page = await context.new_page()
        page.set_default_timeout(60_000)
        address = server.address
        await page.goto(f"{address}#token=ended%")
        await page.get_by_text("The token is not valid").wait_for()
        await page.goto(server.new_link())
        await page.get_by_role("gridcell", name="__proto__").wait_for()
        assert page.url == address


async def test_many_tabs_with_runs_leave_connections_for_acts(context: BrowserContext) -> None:
    """A browser has six connections to a server for all its tabs: eight tabs with active runs do not use them up."""
    async with shown(context) as (server, api):
        pages = [await context.new_page() for _ in range(8)]
        for each in pages:
            each.set_default_timeout(60_000)
            await each.goto(f"{server.new_link()}")
            await each.get_by_role("gridcell", name="__proto__").wait_for()  # Only then it listens to its address.
            await each.evaluate("location.hash = '#/run/r1'")
        for each in pages:
            await each.get_by_text("last").wait_for()
        assert api.streams.count("/v1/changes") == 1
        assert len(api.streams) <= 3
        fetched = """(token) => fetch("/v1/runs/r1", {headers: {authorization: `Bearer ${token}`},
            signal: AbortSignal.timeout(60_000)}).then((answer) => answer.status)"""
        assert await pages[-1].evaluate(fetched, server.token) == 200
