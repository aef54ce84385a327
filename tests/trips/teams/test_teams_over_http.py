"""AC-S3-1 to AC-S3-13 as a client sees them: `ramet serve` on each backend, and agents in real sandboxes.

AC-S3-9: each of these tests passes on each backend, and none of them asks for the backend's name.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any

import psutil
import pytest

import ramet
from ramet import Policy
from ramet.core.errors import InvalidValue, NotYours, OverCapacity, RametError, TaskFailed, Unknown
from ramet.core.policy.reservation import Reservation
from ramet.core.safety import Rule, SafetyPolicy
from ramet.services.client.client import Client
from ramet.services.contract import CreatedTeam
from tests.support.acceptance import (
    OpenAIAgent,
    Server,
    body,
    content,
    groups_of,
    image_of,
    main_process_of,
    make_agent_wait,
    put_rules,
    sleeping_process,
    spawn,
    unused_seconds,
)
from tests.support.acceptance_types import ENTRY_POINTS
from tests.support.serve_process import plugin
from tests.support.serving import short_folder
from tests.support.tars import tar
from tests.support.waiting import eventually

REASON = "nothing is removed here"
RULES = SafetyPolicy(
    rules=(Rule(tool="Bash", args={"command": "rm *"}, verdict="deny", reason=REASON),), otherwise="allow"
)
MIB = 1024 * 1024
KIT = b'''
import sys

LOUD = 10 * 1024 * 1024

def split(text):
    """An architect: a task a line."""
    yield from (f"task: {word}\\n" for word in text.split())

def work(text, history):
    """A worker, which has imported this."""
    return f"{__name__} {len(history) // 2}: {text}"

def imports(text):
    import importlib

    return importlib.import_module(text).word()

def take(mb):
    return bytearray(b"x") * (mb * 1024 * 1024)

def hold(mb):
    return len(take(mb))

def crew(text):
    """Have memory, and let another one have as much; each has less than it may."""
    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    kept = take(int(text))
    other = spawn_sub_agent(hold, Policy(memory_mb=160), (int(text),))
    return f"{'both' if other.output == len(kept) else 'one'}, {other.status}"

def loud(text):
    """Say 10 MB in each way."""
    line = "x" * 1023 + "\\n"
    for _ in range(LOUD // len(line)):
        sys.stderr.write(line)
        sys.stdout.write(line)
    return "quiet again"
'''


@pytest.fixture(scope="module", params=["local", "bwrap"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server for all tests of a backend, with a safety policy and the plugins."""
    if request.param == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with short_folder() as folder:
        plugin(folder, ENTRY_POINTS)
        put_rules(folder, RULES)
        server = Server(folder, request.param)
        try:
            yield server
            processes = psutil.Process(server.process.pid).children(recursive=True)
            assert server.end(signal.SIGTERM) == 0
            assert not psutil.wait_procs(processes, timeout=180)[1]
            lines = (folder / "stderr").read_text().splitlines()
            assert [line for line in lines if " WARNING ramet.serve: " not in line] == []  # requests refused
        finally:
            server.end(signal.SIGKILL)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    """A client with the operator's key. After a test, nothing of its teams is left."""
    async with ramet.connect(server.folder / ".ramet" / "serve.sock") as client:
        yield client
        for team in await client.list_teams():
            await client.delete_team(team.id)
        assert await client.list_agents() == []
        assert server.agents == []


@pytest.fixture
async def team(client: Client) -> CreatedTeam:
    """A team with four places and memory for them."""
    return await client.create_team({"agents": 4, "memory_mb": 1024})


