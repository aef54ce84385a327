"""A provider's report of usage is data of a stranger: one that cannot be true costs what was reserved."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from ramet import AgentRuntime, Limits, Session
from ramet.core.events import ModelAsked
from ramet.core.outcome import Status
from ramet.core.replay.replay import TreeReplay
from ramet.models.rate_limit import RetryPolicy
from tests.support.providers import Provider, provider
from tests.trips.kits.sessions import has_no_reservation, of_kind, run_of, session_events

TEXT = "What was asked for, in many words. " * 20
#: Reports by the wires' names of input and output.
REPORTS: list[dict[str, Any]] = [
    {"in": -5_000, "out": -5_000},
    {"in": 10**18, "out": 10**18},
    {"in": 10**30, "out": 40},
    {"in": 0, "out": 0},
    {"in": None, "out": None},
    {"in": 20, "out": 1},  # Too few tokens for so much text.
    {"out": 40},
    {},
]
NAMES = {"anthropic": ("input_tokens", "output_tokens"), "openai": ("prompt_tokens", "completion_tokens")}


def report(server: Provider, kind: str, figures: dict[str, Any]) -> None:
    """Let the server report these figures, wherever it reports usage."""
    names = dict(zip(("in", "out"), NAMES[kind], strict=True))
    usage = json.dumps({names[each]: figure for each, figure in figures.items()})

    def rewrite(_: int, event: str) -> Iterator[str]:
        yield re.sub(r'"usage": \{[^{}]*(\{[^{}]*\})?[^{}]*\}', f'"usage": {usage}', event)

    server.rewrite = rewrite


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_report_that_cannot_be_true_costs_the_reservation(kind: str) -> None:
    """The reply stays, usage, budget and journal have the reservation, and no report makes a request free."""
    async with provider([AIMessage(TEXT)] * len(REPORTS)) as server:
        model = getattr(server, kind)(max_tokens=1_000)
        runtime = AgentRuntime(retry=RetryPolicy(attempts=1))
        async with Session(model, runtime=runtime, spawn=False, limits=Limits(tokens=200_000, usd=9.0)) as session:
            for figures in REPORTS:
                report(server, kind, figures)
                before = session.usage
                result = await session.ask("Go.")

                asked = of_kind(session_events(session), ModelAsked)[-1]
                assert (result.status, result.value) == (Status.COMPLETED, TEXT), figures
                spent = session.usage - before
                assert (spent.tokens, spent.estimated) == (asked.reserved_tokens, True), figures
                assert spent.usd == pytest.approx(asked.reserved_usd)

            root = run_of(session, "main")
            assert root.subtree.model_calls == server.count == len(REPORTS)
            assert root.context.budget.spent_amount("tokens") == root.subtree.tokens
            assert TreeReplay().apply_all(session_events(session)).root.usage == root.subtree
            assert has_no_reservation(session)
        await runtime.stop()


async def test_a_report_of_output_alone_counts_where_nothing_is_limited() -> None:
    """Without a limit nothing is reserved: what is known of the usage is kept, marked as an estimate."""
    async with provider([AIMessage("Fine.")]) as server:
        report(server, "anthropic", {"out": 40})
        async with Session(server.anthropic(), spawn=False) as session:
            usage = (await session.ask("Go.")).usage

    assert (usage.tokens, usage.model_calls, usage.estimated) == (40, 1, True)
