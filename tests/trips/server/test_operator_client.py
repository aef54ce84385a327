"""The operator reads and controls the kernel of a server through the typed client. No other key can."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest

import ramet
from ramet import Agent, AgentRuntime, Limits, Policy, ScriptedModel
from ramet.agent.capabilities import declarations
from ramet.core.errors import Conflict, Gone, InvalidValue, MailRefused, RametError, SpawnRefused, Unknown
from ramet.core.events import ApprovalAsked, decode, encode
from ramet.core.recipe import Recipe
from ramet.core.replay.replay import TreeReplay
from ramet.core.safety import Rule, SafetyPolicy
from ramet.core.schedules.ticks import TickStatus
from ramet.host.control.run_queries import journal_reader
from ramet.host.journal.journal import TREES
from ramet.host.safety.gate import SafetyGate
from ramet.host.safety.inspection import GateEvent, GateEventFilter
from ramet.host.safety.policies import SafetyPolicies
from ramet.host.schedules.offline import OfflineScheduler
from ramet.host.trees.project import Project
from ramet.models.scripted.dialogue import Call, Hang
from ramet.services.client.client import Client
from ramet.services.client.operator import OperatorClient, RunEvent
from ramet.services.client.requests import RequestSpec
from ramet.services.client.retry import Lost
from ramet.services.client.sync import SyncKernel
from ramet.services.client.transport import Transport
from ramet.services.http.routes import runs, safety, schedules, states
from ramet.services.operator.contract import PlainAgent
from ramet.services.operator.runs import ends_or_wakes
from ramet.services.rules import Rules
from ramet.spawn.handle import Handle
from ramet.store.contract import Entry
from ramet.store.memory import MemoryStore
from ramet.wire.sse import ServerSentEvent
from tests.support.serving import EchoServer, serving
from tests.support.waiting import eventually
from tests.trips.agents import scheduled, stateful
from tests.trips.programs.approvals import effects, lead, living_paths, model, tools


async def spawn_tree_with_a_question(echo_server: EchoServer) -> Handle:
    """Spawn a lead with two children: one waits for approval of a payment, and one has ended."""
    runtime, folder = echo_server.server.runtime, echo_server.server.dir
    agents = Project.open(None, user_dir=None)
    handle = await runtime.spawn(lead(model()), "lead both", tools=tools(folder), agents=agents)
    await eventually(lambda: runtime.trees[handle.id].inbox.pending)
    await eventually(lambda: "note" in effects(folder) and len(living_paths(runtime, handle)) == 2)
    return handle


async def all_of(events: AsyncGenerator[RunEvent, None]) -> list[RunEvent]:
    """Read events to their end."""
    async with aclosing(events):
        return [each async for each in events]


async def test_a_tree_is_readable_during_and_after_its_run(echo_server: EchoServer, client: Client) -> None:
    """The client reads runs, questions and events. The events after a cursor have no gap and no duplicate."""
    handle, kernel = await spawn_tree_with_a_question(echo_server), client.kernel
    tree = await kernel.tree(handle.id)
    payer, writer = (next(each for each in tree if each.path == f"main/{name}") for name in ("payer", "writer"))
    assert [each.id for each in await kernel.tree(payer.id)] == [each.id for each in tree]
    assert (payer.is_over, writer.is_over, tree[0].children) == (False, True, (payer.id, writer.id))
    assert [each.id for each in await kernel.runs()] == [handle.id, payer.id]
    assert (await kernel.run(payer.id)).approvals == payer.approvals

    (question,) = await kernel.approvals()
    assert (question.run, question.path, question.tool, question.args) == (
        payer.id,
        "main/payer",
        "pay",
        {"amount": 50},
    )
    assert question.deadline is not None
    before = await all_of(kernel.events(handle.id, tree=True))
    following = asyncio.create_task(all_of(kernel.events(handle.id, tree=True, after=before[4].cursor, follow=True)))
    of_payer = asyncio.create_task(all_of(kernel.events(payer.id, follow=True)))
    await kernel.answer(question.id, True, "it is due")
    with pytest.raises(Unknown, match="approval"):
        await kernel.answer(question.id, False)

    assert (await handle.result()).value == "both are done"
    events = await all_of(kernel.events(handle.id, tree=True))
    assert [*before[:5], *await following] == events
    assert await of_payer == [each for each in events if each.event.run == payer.id]
    for at in range(0, len(events), 7):
        assert (
            await all_of(kernel.events(handle.id, tree=True, after=events[at].cursor, follow=True)) == events[at + 1 :]
        )
    assert any(isinstance(each.event, ApprovalAsked) for each in events)
    store = await echo_server.server.runtime.open_store()
    assert [encode(each.event) for each in events] == [each.data for each in await store.read(tree=handle.id)]

    assert (await kernel.runs(), await kernel.approvals()) == ([], [])
    assert [each.state for each in await kernel.runs(ended=True)] == ["completed"] * 3
    run_view = await kernel.run(handle.id)
    assert (run_view.is_over, run_view.result and run_view.result.value) == (True, "both are done")


async def test_events_continue_after_a_lost_connection(echo_server: EchoServer, client: Client) -> None:
    """The reader gets every event once, wherever the connection is lost."""

    class Cut(Transport):
        """The connections of the client, on which each stream breaks after three events."""

        def __init__(self) -> None:
            self.__dict__.update(client._transport.__dict__)

        async def stream(
            self, ask: RequestSpec[None], key: str | None = None, *_: object
        ) -> AsyncGenerator[ServerSentEvent, None]:
            failures_left = 3
            async with aclosing(super().stream(ask, key)) as events:
                async for each in events:
                    if failures_left == 0:
                        raise Lost("it was cut")
                    failures_left -= 1
                    yield each

    handle = await echo_server.server.runtime.spawn(scheduled.note)
    await handle.result()
    events = await all_of(client.kernel.events(handle.id))

    assert len(events) > 3
    assert await all_of(OperatorClient(Cut()).events(handle.id)) == events
    last = {"last-event-id": str(events[-2].cursor)}
    answer = await echo_server.ask(
        "GET", f"/v1/runs/{handle.id}/events?after=1", echo_server.server.operator, headers=last
    )
    assert [line for line in answer.text.splitlines() if line.startswith("id:")] == [f"id: {events[-1].cursor}"]


async def test_a_disconnected_reader_leaves_no_stream_open(echo_server: EchoServer, client: Client) -> None:
    """The followed run can end, and a second reader sees its end."""
    scheduled.GATE = asyncio.Event()
    handle = await echo_server.server.runtime.spawn(scheduled.waits)
    streams = echo_server.server._parts.streams
    async with aclosing(client.kernel.events(handle.id, follow=True)) as events:
        await anext(events)
        assert len(streams) == 1
    await eventually(lambda: len(streams) == 0)

    following = asyncio.create_task(all_of(client.kernel.events(handle.id, follow=True)))
    await eventually(lambda: len(streams) == 1)
    scheduled.GATE.set()
    assert (await following)[-1].event.run == handle.id
    assert (await client.kernel.run(handle.id)).is_over


async def test_a_follower_knows_which_runs_have_ended(echo_server: EchoServer, client: Client) -> None:
    """The follower agrees with the replay of the tree after each event. Mail may wake an ended run."""
    handle, kernel = await spawn_tree_with_a_question(echo_server), client.kernel
    writer = next(each for each in await kernel.tree(handle.id) if each.path == "main/writer")
    await kernel.send(writer.id, "write it down")
    while not (await kernel.run(writer.id)).is_over:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    await kernel.answer((await kernel.approvals())[0].id, False)
    await handle.result()

    ends, replay, were_over = TreeReplay(), TreeReplay(), list[bool]()
    for each in await (await echo_server.server.runtime.open_store()).read(tree=handle.id):
        if ends_or_wakes(each, ends):
            ends.apply(decode(each.data))
        replay.apply(decode(each.data))
        assert {id: run.is_over for id, run in ends.runs.items()} == {
            id: run.is_over for id, run in replay.runs.items()
        }
        assert ends.is_over == replay.is_over
        were_over.append(replay.runs[writer.id].is_over if writer.id in replay.runs else False)
    assert [over for over, before in zip(were_over[1:], were_over, strict=False) if over != before] == [
        True,
        False,
        True,
    ]


async def test_the_operator_controls_runs(echo_server: EchoServer, client: Client) -> None:
    """Mail, stop and keep return what was done. A refusal has its type. A body of defaults may be left out."""
    handle, kernel = await spawn_tree_with_a_question(echo_server), client.kernel
    payer = next(each for each in await kernel.runs() if each.path == "main/payer")

    mail = await kernel.send(payer.id, "Hurry up.")
    assert (await kernel.run(payer.id)).unread == 1
    assert mail
    with pytest.raises(InvalidValue, match="text"):
        await kernel.send(payer.id, " ")
    assert (await kernel.keep(payer.id)).tree == handle.id
    bare_posts = [f"/v1/runs/{payer.id}/{act}" for act in ("keep", "mail")]
    assert [(await echo_server.ask("POST", each, echo_server.server.operator)).status_code for each in bare_posts] == [
        200,
        400,
    ]
    assert not (await kernel.keep(handle.id, False)).kept
    stop_answer = await kernel.stop(payer.id, "not today")
    assert (stop_answer.stopped, stop_answer.left) == (["main/payer"], [])
    await handle.result()
    unknown = [
        *(kernel.run("run-0"), kernel.tree("run-0"), kernel.send("run-0", "x"), kernel.stop("run-0")),
        *(kernel.keep("run-0"), kernel.answer("0", True), all_of(kernel.events("run-0")), kernel.state("run-0")),
    ]
    for act in unknown:
        with pytest.raises(Unknown):
            await act


async def test_ended_trees_of_another_process_are_only_readable(folder: pathlib.Path) -> None:
    """Pages hold each run once. Mail and stop are refused."""
    async with AgentRuntime(folder) as runtime:
        handles = [await runtime.spawn(scheduled.note) for _ in range(3)]
        for each in handles:
            await each.result()
    async with serving(folder) as echo_server, ramet.connect(echo_server.server.listen_address) as client:
        ids, after = list[str](), ""
        while not ids or after:
            page = await echo_server.ask(
                "GET", f"/v1/runs?ended=true&limit=1&after={after}", echo_server.server.operator
            )
            ids += [each["id"] for each in page.json()["runs"]]
            after = page.json()["more"]
        assert ids == [each.id for each in handles]
        with pytest.raises(MailRefused, match="it has ended"):
            await client.kernel.send(ids[0], "hello")
        with pytest.raises(Gone, match="it has ended"):
            await client.kernel.stop(ids[0])
        assert len(await all_of(client.kernel.events(ids[0], follow=True))) > 3
        assert (await client.kernel.run(ids[0])).result is not None


async def test_trees_of_a_killed_process_are_interrupted(echo_server: EchoServer, folder: pathlib.Path) -> None:
    """The tree can be read and kept. Mail and stop are refused, and its question is not listed."""
    handle, other_store = await spawn_tree_with_a_question(echo_server), await MemoryStore().open()
    await handle.run.context.wait_persisted()
    store = await echo_server.server.runtime.open_store()
    entries = await store.read(tree=handle.id)
    for each in entries:
        other_store.append(Entry(each.tree, each.run, each.seq, each.type, each.data))
    for document in await store.list(TREES):
        await other_store.put(TREES, document.key, document.data)
    async with (
        serving(folder / "b", store=other_store) as second_server,
        ramet.connect(second_server.server.listen_address) as client,
    ):
        kernel = client.kernel
        assert [each.state for each in await kernel.tree(handle.id)] == ["interrupted", "interrupted", "completed"]
        assert [each.path for each in await kernel.runs()] == ["main", "main/payer"]
        events = await all_of(kernel.events(handle.id, tree=True, follow=True))
        assert [encode(each.event) for each in events] == [each.data for each in entries]
        with pytest.raises(MailRefused, match="interrupted"):
            await kernel.send(handle.id, "go on")
        with pytest.raises(Gone, match="interrupted"):
            await kernel.stop(handle.id)
        assert (await kernel.keep(handle.id)).kept
        assert await kernel.approvals() == []


async def test_schedules_fire_while_the_server_runs(folder: pathlib.Path) -> None:
    """The server fires a schedule from before its start and a new one.

    The client can pause, trigger, resume and remove it.
    """
    scheduled.CALLS.clear()
    async with OfflineScheduler(working_dir=folder) as scheduler:
        await scheduler.schedule_agent_in(0, scheduled.note, name="early", args=["early"], in_process=True)
    in_host = Rules(sandboxed=False)
    async with (
        serving(folder, rules=in_host) as echo_server,
        ramet.connect(echo_server.server.listen_address) as client,
    ):
        await eventually(lambda: scheduled.CALLS == ["early"])
        kernel, note = client.kernel, f"{scheduled.__name__}:note"
        addition = await kernel.add_schedule(note, every_s=3600, name="late", args=["late"], in_process=True)
        late_schedule = await kernel.add_schedule(note, every_s=3600, name="late", args=["late"], in_process=True)
        assert (addition.id, addition.paused, addition.next) == ("late", False, late_schedule.next)
        assert (await kernel.pause_schedule("late")).paused
        await kernel.trigger_schedule("late")
        await eventually(lambda: scheduled.CALLS == ["early", "late"])
        while not (results := await kernel.schedule_results("late")) or results[-1].ended is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        assert (results[-1].status, results[-1].text) == (TickStatus.COMPLETED, "noted late")
        assert results[-1].run in [each.id for each in await kernel.runs(ended=True)]
        assert (await kernel.resume_schedule("late")).next is not None
        assert [each.id for each in await kernel.schedules()] == ["early", "late"]
        page = await echo_server.ask("GET", "/v1/schedules?limit=1&after=early", echo_server.server.operator)
        assert (page.json()["schedules"][0]["id"], page.json()["more"]) == ("late", "")
        await kernel.remove_schedule("late")
        with pytest.raises(Unknown, match="schedule"):
            await kernel.schedule("late")


async def test_an_invalid_schedule_is_refused_by_field(client: Client) -> None:
    """The server stores nothing."""
    wrong: list[tuple[dict[str, Any], type[RametError], str]] = [
        ({}, InvalidValue, "every_s"),
        ({"every_s": 60, "in_s": 5}, InvalidValue, "in_s"),
        ({"every_s": 60, "tz": "UTC"}, InvalidValue, "tz"),
        ({"cron": "* * * *", "tz": "UTC"}, InvalidValue, "cron"),
        ({"in_s": 5, "anchor": datetime(2027, 1, 1, tzinfo=UTC)}, InvalidValue, "anchor"),
        ({"at": datetime(2027, 1, 1)}, InvalidValue, "at"),  # noqa: DTZ001 - whose time is it?
        ({"in_s": 5, "agent": "nobody"}, Unknown, "nobody"),
        ({"in_s": 5, "agent": "no.module:here"}, InvalidValue, "agent"),
        ({"in_s": 5, "agent": PlainAgent(name="a", model="offline")}, InvalidValue, "prompt"),
        ({"in_s": 5, "agent": PlainAgent(name="a", model="fast"), "prompt": "x"}, InvalidValue, r"agent\.model"),
        ({"in_s": 5, "agent": PlainAgent(name="a", model="inherit"), "prompt": "x"}, InvalidValue, r"agent\.model"),
        ({"in_s": 5, "limits": {"tokens": -1}}, InvalidValue, "tokens"),
        ({"in_s": 5, "policy": Policy(allowed_env_vars=["HOME"])}, SpawnRefused, "environment"),
        ({"in_s": 5, "policy": Policy(secrets={"KEY": "secret"})}, InvalidValue, "secrets"),
    ]
    for fields, error, message in wrong:
        with pytest.raises(error, match=message):
            await client.kernel.add_schedule(**{"agent": f"{scheduled.__name__}:note", **fields})
    assert await client.kernel.schedules() == []


async def test_the_operator_reads_states_and_recipes(
    echo_server: EchoServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a run is readable now, as of a commit, and as of an event. Recipes of created agents are listed."""
    runtime, kernel = echo_server.server.runtime, client.kernel
    keeper = Agent(name="keeper", function=stateful.keeps_async)
    for n in range(3):
        handle = await runtime.spawn(keeper, args=(n,))
        assert (await handle.result()).value == list(range(n))
    now = await kernel.state(handle.id)
    assert (now.place, now.branch, now.values, now.more) == ("keeper", "main", {"seen": [0, 1, 2]}, "")
    versions_page = await kernel.state_versions(handle.id)
    assert (versions_page.versions[0].id, versions_page.versions[0].author, len(versions_page.versions)) == (
        now.commit,
        handle.id,
        3,
    )
    assert versions_page.branches == {"main": now.commit}
    assert (await kernel.state(handle.id, commit=versions_page.versions[2].id)).values == {"seen": [0]}
    assert (await kernel.state(handle.id, at=1)).values == {"seen": [0, 1]}
    with pytest.raises(Unknown, match="commit"):
        await kernel.state(handle.id, commit="0" * 64)
    with pytest.raises(InvalidValue, match="commit"):
        await kernel.state(handle.id, at=1, commit=now.commit)

    monkeypatch.setattr(declarations, "_declared", declarations._Registry())
    creator = Agent(name="maker")
    creator.cls(Agent)
    new_agent = await runtime.dynamic.create(creator, Recipe(name="solver", primer="You solve."))
    newer = await runtime.dynamic.create(creator, Recipe(name="solver", primer="You solve slowly."))
    twin = await runtime.dynamic.create(creator, Recipe(name="twin"))
    solver, other = await kernel.recipes()
    assert (solver.place, solver.name, solver.version) == ("maker", "solver", newer.ref.version)
    assert (solver.replaced, solver.recipe["primer"]) == ([new_agent.ref.version], "You solve slowly.")
    assert (other.name, other.version) == ("twin", twin.ref.version)
    assert [each.name for each in await kernel.recipes("maker")] == ["solver", "twin"]
    assert await kernel.recipes("keeper") == []
    page = await echo_server.ask("GET", "/v1/recipes?limit=1", echo_server.server.operator)
    assert (len(page.json()["recipes"]), page.json()["more"]) == (1, "maker/solver")