async def test_an_agent_streams_a_turn_and_leaves_nothing(server: Server, client: Client, team: CreatedTeam) -> None:
    """AC-S3-1: a sandboxed agent streams a turn that ends with done. After its kill, no process is left."""
    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"]})
    assert agent.spawned.isolation in ("L1", "L2")
    assert (await agent.info()).state == "idle"

    mark = unused_seconds()
    turn = asyncio.create_task(agent.say(f"$ echo from inside; sleep {mark}"))
    await eventually(lambda: sleeping_process(mark))
    assert (await agent.info()).state == "working"
    await client.interrupt(agent.id, key=agent.nonce)
    with pytest.raises(RametError):
        await turn
    chunks = [each async for each in client.turn(agent.id, body("$ echo one two three"), key=agent.nonce)]
    assert len([each for each in chunks if content(each.body)]) > 1
    assert "".join(content(each.body) for each in chunks).startswith("one two three\n")
    assert [each.kind for each in chunks].index("done") == len(chunks) - 1

    await client.kill_agent(agent.id, key=agent.nonce)
    assert sleeping_process(mark) is None
    assert server.agents == []


async def test_a_team_works_on_tasks_and_ends_together(server: Server, client: Client, team: CreatedTeam) -> None:
    """AC-S3-2: three agents share a bundle, and workers take the architect's tasks.

    Deleting the team ends each agent.
    """
    image = await image_of(client, teamkit=KIT)
    architect, *workers = await asyncio.gather(
        *(
            spawn(client, team, name, "function", {"function": f"teamkit:{does}"}, image=image)
            for name, does in [("architect", "split"), ("worker-1", "work"), ("worker-2", "work")]
        )
    )
    tasks = (await architect.say("count add")).splitlines()
    assert tasks == ["task: count", "task: add"]
    answers = await asyncio.gather(*(each.say(task) for each, task in zip(workers, tasks, strict=True)))
    assert answers == ["teamkit 0: task: count", "teamkit 0: task: add"]

    mark = unused_seconds()
    busy = await spawn(client, team, "busy", "shell", {"tools": ["Bash"]})
    turn = asyncio.create_task(busy.say(f"$ sleep {mark}"))
    await eventually(lambda: sleeping_process(mark))
    await client.delete_team(team.team.id, key=team.key)
    assert sleeping_process(mark) is None
    assert server.agents == []
    assert isinstance((await asyncio.gather(turn, return_exceptions=True))[0], RametError)
    assert await client.list_agents() == []


async def test_a_team_admits_exactly_its_capacity(client: Client, team: CreatedTeam) -> None:
    """AC-S3-3: one agent above the capacity is refused. A killed agent, and a failed spawn, free their places."""
    agents = [await spawn(client, team, f"a{number}", "raw") for number in range(4)]
    with pytest.raises(OverCapacity) as full:
        await spawn(client, team, "more", "raw")
    assert (full.value.resource, full.value.room) == ("agents", {"agents": 0, "memory_mb": 0})
    await client.kill_agent(agents[0].id, key=agents[0].nonce)
    with pytest.raises(InvalidValue):
        await spawn(client, team, "broken", "raw", {"trouble": "open"})
    await spawn(client, team, "in", "raw")

    ten = await client.create_team({"agents": 10}, name="ten")
    outcomes = await asyncio.gather(
        *(spawn(client, ten, f"b{number}", "raw") for number in range(100)), return_exceptions=True
    )
    assert len([each for each in outcomes if isinstance(each, OpenAIAgent)]) == 10
    assert len([each for each in outcomes if isinstance(each, OverCapacity)]) == 90
    assert (await client.get_team("ten", key=ten.key)).free["agents"] == 0
    with pytest.raises(InvalidValue):
        await client.create_team({"agents": 1}, name="ten")
    await client.delete_team("ten", key=ten.key)
    for key in (ten.key, None):
        with pytest.raises(NotYours):
            await client.get_team("ten", key=key)
    with pytest.raises(NotYours):
        await spawn(client, ten, "late", "raw")
    second_team = await client.create_team({"agents": 10}, name="ten")
    assert second_team.team.free["agents"] == 10


