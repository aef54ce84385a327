"""Views of the page on what is looked at rarely, from a server, and the same from its folder."""

from __future__ import annotations

import pathlib
import shutil
from typing import TYPE_CHECKING

import pytest

import ramet
from ramet import Agent, Policy, ScriptedModel
from ramet.core.errors import Gone
from ramet.host.board.board import boards
from ramet.services.operator.contract import Paging
from ramet.services.operator.records.record_rows import BoardRow
from ramet.services.teams.keys import hash_of
from ramet.tools.agents.board import Owner
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

        await page.goto(page_server.new_link())
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


async def test_boards_kernels_and_what_keys_open(page: Page) -> None:
    """Tasks, the kernel with its runs, and the rights of keys are shown, also without a server; no key or hash."""
    async with shown_server(page.context) as (echo_server, page_server):
        server = echo_server.server
        board = boards(server.runtime)("release/1")
        await board.create("<i>dig</i>", "with a spade")
        await board.create("fill", blocked_by=["1"])
        await board.claim("1", Owner(run="run-1", path="main/digger"))
        agent, nonce = await echo_server.agent()
        async with ramet.connect(server.listen_address, server.operator) as client:
            narrow = await client.delegate(agent, ["turn", "mail"], seconds=3600, key=nonce)
            await page.goto(page_server.new_link())
            await page.get_by_role("link", name="Boards").click()
            await page.get_by_text("release/1").click()
            rows = page.get_by_role("table").get_by_role("row")
            await rows.nth(2).wait_for()
            shown = [[cell.strip() for cell in (await each.inner_text()).split("\t")] for each in await rows.all()]
            assert shown[1:] == [
                ["1", "<i>dig</i>", "in progress", "main/digger", ""],
                ["2", "fill", "pending", "", "1"],
            ]

            await page.get_by_role("link", name="Kernels and keys").click()
            await page.get_by_role("cell", name=narrow.id).wait_for()
            (kernel,) = await client.kernel.kernels()
            assert (kernel.is_alive, kernel.trees, kernel.runs) == (True, 0, 0)
            assert kernel.started is not None
            operator, team, owner, delegated = await client.kernel.keys()
            assert [each.kind for each in (operator, team, owner)] == ["operator", "team", "owner"]
            assert (delegated.key, delegated.rights, delegated.made_by) == (narrow.id, ["turn", "mail"], "owner")
            assert delegated.until is not None
            assert await client.kernel.boards() == [BoardRow(name="release/1", pending=1, in_progress=1)]
        answer = (await echo_server.ask("GET", "/v1/keys", server.operator)).text
        for secret in (nonce, hash_of(nonce), narrow.key, hash_of(narrow.key), server.operator):
            assert secret not in answer
        assert (await echo_server.ask("GET", "/v1/keys", nonce)).status_code == 404

        folder = pathlib.Path(server.dir)
        async with JournalViews(folder, FolderActivity(folder)) as views:
            ids = [each.id for each in (await views.keys.page(Paging())).keys]
            assert ids == [operator.id, team.id, owner.id, delegated.id]
            assert [each.subject for each in (await views.boards.get("release/1")).tasks] == ["<i>dig</i>", "fill"]
            assert [each.is_alive for each in views.kernels().kernels] == [True]