async def test_only_the_operator_uses_kernel_operations(echo_server: EchoServer) -> None:
    """A key of a team or an agent gets 404, whether the object exists or not, and changes nothing."""
    handle = await spawn_tree_with_a_question(echo_server)
    (question,) = echo_server.server.runtime.trees[handle.id].inbox.pending
    _, team = await echo_server.team()
    _, nonce = await echo_server.agent()
    bodies: dict[str, Any] = {"answer_approval": {"allowed": True}, "send_run": {"text": "x"}, "stop_run": {},
                              "keep_run": {}, "fork_run": {"prompt": "x"}, "raise_limits": {"add": {"usd": 1}},
                              "add_schedule": {"agent": "a", "in_s": 0},
                              "put_policy": {"policy": {}, "expected": 0}}  # fmt: skip
    for operation in (*runs.OPERATIONS, *schedules.OPERATIONS, *states.OPERATIONS, *safety.OPERATIONS):
        endpoint = operation.endpoint
        for real in (True, False):
            names = {"run": handle.id, "approval": question.id} if real else {"run": "run-0", "approval": "0"}
            path = endpoint.path.format(**names, schedule="none", policy="house", blob="none")
            for key in (team, nonce):
                answer = await echo_server.ask(endpoint.method, path, key, json=bodies.get(endpoint.id))
                problem = answer.json()
                assert (answer.status_code, problem["type"]) == (404, "urn:ramet:problem:not-yours"), endpoint.id
            for key in ("", "nobody"):
                answer = await echo_server.ask(endpoint.method, path, key, json=bodies.get(endpoint.id))
                assert answer.status_code == 401, endpoint.id
    assert echo_server.server.runtime.trees[handle.id].inbox.pending == (question,)


