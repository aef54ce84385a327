"""Acts of the page on a real server: each is proven by the journal or by processes, never by the page alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ramet import Agent, Limits, Policy, ScriptedModel
from ramet.core.events import ApprovalAnswered, Event, LimitsRaised, MailPushed, PauseEnded, RunEnded, RunPaused
from ramet.core.ids import RunId
from ramet.host.journal.stored_events import decode_stored
from ramet.models.scripted.dialogue import Hang
from ramet.web.forwarding_api import ForwardingApi
from ramet.web.ui_server import UiServer
from tests.support.serving import EchoServer, serving, short_folder
from tests.support.waiting import alive, eventually
from tests.trips.programs.approvals import effects
from tests.trips.server.test_operator_client import spawn_tree_with_a_question
from tests.web.conftest import Problems

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

Kind = TypeVar("Kind", bound=Event)


def lead() -> None:
    """Spawn a child that works for long, and wait for it."""
    import time

    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    spawn_sub_agent(time.sleep, Policy(memory_mb=96), (600,), name="sleeper")


def sandbox_processes(server: EchoServer, root: RunId) -> list[int]:
    """Return the processes of the sandboxes of a tree's runs that have not ended."""
    living = server.server.runtime.trees[RunId(root)].tree.register.living()
    return [
        each.sandbox.current.pid for each in living if each.sandbox is not None and each.sandbox.current is not None
    ]


@asynccontextmanager
async def shown_server(
    context: BrowserContext, api_type: type[ForwardingApi] = ForwardingApi, **options: Any
) -> AsyncIterator[tuple[EchoServer, UiServer]]:
    """Run a server, and the server of its page; close the pages before these end.

    The loop lives as long as the browser. Its threads must not: they have an executor of this server.
    """
    loop = asyncio.get_running_loop()
    with short_folder() as folder, ThreadPoolExecutor() as executor:
        loop.set_default_executor(executor)
        async with serving(folder, grace_s=1.0, **options) as server:
            api = api_type(server.server.listen_address)
            async with api, UiServer(api, "a folder", idle_minutes=60) as page_server:
                yield server, page_server
                for each in context.pages:
                    await each.close()
        loop.set_default_executor(ThreadPoolExecutor())  # It begins a thread for the first call, which others make.


async def recorded(server: EchoServer, root: str, kind: type[Kind]) -> list[Kind]:
    """Return the recorded events of a kind in a tree."""
    store = await server.server.runtime.open_store()
    events = [decode_stored(store, each) for each in await store.read(tree=root, limit=10_000)]
    return [each for each in events if isinstance(each, kind)]


async def act(page: Page, key: str, button: str, **fields: str) -> str:
    """Ask for an act on the selected run by its key, confirm it, and return the receipt."""
    await page.get_by_role("treegrid").press(key)
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        await dialog.get_by_label(label).fill(value)
    await dialog.get_by_role("button", name=button).click()
    receipt = await dialog.get_by_role("status").inner_text()
    await dialog.get_by_role("button", name="Close").click()
    await dialog.wait_for(state="hidden")
    return receipt


