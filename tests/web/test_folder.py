"""The page of a folder without a server: read from the journal, acts by the kernel at work, else by a new one."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2

from ramet.host.control.run_queries import journal_in, kernel_of
from ramet.wire.sse import Parser
from tests.support.serve_process import ROOT
from tests.support.serving import short_folder
from tests.support.ui_process import Ui, ui
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.async_api import Page

JOBS = """
import asyncio, pathlib

def note(word):
    return word

async def wait():
    pathlib.Path("waiting").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    return "went on"
"""


class PageRequests:
    """Requests to the API of a page with its token."""

    def __init__(self, shown: Ui, http: httpx2.AsyncClient) -> None:
        self.shown, self._http = shown, http

    async def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.shown.token}"}
        return await self._http.request(method, self.shown.origin + path, headers=headers, timeout=90, **options)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Callable[[str, str], Awaitable[None]]]:
        """Follow the changes of all runs; yield what waits until one of an agent is in a state."""
        states, parser, headers = set[tuple[str, str]](), Parser(), {"authorization": f"Bearer {self.shown.token}"}
        url = f"{self.shown.origin}/v1/changes?ended=true&interval_ms=50"
        async with self._http.stream("GET", url, headers=headers, timeout=90) as stream:
            pieces = stream.aiter_raw()

            async def wait_for(agent: str, state: str) -> None:
                async with asyncio.timeout(180):
                    while (agent, state) not in states:
                        for event in parser.feed(await anext(pieces)):
                            rows = json.loads(event.data).get("runs", ())
                            states.update((row["agent"], row["state"]) for row in rows)

            yield wait_for

    async def get(self, path: str) -> Any:
        answer = await self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def requests(*options: str) -> AsyncIterator[PageRequests]:
    """Run `ramet ui`, and yield what asks its API."""
    async with ui(*options) as shown, httpx2.AsyncClient(trust_env=False) as http:
        yield PageRequests(shown, http)


@asynccontextmanager
async def running(folder: pathlib.Path, function: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a function as an agent in a process of its own, which is the kernel of the folder meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ramet", "run", "--dir", str(folder), "--quiet", f"jobs.py:{function}", *args,
        cwd=folder, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def holds(folder: pathlib.Path) -> Callable[[], bool]:
    """Return whether a kernel holds the journal of a folder."""
    return lambda: kernel_of(journal_in(folder)) is not None


async def test_a_folder_is_read_and_steered_without_a_server() -> None:
    """Without a kernel the page reads the journal; a kernel that is no server takes its acts; an act starts one."""
    with short_folder() as folder:
        (folder / "jobs.py").write_text(JOBS)
        async with requests("--dir", str(folder)) as page:
            assert (await page.ask("GET", "/v1/runs")).status_code == 404  # No run was recorded yet.
            async with running(folder, "note", '"seen"') as process:
                assert await process.wait() == 0

            # No kernel: what is recorded, with the answers of a server.
            about = await page.get("/ui/about.json")
            (run,) = (await page.get("/v1/runs?ended=true"))["runs"]
            assert (about["kernel"], about["dir"], run["state"]) == (False, str(folder), "completed")
            assert (await page.get(f"/v1/runs/{run['id']}"))["result"]["value"] == "seen"
            events = (await page.ask("GET", f"/v1/runs/{run['id']}/events?follow=true")).text
            assert '"run_ended"' in events
            assert events.endswith("event: done\ndata: \n\n")
            assert (
                (await page.get("/v1/approvals"))["approvals"] == (await page.get("/v1/schedules"))["schedules"] == []
            )
            assert (await page.ask("GET", "/v1/runs/nothing")).status_code == 404
            assert (await page.ask("GET", "/v1/teams")).status_code == 409
            assert not holds(folder)()

            # A kernel that is no server: the run is stopped, and its process ends.
            async with page.changes() as wait_for, running(folder, "wait") as process:
                await wait_for("note", "completed")
                await eventually((folder / "waiting").exists)
                await wait_for("wait", "running")
                (run,) = (await page.get("/v1/runs"))["runs"]
                assert (await page.get("/ui/about.json"))["kernel"]
                assert run["state"] == "running"
                paused = await page.ask("POST", f"/v1/runs/{run['id']}/pause", content=b'{"reason": "look"}')
                assert paused.json()["paused"] + paused.json()["working"] == ["main"]
                assert (await page.ask("POST", f"/v1/runs/{run['id']}/resume")).status_code == 204
                assert (await page.ask("POST", "/v1/runs/nothing/stop", content=b"{}")).status_code == 404
                assert (await page.ask("POST", f"/v1/runs/{run['id']}/mail", content=b'{"text": 1}')).status_code == 422
                stopped = await page.ask("POST", f"/v1/runs/{run['id']}/stop", content=b"{}")
                assert stopped.json()["stopped"] == ["main"]
                assert await process.wait() == 130
                await wait_for("wait", "cancelled")

            # No kernel again: an act starts one, which ends with ramet ui. No other request does.
            assert (await page.ask("POST", "/v1/nothing")).status_code == 404
            assert (await page.ask("DELETE", f"/v1/runs/{run['id']}/keep")).status_code == 405
            assert not holds(folder)()
            kept = await page.ask("POST", f"/v1/runs/{run['id']}/keep", content=json.dumps({"on": True}).encode())
            assert kept.json() == {"tree": run["id"], "kept": True}
            assert "started a kernel, since the page acts: ramet serve" in await page.shown.next_line()
            assert (await page.get("/ui/about.json"))["kernel"]
            assert (await page.get("/v1/teams"))["teams"] == []
            assert holds(folder)()
            page.shown.process.kill()  # The kernel sees that, as it sees the ordinary end of ramet ui.
            await page.shown.process.wait()
            await eventually(lambda: not holds(folder)())
            assert kernel_processes(folder) == []


def kernel_processes(folder: pathlib.Path) -> list[str]:
    """Return the commands of processes that name a folder and are no tests."""
    commands = [each.read_bytes() for each in pathlib.Path("/proc").glob("[0-9]*/cmdline") if each.exists()]
    return [each.decode().replace("\0", " ") for each in commands if os.fsencode(folder) in each and b"serve" in each]


async def test_an_interrupted_run_goes_on_by_the_page_and_a_read_only_page_starts_nothing(page: Page) -> None:
    """After `kill -9` of a kernel, resuming its run in the page continues it; `--read-only` refuses that.

    Who wants to stop it there reads that there is nothing to stop, and may resume it first.
    """
    with short_folder() as folder:
        (folder / "jobs.py").write_text(JOBS)
        async with running(folder, "wait") as process:
            await eventually((folder / "waiting").exists)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with requests("--dir", str(folder), "--read-only") as asked:
            (run,) = (await asked.get("/v1/runs"))["runs"]
            assert (run["state"], (await asked.get("/ui/about.json"))["read_only"]) == ("interrupted", True)
            assert (await asked.ask("POST", f"/v1/runs/{run['id']}/resume")).status_code == 403
            assert not holds(folder)()
        async with requests("--dir", str(folder)) as asked:
            refused = await asked.ask("POST", f"/v1/runs/{run['id']}/stop", content=b"{}")
            assert (refused.status_code, f"ramet resume {run['id']}" in refused.json()["detail"]) == (409, True)
            assert (await asked.ask("POST", "/v1/approvals/none", content=b'{"allowed": true}')).status_code == 404
            assert not holds(folder)()
            await asked.shown.print_link()
            await page.goto(asked.shown.link)
            await page.get_by_role("row", name="main").click()
            await page.get_by_role("treegrid").press("s")
            dialog = page.get_by_role("dialog")
            assert "there is nothing to stop" in await dialog.inner_text()
            await dialog.get_by_role("button", name="Resume it first").click()
            await dialog.get_by_role("button", name="Resume").click()
            assert "ramet resume" in await asked.shown.next_line()
            await dialog.get_by_text("It goes on.").wait_for()
            await page.close()
            (folder / "go").touch()
            events = (await asked.ask("GET", f"/v1/runs/{run['id']}/events?follow=true")).text
            assert '"run_ended"' in events
            assert (await asked.get(f"/v1/runs/{run['id']}"))["state"] == "completed"