async def test_safety_policies_change_by_compare_and_swap_and_passages_are_shown(
    echo_server: EchoServer, client: Client
) -> None:
    """A gate follows the newest version. Its passages can be read in pages, filtered and followed."""
    kernel, runtime = client.kernel, echo_server.server.runtime
    closed_policy = SafetyPolicy(rules=(Rule(tool="note", verdict="deny", reason="not today"),), otherwise="allow")
    assert (await kernel.put_policy("house", closed_policy, expected=0)).version == 1
    with pytest.raises(Conflict, match="house"):
        await kernel.put_policy("house", SafetyPolicy(), expected=0)
    gate = SafetyGate(SafetyPolicies(await runtime.open_store()).policy("house"))
    note = Agent(name="noter", model=ScriptedModel([[Call("note"), Call("pay", {"amount": 1})], "done"]))
    passing = kernel.follow_passages(GateEventFilter(kinds=("decision",)))
    first = asyncio.ensure_future(anext(passing))
    handle = await runtime.spawn(note, "go", tools=tools(echo_server.server.dir), gate=gate)
    await handle.result()
    free = Agent(name="free", model=ScriptedModel([Call("note"), "done"]))
    ungated = await runtime.spawn(free, "go", tools=tools(echo_server.server.dir))
    await ungated.result()

    decisions = (await kernel.passages(GateEventFilter(tree=handle.id, kinds=("decision",)))).entries
    assert sorted((each.event.tool, getattr(each.event, "committed", None)) for each in decisions) == [
        ("note", False), ("pay", True),
    ]  # fmt: skip
    assert await first == decisions[0]
    await passing.aclose()
    entries, page = list[GateEvent](), await kernel.passages(limit=1)
    while page.entries:
        entries += page.entries
        page = await kernel.passages(after=page.cursor, limit=1)
    assert entries == list((await kernel.passages()).entries)
    assert [each.kind for each in entries if each.event.tool == "pay"] == ["intention", "decision", "output"]
    assert [each.event.tool for each in (await kernel.passages(GateEventFilter(committed=False))).entries] == ["note"]
    assert (await kernel.passages(GateEventFilter(path="main/*"))).entries == ()
    assert (await kernel.passages(GateEventFilter(tree=ungated.id))).entries == ()

    assert (await kernel.put_policy("house", SafetyPolicy(otherwise="allow"), expected=1)).version == 2
    assert ((await kernel.policy("house")).version, (await kernel.policy("house", 1)).policy) == (2, closed_policy)
    assert await kernel.policies() == {"house": 2}
    with pytest.raises(Unknown, match="safety policy"):
        await kernel.policy("mansion")


