"""Replies of hostile providers to forwarded requests, and programs that do not read: all of it stays bounded."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import psutil
import pytest

import ramet
from ramet.host.forwarding import forwarder
from ramet.wire.guest_protocol.reply_window import WINDOW_BYTES
from tests.support.http import Answer, Request, serve
from tests.support.providers import provider
from tests.trips.agents import programs
from tests.trips.kits.forwarding import create_file, host_key, use_server
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "host_key", "runtime"]

pytestmark = pytest.mark.usefixtures("host_key")

POLICY = ramet.Policy(models=["*"], memory_mb=512)
LIMITS = ramet.Limits(tokens=100_000)
_MIB = 1024 * 1024


async def ask_once(runtime: ramet.AgentRuntime, **more: Any) -> Any:
    """Return the result of a program that asks once."""
    body = programs.message(500, **more)
    return await runtime.run_agent(agent=programs.ask, args=("anthropic", [body]), policy=POLICY, limits=LIMITS)


async def test_a_redirect_is_not_followed(runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other host gets the request and its key. It costs a call."""
    async with provider(["stolen"]) as other:

        async def redirect(_: Request, answer: Answer) -> None:
            await answer.send_text(307, "", {"location": f"{other.url}/v1/messages"})

        async with serve(redirect) as url:
            use_server(monkeypatch, url)
            result = await ask_once(runtime)

    assert other.count == 0
    assert result.output[0]["status"] == 503
    assert "location" not in result.output[0]["headers"]
    assert (result.usage.model_calls, result.usage.tokens) == (1, 0)


