"""The history that a function agent receives: complete at each turn, and recorded once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import pathlib
import signal
import sqlite3
from typing import Any

import pytest

import ramet
from ramet import AgentRuntime, Policy
from ramet.core import events
from ramet.core.errors import DefinitionMissing
from ramet.core.events import Notice
from ramet.core.outcome import Status
from ramet.services.agent_types.conversation_log import ConversationLog, ConversationTurn
from ramet.services.agent_types.function import invoke
from ramet.services.agent_types.function.agent import FunctionAgent
from ramet.services.client.client import Client
from ramet.services.contract import SpawnedAgent
from ramet.spawn.run import Run
from tests.support.serve_process import serve
from tests.support.tars import tar
from tests.support.turns import Reader
from tests.support.waiting import eventually
from tests.trips.agents import served_functions
from tests.trips.teams.test_agent_types import (
    OURS,
    Backend,
    agent_spec,
    function,
    lost_runtime,
    new_runtime,
    open_agent,
    policy_for,
    read_to_end,
    request_body,
    say,
    text_of,
)

SIZE = 10_000  #: characters of a message
TURNS = 30  #: before a kill, and as many behind it
MODULE = pathlib.Path(served_functions.__file__).read_bytes()
each_backend = pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])


def message(number: int) -> str:
    """Return the text of a turn; every text has the same length."""
    return f"turn {number:4} ".ljust(SIZE, "x")


async def recorded_bytes(runtime: AgentRuntime, run: str) -> int:
    """Return the bytes of the events of a tree."""
    return sum(len(each.data) for each in await (await runtime.open_store()).read(tree=run))


@each_backend
async def test_the_record_of_a_turn_does_not_grow_with_the_history(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """The events and the transcript of a turn hold that turn only. The function still receives the whole history."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = agent_spec(runtime, tmp_path / "ada", **function("measures", policy=policy_for(backend)))
        sizes = list[tuple[int, int]]()
        async with open_agent(OURS, start) as agent:
            for number in range(8):
                answer = await say(agent, message(number))
                assert answer.startswith(f"{2 * number} messages")
                await runtime.get(agent.run).run.context.wait_persisted()
                transcripts = (tmp_path / ".ramet" / "transcripts").rglob("*.jsonl")
                sizes.append(
                    (await recorded_bytes(runtime, agent.run), sum(each.stat().st_size for each in transcripts))
                )
    events_of_turns, transcripts_so_far = zip(*sizes, strict=True)
    assert events_of_turns[-1] < events_of_turns[0] + SIZE // 2, sizes
    assert SIZE < transcripts_so_far[-1] < len(sizes) * (transcripts_so_far[0] + SIZE // 2), sizes


@each_backend
async def test_a_function_called_again_after_a_kill_gets_the_same_history(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """The history has each earlier turn once."""
    policy = policy_for(backend)
    async with lost_runtime(tmp_path, backend) as runtime:
        agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **function("measures", policy=policy)))
        for number in range(3):
            await say(agent, message(number))
        start = function("measures_and_waits", policy=policy)
        agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **start, run=agent.run))
        answer = agent.turn(request_body("go"), "openai")
        first = ""
        while not first:
            first = text_of([await anext(answer)])
        run = agent.run
    await read_to_end(answer)
    async with new_runtime(tmp_path, backend) as runtime:
        second_agent = await OURS.open(agent_spec(runtime, tmp_path / "eve", **start, run=run))
        assert isinstance(second_agent, FunctionAgent)
        await eventually(lambda: second_agent._call is not None and second_agent._call._texts)
        await second_agent.interrupt()
        history = await second_agent.history()
        await second_agent.close("it is over")
    assert first.startswith("6 messages, ")
    assert [each["content"].strip() for each in history[-2:]] == ["go", first.strip()]
    assert len(history) == 8


