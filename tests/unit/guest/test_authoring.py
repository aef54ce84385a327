"""Agents that a function creates inside its sandbox: requests to the host, and the use of its answers."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import Future, wait
from typing import Any

import msgspec
import pytest

from ramet.agent.definition import Agent
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import Denied, InvalidValue, RametError, SpawnRefused
from ramet.core.outcome import ErrorInfo
from ramet.core.recipe import Recipe
from ramet.guest import authoring
from ramet.guest import thread_channel as line
from ramet.guest.async_channel import AsyncChannel, End, RawAnswer
from ramet.guest.authoring import GUEST, to_json_data
from ramet.guest.thread_channel import ThreadOverAsync
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.answer_data import CreateReply, SpawnReply
from ramet.wire.guest_protocol.guest_to_host import CreateAgent, ListRuns, PerformTask
from ramet.wire.guest_protocol.host_to_guest import ChildEnded
from tests.unit.guest import authors
from tests.unit.guest.scripted_host import Host, guest
from tests.unit.guest.test_serve_link import Host as Listener
from tests.unit.guest.test_serve_link import open_link

REF = f"main@{'0' * 64}/solver@{'1' * 64}"


def accept_creation(host: Host) -> Recipe:
    """Answer the guest's next request, which must create an agent; return the recipe."""
    request, body = host.expect(CreateAgent)
    host.answer(request.id, CreateReply(ref=REF))
    return Recipe.from_entry(msgspec.json.decode(body))


def accept_task(host: Host, run: str) -> tuple[str, str, Any]:
    """Answer the guest's next request, which must start a task; return its parts."""
    request, body = host.expect(PerformTask)
    host.answer(request.id, SpawnReply(run=run, path=f"main/{run}", name=run))
    return request.ref, request.task, msgspec.json.decode(body)


def test_an_agent_is_sent_as_a_recipe_and_its_task_as_data() -> None:
    """The recipe has capabilities by name and types as data; the result has the types of the code."""
    with guest() as host:
        host.start(authors.makes_and_calls)
        recipe = accept_creation(host)
        assert accept_task(host, "r2") == (REF, "solve", {"equation": "x = 1", "guess": {"x": 2.0, "label": ""}})
        assert host.watched() == "r2"
        host.end_child("r2", [authors.Point(1.5, "a")])

        assert host.value() == [REF, 1.5, "a", "Point"]
    assert (recipe.name, recipe.primer) == ("solver", "You solve.")
    assert [each.data() for each in recipe.capabilities] == [{"type": "module", "name": "math", "include": ["sin"]}]
    assert recipe.tasks["solve"].docstring == "Solve it."
    assert set(recipe.types) == {"Point"}


def test_an_event_loop_can_await_agents_and_tasks() -> None:
    """`await` gives the value of a task, its handle, and its end."""
    with guest() as host:
        host.start(authors.awaits)
        accept_creation(host)
        for run, value in (("r2", 1.0), ("r3", 2.0)):
            accept_task(host, run)
            assert host.watched() == run
            host.end_child(run, [{"x": value}])

        assert host.value() == [1.0, 2.0, None]


def test_threads_of_the_code_reach_the_same_host() -> None:
    """A thread without context variables uses the host of the sandbox."""
    with guest() as host:
        host.start(authors.in_a_thread)
        accept_creation(host)
        accept_task(host, "r2")
        host.watched()
        host.end_child("r2", [{"x": 3.0}])

        assert host.value() == 3.0


def test_failures_are_typed() -> None:
    """A failed child and a value of a wrong type raise TaskFailed; an error of the host is raised as it was."""
    with guest() as host:
        host.start(authors.fails)
        for value, fields in (
            (None, {"status": "oom", "exit_code": 137, "error": ErrorInfo(type="OutOfMemory", message="too much")}),
            ("no list", {}),
        ):
            accept_creation(host)
            accept_task(host, f"r{value}")
            host.watched()
            host.end_child(f"r{value}", value, **fields)
        first, one, second, two = host.value()

    assert (first, one) == ("TaskFailed", "solve: too much")
    assert (second, "solve -> " in two) == ("TaskFailed", True)
    with guest() as host:
        host.start(authors.fails)
        for _ in range(2):
            request, _body = host.expect(CreateAgent)
            host.refuse(request.id, Denied("making agents", "no"))
        assert host.value() == ["Denied", "making agents denied: no"] * 2


