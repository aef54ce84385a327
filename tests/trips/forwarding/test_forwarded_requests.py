"""Model requests of a program in a sandbox: forwarded with the host's key, under the budget of its tree."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest

import ramet
from ramet.concurrency.clock import FakeClock
from ramet.core.events import BudgetRefused, Event, ForwardRefused, LimitPaused, ModelAsked, ModelCharged
from ramet.core.lifecycle import State
from ramet.host.forwarding.request_reservation import HOLD_S
from ramet.models.wires.input_estimate import estimate_tokens
from ramet.tools.forwarding import ForwardRights
from tests.support.http import Answer, Request, serve
from tests.support.providers import Fail, Hang, provider
from tests.support.waiting import eventually
from tests.trips.agents import programs
from tests.trips.kits.forwarding import KEY, create_file, grant_rights, host_key, use_server
from tests.trips.kits.isolated import BackendName, backend, runtime

__all__ = ["backend", "host_key", "runtime"]

pytestmark = pytest.mark.usefixtures("host_key")


async def events_of(handle: Any) -> list[Event]:
    return [each async for each in handle.events()]


def is_paused(runtime: ramet.AgentRuntime, handle: Any) -> bool:
    return runtime.get(handle.id).run.state is State.PAUSED


def of_kind(events: list[Event], kind: type[Any]) -> list[Any]:
    return [each for each in events if isinstance(each, kind)]


async def test_a_request_is_forwarded_with_the_key_of_the_host(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, host_key: str
) -> None:
    """The provider gets the request with the host's key; the usage in its stream is the run's."""
    async with provider(["Hello there."]) as server:
        use_server(monkeypatch, server.url)
        headers = {"anthropic-version": "2023-06-01", "cookie": "a=b", "x-other": "1", "authorization": "Bearer x"}
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message(stream=True)], "/v1/messages?beta=true&key=x", headers),
            policy=ramet.Policy(models=["*"]),
        )
        result = await handle.result()
        events = await events_of(handle)

    assert result.status == "completed", (result.error, result.stderr)
    (reply,) = result.output
    assert reply["status"] == 200
    assert "Hello " in reply["text"]
    assert "message_stop" in reply["text"]
    (request,) = server.requests
    assert request.path == "/v1/messages?beta=true"
    assert request.headers["x-api-key"] == host_key
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert {"cookie", "x-other", "authorization"}.isdisjoint(request.headers)
    assert [each.model for each in of_kind(events, ModelAsked)] == ["claude-sonnet-5-5"]
    assert [each.usage for each in of_kind(events, ModelCharged)] == [result.usage]
    assert result.usage.model_calls == 1
    assert result.usage.usd > 0
    assert not result.usage.estimated
    assert host_key not in repr(events)


async def test_a_limit_of_n_calls_lets_exactly_n_requests_through(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is refused in the provider's form, with the header that makes a program ask no more."""
    async with provider(["one", "two", "three", "four"]) as server:
        use_server(monkeypatch, server.url)
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message()] * 6),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(model_calls=3),
        )
        result = await handle.result()
        events = await events_of(handle)

    assert [each["status"] for each in result.output] == [200] * 3 + [402] * 3
    assert server.count == 3
    refused = result.output[-1]
    assert refused["headers"]["x-should-retry"] == "false"
    assert json.loads(refused["text"])["error"]["type"] == "billing_error"
    assert "model_calls" in refused["text"]
    assert result.usage.model_calls == 3
    assert len(of_kind(events, BudgetRefused)) == 1


