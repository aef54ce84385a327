"""The pictures of the page in docs/pictures, of agents at work: `python -m tests.web.pictures [FOLDER]`.

Agents of a script work on the example project beside a recorded `ramet ask`, over a real server and in Chromium.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import BaseTool, StructuredTool

from ramet import Agent, Limits, ScriptedModel
from ramet.host.trees.project import Project
from ramet.models.prices import Price
from ramet.models.scripted.dialogue import Call, Hang
from ramet.web.forwarding_api import ForwardingApi
from ramet.web.ui_server import UiServer
from tests.support.serving import serving, short_folder
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.async_api import Browser

ROOT = Path(__file__).parents[2]
WIDTH = 1200
CAUSE = """\
The pool has 10 connections (`config/payments-live.yaml`), and since the last release each request holds one
while it calls the acquirer (`src/payment_api/acquirer_client.py`). They are used up, and the others time out.

I am raising the pool to 40, and moving the call out of the transaction."""


def child(name: str, prompt: str) -> Call:
    """Return the call that starts a child."""
    args = {"prompt": prompt, "description": prompt, "name": name, "subagent_type": "general-purpose"}
    return Call("Agent", args)


def reply(text: str, *calls: Call) -> AIMessage:
    """Return a reply with a text and calls, as a model with a large context counts it."""
    usage = UsageMetadata(input_tokens=61_200, output_tokens=840, total_tokens=62_040)
    named = [{"name": each.tool, "args": dict(each.args), "id": f"call-{at}"} for at, each in enumerate(calls)]
    return AIMessage(text, tool_calls=named, usage_metadata=usage)


def model() -> ScriptedModel:
    """Return the model of a lead whose children have ended, work, or wait for a person."""
    edit = {"path": "config/payments-live.yaml", "old_string": "pool_size: 10", "new_string": "pool_size: 40"}
    look = {"path": "config/payments-live.yaml"}
    return ScriptedModel(
        {
            "Repair": [
                [child("cause", "Find the cause in logs and settings"), child("tests", "Write a test that fails")],
                reply(CAUSE, child("settings", "Raise the pool to 40"), child("release", "Prepare the release notes")),
                "done",
            ],
            "Find the cause": [Call("look", look), Call("look", look), "10 connections for 40 requests"],
            "Write a test": [Call("look", look), "tests/test_pool.py fails as the service does"],
            "Raise the pool": [Call("look", look), Call("edit", edit), "done"],
            "Prepare the release": [[child("changes", "List the changes"), child("risks", "List the risks")], "done"],
            "List the": [Call("look", look), Hang(40)],
        }
    )


def tools(folder: Path) -> list[BaseTool]:
    """Return a tool that reads a file, and one that edits it, for which a person is asked."""

    async def look(path: str) -> str:
        return (folder / path).read_text()

    async def edit(path: str, old_string: str, new_string: str) -> str:
        return f"{path}: {old_string} is now {new_string}"

    return [
        StructuredTool.from_function(coroutine=each, name=each.__name__, description="Does it.")
        for each in (look, edit)
    ]


def ask_about_edits(payload: dict[str, Any]) -> str | None:
    """Ask a person before a file is changed."""
    return "ask" if payload["tool_name"] == "edit" else None


async def make_pictures(folder: Path) -> None:
    """Write all pictures into a folder."""
    with short_folder() as place:
        project = place / "payment-api"
        shutil.copytree(ROOT / "examples" / "payment-api", project, ignore=shutil.ignore_patterns(".ramet"))
        command = [
            sys.executable,
            "-m",
            "ramet",
            "ask",
            "Why is the payment API failing?",
            "--quiet",
            "--dir",
            str(project),
        ]
        demo = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        assert await demo.wait() == 0
        prices = {"scripted": Price(input=3, output=15)}
        async with serving(project, backend="local", grace_s=1.0, prices=prices) as server:
            runtime, script = server.server.runtime, model()
            lead = Agent(
                name="lead",
                model=script,
                hooks={"PreToolUse": [ask_about_edits]},
                limits=Limits(usd=2.0, tokens=400_000),
            )
            agents = Project.open(None, user_dir=None)
            handle = await runtime.spawn(lead, "Repair the payment API", tools=tools(project), agents=agents)
            tree = runtime.trees[handle.id]
            await eventually(lambda: tree.inbox.pending and len(list(tree.tree.register.living())) == 5)
            api = ForwardingApi(server.server.listen_address)
            async with api, UiServer(api, "payment-api") as page_server:
                await _draw(page_server.new_link, folder, handle.id)


async def _draw(new_link: Callable[[], str], folder: Path, run: str) -> None:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            chromium_sandbox=os.geteuid() != 0,
            args=["--disable-gpu", "--disable-dev-shm-usage"],
        )
        for scheme, name in (("light", "page-trees.png"), ("dark", "page-trees-dark.png")):
            await _picture(browser, new_link(), folder / name, "changes", "#/", scheme=scheme, height=366)
        await _picture(browser, new_link(), folder / "page-run.png", "The pool has", f"#/run/{run}", height=784)
        await _picture(browser, new_link(), folder / "page-inbox.png", "What it writes", "#/inbox", height=440)
        await browser.close()


async def _picture(
    browser: Browser, link: str, file: Path, text: str, view: str, *, height: int, scheme: Any = "light"
) -> None:
    """Save a view of the page once it shows a text."""
    size: Any = {"width": WIDTH, "height": height}
    page = await browser.new_page(viewport=size, color_scheme=scheme, timezone_id="UTC", reduced_motion="reduce")
    await page.goto(link)
    if view == "#/":
        await page.get_by_label("ended trees").check()
    await page.evaluate("(hash) => { location.hash = hash; }", view)
    await page.get_by_text(text).first.wait_for()
    await page.get_by_text("live", exact=True).wait_for()
    await page.screenshot(path=file)
    await page.close()


if __name__ == "__main__":
    asyncio.run(make_pictures(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"))