async def test_a_tree_is_paused_resumed_and_stopped_by_keys(page: Page) -> None:
    """The journal has the pause; the dialog of the stop names what it ends; the row says so once no process is left."""
    async with shown_server(page.context, backend="local") as (server, page_server):
        policy = Policy(allow_sub_agents=True, memory_mb=256, pids=40)
        handle = await server.server.runtime.spawn(lead, policy=policy)
        await page.goto(page_server.new_link())
        await page.get_by_role("row", name="sleeper").wait_for()
        await page.get_by_role("row", name=re.compile("^▾? ?main")).click()
        await eventually(lambda: len(sandbox_processes(server, handle.id)) == 2)
        processes = sandbox_processes(server, handle.id)
        assert all(map(alive, processes))

        assert "Paused" in await act(page, "p", "Pause", **{"Reason (recorded)": "for a look"})
        await page.locator(".state", has_text="paused").first.wait_for()
        assert [each.reason for each in await recorded(server, handle.id, RunPaused)] == ["for a look"]
        await act(page, "p", "Resume")
        assert len(await recorded(server, handle.id, PauseEnded)) == 1

        await page.get_by_role("treegrid").press("s")
        dialog = page.get_by_role("dialog")
        assert "This ends 2 runs: this one and all below it." in await dialog.inner_text()
        assert await dialog.get_by_role("listitem").all_inner_texts() == ["main", "main/sleeper"]
        await page.keyboard.press("Escape")
        assert await recorded(server, handle.id, RunEnded) == []

        assert "Ended 2 runs:" in await act(page, "s", "Stop")
        await page.get_by_role("row", name="main").get_by_text("ended: cancelled").wait_for()
        assert not any(map(alive, processes))
        assert len(await recorded(server, handle.id, RunEnded)) == 2


async def test_the_inbox_answers_questions_and_limits_of_all_trees(page: Page) -> None:
    """An answer for the run, a limit raised once: both are recorded, a denial reaches the model, and receipts stay."""
    async with shown_server(page.context) as (server, page_server):
        handle = await spawn_tree_with_a_question(server)
        other = await server.server.runtime.spawn(
            Agent(name="poor", model=ScriptedModel(["one", "two"]), limits=Limits(model_calls=0, at_limit="pause")),
            "go",
        )
        await page.goto(page_server.new_link())
        await page.get_by_role("link", name="Inbox 2").click()
        cards = page.get_by_role("article")
        await cards.nth(1).wait_for()
        assert [(await each.inner_text()).splitlines()[0] for each in await cards.all()] == ["main/payer", "main"]
        assert "amount" in await cards.nth(0).inner_text()
        assert "To allow it adds 1" in await cards.nth(1).inner_text()

        await cards.nth(0).get_by_placeholder("Reason").fill("it is due")
        assert "later calls of this run only: pay with any arguments" in await cards.nth(0).inner_text()
        await cards.nth(0).get_by_role("button", name="Allow for this run").click()
        assert (await handle.result()).value == "both are done"
        await page.get_by_role("button", name="Allow, and add to the limit").click()
        assert (await other.result()).value == "one"
        await page.get_by_text("Nothing waits for a person.").wait_for()
        assert await page.get_by_role("region", name="Receipts").get_by_role("listitem").count() == 2

        (answer,) = await recorded(server, handle.id, ApprovalAnswered)
        assert isinstance(answer, ApprovalAnswered)
        assert (answer.allowed, answer.for_run, answer.reason, sorted(effects(server.server.dir))) == (
            True,
            True,
            "it is due",
            ["note", "pay"],
        )
        assert len(await recorded(server, other.id, LimitsRaised)) == 1


async def test_hostile_words_stay_text_and_do_not_freeze_the_tab(page: Page, problems: Problems) -> None:
    """Markup, terminal and reordering characters, and a message of 10 MB are text; nothing is requested for them."""
    hostile = "</script><img src=x onerror='document.title=\"owned\"'>\u202egpj.exe\x1b[31m <b id=injected>"
    long = hostile + "x" * (10 * 1024 * 1024)
    model = ScriptedModel([long, Hang()])
    async with shown_server(page.context) as (server, page_server):
        handle = await server.server.runtime.spawn(Agent(name="speaker", model=model), hostile)
        await handle.result()
        asked = list[str]()
        page.on("request", lambda each: asked.append(each.url))
        await page.goto(page_server.new_link())
        await page.get_by_role("row", name="speaker").get_by_role("link").click()
        await page.get_by_role("button", name=re.compile(r"Show more .* of 10,485,")).first.wait_for()
        await page.get_by_role("link", name="Events").click()
        await page.locator(".event", has_text="message recorded").first.locator("summary").click()
        await page.locator(".event pre").first.wait_for()

        assert await asyncio.wait_for(page.evaluate("1 + 1"), 60) == 2
        assert await page.locator("img, #injected, script:not([src])").count() == 0
        text = await page.locator("#app").inner_text()
        assert "</script><img src=x" in text
        assert "⟨U+202E⟩gpj.exe <b id=injected>" in text
        assert "owned" not in await page.title()
        assert [each for each in asked if not each.startswith(page_server.address.partition("/ui/")[0])] == []
        assert problems == []


