"""What monitoring sees of a server at work, scraped over HTTP; and who may see it."""

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
from ramet.tools.context import SpawnRequest, current
from tests.support.prometheus import Scrape, scrape
from tests.support.serving import Served, serving
from tests.trips.kits.safety import Deeds


async def scraped(served: Served, key: str = "") -> Scrape:
    """One scrape."""
    answer = await served.ask("GET", "/metrics", key)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return scrape(answer.text)


async def scraped_when(served: Served, holds: Callable[[Scrape], object]) -> Scrape:
    """The first scrape of which this holds, scraped with the operator's key."""
    async with asyncio.timeout(180):
        while True:
            found = await scraped(served, served.server.operator)
            if holds(found):
                return found
            await asyncio.sleep(0.01)


async def test_what_a_tree_does_is_counted(served: Served) -> None:
    """Births, ends, turns, calls, tokens, the gate's word, and the journal; what lives is there while it does."""
    runtime, operator, deeds = served.server.runtime, served.server.operator, Deeds()
    policy = SafetyPolicy(rules=(Rule(tool="delete", verdict="deny", reason="no"),), otherwise="allow")
    script: Script = {"go": [Call("look", {"path": "a"}), Call("delete", {"path": "a"}), "done"]}
    agent = Agent(name="worker", model=ScriptedModel(script=script))
    before = await scraped(served, operator)

    handle = await runtime.spawn(agent, "go", tools=deeds.tools, gate=SafetyGate(policy))
    result = await handle.result()
    after = await scraped(served, operator)

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
    assert deeds.done == ["look a"]


async def test_what_is_there_now(served: Served) -> None:
    """Agents and teams, and a run that waits, as long as they are there."""
    operator = served.server.operator
    agent, nonce = await served.agent()

    during = await scraped(served, operator)
    await served.ask("DELETE", f"/v1/agents/{agent}", nonce)
    after = await scraped(served, operator)

    assert (during.value("ramet_agents", state="idle"), during.value("ramet_teams_with_agents")) == (1, 1)
    assert (after.value("ramet_agents", state="idle"), after.value("ramet_teams_with_agents")) == (0, 0)
    assert during.value("process_resident_memory_bytes") > 1_000_000
    assert during.value("process_open_fds") > 3


async def test_what_the_disk_has_is_there(served: Served) -> None:
    """The journal's files at once, and the folder's parts once they are measured; parts have fixed names."""
    await served.agent()

    found = await scraped_when(served, lambda found: found.value("ramet_folder_bytes", part="journal"))

    assert found.value("ramet_journal_bytes", file="database") > 0
    assert found.value("ramet_journal_bytes", file="wal") > 0
    parts = {dict(labels)["part"] for name, labels in found.values if name == "ramet_folder_bytes"}
    assert parts <= {"agents", "journal", "other", "packaging", "runs", "transcripts", "worktrees", "door"}


async def test_the_event_loop_is_sampled(served: Served) -> None:
    """As long as the server is there."""
    await scraped_when(served, lambda found: found.value("ramet_event_loop_lag_seconds_count") >= 2)


async def test_unread_mail_is_counted_until_it_is_read(served: Served) -> None:
    """A word for an agent at work waits until its tool is done."""
    runtime, operator = served.server.runtime, served.server.operator
    inside, over = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        """Wait to be told."""
        inside.set()
        await over.wait()
        return "done"

    script: Script = {"go": [Call("waits", {}), "done"]}
    handle = await runtime.spawn(Agent(name="worker", model=ScriptedModel(script=script)), "go", tools=[waits])
    await inside.wait()
    runtime.get(handle.id).send("a word")
    during = await scraped(served, operator)
    over.set()
    await handle.result()
    after = await scraped(served, operator)

    assert (during.value("ramet_mail_unread"), after.value("ramet_mail_unread")) == (1, 0)


async def test_a_stream_is_open_as_long_as_it_is_read(served: Served) -> None:
    """A turn's, to its end."""
    operator = served.server.operator
    agent, nonce = await served.agent()
    async with ramet.connect(served.server.where) as client:
        async with aclosing(client.turn(agent, b"one wait", key=nonce)) as chunks:
            await anext(chunks)
            during = await scraped(served, operator)
            await client.interrupt(agent, key=nonce)
            assert [each async for each in chunks]

    assert during.value("ramet_streams_open") == 1
    await scraped_when(served, lambda found: not found.value("ramet_streams_open"))


