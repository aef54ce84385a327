"""The page of a server that listens at an address: at its own `/ui`, and through `ramet ui --server`."""

from __future__ import annotations

import asyncio
import pathlib
import re

import httpx2

from tests.support.serve_process import serve
from tests.support.serving import short_folder
from tests.support.ui_process import ui
from tests.support.waiting import eventually

KEY = "an-operators-key-of-this-test"
JOBS = """
import asyncio

async def wait():
    await asyncio.Event().wait()
"""


async def ask(
    http: httpx2.AsyncClient, url: str, key: str = KEY, method: str = "GET", **headers: str
) -> httpx2.Response:
    given = {"authorization": f"Bearer {key}", **{name.replace("_", "-"): text for name, text in headers.items()}}
    return await http.request(method, url, headers=given)


async def open_streams(http: httpx2.AsyncClient, server: str) -> int:
    found = re.search(r"^ramet_streams_open (\d+)", (await ask(http, f"{server}/metrics")).text, re.M)
    assert found is not None
    return int(found[1])


async def start_run(http: httpx2.AsyncClient, server: str, folder: pathlib.Path) -> str:
    """Let the server run a function that does not end, and return the id of the run."""
    (folder / "jobs.py").write_text(JOBS)
    schedule = {"agent": f"{folder / 'jobs.py'}:wait", "in_s": 0.001, "in_process": True}
    made = await http.post(f"{server}/v1/schedules", headers={"authorization": f"Bearer {KEY}"}, json=schedule)
    assert made.status_code == 201, made.text
    runs = list[dict[str, str]]()

    async def has_run() -> bool:
        runs[:] = (await ask(http, f"{server}/v1/runs")).json()["runs"]
        return bool(runs)

    await eventually(has_run)
    return runs[0]["id"]


async def test_a_server_has_the_page_and_is_forwarded_to_with_its_key_kept() -> None:
    """`/ui` has files for everyone, and data for the operator's key; a forwarded stream is unbuffered and ends.

    The page of `ramet ui` works with its own token only, and the operator's key does not open it.
    """

    async def all_streams_are_closed() -> bool:
        return await open_streams(http, server) == 0

    async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        with short_folder() as folder:
            options = ("--listen", "127.0.0.1:0")
            async with serve(folder, *options, RAMET_OPERATOR_TOKEN=KEY, RAMET_RULES_SANDBOXED="false") as process:
                found = re.search(r"http://[\d.:]+", process.line)
                assert found is not None
                server = found[0]
                assert "script-src 'self'" in (await http.get(f"{server}/ui/")).headers["content-security-policy"]
                assert (await ask(http, f"{server}/ui/about.json")).json()["kernel"] is True
                assert (await http.get(f"{server}/ui/about.json")).status_code == 401
                assert (await ask(http, f"{server}/ui/about.json", key="op_wrong")).status_code == 401
                rebound = await ask(http, f"{server}/v1/runs", host="evil.example.com", sec_fetch_site="same-origin")
                assert rebound.status_code == 421
                assert (await ask(http, f"{server}/v1/runs", host="any.name.of.a.proxy")).status_code == 200
                assert (await ask(http, f"{server}/v1/runs", sec_fetch_site="cross-site")).status_code == 403
                assert (await ask(http, f"{server}/v1/runs", origin=server)).status_code == 200

                async with ui("--server", server, RAMET_OPERATOR_TOKEN=KEY) as shown:
                    page = shown.origin
                    assert KEY not in shown.lines[0]
                    assert (await ask(http, f"{page}/v1/runs")).status_code == 401  # That key is not the token.
                    run = await start_run(http, server, folder)
                    events = f"{page}/v1/runs/{run}/events?follow=true"
                    headers = {"authorization": f"Bearer {shown.token}"}
                    async with asyncio.timeout(180), http.stream("GET", events, headers=headers) as stream:
                        assert stream.headers["content-type"].startswith("text/event-stream")
                        async for piece in stream.aiter_raw():
                            assert b'"run_spawned"' in piece  # It came while the run goes on.
                            break
                        assert await open_streams(http, server) == 1
                    await eventually(all_streams_are_closed)
                    stopped = await ask(http, f"{page}/v1/runs/{run}/stop", shown.token, "POST", content_type="a/b")
                    assert stopped.status_code == 200  # It reaches the server as it is: no body is the default request.
                    assert (await ask(http, f"{page}/v1/runs?limit=0", shown.token)).status_code == 422
                    process.process.kill()
                    await process.process.wait()
                    lost = await ask(http, f"{page}/v1/runs", shown.token)
                    assert (lost.status_code, "no server answers" in lost.json()["detail"]) == (502, True)
                    assert KEY not in lost.text
                    assert (await ask(http, f"{page}/ui/about.json", shown.token)).json()["kernel"] is False
            await eventually(lambda: process.process.returncode is not None)