async def test_a_team_bounds_the_memory_of_its_agents_together(client: Client) -> None:
    """AC-S3-3, if the machine can: parent and child stay below their own limits, but exceed the team's."""
    image = await image_of(client, teamkit=KIT)
    answers = {}
    for name, memory_mb in [("small", 200), ("large", 480)]:
        team = await client.create_team({"agents": 1, "memory_mb": memory_mb}, name=name)
        policy = Policy(memory_mb=160, allow_sub_agents=True)
        agent = await spawn(client, team, "crew", "function", {"function": "teamkit:crew"}, image=image, policy=policy)
        if (await client.get_team(name)).bounded != ["memory_mb"]:
            pytest.skip("this machine bounds no memory together")
        try:
            answers[name] = await agent.say("120")
        except TaskFailed as failure:
            answers[name] = f"one, {failure.status}"
        await client.delete_team(name)
    assert answers["large"] == "both, completed"
    assert answers["small"] == "one, oom"


async def test_every_operation_on_an_agent_needs_its_nonce(client: Client, team: CreatedTeam) -> None:
    """AC-S3-4: no list shows the nonce, and an agent never has two owners."""
    agent, other = await asyncio.gather(*(spawn(client, team, name, "shell") for name in ("ada", "bob")))
    for key in ("", "wrong", other.nonce, team.key):
        for call in (
            client.say(agent.id, body("hello"), key=key),
            client.control(agent.id, {"@type": "list_tools"}, key=key),
            client.history(agent.id, key=key),
            client.get_agent(agent.id, key=key),
            client.mail(agent.id, "psst", key=key),
            client.interrupt(agent.id, key=key),
            client.delegate(agent.id, owner=True, key=key),
            client.rotate(agent.id, key=key),
            client.kill_agent(agent.id, key=key),
            anext(client.events(agent.id, key=key)),
        ):
            with pytest.raises(NotYours if key else RametError):
                await call
    assert await agent.say("hello") == "1 so far: hello"
    listing = await client.list_agents(team.team.id, key=team.key)
    assert agent.nonce not in repr(listing)
    assert len(listing) == 2

    delegation = await client.delegate(agent.id, owner=True, key=agent.nonce)
    with pytest.raises(NotYours):
        await agent.info()
    assert (await client.get_agent(agent.id, key=delegation.key)).turns == 1
    narrow = await client.delegate(agent.id, ["turn"], key=delegation.key)
    with pytest.raises(NotYours):
        await client.delegate(agent.id, owner=True, key=narrow.key)


async def test_turns_run_in_order_and_can_be_interrupted(client: Client, team: CreatedTeam) -> None:
    """AC-S3-5: chunks end with done or an error.

    Each turn knows the ones before it. A disconnected client can read on.
    """
    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"]})
    assert await agent.say("one") == "1 so far: one"
    assert await agent.say("two") == "2 so far: one | two"

    mark = unused_seconds()
    first = asyncio.create_task(agent.say(f"$ sleep {mark}"))
    await eventually(lambda: sleeping_process(mark))
    second = client.turn(agent.id, body("three"), key=agent.nonce)
    waiting = asyncio.ensure_future(anext(second))
    assert (await client.interrupt(agent.id, key=agent.nonce)).interrupted
    with pytest.raises(RametError):
        await first
    start = await waiting
    await second.aclose()  # The client has gone: the turn goes on, and may be read from where it was.
    rest = [each async for each in client.read_turn(agent.id, start.turn, start.number, key=agent.nonce)]
    assert "".join(content(each.body) for each in (start, *rest)).startswith("4 so far: one | two | $ sleep")
    assert [each.kind for each in rest][-1] == "done"
    assert sleeping_process(mark) is None

    mark = unused_seconds()
    leaving = client.turn(agent.id, body(f"$ sleep {mark}"), on_leave="interrupt", key=agent.nonce)
    reading = asyncio.ensure_future(anext(leaving))
    await eventually(lambda: sleeping_process(mark))
    reading.cancel()
    await asyncio.wait([reading])
    await leaving.aclose()
    await eventually(lambda: sleeping_process(mark) is None)
    bad = [each async for each in client.turn(agent.id, b"{", key=agent.nonce)]
    assert [each.kind for each in bad] == ["error"]


@pytest.mark.parametrize("format", ["plain", "backwards"])
async def test_bodies_reach_a_sandboxed_agent_unchanged(client: Client, team: CreatedTeam, format: str) -> None:
    """AC-S3-6: a sandboxed agent receives and sends exact bytes, whatever the format."""
    agent = await spawn(client, team, "ada", "raw", transport_format=format)
    for data in (bytes(range(256)), b'{"a":\r\n\n data: 1}', b"\n"):
        answer = await client.say(agent.id, data, key=agent.nonce)
        assert answer == (data if format == "plain" else data[::-1])


