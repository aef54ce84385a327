"""Metrics of an active server, scraped over HTTP, and the keys that may read them."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import Callable
from contextlib import aclosing

import ramet
from ramet import Agent, Limits, ScriptedModel
from ramet.core.errors import SpawnRefused
from ramet.core.limits import SpawnLimits
from ramet.core.policy.policy import Policy
from ramet.core.safety import Rule, SafetyPolicy
from ramet.host.safety.gate import SafetyGate
from ramet.models.scripted.dialogue import Call, Script
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.support.prometheus import Scrape, scrape
from tests.support.serving import EchoServer, serving
from tests.trips.kits.safety import RecordingTools


async def scrape_once(echo_server: EchoServer, key: str = "") -> Scrape:
    """Scrape the metrics once."""
    answer = await echo_server.ask("GET", "/metrics", key)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return scrape(answer.text)


async def scrape_until(echo_server: EchoServer, holds: Callable[[Scrape], object]) -> Scrape:
    """Scrape with the operator's key until a condition holds, and return that scrape."""
    async with asyncio.timeout(180):
        while True:
            metrics = await scrape_once(echo_server, echo_server.server.operator)
            if holds(metrics):
                return metrics
            await asyncio.sleep(0.01)


async def test_the_activity_of_a_tree_is_counted(echo_server: EchoServer) -> None:
    """Metrics count spawns, ends, turns, calls, tokens, gate decisions and journal events, and show the kept tree."""
    runtime, operator, recording = echo_server.server.runtime, echo_server.server.operator, RecordingTools()
    policy = SafetyPolicy(rules=(Rule(tool="delete", verdict="deny", reason="no"),), otherwise="allow")
    script: Script = {"go": [Call("look", {"path": "a"}), Call("delete", {"path": "a"}), "done"]}
    agent = Agent(name="worker", model=ScriptedModel(script=script))
    before = await scrape_once(echo_server, operator)

    handle = await runtime.spawn(agent, "go", tools=recording.tools, gate=SafetyGate(policy))
    result = await handle.result()
    after = await scrape_once(echo_server, operator)

    assert result.status == "completed"
    assert before.value("ramet_runs_spawned_total") == 0
    assert after.value("ramet_runs_spawned_total") == after.value("ramet_runs_ended_total", status="completed") == 1
    assert after.value("ramet_turns_total", status="completed") == 1
    assert after.value("ramet_run_start_seconds_count") == after.value("ramet_turn_seconds_count") == 1
    assert (before.value("ramet_trees_kept"), after.value("ramet_trees_kept")) == (0, 1)
    assert after.value("ramet_model_requests_total") == result.usage.model_calls == 3
    assert after.value("ramet_tokens_total", kind="output") == result.usage.output_tokens > 0
    assert after.value("ramet_tokens_total", kind="input") == result.usage.input_tokens > 0
    assert after.value("ramet_gate_decisions_total", decision="committed") == 1
    assert after.value("ramet_gate_decisions_total", decision="refused") == 1
    assert sum(value for (name, _), value in after.values.items() if name == "ramet_tool_calls_total") == 2
    events = after.value("ramet_journal_events_total", store="sqlite")
    assert after.value("ramet_journal_lag_seconds_count") == events - after.value(
        "ramet_journal_waiting", store="sqlite"
    )
    assert 0 < after.value("ramet_journal_commits_total", store="sqlite") <= events
    assert recording.calls == ["look a"]


async def test_agents_and_teams_are_shown_while_they_exist(echo_server: EchoServer) -> None:
    """Metrics also have the memory and the open files of the process."""
    operator = echo_server.server.operator
    agent, nonce = await echo_server.agent()

    during = await scrape_once(echo_server, operator)
    await echo_server.ask("DELETE", f"/v1/agents/{agent}", nonce)
    after = await scrape_once(echo_server, operator)

    assert (during.value("ramet_agents", state="idle"), during.value("ramet_teams_with_agents")) == (1, 1)
    assert (after.value("ramet_agents", state="idle"), after.value("ramet_teams_with_agents")) == (0, 0)
    assert during.value("process_resident_memory_bytes") > 1_000_000
    assert during.value("process_open_fds") > 3


async def test_disk_usage_is_shown(echo_server: EchoServer) -> None:
    """Metrics have the journal's files and the parts of the folder. The names of parts are fixed."""
    await echo_server.agent()

    metrics = await scrape_until(echo_server, lambda metrics: metrics.value("ramet_folder_bytes", part="journal"))

    assert metrics.value("ramet_journal_bytes", file="database") > 0
    assert metrics.value("ramet_journal_bytes", file="wal") > 0
    parts = {dict(labels)["part"] for name, labels in metrics.values if name == "ramet_folder_bytes"}
    assert parts <= {"agents", "journal", "other", "packaging", "runs", "transcripts", "worktrees", "pod-listener"}


async def test_the_lag_of_the_event_loop_is_sampled(echo_server: EchoServer) -> None:
    """A server samples the lag while it runs."""
    await scrape_until(echo_server, lambda metrics: metrics.value("ramet_event_loop_lag_seconds_count") >= 2)


async def test_unread_mail_is_counted_until_it_is_read(echo_server: EchoServer) -> None:
    """A message to an active agent waits until its tool call ends."""
    runtime, operator = echo_server.server.runtime, echo_server.server.operator
    has_entered, end_event = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        """Wait to be told."""
        has_entered.set()
        await end_event.wait()
        return "done"

    script: Script = {"go": [Call("waits", {}), "done"]}
    handle = await runtime.spawn(Agent(name="worker", model=ScriptedModel(script=script)), "go", tools=[waits])
    await has_entered.wait()
    runtime.get(handle.id).send("a word")
    during = await scrape_once(echo_server, operator)
    end_event.set()
    await handle.result()
    after = await scrape_once(echo_server, operator)

    assert (during.value("ramet_mail_unread"), after.value("ramet_mail_unread")) == (1, 0)