async def test_a_compressed_reply_is_passed_on_and_not_unpacked(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bomb harms nothing here. Its usage is unknown: the whole reservation is settled."""
    bomb = gzip.compress(b"0" * 200 * _MIB)

    async def answer_compressed(request: Request, answer: Answer) -> None:
        assert request.headers["accept-encoding"] == "identity"
        await answer.send_bytes(200, bomb, {"content-type": "application/json", "content-encoding": "gzip"})

    async with serve(answer_compressed) as url:
        use_server(monkeypatch, url)
        result = await runtime.run_agent(
            agent=programs.ask_size, args=(programs.message(500),), policy=POLICY, limits=LIMITS
        )

    assert result.output == [200, len(bomb), "gzip"]
    assert result.usage.estimated
    assert 500 < result.usage.tokens < 600


@pytest.mark.parametrize("ends", ["\n\n", ""])
async def test_an_event_of_a_hundred_megabytes_is_passed_over(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The kernel's memory does not grow with it, and a usage behind it counts."""
    piece, process, peak = "a" * _MIB, psutil.Process(), 0

    async def flood(request: Request, answer: Answer) -> None:
        nonlocal peak
        await answer.start_stream()
        await answer.event({"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}})
        await answer.piece("data: ")
        for _ in range(100):
            await answer.piece(piece)
            peak = max(peak, process.memory_info().rss)
        await answer.piece(ends)
        await answer.event({"type": "message_delta", "usage": {"output_tokens": 9}})
        await answer.end_stream()

    before = process.memory_info().rss
    async with serve(flood) as url:
        use_server(monkeypatch, url)
        result = await runtime.run_agent(
            agent=programs.ask_size, args=(programs.message(500, stream=True),), policy=POLICY, limits=LIMITS
        )

    assert result.output[1] > 100 * _MIB
    assert peak - before < 60 * _MIB
    assert result.usage.estimated is not bool(ends)
    assert (result.usage.tokens == 16) is bool(ends)


async def test_a_reply_without_an_end_is_cut(runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's connection breaks, and the whole reservation is settled."""
    monkeypatch.setattr(forwarder, "MAX_REPLY_BYTES", 2 * _MIB)
    is_over = asyncio.Event()

    async def stream_for_ever(_: Request, answer: Answer) -> None:
        try:
            await answer.start_stream()
            while True:
                await answer.piece("data: " + "a" * 60_000 + "\n\n")
        finally:
            is_over.set()

    async with serve(stream_for_ever) as url:
        use_server(monkeypatch, url)
        result = await runtime.run_agent(
            agent=programs.ask_size, args=(programs.message(500, stream=True),), policy=POLICY, limits=LIMITS
        )
        await asyncio.wait_for(is_over.wait(), 180)

    assert result.output == "IncompleteRead"
    assert result.usage.estimated
    assert 500 < result.usage.tokens < 600


@pytest.mark.parametrize("output", [-5, 1e30, "many", True, None])
async def test_a_usage_that_cannot_be_is_not_believed(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, output: object
) -> None:
    """The whole reservation is settled in its place."""

    async def answer_nonsense(_: Request, answer: Answer) -> None:
        usage = {"input_tokens": 5, "output_tokens": output}
        await answer.send(200, {"type": "message", "content": [], "usage": usage})

    async with serve(answer_nonsense) as url:
        use_server(monkeypatch, url)
        result = await ask_once(runtime)

    assert result.output[0]["status"] == 200
    assert result.usage.estimated
    assert 500 < result.usage.tokens < 600


async def test_a_connection_that_breaks_in_a_reply_breaks_for_the_program(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program takes a part of a reply for all of it."""

    async def break_off(_: Request, answer: Answer) -> None:
        await answer.start_stream()
        await answer.event({"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}})
        answer.break_off()

    async with serve(break_off) as url:
        use_server(monkeypatch, url)
        result = await runtime.run_agent(
            agent=programs.ask_size, args=(programs.message(500, stream=True),), policy=POLICY, limits=LIMITS
        )

    assert result.output == "IncompleteRead"
    assert result.usage.estimated


async def test_a_program_that_does_not_read_stops_its_provider(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 MiB only what fits into the windows is sent; once the program reads, it gets all of them."""
    sent = 0
    size = 64 * _MIB

    async def stream(request: Request, answer: Answer) -> None:
        nonlocal sent
        await answer.start_stream()
        for _ in range(size // 65_536):
            await answer.piece("a" * 65_536)
            sent += 65_536
        await answer.end_stream()

    async with serve(stream) as url:
        use_server(monkeypatch, url)
        handle = await runtime.start_agent(
            agent=programs.read_slowly, args=(programs.message(stream=True), "go"), policy=POLICY
        )
        before = -1
        async with asyncio.timeout(180):
            while sent == 0 or sent != before:
                before = sent
                for _ in range(200):  # Turns of the loop: more is sent in them, where something lets it.
                    await asyncio.sleep(0.001)
        assert 0 < sent < size / 2
        create_file(runtime, handle.id, "go")
        result = await handle.result()

    assert result.output == size, (result.error, result.stderr)
    assert WINDOW_BYTES < size / 100


async def test_the_body_of_a_large_request_passes(runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in chunks, and by a program that first asks whether it may continue."""
    async with provider(["a"] * 2) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(agent=programs.send_large, args=(8 * _MIB,), policy=POLICY)

    assert result.output == [200, 200], (result.error, result.stderr)
    assert [len(json.dumps(each)) > 8 * _MIB for each in server.bodies] == [True, True]


async def test_a_malformed_request_is_answered_and_ends_its_connection(runtime: ramet.AgentRuntime) -> None:
    requests = [
        "GET /anthropic/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET http://other/ HTTP/1.1\r\n\r\n",
        "POST /anthropic/v1/messages HTTP/1.1\r\nx-api-key: KEY\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        "POST /other/v1/messages HTTP/1.1\r\nx-api-key: KEY\r\ncontent-length: 2\r\n\r\n{}",
        "HEAD /anthropic HTTP/1.1\r\nconnection: close\r\n\r\n",
    ]
    result = await runtime.run_agent(agent=programs.ask_raw, args=(requests,), policy=POLICY)

    lines = [each.partition("\r\n")[0] for each in result.output]
    assert [line.split()[1] for line in lines] == ["401", "400", "400", "403", "200"], result.output
    assert "anthropic" in result.output[3]
