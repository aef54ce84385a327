"""What a function agent is told of its turns before: whole at each turn, and on record once."""

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
from ramet.services.agent_types.function import invoke
from ramet.services.agent_types.function.agent import FunctionAgent
from ramet.services.agent_types.function.turn_log import FunctionTurn, FunctionTurns
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
    asked,
    ended,
    function,
    lost,
    opened,
    opening,
    policy_for,
    restarted,
    say,
    text_of,
)

SIZE = 10_000  #: characters of a message
TURNS = 30  #: before a kill, and as many behind it
MODULE = pathlib.Path(served_functions.__file__).read_bytes()
places = pytest.mark.parametrize("backend", [None, "local"], ids=["host", "local"])


def message(number: int) -> str:
    """The text of a turn, as long as all others."""
    return f"turn {number:4} ".ljust(SIZE, "x")


async def on_record(runtime: AgentRuntime, run: str) -> int:
    """Bytes of the events of a tree."""
    return sum(len(each.data) for each in await (await runtime.open_store()).read(tree=run))


@places
async def test_what_a_turn_puts_on_record_does_not_grow_with_the_turns_before(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """The events of a turn, and its transcript, hold no turn but this one; the function is told of all."""
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", **function("measures", policy=policy_for(backend)))
        sizes = list[tuple[int, int]]()
        async with opened(OURS, start) as agent:
            for number in range(8):
                answer = await say(agent, message(number))
                assert answer.startswith(f"{2 * number} messages")
                await runtime.get(agent.run).run.context.wait_persisted()
                transcripts = (tmp_path / ".ramet" / "transcripts").rglob("*.jsonl")
                sizes.append((await on_record(runtime, agent.run), sum(each.stat().st_size for each in transcripts)))
    events_of_turns, transcripts_so_far = zip(*sizes, strict=True)
    assert events_of_turns[-1] < events_of_turns[0] + SIZE // 2, sizes
    assert SIZE < transcripts_so_far[-1] < len(sizes) * (transcripts_so_far[0] + SIZE // 2), sizes


@places
async def test_a_function_that_is_called_again_after_a_kill_is_told_the_same_history(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """It had been told of the turns before its own, and is told of each of them again, once."""
    policy = policy_for(backend)
    async with lost(tmp_path, backend) as runtime:
        agent = await OURS.open(opening(runtime, tmp_path / "ada", **function("measures", policy=policy)))
        for number in range(3):
            await say(agent, message(number))
        start = function("measures_and_waits", policy=policy)
        agent = await OURS.open(opening(runtime, tmp_path / "ada", **start, run=agent.run))
        answer = agent.turn(asked("go"), "openai")
        first = ""
        while not first:
            first = text_of([await anext(answer)])
        run = agent.run
    await ended(answer)
    async with restarted(tmp_path, backend) as runtime:
        again = await OURS.open(opening(runtime, tmp_path / "eve", **start, run=run))
        assert isinstance(again, FunctionAgent)
        await eventually(lambda: again._call is not None and again._call._texts)
        await again.interrupt()
        history = await again.history()
        await again.close("it is over")
    assert first.startswith("6 messages, ")
    assert [each["content"].strip() for each in history[-2:]] == ["go", first.strip()]
    assert len(history) == 8


@places
async def test_a_history_that_is_too_long_is_told_from_its_newest_end_with_a_notice(
    tmp_path: pathlib.Path, backend: Backend | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its agent answers on. How much the function is told is on the record of each turn; the log has it once."""
    long = 3 * 1024 * 1024
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        turns = FunctionTurns(store := await runtime.open_store(), "a-1")
        for number in range(1, 8):
            over = FunctionTurn(
                number=number, run=f"r-{number}", asked=f"q {number}", said="x" * long, status=Status.COMPLETED
            )
            await turns.write(over)
        start = opening(runtime, tmp_path / "ada", **function("measures", policy=policy_for(backend)))
        notices = list[str]()
        async with opened(OURS, start) as agent:
            with caplog.at_level(logging.WARNING, "ramet.services"):
                first, second = (await say(agent, "go")).split("\n")[0], (await say(agent, "go")).split("\n")[0]
            await runtime.get(agent.run).run.context.wait_persisted()
            told = [events.decode(each.data) for each in await store.read(tree=agent.run)]
            notices = [each.text for each in told if isinstance(each, Notice)]
            assert len(await agent.history()) == 18, "it is all there to be read"
    assert first == f"2 messages, {long + 3} characters, 'q 7'"
    assert second.startswith("4 messages, ")
    assert len(notices) == 1
    assert "4 of 16 messages" in notices[0]
    assert len([each for each in caplog.records if "a-1" in each.getMessage()]) == 1


@places
async def test_a_turn_that_an_older_ramet_began_has_its_history_once(
    tmp_path: pathlib.Path, backend: Backend | None
) -> None:
    """There it was among the arguments on record. Its call is made again with those, and no others."""
    policy, history = policy_for(backend), [{"role": "user", "content": "before"}]
    called = served_functions.measures_and_waits

    async def call(text: str, history: invoke.History) -> Any:
        await asyncio.sleep(600)

    async with lost(tmp_path, backend) as runtime:
        run, turns = runtime.mint(), FunctionTurns(await runtime.open_store(), "a-1")
        await turns.write(FunctionTurn(number=1, run=run, asked="go"))
        call.__name__ = called.__name__
        old = (invoke.call_inside, (called, "go", history)) if policy is not None else (call, ("go", history))
        await (await runtime.spawn(old[0], args=old[1], policy=policy, run=run)).run.context.wait_persisted()
    async with restarted(tmp_path, backend) as runtime:
        start = function("measures_and_waits", policy=policy, run=run)
        again = await OURS.open(opening(runtime, tmp_path / "ada", **start))
        assert isinstance(again, FunctionAgent)
        await eventually(lambda: again._call is not None and again._call._texts)
        await again.close("it is over")
        assert (await again.history())[-1]["content"].startswith("1 messages, 6 characters")


async def test_late_arguments_of_a_sandboxed_function_are_data(tmp_path: pathlib.Path) -> None:
    """What JSON cannot hold is refused by name, as the result of the run that would have been given it."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        handle = await runtime.spawn(served_functions.shout, late_args=lambda: (object(),), policy=Policy())
        error = (await handle.result()).error
    assert error is not None
    assert (error.type, "late_args" in error.message) == ("InvalidValue", True)


async def test_a_function_is_not_called_without_its_late_arguments(tmp_path: pathlib.Path) -> None:
    """Whoever goes on with its run and does not supply them is refused; whoever does goes on."""
    async with lost(tmp_path, "local") as runtime:
        args = (served_functions.measures_and_waits, "go")
        handle = await runtime.spawn(
            invoke.call_inside, args=args, late_args=lambda: ([],), policy=Policy(), run=runtime.mint()
        )
        await handle.run.context.wait_persisted()
        run = handle.id
    async with restarted(tmp_path, "local") as runtime:
        with pytest.raises(DefinitionMissing, match="late arguments"):
            await runtime.resume(only=run)
        said = list[str]()

        def supply(run: Run) -> None:
            late = [{"role": "user", "content": "before"}]
            run.request = dataclasses.replace(
                run.request, late_args=lambda: (late,), on_output=lambda _, text: said.append(text)
            )

        (handle,) = await runtime.resume(only=run, prepare=supply)
        await eventually(lambda: said)
        await handle.cancel("it is over")
    assert "".join(said).startswith("1 messages, 6 characters")


async def test_sixty_turns_of_a_served_function_grow_the_journal_by_what_is_new(folder: pathlib.Path) -> None:
    """Turn for turn the same, with a kill of the server in between, behind which the function knows all turns."""
    socket = folder / ".ramet" / "serve.sock"
    async with serve(folder) as first, ramet.connect(socket) as client:
        ada = await measuring(client)
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


async def measuring(client: Client) -> SpawnedAgent:
    """An agent of a team's own code, which says how much it is told."""
    bundle = await client.upload_bundle(tar({"measuring.py": MODULE}))
    job = await client.create_image([bundle.id])
    while (job := await client.job(job.id)).state != "done":
        assert job.error is None, job.error
    crew = await client.create_team({"agents": 1}, name="crew")
    info = {"function": "measuring:measures"}
    return await client.spawn_agent("crew", "ada", "function", info, image=job.image, key=crew.key)


async def take_turns(client: Client, ada: SpawnedAgent, numbers: range) -> None:
    """Have messages answered, each with what was before it, from the first on."""
    for number in numbers:
        turn = Reader(client, ada, asked(message(number)))
        await turn.done
        said = turn.text.partition("\n")[0]
        assert said.startswith(f"{2 * number} messages, "), said
        assert said.endswith(repr(message(0)[:20] if number else ""))


def size_of_journal(folder: pathlib.Path) -> int:
    """Bytes of all events and documents on record."""
    with contextlib.closing(sqlite3.connect(folder / ".ramet" / "journal.db")) as journal:
        (found,) = journal.execute(
            "SELECT (SELECT sum(length(data)) FROM events) + (SELECT sum(length(data)) FROM documents)"
        ).fetchone()
    return int(found)
