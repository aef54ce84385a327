"""Forwarded requests that a kill of the kernel or a pause by a person interrupts, and requests of real SDKs."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

import ramet
from ramet.core.events import Event, ModelAsked, ModelCharged
from ramet.core.lifecycle import State
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.support.providers import Call, provider
from tests.support.waiting import eventually
from tests.trips.agents import programs
from tests.trips.kits.forwarding import host_key, use_server
from tests.trips.kits.isolated import BackendName, backend, runtime

__all__ = ["backend", "host_key", "runtime"]

pytestmark = pytest.mark.usefixtures("host_key")

POLICY = ramet.Policy(models=["*"], memory_mb=768, pids=64)


async def test_a_request_that_a_kill_cut_off_counts_after_it(
    backend: BackendName, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel cannot know whether the request was answered: of two calls, one is left."""
    store = MemoryStore()
    limits = ramet.Limits(model_calls=2, tokens=100_000)
    async with provider(["a"] * 4) as server:
        use_server(monkeypatch, server.url)
        async with ramet.AgentRuntime(tmp_path, store=store, backend=backend) as runtime:
            arguments = ("anthropic", [programs.message(500)] * 2)
            await runtime.run_agent(agent=programs.ask, args=arguments, policy=POLICY, limits=limits)
        assert server.count == 2

        def is_first_request(event: Event) -> bool:
            return isinstance(event, ModelAsked)

        async with ramet.AgentRuntime(
            tmp_path, store=await cut_behind(store, is_first_request), backend=backend
        ) as runtime:
            [handle] = await runtime.resume()
            result = await handle.result()

    assert [each["status"] for each in result.value] == [200, 402], result
    assert server.count == 3
    assert result.usage.model_calls == 2
    assert result.usage.estimated
    assert 500 < result.usage.tokens < 700


async def test_a_request_that_a_pause_cut_is_made_again(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program does not see it: it waits for its one answer. The request that was cut counts."""
    async with provider(["a", "b"]) as server:
        use_server(monkeypatch, server.url)
        server.hold = asyncio.Event()
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message(500)]),
            policy=POLICY,
            limits=ramet.Limits(tokens=100_000),
        )
        await server.arrived(1)
        run_handle = runtime.get(handle.id)
        await run_handle.pause("wait", now=True)
        await eventually(lambda: run_handle.run.state is State.PAUSED)
        server.hold.set()
        assert server.count == 1
        await run_handle.resume()
        result = await handle.result()
        charged = [each async for each in handle.events() if isinstance(each, ModelCharged)]

    assert [each["status"] for each in result.output] == [200]
    assert server.count == 2
    assert [each.usage.estimated for each in charged] == [True, False]
    assert result.usage.model_calls == 2


async def test_real_sdks_work_with_the_endpoint(runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDKs of Anthropic and OpenAI ask, whole and streaming, and end at once where they are refused."""
    async with provider(["one", "two", "three", [Call("look", {"at": "x"})], "never"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=programs.ask_with_sdks, policy=POLICY, limits=ramet.Limits(model_calls=4)
        )

    assert result.output == ["one", "two", "three", "look", 402, 402], (result.error, result.stderr)
    assert server.count == 4