@pytest.mark.parametrize(
    ("wire", "body", "member"),
    [
        ("anthropic", programs.message(128_000), "max_tokens"),
        ("openai", {"model": "gpt-5.4", "input": "hi"}, "max_output_tokens"),
    ],
)
async def test_the_maximum_of_output_is_lowered_to_what_is_left(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, wire: str, body: dict[str, Any], member: str
) -> None:
    """A program that asks for 128,000 tokens, or states no maximum, works with little money; the rest returns."""
    async with provider(["a", "b"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=programs.ask,
            args=(wire, [body, body]),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(usd=0.05),
        )

    assert [each["status"] for each in result.output] == [200, 200], result.output
    first, second = (each[member] for each in server.bodies)
    price = {"anthropic": 10, "openai": 15}[wire]
    assert 0.9 * 0.05 / price * 1e6 < first <= 0.05 / price * 1e6
    assert 0 < first - second < 300
    assert {**body, member: 0} == {**server.bodies[0], member: 0}
    assert 0 < result.usage.usd < 0.05


async def test_without_a_limit_a_request_passes_unchanged(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "gpt-5.4", "input": "hi", "tools": [{"type": "web_search"}]}
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(agent=programs.ask, args=("openai", [body]), policy=ramet.Policy(models=["*"]))

    assert result.output[0]["status"] == 200
    assert server.bodies == [body]


async def test_what_a_limit_cannot_bind_is_refused_under_one(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [
        programs.message(tools=[{"type": "web_search_20250305", "name": "w"}]),
        programs.message(10**10),
        {**programs.message(), "model": "a-model-without-a-price"},
    ]
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=programs.ask,
            args=("anthropic", bodies),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(usd=1),
        )

    assert server.count == 0
    assert [each["status"] for each in result.output] == [403] * 3
    for reply, name in zip(result.output, ("web_search", "max_tokens", "price"), strict=True):
        assert name in reply["text"]
    assert result.usage.model_calls == 0


async def test_a_request_below_its_budget_for_thinking_is_refused(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider would refuse a maximum below it, and thinking alone is worth nothing."""
    thinking = {"type": "enabled", "budget_tokens": 20_000}
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        bodies = [programs.message(30_000, thinking=thinking), programs.message(30_000)]
        result = await runtime.run_agent(
            agent=programs.ask,
            args=("anthropic", bodies),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(tokens=10_000),
        )

    assert [each["status"] for each in result.output] == [402, 200]
    assert "20000 for thinking" in result.output[0]["text"]


async def test_input_is_estimated_or_bounded(runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default about three bytes count as a token; without the estimate, each byte does."""
    reserved = []
    async with provider(["a", "b"]) as server:
        use_server(monkeypatch, server.url)
        for estimate in (True, False):
            grant_rights(monkeypatch, ForwardRights(models=("*",), estimate=estimate))
            handle = await runtime.start_agent(
                agent=programs.ask,
                args=("anthropic", [programs.message(100, "many words " * 300)]),
                policy=ramet.Policy(models=["*"]),
                limits=ramet.Limits(tokens=100_000),
            )
            await handle.result()
            reserved += [each.reserved_tokens - 100 for each in of_kind(await events_of(handle), ModelAsked)]

    sent = json.dumps(server.bodies[0]).encode()
    assert reserved[0] == pytest.approx(estimate_tokens(sent), abs=30)
    assert reserved[1] == pytest.approx(len(sent), abs=90)


async def test_an_image_is_refused_where_the_bound_is_certain(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    body = programs.message(100, [image])
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        replies = []
        for estimate in (False, True):
            grant_rights(monkeypatch, ForwardRights(models=("*",), estimate=estimate))
            result = await runtime.run_agent(
                agent=programs.ask,
                args=("anthropic", [body]),
                policy=ramet.Policy(models=["*"]),
                limits=ramet.Limits(tokens=9_000),
            )
            replies += result.output

    assert [each["status"] for each in replies] == [403, 200]
    assert "image" in replies[0]["text"]


async def test_requests_at_the_same_time_share_what_is_left(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request reserves all that is left; the others wait for its rest, and are not refused."""
    async with provider(["a", "b", "c", "d"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=programs.ask_at_once,
            args=("anthropic", [programs.message(128_000)] * 4),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(usd=0.05),
        )

    assert [each["status"] for each in result.output] == [200] * 4, result.output
    assert server.count == 4


async def test_a_run_without_the_right_is_denied(runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=programs.ask_directly, args=(), policy=ramet.Policy(), limits=ramet.Limits(model_calls=5)
        )

    assert result.output == "Denied"
    assert server.count == 0


@pytest.mark.parametrize(
    ("models", "status"),
    [(["anthropic:claude-sonnet-5-5"], 200), (["anthropic:*"], 200), (["anthropic:claude-opus*", "openai:*"], 403)],
)
async def test_a_run_may_ask_the_models_of_its_policy(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, models: list[str], status: int
) -> None:
    """Another model is refused in the provider's form, and nothing leaves the machine."""
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=programs.ask, args=("anthropic", [programs.message()]), policy=ramet.Policy(models=models)
        )

    assert [each["status"] for each in result.output] == [status]
    assert server.count == (status == 200)


async def test_refusals_of_the_host_have_the_providers_form(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing key is named by its variable, a model is named that is not accepted, other paths are not found."""
    runtime.gateway.accepted_models = {"anthropic:claude-sonnet-5-5"}
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        other = {**programs.message(), "model": "claude-opus-5-5"}
        model = await runtime.run_agent(
            agent=programs.ask, args=("anthropic", [other]), policy=ramet.Policy(models=["*"])
        )
        path = await runtime.run_agent(
            agent=programs.ask, args=("openai", [{}], "/v1/images/generations"), policy=ramet.Policy(models=["*"])
        )
        monkeypatch.delenv("ANTHROPIC_API_KEY")
        key = await runtime.run_agent(
            agent=programs.ask, args=("anthropic", [programs.message()]), policy=ramet.Policy(models=["*"])
        )

    replies = [each.output[0] for each in (model, path, key)]
    assert [each["status"] for each in replies] == [403, 404, 401]
    assert [json.loads(each["text"])["error"]["type"] for each in replies] == [
        "permission_error",
        "invalid_request_error",
        "authentication_error",
    ]
    assert "claude-opus-5-5" in replies[0]["text"]
    assert "ANTHROPIC_API_KEY" in replies[2]["text"]
    assert server.count == 0


async def test_errors_of_the_provider_pass_without_the_key(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, host_key: str
) -> None:
    """An error costs one call and no tokens; what the provider says of retries reaches the program.

    The first 429 is on record.
    """
    async with provider([Fail(429, retry_after_s=7), Fail(529), Fail(429)]) as server:
        use_server(monkeypatch, server.url)
        server.failure_headers = {"x-should-retry": "true", "set-cookie": "a=b", "request-id": "req_1"}
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message()] * 3),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(tokens=100_000),
        )
        result = await handle.result()
        refusals = of_kind(await events_of(handle), ForwardRefused)

    assert [each["status"] for each in result.output] == [429, 529, 429]
    assert [(each.model, each.by, each.wait_s) for each in refusals] == [("claude-sonnet-5-5", "provider", 7)]
    headers = result.output[0]["headers"]
    assert (headers["retry-after"], headers["x-should-retry"], headers["request-id"]) == ("7", "true", "req_1")
    assert "set-cookie" not in headers
    assert (result.usage.model_calls, result.usage.tokens, result.usage.usd) == (3, 0, 0)

    async def echo(request: Request, answer: Answer) -> None:
        await answer.send(401, {"error": f"wrong key {request.headers['x-api-key']}"})

    async with serve(echo) as url:
        use_server(monkeypatch, url)
        result = await runtime.run_agent(
            agent=programs.ask, args=("anthropic", [programs.message()]), policy=ramet.Policy(models=["*"])
        )

    assert result.output[0]["text"] == '{"error": "wrong key [key]"}'


async def test_a_provider_that_cannot_be_reached_costs_nothing(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, "http://127.0.0.1:1")
    result = await runtime.run_agent(
        agent=programs.ask,
        args=("anthropic", [programs.message()]),
        policy=ramet.Policy(models=["*"]),
        limits=ramet.Limits(tokens=100_000),
    )

    assert result.output[0]["status"] == 503
    assert "127.0.0.1" not in result.output[0]["text"]
    assert result.usage == ramet.Usage()


async def test_a_request_that_costs_nothing_is_not_counted_and_has_a_pace(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(_: Request, answer: Answer) -> None:
        await answer.send(200, {"input_tokens": 7})

    async with serve(count) as url:
        use_server(monkeypatch, url)
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [{"model": "claude-sonnet-5-5"}] * 90, "/v1/messages/count_tokens"),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(model_calls=0, usd=0),
        )
        result = await handle.result()
        events = await events_of(handle)

    statuses = [each["status"] for each in result.output]
    assert statuses[:60] == [200] * 60
    assert 429 in statuses
    assert of_kind(events, ModelAsked) == []
    assert [(each.model, each.by) for each in of_kind(events, ForwardRefused)] == [("anthropic", "host")]


async def test_no_key_of_the_host_is_in_the_sandbox(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, host_key: str
) -> None:
    async with provider(["a"]) as server:
        use_server(monkeypatch, server.url)
        result = await runtime.run_agent(
            agent=programs.find_in_memory,
            args=(host_key[::-1], programs.message(stream=True)),
            policy=ramet.Policy(models=["*"]),
        )

    assert server.requests[0].headers["x-api-key"] == host_key
    assert result.output == {"asked": True, "control": True, "environment": False, "memory": False}, result.stderr


async def test_a_request_at_a_limit_that_pauses_is_held_until_it_is_raised(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program waits for its answer, and its run is paused; no request is lost or made twice."""
    async with provider(["a", "b"]) as server:
        use_server(monkeypatch, server.url)
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message()] * 2),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(model_calls=1, at_limit="pause"),
        )
        await eventually(lambda: is_paused(runtime, handle))
        assert server.count == 1
        await runtime.get(handle.id).raise_limits(ramet.Limits(model_calls=1))
        result = await handle.result()
        events = await events_of(handle)

    assert [each["status"] for each in result.output] == [200, 200]
    assert server.count == 2
    assert len(of_kind(events, LimitPaused)) == 1


async def test_a_held_request_is_refused_after_a_minute(
    backend: BackendName, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that it holds nothing, and the run goes on with the refusal."""
    clock = FakeClock()
    async with (
        provider(["a"]) as server,
        ramet.AgentRuntime(tmp_path / "work", backend=backend, clock=clock) as runtime,
    ):
        use_server(monkeypatch, server.url)
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message()]),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(model_calls=0, at_limit="pause"),
        )
        await eventually(lambda: is_paused(runtime, handle))
        await clock.advance(HOLD_S - 1)
        assert is_paused(runtime, handle)
        await clock.advance(1)
        result = await handle.result()

    assert [each["status"] for each in result.output] == [402]
    assert "60 s" in result.output[0]["text"]
    assert server.count == 0
    assert result.usage == ramet.Usage()


async def test_output_is_lowered_at_a_limit_that_pauses_unless_too_little_is_left(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that asks for 128,000 tokens does not pause at once; with less than 4,096 left it does."""
    async with provider(["a", "b"]) as server:
        use_server(monkeypatch, server.url)
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message(128_000), programs.message(128_000)]),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(tokens=4_000, at_limit="pause"),
        )
        await eventually(lambda: is_paused(runtime, handle))
        assert server.count == 0
        await runtime.get(handle.id).raise_limits(ramet.Limits(tokens=1_000))
        result = await handle.result()

    assert [each["status"] for each in result.output] == [200, 200]
    assert all(4_096 <= each["max_tokens"] < 5_000 for each in server.bodies)


