"""A question of a program is open no longer than the turn in which it was asked."""

from __future__ import annotations

import asyncio
import pathlib

import ramet
from ramet.core.events import ApprovalAnswered
from ramet.core.ids import RunId
from ramet.host.approvals import WITHDRAWN
from ramet.host.control.run_queries import journal_reader
from tests.support.waiting import eventually
from tests.trips.kits.external import script, scripted
from tests.trips.kits.isolated import runtime
from tests.trips.kits.isolated import usual_backend as backend

__all__ = ["backend", "runtime"]

COMMAND = {"command": "make test"}


async def test_a_question_is_withdrawn_when_its_turn_ends(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """The program goes on with its next prompt, in the same process: nobody is asked about the turn before."""
    # The answer to its call comes behind the next prompt, on the same channel.
    first = script(["abandon", "1", "Bash", COMMAND], ["wait", "go.txt"], ["call", "2", "Read", {}])
    handle = await runtime.start_agent(scripted(), prompt=first)
    run, inbox = runtime.get(handle.id).run, runtime.trees[RunId(handle.id)].inbox
    await eventually(lambda: inbox.pending)
    (question,) = inbox.pending
    runtime.get(handle.id).send(script(["say", "I wait"], ["wait", "end.txt"]))
    assert run.sandbox.folder is not None
    (run.sandbox.folder.workspace / "go.txt").touch()
    await eventually(lambda: not inbox.pending)
    assert run.sandbox.current is not None, "its process is at work"
    (run.sandbox.folder.workspace / "end.txt").touch()
    result = await handle.result()
    answers = [each async for each in handle.events() if isinstance(each, ApprovalAnswered)]

    assert result.output == "I wait", (result.error, result.stderr)
    assert [(each.approval_id, each.allowed, each.reason) for each in answers] == [(question.id, False, WITHDRAWN)]


async def test_an_answer_is_for_the_turn_in_which_it_was_asked_for(
    runtime: ramet.AgentRuntime, tmp_path: pathlib.Path
) -> None:
    """An equal question of the next turn is another one, and no row lists the old ones."""
    ask = script(["ask", "1", "Bash", COMMAND])

    async with ramet.Session(agent=scripted(), cwd=tmp_path, runtime=runtime, session_id="chat") as session:
        await session.ask(script(["abandon", "1", "Bash", COMMAND], ["say", "Well."]))
        assert session.approvals.pending == ()
        ids = [await _answer(session, ask)]
    async with ramet.Session(agent=scripted(), cwd=tmp_path, runtime=runtime, session_id="chat") as session:
        ids.append(await _answer(session, ask))
        assert len(set(ids)) == 2
        await session.context.wait_persisted()
        async with await journal_reader(tmp_path / "work") as records:
            assert [row.approvals for row in await records.rows(session.id)] == [()]


async def _answer(session: ramet.Session, prompt: str) -> str:
    """Allow the one question of a turn; return its id."""
    turn = asyncio.ensure_future(session.ask(prompt))
    await eventually(lambda: session.approvals.pending or turn.done())
    (question,) = session.approvals.pending
    session.approvals.answer(question.id, True)
    assert (await turn).value == "allowed"
    return question.id