def test_a_failed_item_of_a_map_does_not_lose_the_others() -> None:
    """The number of concurrent children is at most `max_parallel`, and the outcomes are in order."""
    with guest() as host:
        host.start(authors.maps)
        accept_creation(host)
        accept_task(host, "r1")
        assert host.watched() == "r1"
        accept_task(host, "r2")
        assert host.watched() == "r2"
        host.end_child("r2", [{"x": 2.0}])
        request, _ = host.expect(PerformTask)
        host.refuse(request.id, SpawnRefused("children", "none left"))
        host.end_child("r1", None, status="failed", exit_code=1, error=ErrorInfo(type="E", message="no"))

        assert host.value() == ["TaskFailed", 2.0, "SpawnRefused"]


def test_type_names_of_values_are_removed() -> None:
    """The received value is plain JSON data."""
    assert to_json_data([{"@type": "m.Point", "x": 1.0, "in": {"@type": "m.P"}}, (1, 2)]) == [
        {"x": 1.0, "in": {}},
        [1, 2],
    ]


# ---- the same, where an event loop has the channel


async def test_threads_ask_over_the_channel_of_a_loop() -> None:
    """The thread waits for its answer; a wrong argument leaves the channel usable."""
    async with open_link() as (link, host):
        adapter = ThreadOverAsync(link)
        asking = asyncio.create_task(asyncio.to_thread(adapter.ask, ListRuns))
        await host.hear()
        await host.answer(1, "here")

        assert (await asking).as_(msgspec.Raw) is not None
        with pytest.raises(InvalidValue, match="PerformTask"):
            await asyncio.to_thread(adapter.ask, PerformTask, ref=1, task="x")


async def test_the_event_loop_cannot_wait_for_the_host() -> None:
    """The call raises an error instead of a deadlock."""
    async with open_link() as (link, _):
        with pytest.raises(RametError, match="cannot wait"):
            ThreadOverAsync(link).ask(ListRuns)


async def test_a_forked_process_cannot_ask_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own process alone may ask."""
    async with open_link() as (link, _):
        line = ThreadOverAsync(link)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(RametError, match="forked"):
            await asyncio.to_thread(line.ask, ListRuns)


def test_an_ended_agent_cannot_ask_the_host() -> None:
    """A thread that the agent left gets an error."""

    async def make() -> tuple[ThreadOverAsync, AsyncChannel]:
        our_end, their_end = socket.socketpair()
        link = AsyncChannel(Listener(our_end))
        await link.open(their_end)
        line = ThreadOverAsync(link)
        await link.close()
        our_end.close()
        return line, link

    line, _ = asyncio.run(make())
    with pytest.raises(RametError, match="has ended"):
        line.ask(ListRuns)


class FewChildrenHost:
    """A host whose children end when they are waited for, the oldest first."""

    def __init__(self) -> None:
        self.ends: list[Future[End]] = []
        self.max_children = 0

    def ask(self, kind: Any, body: bytes = b"", **fields: Any) -> RawAnswer:
        """Spawn a child."""
        assert kind is PerformTask
        self.max_children = max(self.max_children, 1 + sum(not each.done() for each in self.ends))
        spawn_message = SpawnReply(run=f"r{len(self.ends)}", path="main/r", name="r")
        return RawAnswer(msgspec.Raw(message_codec.encode(spawn_message)), b"")

    def end_of(self, run: str) -> Future[End]:
        """Return the future of a child's end."""
        self.ends.append(Future())
        return self.ends[-1]

    def wait(self, living: Any, **options: Any) -> Any:
        """End the oldest child, or all children if the wait is for all."""
        pending = [each for each in self.ends if not each.done()]
        for each in pending[:1] if options else pending:
            each.set_result(END)
        return wait(living, **options)


END = End(ChildEnded(run="r", status="failed", exit_code=1), b"")


def test_a_map_runs_at_most_max_parallel_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next child starts when one has ended."""
    agent = Agent(name="solver", ref=AgentRef.parse(REF))

    @agent.task
    def solve(x: int) -> None:
        """Solve it."""

    line.override_channel(few := FewChildrenHost())
    monkeypatch.setattr(authoring, "wait", few.wait)
    try:
        outcomes = GUEST.map(solve, [{"x": n} for n in range(10)], max_parallel=2)
    finally:
        line.override_channel(None)

    assert [type(each.exception()).__name__ for each in outcomes] == ["TaskFailed"] * 10
    assert few.max_children == 2