async def test_a_program_that_leaves_ends_its_request(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the provider is closed, and the whole reservation is settled as estimated."""
    async with provider([Hang(12, "Some words of a long reply.")]) as server:
        use_server(monkeypatch, server.url)
        handle = await runtime.start_agent(
            agent=programs.leave_in_the_middle,
            args=(programs.message(500, stream=True), "go"),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(tokens=100_000),
        )
        await asyncio.wait_for(server.client_left.wait(), 180)
        create_file(runtime, handle.id, "go")
        result = await handle.result()

    assert result.output == "event: mes"
    assert result.usage.estimated
    assert 500 < result.usage.tokens < 600


async def test_a_run_that_is_cancelled_ends_its_requests(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider([Hang(12, "Some words of a long reply.")]) as server:
        use_server(monkeypatch, server.url)
        handle = await runtime.start_agent(
            agent=programs.ask,
            args=("anthropic", [programs.message(500, stream=True)]),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(tokens=100_000),
        )
        await server.arrived(1)
        await handle.cancel("enough")
        result = await handle.result()
        await asyncio.wait_for(server.client_left.wait(), 180)

    assert result.status == "cancelled"
    assert result.usage.estimated
    assert 500 < result.usage.tokens < 600


async def test_more_requests_at_once_than_allowed_wait_inside(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint sends eight at a time; a guest that sends more is refused."""
    async with provider(["a"] * 20) as server:
        use_server(monkeypatch, server.url)
        server.hold = asyncio.Event()
        polite = await runtime.start_agent(
            agent=programs.ask_at_once, args=("anthropic", [programs.message()] * 10), policy=ramet.Policy(models=["*"])
        )
        await server.arrived(8)
        direct = await runtime.start_agent(agent=programs.flood, args=(9,), policy=ramet.Policy(models=["*"]))
        refused = await direct.result()
        server.hold.set()
        result = await polite.result()

    assert [each["status"] for each in result.output] == [200] * 10
    assert refused.output == [429]


async def test_requests_to_google_are_forwarded(runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum goes into `generationConfig`, the key into its header and never into the query."""
    requests: list[Request] = []

    async def generate(request: Request, answer: Answer) -> None:
        requests.append(request)
        usage = {"promptTokenCount": 40, "candidatesTokenCount": 3, "thoughtsTokenCount": 7}
        content = {"parts": [{"text": "hello"}], "role": "model"}
        await answer.start_stream()
        await answer.event({"candidates": [{"content": content}]})
        await answer.event({"candidates": [{"finishReason": "STOP"}], "usageMetadata": usage})
        await answer.end_stream()

    body = {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"temperature": 1}}
    path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    async with serve(generate) as url:
        use_server(monkeypatch, url)
        result = await runtime.run_agent(
            agent=programs.ask,
            args=("google", [body, body], path),
            policy=ramet.Policy(models=["*"]),
            limits=ramet.Limits(usd=0.05),
        )

    assert [each["status"] for each in result.output] == [200, 200], result.output
    assert "hello" in result.output[0]["text"]
    assert [each.path for each in requests] == [path, path]
    assert requests[0].headers["x-goog-api-key"] == KEY
    first, second = (each.body["generationConfig"] for each in requests)
    assert 0.9 * 0.05 / 2.5 * 1e6 < first["maxOutputTokens"] <= 0.05 / 2.5 * 1e6
    assert 0 < first["maxOutputTokens"] - second["maxOutputTokens"] < 100
    assert first["temperature"] == 1
    assert (result.usage.input_tokens, result.usage.output_tokens) == (80, 20)
