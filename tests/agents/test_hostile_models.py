"""The real programs as agents of a tree, whose model provider is hostile: how it ends, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import ramet
from ramet.core.events import ModelAsked, ModelCharged
from ramet.core.outcome import Status
from ramet.host.forwarding import forwarder
from ramet.models.wires import usage_reader
from tests.agents.scripts import each, write_call
from tests.agents.test_in_tree import AGENTS, agent_of, installed_programs, of_kind, runtime
from tests.support.agent_programs import INSTALLED, Program
from tests.support.providers import Endless, Step, provider
from tests.support.waiting import eventually
from tests.trips.kits.forwarding import host_key, use_server

__all__ = ["host_key", "installed_programs", "runtime"]

pytestmark = pytest.mark.usefixtures("host_key")

Rewrite = Callable[[int, str], Iterable[str]]
_MIB = 1024 * 1024
#: The usage of one reply after the other: none, and numbers that cannot be. A program that fails at one asks no more.
USAGES = (None, -5, 0, 10**12, "many")
LARGE = "a-text-of-a-hundred-megabytes"


class Attack:
    """A hostile provider: it looks at the processes of the program and at the host's memory while it answers."""

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        self.processes: set[psutil.Process] = set()
        self.memory: list[int] = []  #: of this process, which is the host, before each piece that was sent

    def rewrite(self, request: int, event: str) -> Iterator[str]:
        """Yield the pieces of an event."""
        if not self.processes:
            self.processes |= processes_of_programs()
        for piece in self._rewrite(request, event):
            self.memory.append(psutil.Process().memory_info().rss)
            yield piece

    async def run(
        self, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, agent: ramet.Agent, *steps: Step, calls: int
    ) -> ramet.AgentResult:
        """Run an agent whose model answers with these steps; return its result once no process is left.

        Each of its requests was charged as much as was reserved for it.
        """
        async with provider({"": steps}) as server:
            server.rewrite = self.rewrite
            use_server(monkeypatch, server.url)
            limits = ramet.Limits(model_calls=calls, tokens=5_000_000, seconds=90)
            handle = await runtime.start_agent(agent, prompt="Please [work].", limits=limits)
            result = await handle.result()
            events = [event async for event in handle.events()]

        assert self.processes
        await eventually(lambda: not any(each.is_running() for each in self.processes))
        reserved = {event.step_id: event.reserved_tokens for event in of_kind(events, ModelAsked)}
        charged = {event.step_id: event.usage for event in of_kind(events, ModelCharged)}
        assert {step: usage.tokens for step, usage in charged.items()} == reserved
        assert all(usage.estimated for usage in charged.values())
        assert len(reserved) == len(server.generations) == result.usage.model_calls <= calls
        assert result.usage.tokens == sum(reserved.values())
        return result


def processes_of_programs() -> set[psutil.Process]:
    """Return the processes of installed programs that this process, or one of its children, has started."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if str(INSTALLED) in " ".join(process.cmdline()):
                found.add(process)
        except psutil.Error:
            continue
    return found


def endless_event(_: int, event: str) -> Iterable[str]:
    """Return the pieces of an event, a hundred megabytes in it."""
    before, large, after = event.partition(LARGE)
    return (before, *(["a" * 65_536] * 1_600), after) if large else (event,)


@each(tuple(AGENTS))
@pytest.mark.parametrize("of_one_event", [False, True], ids=["of_events", "of_one_event"])
async def test_a_reply_without_an_end_is_cut(
    program: Program, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch, of_one_event: bool
) -> None:
    """The bound of the gateway ends each reply, or the program ends it. The host holds none of it."""
    monkeypatch.setattr(forwarder, "MAX_REPLY_BYTES", (8 if of_one_event else 4) * _MIB)
    monkeypatch.setattr(usage_reader, "MAX_EVENT_BYTES", _MIB)
    attack = Attack(endless_event if of_one_event else lambda _, event: (event,))
    reply = Endless(text=LARGE if of_one_event else "And on, and on, and nowhere an end. " * 40)
    result = await attack.run(runtime, monkeypatch, agent_of(program, permission_mode="allow"), *[reply] * 9, calls=2)

    assert result.status in (Status.FAILED, Status.BUDGET_EXHAUSTED, Status.OOM), (result.error, result.stderr)
    assert max(attack.memory) - attack.memory[0] < 5 * _MIB


def wrong_usage(request: int, event: str) -> Iterable[str]:
    """Return an event with the wrong usage of this reply."""
    name, data, body = event.partition("data: ")
    return (f"{name}{data}{json.dumps(_with_usage(json.loads(body), USAGES[min(request, len(USAGES)) - 1]))}\n\n",)


def _with_usage(value: Any, number: object) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {name: each for name, each in value.items() if number is not None or name not in ("usage", "usageMetadata")}
    return {
        name: {key: number if isinstance(old, int) else old for key, old in each.items()}
        if name in ("usage", "usageMetadata") and isinstance(each, dict)
        else _with_usage(each, number)
        for name, each in kept.items()
    }


@each(tuple(AGENTS))
async def test_a_usage_that_cannot_be_costs_what_was_reserved(
    program: Program, runtime: ramet.AgentRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request for request. The program works on as long as it can bear such numbers itself."""
    steps = [write_call(program.name, Path(f"note-{number}.txt"), "x" * 300) for number in range(4)]
    agent = agent_of(program, permission_mode="allow")
    result = await Attack(wrong_usage).run(runtime, monkeypatch, agent, *steps, "It is done. " * 30, calls=5)

    assert result.status in (Status.COMPLETED, Status.FAILED, Status.BUDGET_EXHAUSTED), (result.error, result.stderr)
    assert result.usage.model_calls >= 3
    assert "note-0.txt" in [each.name for each in result.artifacts]
