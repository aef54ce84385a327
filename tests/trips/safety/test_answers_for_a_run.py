"""An answer for the whole run allows later calls like it, of that run only, and nothing that a rule denies."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

from ramet import AgentRuntime
from ramet.agent.definition import Agent
from ramet.core.events import ApprovalAnswered, ApprovalAsked, IntentionDecided, SandboxStarted, decode
from ramet.host.approvals import BY_GRANT, Inbox, Pending
from ramet.host.safety.gate import SafetyGate
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.workspace import workspace_tools
from tests.support.store_addresses import run_program_until_killed, store_at
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName
from tests.trips.kits.isolated import usual_backend as backend
from tests.trips.kits.safety import ALLOW_ALL
from tests.trips.kits.sessions import answers, of_kind, run_of, session_events
from tests.trips.programs.allowed_for_run import PAY, lead, model, shell

__all__ = ["backend"]
PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "allowed_for_run.py"


async def deny_next(inbox: Inbox) -> Pending:
    """Wait for the next question, deny it, and return it."""
    await eventually(lambda: inbox.pending)
    (pending,) = inbox.pending
    inbox.answer(pending.id, False)
    return pending


async def test_a_resumed_run_keeps_an_answer_that_its_children_do_not_get(tmp_path: pathlib.Path) -> None:
    """After `kill -9` nobody is asked about the same command again, but about another one, and about a child's.

    The rule that denies still denies, and the safety gate has decided on every call that ran.
    """
    address = f"sqlite {tmp_path / 'journal.db'}"
    await run_program_until_killed(PROGRAM, address, tmp_path)
    async with AgentRuntime(store=store_at(address)) as runtime:
        agents, gate = [lead()], SafetyGate(ALLOW_ALL)
        (handle,) = await runtime.resume(llm=model(), tools=workspace_tools(), agents=agents, gate=gate)
        inbox = runtime.trees[handle.id].inbox
        questions = [await deny_next(inbox), await deny_next(inbox)]
        await handle.result()
        results = answers(handle.run.context.history)

    assert [(each.path, each.args["command"]) for each in questions] == [
        ("main", f"{PAY}; echo more >> effects"),
        ("main/child", PAY),
    ]
    assert [each.for_run for each in questions] == ["Bash with the same command"] * 2
    assert (tmp_path / "effects").read_text().split() == ["pay", "pay"]
    assert "Bash(rm:*)" in results["denied"]
    store = await store_at(address).open()
    events = [decode(each.data) for each in await store.read(limit=10_000)]
    await store.close()
    recorded = of_kind(events, ApprovalAnswered)
    assert [(each.allowed, each.for_run, each.reason) for each in recorded] == [
        (True, True, "it is due"),
        (True, False, BY_GRANT),
        (False, False, ""),
        (False, False, ""),
    ]
    assert len(of_kind(events, ApprovalAsked)) == 4
    committed = [each.call_id for each in of_kind(events, IntentionDecided) if each.committed]
    assert committed == ["first", "same", "child"]


async def test_an_answer_for_a_run_counts_in_its_sandbox(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """The host compares the model's own calls. A question that the sandbox words itself is answered once."""
    steps: list[Any] = [
        shell(PAY, "first"),
        shell(PAY, "same"),
        shell("rm effects", "denied"),
        shell("echo x", "other"),
    ]
    spawn = Call("Agent", {"subagent_type": "worker", "prompt": "below", "name": "one"})
    worker = Agent(name="worker", description="Works", permissions=lead().permissions)
    script = ScriptedModel({"Go.": [spawn, "done"], "below": [*steps, "done below"]})
    async with Session(script, workspace_tools(), agents=[worker], cwd=tmp_path, backend=backend) as session:
        asking = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: session.approvals.pending)
        session.approvals.answer(session.approvals.pending[0].id, True, for_run=True)
        other = await deny_next(session.approvals)
        await asking
        results = answers(run_of(session, "one").context.history)
        recorded = of_kind(session_events(session), ApprovalAnswered)
        assert of_kind(session_events(session), SandboxStarted)

    assert other.args == {"command": "echo x"}
    assert "Bash(rm:*)" in results["denied"]
    assert [(each.allowed, each.for_run) for each in recorded] == [(True, True), (True, False), (False, False)]
