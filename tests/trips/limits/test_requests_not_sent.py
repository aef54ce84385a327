"""A request that no provider can have received costs nothing.

A request that one may have received costs all it could.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_openai import ChatOpenAI

from ramet import Agent, AgentRuntime, Limits, Session
from ramet.core.events import Event, ModelAsked, ModelCharged, ModelRetried, RunEnded
from ramet.core.outcome import NO_USAGE, Result, Status
from ramet.core.replay.replay import TreeReplay
from ramet.models.rate_limit import RetryPolicy
from ramet.models.scripted.model import Fail, ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support import broken_servers as servers
from tests.support.cut_journals import cut_behind
from tests.support.free_ports import free_port
from tests.support.providers import provider
from tests.support.waiting import eventually
from tests.trips.kits.sessions import WIDE_LIMITS, has_no_reservation, of_kind, run_of, session_events, specialist_call

LIMITS = Limits(tokens=1_000_000, usd=10.0, model_calls=50)
_paths = iter(range(1_000_000))


def client(kind: str, address: str, **more: Any) -> BaseChatModel:
    """Return a real client of this address."""
    # The SDKs cache HTTP clients by address, closed ones included, and ports come round again.
    url = f"{address}/{next(_paths)}"
    fields: dict[str, Any] = {"base_url": url, "api_key": "test", **more}
    if kind == "anthropic":
        return ChatAnthropic(**{"model": "claude-sonnet-5-5", **fields})
    return ChatOpenAI(model="gpt-5.4-mini", use_responses_api=kind == "responses", **fields)


def runtime(attempts: int = 2) -> AgentRuntime:
    return AgentRuntime(retry=RetryPolicy(attempts=attempts, base_s=0))


kinds = pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
ways = pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])


async def failed_turn(model: BaseChatModel, *, attempts: int = 2, limits: Limits = LIMITS) -> tuple[Result, Session]:
    """Return the result and session of a failed turn, after checking that budget and journal agree with its usage."""
    async with Session(model, runtime=runtime(attempts), limits=limits) as session:
        result = await session.ask("Go.")
        assert result.status is Status.FAILED
        assert has_no_reservation(session)
        budget = run_of(session, "main").context.budget
        assert budget.spent_amount("tokens") == result.usage.tokens
        assert budget.spent_amount("usd") == pytest.approx(result.usage.usd)
        assert budget.spent_amount("model_calls") == result.usage.model_calls
        assert TreeReplay().apply_all(session_events(session)).root.usage == result.usage
    return result, session


def error_message(result: Result) -> str:
    assert result.error is not None
    return result.error.message


# --- never sent


@kinds
@ways
async def test_a_refused_connection_costs_nothing(kind: str, streaming: bool) -> None:
    """The request is retried, and each attempt is refunded in full. The error names the address and the cause."""
    port = free_port()

    result, session = await failed_turn(client(kind, f"http://127.0.0.1:{port}", streaming=streaming))

    assert result.usage == NO_USAGE
    assert f"Connection refused 127.0.0.1:{port}" in error_message(result)
    assert len(of_kind(session_events(session), ModelAsked)) == 2
    assert [each.usage for each in of_kind(session_events(session), ModelCharged)] == [NO_USAGE] * 2
    assert len(of_kind(session_events(session), ModelRetried)) == 1


@kinds
@ways
async def test_an_unknown_host_costs_nothing(kind: str, streaming: bool) -> None:
    """The error has the name of the host."""
    result, _ = await failed_turn(client(kind, "http://nobody.invalid", streaming=streaming))

    assert result.usage == NO_USAGE
    assert "nobody.invalid:80" in error_message(result)
    assert "Name or service not known" in error_message(result) or "resolution" in error_message(result)


@kinds
@ways
async def test_a_failed_tls_handshake_costs_nothing(kind: str, streaming: bool) -> None:
    """The handshake comes before the request."""
    async with servers.broken(servers.speaks_no_tls) as server:
        result, _ = await failed_turn(client(kind, f"https://{server.address}", streaming=streaming))

    assert result.usage == NO_USAGE
    assert server.connections == 2
    assert f"{server.address}" in error_message(result)
    assert "TLS" in error_message(result)


@kinds
@pytest.mark.parametrize("address", ["ftp://127.0.0.1:9", "127.0.0.1:9"])
async def test_an_invalid_address_costs_nothing_and_is_not_retried(kind: str, address: str) -> None:
    """A retry cannot make the address valid."""
    result, session = await failed_turn(client(kind, address))

    assert result.usage == NO_USAGE
    assert len(of_kind(session_events(session), ModelAsked)) == 1
    assert "protocol" in error_message(result)


async def test_refused_connections_leave_the_budget_whole() -> None:
    """A budget of one dollar is still whole after eight prompts to a closed port."""
    model = client("chat", f"http://127.0.0.1:{free_port()}")
    async with Session(model, runtime=runtime(), limits=Limits(usd=1.0, tokens=1_000_000, model_calls=2)) as session:
        for _ in range(8):
            assert (await session.ask("Go.")).status is Status.FAILED
        budget = run_of(session, "main").context.budget

        assert [budget.spent_amount(each) for each in ("usd", "tokens", "model_calls")] == [0, 0, 0]
        assert budget.remaining("usd", is_final_answer=True) == 1.0
        assert session.usage == NO_USAGE


async def test_an_error_does_not_show_a_key_that_fits_no_header() -> None:
    """A key with a newline cannot be sent: nothing is spent, nothing is retried, and no error quotes it."""
    for kind in ("chat", "anthropic"):
        async with provider([]) as server:
            result, session = await failed_turn(client(kind, server.url, api_key="sk-secret\n"))

        assert (server.count, result.usage) == (0, NO_USAGE)
        assert len(of_kind(session_events(session), ModelAsked)) == 1
        assert "secret" not in str([repr(event) for event in session_events(session)])
        assert "header" in error_message(result)


# --- may have been received


@kinds
@ways
@pytest.mark.parametrize(
    "fault", [servers.closes_at_once, servers.closes_after_the_request, servers.resets_in_the_answer]
)
async def test_a_request_that_may_have_been_received_counts_as_reserved(
    kind: str, streaming: bool, fault: servers.Fault
) -> None:
    """Any data on an open connection may have been read, so the whole reservation counts.

    The error names the address.
    """
    async with servers.broken(fault) as server:
        result, session = await failed_turn(client(kind, f"http://{server.address}", streaming=streaming))

    model_requests = of_kind(session_events(session), ModelAsked)
    assert server.connections == len(model_requests) == 2
    assert result.usage.estimated
    assert result.usage.model_calls == 2
    assert result.usage.tokens == sum(each.reserved_tokens for each in model_requests) > 0
    assert result.usage.usd == pytest.approx(sum(each.reserved_usd for each in model_requests))
    assert server.address in error_message(result)


@pytest.mark.parametrize("kind", ["chat", "anthropic"])
async def test_an_unreadable_answer_counts_as_reserved(kind: str) -> None:
    """The client's own code fails after a 200. The cost is unknown, so all that was reserved counts."""
    async with servers.broken(servers.answers_a_page) as server:
        result, session = await failed_turn(client(kind, f"http://{server.address}", streaming=False))

    (request,) = of_kind(session_events(session), ModelAsked)
    assert server.connections == 1
    assert (result.usage.estimated, result.usage.tokens) == (True, request.reserved_tokens)


