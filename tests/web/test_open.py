"""The way into the page: by the printed link, in a real browser, to a real server."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys
from typing import TYPE_CHECKING

from ramet.services.client.client import Client
from tests.support.serve_process import serve
from tests.support.serving import short_folder
from tests.support.ui_process import ui
from tests.web.conftest import Problems

if TYPE_CHECKING:
    from playwright.async_api import Page

JOBS = "def note(word):\n    return word\n"


async def add_run(folder: pathlib.Path) -> None:
    """Let a server run a function."""
    (folder / "jobs.py").write_text(JOBS)
    async with Client(folder / ".ramet" / "serve.sock") as client:
        await client.kernel.add_schedule(f"{folder / 'jobs.py'}:note", args=["seen"], in_s=0.001, in_process=True)


async def test_a_folder_without_runs_says_how_to_begin(page: Page, problems: Problems) -> None:
    """The page of a folder that has no journal yet shows a command, and then the first run without a reload.

    Its link works once, and the next one comes by Enter. A tab that was opened by it may be loaded again.
    """
    problems.expect("Failed to load resource")
    with short_folder() as folder:
        async with ui("--dir", str(folder)) as shown:
            await page.goto(shown.link)
            await page.get_by_text("ramet ask").wait_for()
            assert await page.get_by_role("alert").count() == 0
            other = await page.context.new_page()
            await other.goto(shown.link)
            await other.get_by_role("alert").get_by_text("this link was used already").wait_for()
            await shown.print_link()
            await other.goto(shown.link)
            await other.get_by_text("ramet ask").wait_for()
            await other.close()
            await page.reload()
            await page.get_by_text("ramet ask").wait_for()
            (folder / "jobs.py").write_text(JOBS)
            command = [sys.executable, "-m", "ramet", "run", "--quiet", "jobs.py:note", '"seen"']
            run = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=asyncio.subprocess.PIPE)
            await run.communicate()
            await page.get_by_role("gridcell", name="ended: completed").wait_for()
            assert await page.get_by_text("ramet ask").count() == 0
            await page.keyboard.press("Enter")  # The table has the focus, without a click.
            await page.get_by_text("Transcript", exact=True).wait_for()


async def test_the_link_shows_the_runs_of_a_server_through_its_death(page: Page, problems: Problems) -> None:
    """The link opens the page, which shows a run; the token leaves the address at once.

    The page says that its server was killed, and goes on when there is another one.
    """
    with short_folder() as folder:
        async with ui("--server", str(folder / ".ramet" / "serve.sock")) as shown:
            async with serve(folder, RAMET_RULES_SANDBOXED="false") as server:
                await add_run(folder)
                await page.goto(shown.link)
                await page.get_by_role("gridcell", name="ended: completed").wait_for()

                assert page.url == f"{shown.origin}/ui/"
                assert await page.evaluate("history.length") == 2  # No entry with the token is left to go back to.
                assert await page.evaluate("document.cookie") == ""

                problems.expect("Failed to load resource")
                await server.end(signal.SIGKILL)
                await page.get_by_role("alert").wait_for()
            async with serve(folder):
                await page.get_by_role("alert").wait_for(state="hidden")
                await page.get_by_role("gridcell", name="ended: completed").wait_for()
