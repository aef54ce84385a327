"""An HTTP server that stops answers what it had begun, for as long as it is given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from ramet.services.http.connections import Bounds, HttpServer
from ramet.services.http.sockets import unix_listener


@pytest.mark.parametrize("within_s", [60.0, None])
async def test_a_request_under_way_is_answered_within_the_time_of_the_stop(
    tmp_path: Path, within_s: float | None
) -> None:
    """Without a time of its own, a stop has the bound of the server, which is too short for this answer."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await may_end.wait()  # the work
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = unix_listener(tmp_path / "socket")
    server = HttpServer(answer, listener, Bounds(end_s=0.001))
    await server.start()
    transport = httpx2.AsyncHTTPTransport(uds=str(tmp_path / "socket"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://server", timeout=60) as client:
        asking = asyncio.create_task(client.get("/"))
        await begun.wait()
        stopping = asyncio.create_task(server.stop(within_s))
        await asyncio.sleep(0)  # It has begun to stop.
        if within_s is not None:
            may_end.set()
        are_all_answered = await stopping
        (outcome,) = await asyncio.gather(asking, return_exceptions=True)

    assert are_all_answered is (within_s is not None)
    assert isinstance(outcome, httpx2.Response) is (within_s is not None), outcome
    listener.close()