async def test_hidden_retries_of_a_model_all_count() -> None:
    """A model that retries by itself reports only its last attempt, so every possible attempt counts."""

    class Stubborn(BaseChatModel):
        """A model whose client asks up to four times."""

        model_name: str = "gpt-5.4-mini"
        max_retries: int = 3

        @property
        def _llm_type(self) -> str:
            return "stubborn"

        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise ConnectionRefusedError(111, "Connection refused")

    result, _ = await failed_turn(Stubborn(), attempts=1)

    assert (result.usage.model_calls, result.usage.estimated) == (4, True)


# --- errors of programs


@kinds
@ways
async def test_a_client_called_with_wrong_arguments_costs_nothing(kind: str, streaming: bool) -> None:
    """A TypeError of a client is neither retried nor charged."""
    async with provider([]) as server:
        model = client(kind, server.url, streaming=streaming, model_kwargs={"no_such_argument": 1})
        result, session = await failed_turn(model, attempts=4)

    assert (server.count, result.usage) == (0, NO_USAGE)
    assert len(of_kind(session_events(session), ModelAsked)) == 1
    assert "TypeError" in error_message(result)
    assert "no_such_argument" in error_message(result)


def broken_script(messages: list[BaseMessage]) -> str:
    return "Hello " + messages[0]  # type: ignore[operator]