async def test_invalid_queries_are_refused(echo_server: EchoServer) -> None:
    """A page that is too large, an invalid cursor or an impossible name gets 422 or 404."""
    handle = await echo_server.server.runtime.spawn(scheduled.note)
    await handle.result()
    wrong = ["/v1/runs?limit=0", "/v1/runs?limit=100000", "/v1/runs?ended=perhaps", "/v1/runs?other=1",
             f"/v1/runs/{handle.id}/events?after=-1", f"/v1/runs/{handle.id}/events?after=99999999999999999999",
             f"/v1/runs/{handle.id}/state?at=x", "/v1/recipes?place=..", "/v1/schedules?limit=x",
             "/v1/safety/passages?kinds=other", "/v1/safety/passages/follow?run=%00"]  # fmt: skip
    for path in wrong:
        answer = await echo_server.ask("GET", path, echo_server.server.operator)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:ramet:problem:invalid-value"), path
    for path in ("/v1/runs/%00", "/v1/schedules/%00", "/v1/runs?after=run-0", f"/v1/runs/{handle.id}/tree?after=run-0"):
        answer = await echo_server.ask("GET", path, echo_server.server.operator)
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:ramet:problem:unknown"), path


async def test_the_operator_client_works_without_an_event_loop(echo_server: EchoServer) -> None:
    """The blocking client has the same methods."""
    handle = await echo_server.server.runtime.spawn(scheduled.note)
    await handle.result()

    def program() -> tuple[list[str], int]:
        with ramet.connect(echo_server.server.listen_address) as client:
            events = sum(1 for _ in client.kernel.events(handle.id, follow=True))
            return [each.id for each in client.kernel.runs(ended=True)], events

    ids, events = await asyncio.to_thread(program)
    store = await echo_server.server.runtime.open_store()
    assert (ids, events) == ([handle.id], len(await store.read(tree=handle.id)))
    assert {each for each in vars(OperatorClient) if not each.startswith("_")} <= set(vars(SyncKernel))


