"""Conversations in sandboxes that pause at a limit: they give their process up, and go on from the record."""

from __future__ import annotations

import asyncio
import pathlib

import psutil
import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from ramet import AgentRuntime, Limits, Policy, Result, ScriptedModel, Session, Status, workspace_tools
from ramet.core.events import LimitPaused, RunResumed, SandboxStarted
from ramet.models.scripted.dialogue import Call, ReplyStep
from tests.support.waiting import alive, eventually
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.sessions import has_no_reservation, of_kind, run_of, session_events, typed_texts

__all__ = ["backend"]

ROUNDS = 4
BATCH = 20  #: conversations that begin together


async def conversation(runtime: AgentRuntime, model: ScriptedModel, limits: Limits, name: str = "talk") -> Session:
    """Return a session that has begun, whose root works in a sandbox."""
    session = Session(
        model, workspace_tools(), runtime=runtime, session_id=name, root_policy=Policy(), unattended=True, limits=limits
    )
    return await session.start()


def write_rounds(pids: set[int], sessions: list[Session]) -> ScriptedModel:
    """Return a model that has a file written in each of its first replies, and then answers."""

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        sandbox = run_of(sessions[-1], "main").sandbox.current
        assert sandbox is not None, "a process of the turn works"
        pids.add(sandbox.pid)
        done = sum(isinstance(message, ToolMessage) for message in messages)
        if done == ROUNDS:
            return "written"
        return Call("Bash", {"command": f"echo {done} >> note; cat note"})

    return ScriptedModel(reply)


async def test_a_paused_conversation_holds_no_process_and_ends_with_the_transcript_of_an_unpaused_one(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """A pause comes before each of its requests; each process begins with what the one before it had recorded."""
    transcripts = []
    for name, limits in (("free", Limits()), ("paused", Limits(model_calls=0, at_limit="pause"))):
        pids: set[int] = set()
        sessions: list[Session] = []
        async with AgentRuntime(tmp_path / name, backend=backend) as runtime:
            session = await conversation(runtime, write_rounds(pids, sessions), limits)
            sessions.append(session)
            turn = asyncio.create_task(session.ask("Write."))
            for _ in range(ROUNDS + 1 if name == "paused" else 0):
                await given_up(session)
                assert not any(map(alive, pids))
                assert has_no_reservation(session)
                await session.raise_limits(Limits(model_calls=1))
            result = await turn
            assert (result.status, result.value) == (Status.COMPLETED, "written")
            assert result.usage.model_calls == ROUNDS + 1
            events = session_events(session)
            assert len(of_kind(events, LimitPaused)) == (ROUNDS + 1 if name == "paused" else 0)
            assert len(of_kind(events, SandboxStarted)) == (ROUNDS + 2 if name == "paused" else 1)
            assert len(of_kind(events, RunResumed)) == (ROUNDS + 1 if name == "paused" else 0)
            assert has_no_reservation(session)
            transcripts.append(typed_texts(session.messages))
            assert (await session.ask("Again.")).value == "written" if name == "free" else True

    assert transcripts[0] == transcripts[1]


async def given_up(session: Session) -> None:
    """Wait until the root is paused, and has no process."""
    root = run_of(session, "main")
    await eventually(lambda: root.state == "paused" and root.sandbox.current is None)


@pytest.mark.parametrize("way", ["cancel", "interrupt", "close"])
async def test_a_conversation_that_gave_its_process_up_can_be_stopped(tmp_path: pathlib.Path, way: str) -> None:
    """Nothing is held afterwards, and an interrupted one takes the next prompt."""
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = await conversation(runtime, ScriptedModel(["one", "two"]), Limits(model_calls=0, at_limit="pause"))
        turn = asyncio.create_task(session.ask("First."))
        await given_up(session)
        await getattr(session, way)()
        assert (await turn).status is Status.CANCELLED
        assert has_no_reservation(session)
        if way == "interrupt":
            await session.raise_limits(Limits(model_calls=1))
            assert (await session.ask("Second.")).value == "one"
            assert [text for kind, text in typed_texts(session.messages) if kind == "human"] == ["First.", "Second."]


async def test_calls_of_a_reply_in_a_sandbox_wait_together(tmp_path: pathlib.Path) -> None:
    """The calls of a reply begin once all of them fit; nothing is held before."""

    def reply(messages: list[BaseMessage]) -> ReplyStep:
        if any(isinstance(message, ToolMessage) for message in messages):
            return "done"
        return [Call("Glob", {"pattern": "a"}), Call("Glob", {"pattern": "b"})]

    async with AgentRuntime(tmp_path, backend="local") as runtime:
        session = await conversation(runtime, ScriptedModel(reply), Limits(tool_calls=1, at_limit="pause"))
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: run_of(session, "main").state == "paused")
        assert session.context.budget.reserved_amount("tool_calls") == 0
        await session.raise_limits(Limits(tool_calls=1))
        assert (await turn).value == "done"
        assert session.context.budget.spent_amount("tool_calls") == 2


@pytest.mark.parametrize("count", [20, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.larger])])
async def test_many_paused_conversations_hold_no_process(tmp_path: pathlib.Path, count: int) -> None:
    """Fewer processes are left than conversations of one batch; a raise of each of twenty lets these answer."""
    others = len(psutil.Process().children(recursive=True))  #: of other tests: servers
    async with AgentRuntime(tmp_path, backend="local") as runtime:
        sessions, turns = list[Session](), list[asyncio.Task[Result]]()
        for _ in range(count // BATCH):
            batch = [
                await conversation(runtime, ScriptedModel(["Hello."]), Limits(model_calls=0, at_limit="pause"), name)
                for name in (f"talk-{number}" for number in range(len(sessions), len(sessions) + BATCH))
            ]
            turns += [asyncio.create_task(session.ask("Go.")) for session in batch]
            for session in batch:
                await given_up(session)
            sessions += batch
        assert all(len(of_kind(session_events(session), SandboxStarted)) == 1 for session in sessions)
        # Warm processes that belong to no conversation stay, however many conversations there are.
        await eventually(lambda: len(psutil.Process().children(recursive=True)) < others + BATCH)
        assert all(run_of(session, "main").state == "paused" for session in sessions)
        assert not any(run_of(session, "main").sandbox.current for session in sessions)

        raised = range(0, count, count // BATCH)
        for number in raised:
            await sessions[number].raise_limits(Limits(model_calls=1))
        assert [(await turns[number]).value for number in raised] == ["Hello."] * BATCH
        assert [number for number, turn in enumerate(turns) if turn.done()] == list(raised)
