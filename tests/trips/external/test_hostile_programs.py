"""A program that has taken its driver over reaches no further than its own run: it is bounded, masked, and ended."""

from __future__ import annotations

import json

import pytest

import ramet
from ramet.core.errors import ProtocolError
from ramet.core.events import ApprovalAsked, ToolStarted
from ramet.core.ids import RunId
from ramet.core.outcome import Status
from ramet.host.external.program_finder import ProgramFinder
from ramet.spawn.external import program_requests
from tests.support import hostile_drivers
from tests.support.waiting import eventually
from tests.trips.kits.external import scripted
from tests.trips.kits.isolated import runtime
from tests.trips.kits.isolated import usual_backend as backend

__all__ = ["backend", "runtime"]

SECRET = "a-secret-of-the-sandbox-12345"


@pytest.mark.parametrize("attack", hostile_drivers.ATTACKS)
async def test_a_broken_rule_ends_the_run(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    """The run fails with the rule, its open calls are ended on record, and another run is not affected."""
    with monkeypatch.context() as patch:
        patch.setattr(program_requests, "MAX_REPORTS", 1_000)
        patch.setattr(ProgramFinder, "run", staticmethod(hostile_drivers.attack))
        handle = await runtime.start_agent(scripted(), prompt=attack)
        result = await handle.result()
        events = [event async for event in handle.events()]
    other = await runtime.run_agent(scripted(), prompt='[["say", "fine"]]')

    assert result.status is Status.FAILED, result
    assert result.error is not None
    assert result.error.type == ProtocolError.__name__
    started = [event for event in events if isinstance(event, ToolStarted)]
    assert len(started) <= 256
    assert other.output == "fine"


async def test_a_private_value_of_its_sandbox_is_masked_in_all_that_it_reports(
    runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, names, plans and texts are recorded and shown without it; a question is about what was asked."""
    monkeypatch.setattr(ProgramFinder, "run", staticmethod(hostile_drivers.forge))
    policy = ramet.Policy(env_vars={"TOKEN": SECRET})
    handle = await runtime.start_agent(scripted(), policy, prompt="forge")
    inbox = runtime.trees[RunId(handle.id)].inbox
    await eventually(lambda: inbox.pending)
    (entry,) = inbox.pending
    inbox.answer(entry.id, False, "no")
    result = await handle.result()
    events = [event async for event in handle.events()]

    assert result.status is Status.COMPLETED, (result.error, result.stderr)
    assert json.loads(result.output)["allowed"] is False
    assert SECRET not in str((entry.tool, entry.question, entry.args))
    assert SECRET not in str(events)
    assert [event for event in events if isinstance(event, ApprovalAsked)]


async def test_a_function_that_is_no_program_has_none_of_its_requests(runtime: ramet.AgentRuntime) -> None:
    """A plain function in a sandbox cannot ask the inbox."""
    result = await runtime.run_agent(asks_the_inbox, ramet.Policy())

    assert result.status is Status.FAILED
    assert result.error is not None
    assert "no program" in result.error.message


def asks_the_inbox() -> None:
    from ramet.guest.thread_channel import current_channel
    from ramet.wire.guest_protocol.guest_to_host import AskPermission

    current_channel().ask(AskPermission, call_id="1", tool="Bash")
