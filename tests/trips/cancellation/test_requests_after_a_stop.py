"""A stop ends the requests of a whole tree at the provider, and its usage covers what the provider may have billed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from ramet import AgentRuntime, Limits, Session
from ramet.core.events import ModelAsked, ModelCharged
from ramet.core.outcome import Status
from ramet.core.replay.replay import TreeReplay
from ramet.models.rate_limit import RetryPolicy
from tests.support.providers import Cut, Fail, Hang, IncompleteStream, StreamError, provider
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    WIDE_LIMITS,
    has_no_reservation,
    of_kind,
    run_of,
    session_events,
    specialist_call,
)

CHILDREN = 8
FAULTS = [Cut(6, "half a word"), IncompleteStream(6, "half a word"), StreamError(6, "half a word"), Fail(500)]
#: The answers to later attempts: half of them hang in mid-stream, and half lead to one more attempt, or to the end.
SECOND = [Fail(500), Hang(6, "half a word")]


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
async def test_a_stop_among_retries_and_streams_ends_all_requests(kind: str) -> None:
    """After the stop no request is made and no stream is open. Usage, budget and journal have every request once."""
    numbers, refused = itertools.count(), list[int]()

    def answer(messages: list[BaseMessage]) -> Any:
        if not any("part" in str(each.text) for each in messages):
            return [specialist_call(f"part {number}") for number in range(CHILDREN)]
        number = next(numbers)
        step = FAULTS[number % len(FAULTS)] if number < CHILDREN else SECOND[number % 2]
        if isinstance(step, Fail):
            refused.append(number)
        return step

    async with provider(answer) as server:
        model = getattr(server, kind)(max_tokens=500)
        runtime = AgentRuntime(retry=RetryPolicy(attempts=3, base_s=0.001, jitter=0))
        limits = Limits(tokens=500_000, model_calls=60)
        async with Session(model, runtime=runtime, limits=limits, spawn_limits=WIDE_LIMITS) as session:
            turn = asyncio.create_task(session.ask("Go."))
            await server.arrived(1 + 2 * CHILDREN)

            await session.cancel("enough")

            count = server.count
            assert (await turn).status is Status.CANCELLED
            await eventually(lambda: server.hanging == 0)
            events, root = session_events(session), run_of(session, "main")
            asked, charged = of_kind(events, ModelAsked), of_kind(events, ModelCharged)
            usage, billed = root.subtree, [each.usage.tokens for each in charged if each.usage.tokens]
            assert count <= usage.model_calls == len(asked) == len(charged) + 1  # The root's own reply.
            assert set(billed) == {asked[1].reserved_tokens}  # The prompts are of one length.
            assert len(billed) >= count - 1 - len(refused)
            assert root.context.budget.spent_amount("tokens") == usage.tokens
            assert sum(run.usage.tokens for run in TreeReplay().apply_all(events).runs.values()) == usage.tokens
            assert has_no_reservation(session)
        await runtime.stop()
        assert server.count == count