async def test_a_part_of_a_reply_is_a_sign_of_life_in_the_rows(folder: pathlib.Path) -> None:
    """The journal does not have it; the kernel tells it to its clients, and to commands beside it."""
    async with serving(folder) as echo_server, ramet.connect(echo_server.server.listen_address) as client:
        lead = Agent(name="lead", model=ScriptedModel([Hang(12)]))
        handle = await echo_server.server.runtime.spawn(lead, "go")
        await eventually(lambda: "".join(handle.run.activity.streamed_text) == "This reply n")
        await handle.run.context.wait_persisted()
        streamed_at = handle.run.activity.streamed_at
        assert streamed_at is not None
        [row] = await client.kernel.runs()
        async with await journal_reader(folder) as reader:
            [local_row] = await reader.rows_of_all()
            recorded = (await reader.replay(handle.id)).root.last_event_at

        assert (row.last_event_at, row.waits_for) == (streamed_at, "model")
        assert local_row.last_event_at == streamed_at
        assert recorded is not None
        assert recorded < streamed_at
        assert (handle.view().last_event_at, handle.view().waits_for) == (streamed_at, "model")
        await handle.cancel()
        await handle.result()
        [row] = await client.kernel.runs(ended=True)
        assert (row.last_event_at, row.waits_for) == (row.ended, "")