async def test_an_open_stream_is_counted_until_it_ends(echo_server: EchoServer) -> None:
    """The stream of a turn counts up to its end."""
    operator = echo_server.server.operator
    agent, nonce = await echo_server.agent()
    async with ramet.connect(echo_server.server.listen_address) as client:
        async with aclosing(client.turn(agent, b"one wait", key=nonce)) as chunks:
            await anext(chunks)
            during = await scrape_once(echo_server, operator)
            await client.interrupt(agent, key=nonce)
            assert [each async for each in chunks]

    assert during.value("ramet_streams_open") == 1
    await scrape_until(echo_server, lambda metrics: not metrics.value("ramet_streams_open"))


async def test_sandboxes_are_counted_living_and_parked(folder: pathlib.Path) -> None:
    """A function works in one sandbox, while others are parked for later runs."""
    async with serving(folder, backend="local") as echo_server:
        runtime, operator = echo_server.server.runtime, echo_server.server.operator
        handle = await runtime.spawn(wait_forever, policy=Policy())
        metrics = await scrape_until(
            echo_server,
            lambda metrics: all(metrics.value("ramet_sandboxes", state=each) for each in ("living", "parked")),
        )
        await handle.cancel()
        after = await scrape_once(echo_server, operator)

    assert metrics.value("ramet_sandboxes", state="living") == 1
    assert after.value("ramet_sandboxes", state="living") == 0


def wait_forever() -> None:
    """Work without end, in a sandbox."""
    threading.Event().wait()


async def test_a_budget_refusal_is_counted(echo_server: EchoServer) -> None:
    """The count is labelled with the resource."""
    script: Script = {"go": [Call("nothing", {}), Call("nothing", {}), "done"]}
    agent = Agent(name="worker", model=ScriptedModel(script=script), limits=Limits(model_calls=1))

    await (await echo_server.server.runtime.spawn(agent, "go")).result()

    metrics = await scrape_once(echo_server, echo_server.server.operator)
    assert metrics.value("ramet_budget_refusals_total", resource="model_calls") >= 1


async def spawn_itself() -> str:
    """Spawn another run of this function, as deep as the limits allow."""
    context = current()
    assert context.tree is not None, "it is in a tree"
    try:
        return str((await (await context.tree.spawn(context, SpawnRequest(agent=spawn_itself))).result()).value)
    except SpawnRefused as refusal:
        return refusal.limit


async def test_a_refused_spawn_is_counted(echo_server: EchoServer) -> None:
    """The count is labelled with the limit."""
    result = await (await echo_server.server.runtime.spawn(spawn_itself, spawn_limits=SpawnLimits(depth=1))).result()

    metrics = await scrape_once(echo_server, echo_server.server.operator)
    assert result.value == "depth"
    assert metrics.value("ramet_spawn_refusals_total", limit="depth") == 1


async def test_requests_are_counted_by_route_and_status(echo_server: EchoServer) -> None:
    """A label never holds a path or a method that a client made up."""
    agent, nonce = await echo_server.agent()
    await echo_server.ask("GET", f"/v1/agents/{agent}", nonce)
    for method, path in (("GET", "/made/up"), ("PATCH", "/healthz"), ("GET", f"/v1/agents/{agent}")):
        await echo_server.ask(method, path)

    metrics = await scrape_once(echo_server, echo_server.server.operator)

    def count(**labels: str) -> float:
        return metrics.value("ramet_http_requests_total", **labels)

    assert count(method="GET", path="/v1/agents/{agent}", status="200") == 1
    assert count(method="GET", path="/v1/agents/{agent}", status="401") == 1
    assert count(method="other", path="/healthz", status="405") == 1
    assert count(method="other", path="other", status="404") == 1
    assert metrics.value("ramet_http_request_seconds_count", path="/v1/agents/{agent}") == 2
    assert metrics.value("ramet_http_requests_under_way") == 1  # this one
    assert not [labels for _, labels in metrics.values if "made" in str(labels) or agent in str(labels)]


async def test_only_the_operator_reads_metrics(echo_server: EchoServer) -> None:
    """A request without a valid key gets 401, and any other key gets 404."""
    _, nonce = await echo_server.agent()

    assert (await echo_server.ask("GET", "/metrics")).status_code == 401
    assert (await echo_server.ask("GET", "/metrics", nonce)).status_code == 404
    assert (await echo_server.ask("GET", "/metrics", "made up, but long enough")).status_code == 401


async def test_metrics_can_be_public(folder: pathlib.Path) -> None:
    """Public metrics need no key, and any key is ignored."""
    async with serving(folder, public_metrics=True) as echo_server:
        metrics = await scrape_once(echo_server)
        await scrape_once(echo_server, "made up, but long enough")

    assert metrics.kinds["ramet_trees"] == "gauge"


async def test_each_server_starts_its_counts_at_zero(folder: pathlib.Path) -> None:
    """Counts belong to one server process."""
    for _ in range(2):
        async with serving(folder, public_metrics=True) as echo_server:
            assert (await scrape_once(echo_server)).value("ramet_http_request_seconds_count", path="/metrics") == 0
            assert (await scrape_once(echo_server)).value("ramet_http_request_seconds_count", path="/metrics") == 1