async def test_control_runs_known_operations_only(client: Client, team: CreatedTeam) -> None:
    """AC-S3-7: an unknown operation is refused with the known names. A bundle with a path outside is refused."""
    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"]})
    listing = await client.control(agent.id, {"@type": "list_tools"}, key=agent.nonce)
    assert [each["name"] for each in listing] == ["Bash"]
    with pytest.raises(Unknown) as unknown:
        await client.control(agent.id, {"@type": "self_destruct"}, key=agent.nonce)
    assert "list_tools" in unknown.value.known
    with pytest.raises(InvalidValue):
        await client.control(agent.id, {"@type": "set_model", "modle": "x"}, key=agent.nonce)
    with pytest.raises(InvalidValue):
        await client.upload_bundle(tar({"../outside.py": b"x = 1"}))


async def test_loaded_code_can_be_imported_until_it_is_unloaded(client: Client, team: CreatedTeam) -> None:
    """AC-S3-7: the import fails before load_bundle and after unload_bundle."""
    image = await image_of(client, teamkit=KIT)
    bundle = await client.upload_bundle(tar({"latecomer.py": b"def word():\n    return 'here'\n"}))
    agent = await spawn(client, team, "ada", "function", {"function": "teamkit:imports"}, image=image)
    for operation, answer in [("", ""), ("load_bundle", "here"), ("unload_bundle", "")]:
        if operation:
            await client.control(agent.id, {"@type": operation, "bundle": bundle.id}, key=agent.nonce)
        if answer:
            assert await agent.say("latecomer") == answer
        else:
            with pytest.raises(TaskFailed, match="latecomer"):
                await agent.say("latecomer")


async def test_plugin_types_are_served_and_bad_spawns_cost_nothing(
    server: Server, client: Client, team: CreatedTeam
) -> None:
    """AC-S3-8: the server serves types from other packages. A refused spawn names its error and takes no place."""
    free = (await client.get_team(team.team.id, key=team.key)).free
    for kind, info, error in [
        ("raw", {"troubel": "x"}, InvalidValue),
        ("raw", ["no", "structure"], InvalidValue),
        ("raw", {"trouble": "check"}, InvalidValue),
        ("raw", {"trouble": "open"}, InvalidValue),
        ("nobody", None, Unknown),
        ("shell", {"tools": ["chainsaw"]}, Unknown),
        ("function", {"function": "nowhere:nothing"}, InvalidValue),
        ("command", {"argv": ["/no/such/program"]}, InvalidValue),
    ]:
        with pytest.raises(error):
            await spawn(client, team, "ada", kind, info)
    with pytest.raises(Unknown):
        await spawn(client, team, "ada", "raw", image="none")
    with pytest.raises(InvalidValue) as refusal:
        await spawn(client, team, "ada", "raw", policy=Policy(reservation=Reservation(name="another")))
    assert refusal.value.field == "policy.reservation"
    with pytest.raises(InvalidValue) as refusal:
        await spawn(client, team, "ada", "raw", keep_failed_s=10.0**9)
    assert refusal.value.field == "keep_failed_s"
    team_info = await client.get_team(team.team.id, key=team.key)
    assert (team_info.free, team_info.agents, server.agents) == (free, 0, [])
    assert (await spawn(client, team, "ada", "raw")).spawned.state == "idle"


async def test_a_killed_agent_process_fails_its_turn(client: Client, team: CreatedTeam) -> None:
    """AC-S3-10: the reader gets the status `crashed`, and the agent answers in a new process."""
    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"]})
    mark = unused_seconds()
    turn = asyncio.create_task(agent.say(f"$ sleep {mark}"))
    await eventually(lambda: sleeping_process(mark))
    main_process_of(mark).kill()
    with pytest.raises(TaskFailed) as failure:
        await turn
    assert failure.value.status == "crashed"
    assert sleeping_process(mark) is None
    assert (await agent.info()).state == "idle"
    assert (await agent.say("again")).endswith("again")


