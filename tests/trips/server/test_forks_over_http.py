"""Forks over HTTP: a new tree begins with the messages of a run, in a sandbox where the run had rights."""

from __future__ import annotations

from typing import Any

import pytest

from ramet import Agent
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import MessageRecorded
from ramet.services.client.client import Client
from tests.support.serving import EchoServer
from tests.trips.agents import scheduled


async def test_a_run_is_forked_over_http(echo_server: EchoServer, client: Client) -> None:
    """A fork begins with the messages up to an event, once for each key, and no run of it has more rights."""
    runtime, kernel = echo_server.server.runtime, client.kernel
    plain = await runtime.spawn(Agent(name="plain", model="offline", tools=[]), "What is here?")
    await plain.result()
    events = [each.event async for each in kernel.events(plain.id)]
    first_message = next(each.seq for each in events if isinstance(each, MessageRecorded))
    fork: dict[str, Any] = {"at": first_message, "limits": {"tokens": 90_000}, "idempotency_key": "once-and-no-more"}

    forked = await kernel.fork(plain.id, "And now?", **fork)

    assert forked == await kernel.fork(plain.id, "And now?", **fork)
    assert [each.id for each in await kernel.runs(ended=True)] == [plain.id, forked]
    assert [each.event async for each in kernel.events(forked, follow=True)], "until it has ended"
    assert runtime.journal is not None
    messages = (await runtime.journal.replay(forked)).root.messages
    assert [each["content"] for each in messages if each["type"] == "human"] == ["What is here?", "And now?"]
    assert [each["type"] for each in messages if each["type"] != "human"] == ["ai"], "the old answer came later"
    row = await kernel.run(forked)
    assert (row.root, row.sandbox, row.limits["tokens"].limit) == (forked, None, 90_000)

    # A run with tools may touch the machine: its fork works in a sandbox.
    able = await runtime.spawn(Agent(name="able", model="offline"), "What is here?")
    await able.result()
    other = await kernel.fork(able.id, "Once more.")
    assert [each.event async for each in kernel.events(other, follow=True)], "until it has ended"
    sandbox = (await kernel.run(other)).sandbox
    assert sandbox is not None
    assert (sandbox.backend, sandbox.memory_limit_mb) == ("bwrap", 256)

    # Refused, typed: nothing is spawned.
    function = await runtime.spawn(Agent(name="note", function=scheduled.note))
    await function.result()
    for run, error, wrong in (
        ("run-0", Unknown, {}),
        (function.id, InvalidValue, {}),
        (plain.id, InvalidValue, {"at": 0}),
        (plain.id, InvalidValue, {"limits": {"apples": 1}}),
    ):
        with pytest.raises(error):
            await kernel.fork(run, "And now?", **wrong)
    assert len(await kernel.runs(ended=True)) == 5