@each_backend
async def test_a_history_that_is_too_long_is_cut_with_a_notice(
    tmp_path: pathlib.Path, backend: Backend | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The function receives the newest part. Each turn records how much it received, and the log says so once."""
    long = 3 * 1024 * 1024
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        turns = ConversationLog(store := await runtime.open_store(), "a-1")
        for number in range(1, 8):
            finished_turn = ConversationTurn(
                number=number, run=f"r-{number}", asked=f"q {number}", said="x" * long, status=Status.COMPLETED
            )
            await turns.write(finished_turn)
        start = agent_spec(runtime, tmp_path / "ada", **function("measures", policy=policy_for(backend)))
        notices = list[str]()
        async with open_agent(OURS, start) as agent:
            with caplog.at_level(logging.WARNING, "ramet.services"):
                first, second = (await say(agent, "go")).split("\n")[0], (await say(agent, "go")).split("\n")[0]
            await runtime.get(agent.run).run.context.wait_persisted()
            tree_events = [events.decode(each.data) for each in await store.read(tree=agent.run)]
            notices = [each.text for each in tree_events if isinstance(each, Notice)]
            assert len(await agent.history()) == 18, "it is all there to be read"
    assert first == f"2 messages, {long + 3} characters, 'q 7'"
    assert second.startswith("4 messages, ")
    assert len(notices) == 1
    assert "4 of 16 messages" in notices[0]
    assert len([each for each in caplog.records if "a-1" in each.getMessage()]) == 1


@each_backend
async def test_a_turn_of_an_older_ramet_resumes_with_its_recorded_history(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """An older version recorded the history among the arguments. The call is made again with those arguments only."""
    policy, history = policy_for(backend), [{"role": "user", "content": "before"}]
    served_function = served_functions.measures_and_waits

    async def call(text: str, history: invoke.History) -> Any:
        await asyncio.sleep(600)

    async with lost_runtime(tmp_path, backend) as runtime:
        run, turns = runtime.mint(), ConversationLog(await runtime.open_store(), "a-1")
        await turns.write(ConversationTurn(number=1, run=run, asked="go"))
        call.__name__ = served_function.__name__
        old = (invoke.call_inside, (served_function, "go", history)) if policy is not None else (call, ("go", history))
        await (await runtime.spawn(old[0], args=old[1], policy=policy, run=run)).run.context.wait_persisted()
    async with new_runtime(tmp_path, backend) as runtime:
        start = function("measures_and_waits", policy=policy, run=run)
        second_agent = await OURS.open(agent_spec(runtime, tmp_path / "ada", **start))
        assert isinstance(second_agent, FunctionAgent)
        await eventually(lambda: second_agent._call is not None and second_agent._call._texts)
        await second_agent.close("it is over")
        assert (await second_agent.history())[-1]["content"].startswith("1 messages, 6 characters")


async def test_late_arguments_of_a_sandboxed_function_are_data(tmp_path: pathlib.Path) -> None:
    """A late argument that JSON cannot hold fails the run with an error that names `late_args`."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        handle = await runtime.spawn(served_functions.shout, late_args=lambda: (object(),), policy=Policy())
        error = (await handle.result()).error
    assert error is not None
    assert (error.type, "late_args" in error.message) == ("InvalidValue", True)


async def test_a_function_is_not_called_without_its_late_arguments(tmp_path: pathlib.Path) -> None:
    """Resume without them is refused, and resume with them calls the function."""
    async with lost_runtime(tmp_path, "local") as runtime:
        args = (served_functions.measures_and_waits, "go")
        handle = await runtime.spawn(
            invoke.call_inside, args=args, late_args=lambda: ([],), policy=Policy(), run=runtime.mint()
        )
        await handle.run.context.wait_persisted()
        run = handle.id
    async with new_runtime(tmp_path, "local") as runtime:
        with pytest.raises(DefinitionMissing, match="late arguments"):
            await runtime.resume(only=run)
        texts = list[str]()

        def supply(run: Run) -> None:
            late = [{"role": "user", "content": "before"}]
            run.request = dataclasses.replace(
                run.request, late_args=lambda: (late,), on_output=lambda _, text: texts.append(text)
            )

        (handle,) = await runtime.resume(only=run, prepare=supply)
        await eventually(lambda: texts)
        await handle.cancel("it is over")
    assert "".join(texts).startswith("1 messages, 6 characters")


async def test_the_journal_grows_only_by_new_turns_of_a_served_function(folder: pathlib.Path) -> None:
    """Each of about sixty turns adds the same amount, also after a kill, and the function knows all turns."""
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as first, ramet.connect(socket) as client:
        ada = await spawn_measuring_agent(client)
        await take_turns(client, ada, range(1))
        before = size_of_journal(folder)
        await take_turns(client, ada, range(1, TURNS))
        between = size_of_journal(folder)
        await first.end(signal.SIGKILL)
    async with serve(folder), ramet.connect(socket) as client:
        await take_turns(client, ada, range(TURNS, 2 * TURNS - 1))
        history = await client.history(ada.agent.id, key=ada.nonce)
    after = size_of_journal(folder)
    assert [each["content"] for each in history[::2]] == [message(number) for number in range(2 * TURNS - 1)]
    assert after - between < 1.2 * (between - before), (before, between, after)
    assert between - before < 8 * SIZE * TURNS


async def spawn_measuring_agent(client: Client) -> SpawnedAgent:
    """Spawn an agent of a team's own code, which says how much it receives."""
    bundle = await client.upload_bundle(tar({"measuring.py": MODULE}))
    job = await client.create_image([bundle.id])
    while (job := await client.job(job.id)).state != "done":
        assert job.error is None, job.error
    team = await client.create_team({"agents": 1}, name="crew")
    info = {"function": "measuring:measures"}
    return await client.spawn_agent("crew", "ada", "function", info, image=job.image, key=team.key)


async def take_turns(client: Client, ada: SpawnedAgent, numbers: range) -> None:
    """Send numbered messages, and assert that each turn received the ones before it."""
    for number in numbers:
        turn = Reader(client, ada, request_body(message(number)))
        await turn.done
        summary = turn.text.partition("\n")[0]
        assert summary.startswith(f"{2 * number} messages, "), summary
        assert summary.endswith(repr(message(0)[:20] if number else ""))


def size_of_journal(folder: pathlib.Path) -> int:
    """Return the bytes of all events and documents in the journal."""
    with contextlib.closing(sqlite3.connect(folder / ".ramet" / "journal.db")) as journal:
        (count,) = journal.execute(
            "SELECT (SELECT sum(length(data)) FROM events) + (SELECT sum(length(data)) FROM documents)"
        ).fetchone()
    return int(count)