async def test_sandboxes_are_counted_living_and_parked(folder: pathlib.Path) -> None:
    """Of a function that works in one; beside it others are made ready."""
    async with serving(folder, backend="local") as served:
        runtime, operator = served.server.runtime, served.server.operator
        handle = await runtime.spawn(asks_to_wait, policy=Policy())
        found = await scraped_when(
            served, lambda found: all(found.value("ramet_sandboxes", state=each) for each in ("living", "parked"))
        )
        await handle.cancel()
        after = await scraped(served, operator)

    assert found.value("ramet_sandboxes", state="living") == 1
    assert after.value("ramet_sandboxes", state="living") == 0


def asks_to_wait() -> None:
    """Work without end, in a sandbox."""
    threading.Event().wait()


async def test_a_refusing_budget_is_counted(served: Served) -> None:
    """By what was short."""
    script: Script = {"go": [Call("nothing", {}), Call("nothing", {}), "done"]}
    agent = Agent(name="worker", model=ScriptedModel(script=script), limits=Limits(model_calls=1))

    await (await served.server.runtime.spawn(agent, "go")).result()

    found = await scraped(served, served.server.operator)
    assert found.value("ramet_budget_refusals_total", resource="model_calls") >= 1


async def digs() -> str:
    """Start another of its kind, as deep as may be."""
    context = current()
    assert context.tree is not None, "it is in a tree"
    try:
        return str((await (await context.tree.spawn(context, SpawnRequest(agent=digs))).result()).value)
    except SpawnRefused as refusal:
        return refusal.limit


async def test_a_birth_that_is_refused_is_counted(served: Served) -> None:
    """By the limit that stood against it."""
    result = await (await served.server.runtime.spawn(digs, spawn_limits=SpawnLimits(depth=1))).result()

    found = await scraped(served, served.server.operator)
    assert result.value == "depth"
    assert found.value("ramet_spawn_refusals_total", limit="depth") == 1


async def test_requests_are_counted_by_their_routes(served: Served) -> None:
    """By route and status, without what a client makes up: no path, no method of its own."""
    agent, nonce = await served.agent()
    await served.ask("GET", f"/v1/agents/{agent}", nonce)
    for method, path in (("GET", "/made/up"), ("PATCH", "/healthz"), ("GET", f"/v1/agents/{agent}")):
        await served.ask(method, path)

    found = await scraped(served, served.server.operator)

    def count(**labels: str) -> float:
        return found.value("ramet_http_requests_total", **labels)

    assert count(method="GET", path="/v1/agents/{agent}", status="200") == 1
    assert count(method="GET", path="/v1/agents/{agent}", status="401") == 1
    assert count(method="other", path="/healthz", status="405") == 1
    assert count(method="other", path="other", status="404") == 1
    assert found.value("ramet_http_request_seconds_count", path="/v1/agents/{agent}") == 2
    assert found.value("ramet_http_requests_under_way") == 1  # this one
    assert not [labels for _, labels in found.values if "made" in str(labels) or agent in str(labels)]


async def test_only_the_operator_sees_them(served: Served) -> None:
    """Whoever has no key is asked for one; to other keys there is nothing."""
    _, nonce = await served.agent()

    assert (await served.ask("GET", "/metrics")).status_code == 401
    assert (await served.ask("GET", "/metrics", nonce)).status_code == 404
    assert (await served.ask("GET", "/metrics", "made up, but long enough")).status_code == 401


async def test_they_can_be_made_public(folder: pathlib.Path) -> None:
    """Then no key is needed, and none is looked at."""
    async with serving(folder, public_metrics=True) as served:
        found = await scraped(served)
        await scraped(served, "made up, but long enough")

    assert found.kinds["ramet_trees"] == "gauge"


async def test_counting_begins_anew_with_a_server(folder: pathlib.Path) -> None:
    """What is told is of one server, as it is of one process."""
    for _ in range(2):
        async with serving(folder, public_metrics=True) as served:
            assert (await scraped(served)).value("ramet_http_request_seconds_count", path="/metrics") == 0
            assert (await scraped(served)).value("ramet_http_request_seconds_count", path="/metrics") == 1