async def test_a_gate_decides_before_a_served_call_runs(server: Server, client: Client, team: CreatedTeam) -> None:
    """AC-S3-11: a call is intended and decided before it runs. With an unreadable policy, it does not run."""
    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"], "gate": "house"})
    assert (await agent.say("$ echo safe")).startswith("safe\n")
    assert REASON in await agent.say("$ rm -rf /")
    file = server.folder / ".ramet" / "journal.db"
    with closing(sqlite3.connect(file, timeout=180)) as store:
        change = "UPDATE documents SET data = ? WHERE kind = 'safety_policy' AND key = 'house'"
        [(rules,)] = store.execute("SELECT data FROM documents WHERE kind = 'safety_policy' AND key = 'house'")
        with store:
            store.execute(change, [b"no policy"])
        try:
            assert "Blocked by the safety gate" in await agent.say("$ echo safe")
        finally:
            with store:
                store.execute(change, [rules])

    event_data: list[dict[str, Any]] = []
    async with aclosing(client.events(agent.id, key=agent.nonce)) as events:
        async for event in events:
            event_data.append(json.loads(event.data))
            if [each["type"] for each in event_data].count("tool_ended") == 3:
                break
    of = [each for each in event_data if each["type"] in ("intention_recorded", "intention_decided", "tool_ended")]
    assert [each["type"] for each in of] == ["intention_recorded", "intention_decided", "tool_ended"] * 3
    decisions = [each for each in of if each["type"] == "intention_decided"]
    assert [each.get("committed", False) for each in decisions] == [True, False, False]
    assert REASON in json.dumps(decisions[1])
    assert "house" in json.dumps(of)
    assert [each["tool"] for each in event_data if each["type"] == "tool_started"] == ["Bash"]
    with pytest.raises(Unknown):
        await spawn(client, team, "bob", "shell", {"gate": "nobody"})


async def test_loud_agents_do_not_block(client: Client, team: CreatedTeam) -> None:
    """AC-S3-12: 10 MB on stderr and 10 MB on stdout do not stop the agent."""
    image = await image_of(client, teamkit=KIT)
    agent = await spawn(client, team, "ada", "function", {"function": "teamkit:loud"}, image=image)
    size = 0
    async for piece in agent.pieces("go"):
        size, last = size + len(piece), piece
    assert size >= 10 * 1024 * 1024
    assert last.endswith("quiet again")
    assert (await agent.info()).state == "idle"


@pytest.mark.leaves("the server that is started again is for the tests that follow")
async def test_a_killed_server_resumes_its_agents(server: Server, client: Client, team: CreatedTeam) -> None:
    """AC-S3-13: the next server has the agents with their ids, nonces and history.

    Their control groups are gone after the kill, and after the deletion of their team.
    """
    agent = await spawn(client, team, "ada", "shell", {"tools": ["Bash"]})
    assert await agent.say("one") == "1 so far: one"
    async with make_agent_wait(agent) as mark:
        before, groups = await agent.info(), groups_of(mark)
        server.end(signal.SIGKILL)
    await eventually(
        lambda: sleeping_process(mark) is None, within_s=150
    )  # A pod waits a minute for its kernel to come back.
    server.start()

    after = await agent.info()
    assert (after.id, after.path, after.run) == (before.id, before.path, before.run)
    assert "one" in await agent.say("two")
    info = await client.get_team(team.team.id, key=team.key)
    assert info.agents == 1
    assert (info.bounded == ["memory_mb"]) is bool(groups)
    assert not any(each.exists() for each in groups)
    async with make_agent_wait(agent) as mark:
        groups = groups_of(mark)
        await client.interrupt(agent.id, key=agent.nonce)
    limits = [each / name for each in groups for name in ("memory.limit_in_bytes", "memory.max")]
    assert {int(file.read_text()) for file in limits if file.exists()} <= {1024 * MIB}
    await client.delete_team(team.team.id, key=team.key)
    assert not any(each.exists() for each in groups)
