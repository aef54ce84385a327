"""Drivers of programs that break the rules of the channel, as a program could that has taken its driver over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from ramet.core.errors import RametError
from ramet.core.events import PlanStep
from ramet.guest.thread_channel import ThreadChannel, stream_channel
from ramet.wire.external_program import ProgramStart
from ramet.wire.guest_protocol.guest_to_host import (
    AskPermission,
    EndToolCall,
    ReportPlan,
    ReportSubAgent,
    ReportText,
    StartToolCall,
)


def begins_a_call_twice(channel: ThreadChannel) -> None:
    for _ in range(2):
        channel.ask(StartToolCall, call_id="1", tool="Bash")


def ends_a_call_that_never_began(channel: ThreadChannel) -> None:
    channel.post(EndToolCall(call_id="1", status="ok"))


def leaves_too_many_calls_open(channel: ThreadChannel) -> None:
    for number in range(300):
        channel.ask(StartToolCall, call_id=str(number), tool="Bash")


def claims_another_status(channel: ThreadChannel) -> None:
    channel.ask(StartToolCall, call_id="1", tool="Bash")
    channel.channel.write(json.dumps({"type": "end_tool_call", "call_id": "1", "status": "approved"}).encode())


def names_a_tool_at_length(channel: ThreadChannel) -> None:
    control = {"type": "start_tool_call", "id": 1, "call_id": "1", "tool": "x" * 100_000}
    channel.channel.write(json.dumps(control).encode())


def plans_without_end(channel: ThreadChannel) -> None:
    control = {"type": "report_plan", "steps": [{"text": "x"}] * 1_000}
    channel.channel.write(json.dumps(control).encode())


def floods_reports(channel: ThreadChannel) -> None:
    for number in range(3_000):
        channel.post(ReportPlan(steps=(PlanStep(text=str(number % 2)),)))


#: Those that end the run.
ATTACKS: dict[str, Callable[[ThreadChannel], None]] = {
    each.__name__: each
    for each in (
        begins_a_call_twice,
        ends_a_call_that_never_began,
        leaves_too_many_calls_open,
        claims_another_status,
        names_a_tool_at_length,
        plans_without_end,
        floods_reports,
    )
}


async def attack(start: ProgramStart, prompt: str, resumes: bool) -> str:
    """Attack the host as the prompt says, then wait for its answer to an honest request."""
    channel = stream_channel()
    assert isinstance(channel, ThreadChannel)
    try:
        ATTACKS[prompt](channel)
        channel.ask(StartToolCall, call_id="last", tool="Read")
    except RametError as error:
        return f"refused: {error}"
    return "the host went on"


async def forge(start: ProgramStart, prompt: str, resumes: bool) -> str:
    """Report texts with a private value of the sandbox, and ask for a call under another name than it began."""
    channel = stream_channel()
    assert isinstance(channel, ThreadChannel)
    secret = os.environ["TOKEN"]
    channel.ask(StartToolCall, call_id="1", tool="Read", args={"path": secret})
    answer: Any = channel.ask(AskPermission, call_id="1", tool=f"Bash {secret}", args={"command": secret})
    channel.post(ReportSubAgent(sub_agent="a", title=secret, state="running"))
    channel.post(ReportPlan(steps=(PlanStep(text=secret),)))
    channel.post(ReportText(text=secret))
    channel.post(EndToolCall(call_id="1", status="ok", preview=secret))
    channel.ask(StartToolCall, call_id="2", tool="Read")
    return bytes(answer.data).decode()