async def test_a_raise_is_counted_once_for_a_repeated_request(folder: pathlib.Path) -> None:
    """The key of the body, or that of the request, says that it is the same."""
    async with serving(folder) as echo_server, ramet.connect(echo_server.server.listen_address) as client:
        limits = Limits(model_calls=0, usd=1, at_limit="pause")
        handle = await echo_server.server.runtime.spawn(
            Agent(name="lead", model=ScriptedModel(["done"])), "go", limits=limits
        )
        await eventually(lambda: handle.view().state == "paused")
        await handle.run.context.wait_persisted()
        assert [(each.state, each.path) for each in await client.kernel.runs()] == [("paused", "main")]
        for expected in (3, 5), (5, 5):
            raised = await client.kernel.raise_limits(handle.id, key="k", usd=2)
            assert raised == {"model_calls": 0, "usd": expected[0], "at_limit": "pause"}
            raised = await client.kernel.raise_limits(handle.id, idempotency_key="again", usd=2)
            assert raised["usd"] == expected[1]
        assert handle.run.limits.usd == 5
        path, body = f"/v1/runs/{handle.id}/limits", {"add": {"usd": 1}}
        for key, status in ((echo_server.server.operator, 200), ((await echo_server.team())[1], 404)):
            assert (await echo_server.ask("POST", path, key, json=body)).status_code == status
        bad: list[dict[str, Any]] = [{"usd": "1"}, {"requests": 1}, {}, {"model_calls": 0.5}, {"usd": -1}]
        for wrong in (*({"add": each} for each in bad), {}):
            refusal = await echo_server.ask("POST", path, echo_server.server.operator, json=wrong)
            assert refusal.status_code == 422, refusal.text
        with pytest.raises(Unknown):
            await client.kernel.raise_limits("run-0", usd=1)
        await client.kernel.raise_limits(handle.id, model_calls=1)
        assert (await handle.result()).value == "done"
        with pytest.raises(InvalidValue, match="has not ended"):
            await client.kernel.raise_limits(handle.id, model_calls=1)