async def test_a_message_reaches_a_run_and_the_slider_shows_what_was_before(page: Page) -> None:
    """The message is in the journal of the run; the transcript as of an earlier event has no later message."""
    async with shown_server(page.context) as (server, page_server):
        spawn = server.server.runtime.spawn
        handle = await spawn(Agent(name="talker", model=ScriptedModel(["the answer"])), "hello")
        await handle.result()
        waiting = await spawn(Agent(name="waiter", model=ScriptedModel([Hang()])), "wait")
        await page.goto(page_server.new_link())
        await page.get_by_role("row", name="waiter").click()
        await act(page, "m", "Send", Message="look <b>here</b>")
        (mail,) = await recorded(server, waiting.id, MailPushed)
        assert isinstance(mail, MailPushed)
        assert mail.text == "look <b>here</b>"

        await page.get_by_label("ended trees").check()
        await page.get_by_role("row", name="talker").get_by_role("link").click()
        await page.get_by_role("article", name="Agent").get_by_text("the answer").wait_for()
        await page.get_by_role("slider").fill("3")
        await page.get_by_role("article", name="Agent").wait_for(state="detached")
        assert await page.get_by_role("article", name="Prompt").inner_text()


async def test_a_fork_from_a_message_is_a_new_tree(page: Page) -> None:
    """The journal of the new run has the messages up to there and the prompt; the receipt leads to it."""
    async with shown_server(page.context) as (server, page_server):
        runtime = server.server.runtime
        plain = await runtime.spawn(Agent(name="plain", model="offline", tools=[]), "What is here?")
        await plain.result()
        await page.goto(page_server.new_link())
        await page.get_by_role("gridcell", name="main").get_by_role("link").click()
        await page.get_by_role("article", name="Prompt").get_by_role("button", name="Fork from here").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Prompt of the new run").fill("And now?")
        await dialog.get_by_role("button", name="Fork").click()
        await dialog.get_by_role("status").get_by_role("link").click()
        await page.get_by_role("article").get_by_text("And now?").wait_for()
        forked = page.url.partition("#/run/")[2]
        assert await page.get_by_role("dialog").count() == 0
        await page.locator(".facts").get_by_text("ended: completed").wait_for()

        assert runtime.journal is not None
        messages = (await runtime.journal.replay(forked)).root.messages
        assert [each["content"] for each in messages if each["type"] == "human"] == ["What is here?", "And now?"]
        assert [each["type"] for each in messages if each["type"] != "human"] == ["ai"], "the old answer came later"


async def test_tabs_share_one_stream_and_the_next_leads_when_one_closes(context: BrowserContext) -> None:
    """Three tabs read one stream. When its tab closes, another continues after the newest cursor, and all see more."""
    async with shown_server(context) as (server, page_server):
        streams = list[str]()
        context.on("request", lambda each: streams.append(each.url) if "/v1/changes" in each.url else None)
        await server.server.runtime.spawn(Agent(name="first", model=ScriptedModel([Hang()])), "wait")
        pages = [await context.new_page() for _ in range(3)]
        for each in pages:
            await each.goto(page_server.new_link())
            await each.get_by_role("row", name="first").wait_for()
        assert len(streams) == 1

        await pages[0].close()
        await eventually(lambda: len(streams) == 2)
        assert "after=" in streams[1]
        await server.server.runtime.spawn(Agent(name="second", model=ScriptedModel([Hang()])), "wait")
        for each in pages[1:]:
            await each.get_by_role("row", name="second").wait_for()
        assert len(streams) == 2