@ways
@pytest.mark.parametrize(
    "script",
    [broken_script, [Fail(TypeError("wrong"))], [Fail(AttributeError("none"))], [Fail(KeyError("gone"))], []],
    ids=["function", "TypeError", "AttributeError", "KeyError", "ended"],
)
async def test_a_broken_script_costs_nothing(script: Any, streaming: bool) -> None:
    """An error of a scripted model, or the end of its script, is neither retried nor charged."""
    model = ScriptedModel(script, model_name="gpt-5.4-mini", streaming=streaming)

    result, session = await failed_turn(model, attempts=4)

    assert result.usage == NO_USAGE
    assert len(of_kind(session_events(session), ModelAsked)) == 1


async def test_a_scripted_connection_failure_counts_as_reserved() -> None:
    """A scripted lost answer is charged as a real one is."""
    result, _ = await failed_turn(ScriptedModel([Fail(TimeoutError("no answer"))] * 2, model_name="gpt-5.4-mini"))

    assert result.usage.estimated
    assert result.usage.model_calls == 2


# --- budgets and records


async def test_refunds_do_not_let_a_tree_exceed_its_limit() -> None:
    """Children with a closed port and children with answers together send no more requests than the limit allows."""
    children = 30

    def root(messages: list[BaseMessage]) -> Any:
        if any(each.type == "tool" for each in messages):
            return "a last word"
        return [specialist_call(f"part {at}", subagent_type="found" if at % 2 else "lost") for at in range(children)]

    async with provider(lambda messages: "found") as server:
        nowhere = client("chat", f"http://127.0.0.1:{free_port()}")
        unreachable = Agent(name="lost", description="Lost.", model=nowhere)
        reachable = Agent(name="found", description="Found.", model=server.openai())
        limits = Limits(model_calls=8)
        async with Session(
            ScriptedModel(root),
            agents=[unreachable, reachable],
            runtime=runtime(),
            limits=limits,
            spawn_limits=WIDE_LIMITS,
        ) as session:
            result = await session.ask("Go.")
            ends = [event.result.status for event in of_kind(session_events(session), RunEnded)]
            assert has_no_reservation(session)

    assert 0 < server.count <= 6  # The root has asked once, and has its last word.
    assert result.usage_subtree.model_calls == server.count + 2
    assert ends.count(Status.COMPLETED) == server.count


@pytest.mark.parametrize(("is_last", "calls"), [(ModelCharged, 0), (ModelAsked, 1)])
async def test_a_recorded_refund_survives_a_kill(is_last: type[Event], calls: int) -> None:
    """A recorded refund stays. A recorded request without an end counts as reserved."""
    store = MemoryStore()
    async with AgentRuntime(store=store, retry=RetryPolicy(attempts=3, base_s=0)) as first:
        model = client("chat", f"http://127.0.0.1:{free_port()}")
        await Session(model, runtime=first, limits=LIMITS, session_id="talk").ask("Go.")
    cut_store = await cut_behind(store, lambda event: isinstance(event, is_last), 2)

    async with AgentRuntime(store=cut_store) as second:
        session = await Session.resume("talk", ScriptedModel(["there"]), runtime=second)
        run = run_of(session, "main")
        await eventually(lambda: run.state == "idle" and str(session.messages[-1].text) == "there")

        assert session.usage.model_calls == 1 + calls
        assert session.usage.estimated is bool(calls)
        assert run.context.budget.spent_amount("model_calls") == session.usage.model_calls
        assert run.context.budget.spent_amount("tokens") == session.usage.tokens
        assert has_no_reservation(session)
