"""Views of the page on what is looked at rarely, from a server, and the same from its folder."""

from __future__ import annotations

import pathlib
import shutil
from typing import TYPE_CHECKING

import pytest

import ramet
from ramet import Agent, Policy, ScriptedModel
from ramet.core.errors import Gone
from ramet.web.folder_activity import FolderActivity
from ramet.web.journal_views import JournalViews
from tests.support.waiting import eventually
from tests.trips.agents import in_clone
from tests.trips.spawning.test_clone import git, repo
from tests.web.test_acts import shown_server

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["repo"]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_what_a_run_changed_in_its_clone(page: Page, repo: pathlib.Path) -> None:
    """The diff is shown while the run works; after its end that of its branch is the same, also without a server."""
    coder = Agent(name="coder", function=in_clone.commit_and_wait, isolation="worktree")
    async with shown_server(page.context) as (echo_server, page_server):
        server = echo_server.server
        printed = list[str]()
        handle = await server.runtime.spawn(
            coder, policy=Policy(), args=("<b>new.txt",), cwd=repo, on_output=lambda _, text: printed.append(text)
        )
        await eventually(lambda: "committed" in "".join(printed))

        await page.goto(page_server.link)
        await page.get_by_role("link", name="main", exact=True).click()
        await page.get_by_role("link", name="Changes", exact=True).click()
        rows = page.get_by_role("table").get_by_role("row")
        await rows.nth(2).wait_for()
        shown = [await each.inner_text() for each in await rows.all()]
        assert shown == ["File\tChange\tLines", "<b>new.txt\tadded\t+1 −0", "left.txt\tadded\t+1 −0"]
        assert "+not committed" in await page.locator("pre.code").inner_text()

        async with ramet.connect(server.listen_address, server.operator) as client:
            living = await client.kernel.diff(handle.id)
            await client.kernel.stop(handle.id)
            assert await client.kernel.diff(handle.id) == living
            plain = await server.runtime.spawn(Agent(name="plain", model=ScriptedModel(["one"])), "go")
            await plain.result()
            with pytest.raises(Gone, match="no worktree and no clone"):
                await client.kernel.diff(plain.id)

        folder = pathlib.Path(server.dir)
        async with JournalViews(folder, FolderActivity(folder)) as views:
            assert await views.diffs.get(handle.id) == living
        git(repo, "branch", "-D", (await handle.result()).branch)
        async with JournalViews(folder, FolderActivity(folder)) as views:
            with pytest.raises(Gone, match="no longer there"):
                await views.diffs.get(handle.id)
