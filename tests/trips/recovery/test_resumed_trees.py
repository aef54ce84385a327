"""A tree that another kernel resumes has the same budgets, tools and mailboxes as before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramet import Agent, AgentRuntime, Limits, Session
from ramet.concurrency.mailbox import MAX_UNREAD_BYTES
from ramet.core.errors import MailRefused
from ramet.core.limits import RESOURCES, SpawnLimits
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate, answers, open_tree_of, run_of, specialist_call
from tests.trips.recovery.test_resume import lost_runtime

#: For all that the tests here have: a limit of each resource.
LIMITS = Limits(tokens=900_000, usd=None, model_calls=60, tool_calls=50, agents=40)
GIFT = Limits(tokens=9_000, model_calls=6, tool_calls=5, agents=4)
SLICE = Limits(model_calls=7, tool_calls=3)

Figures = dict[str, dict[str, tuple[float, float, float, float]]]


def budgets(session: Session) -> Figures:
    """Return for each run what is left, spent, held, and kept for a last answer of each resource."""
    return {
        run.info.path: {
            name: (
                budget.remaining(name),
                budget.spent_amount(name),
                budget.reserved_amount(name),
                budget.final_answer_reserve(name),
            )
            for name in RESOURCES
        }
        for run in open_tree_of(session).tree.register.runs.values()
        if (budget := run.context.budget) is not None
    }


def tools(session: Session) -> dict[str, list[str]]:
    """Return for each run the names of its tools."""
    runs = open_tree_of(session).tree.register.runs.values()
    return {run.info.path: sorted(tool.name for tool in run.context.tools) for run in runs}


def _spawn_detached(session: Session, prompt: str, name: str) -> Any:
    request = SpawnRequest(prompt=prompt, mode="fresh", detached=True, name=name, limits=GIFT)
    return session.spawn(request)


async def test_budgets_are_the_same_after_a_kill() -> None:
    """An ended child has returned its slice, a detached one has its gift, and the slice of an active one is held."""
    plan: Script = {
        "toil": [Call("look"), "toiled"],
        "short": ["gone alone"],
        "long": [Call("look"), Call("gate"), "never"],
        "sit": [Call("gate"), "never"],
        "": [
            [Call("look"), Call("Agent", {"prompt": "toil", "subagent_type": "worker", "name": "ended"})],
            "ready",
            Call("Agent", {"prompt": "sit", "subagent_type": "worker", "name": "sitting"}),
            "never",
        ],
    }
    worker = Agent(name="worker", description="Works.", limits=SLICE)
    look, gate, store = Gate("look"), Gate(), MemoryStore()
    look.open.set()
    async with lost_runtime(store) as runtime:
        session = Session(
            ScriptedModel(plan), [look.tool, gate.tool], agents=[worker], runtime=runtime, limits=LIMITS, session_id="t"
        )
        assert (await session.ask("Go.")).value == "ready"
        await (await _spawn_detached(session, "short", "alone")).result()
        await _spawn_detached(session, "long", "far")
        turn = asyncio.create_task(session.ask("Go on."))
        await eventually(lambda: gate.calls == 2)
        before = budgets(session)
    turn.cancel()

    gate = Gate()
    async with AgentRuntime(store=store, grace_s=0.05) as runtime:
        session = await Session.resume(
            "t", ScriptedModel(["never"]), [look.tool, gate.tool], agents=[worker], runtime=runtime
        )
        after = budgets(session)

    assert set(before) == {"main", "main/ended", "main/sitting", "main/alone", "main/far"}
    assert before["main"]["model_calls"][1] >= GIFT.model_calls * 2  # type: ignore[operator]
    assert after == before


async def test_an_agent_at_the_depth_limit_cannot_spawn_after_a_kill() -> None:
    """A kill gives no run a tool, and takes none away."""
    gate, store, limits = Gate(), MemoryStore(), SpawnLimits(depth=2)
    plan: Script = {
        "leaf": [Call("gate"), "never"],
        "middle": [specialist_call("leaf", "leaf"), "never"],
        "": [specialist_call("middle", "middle"), "never"],
    }
    async with lost_runtime(store) as runtime:
        session = Session(
            ScriptedModel(plan), [gate.tool], runtime=runtime, spawn_limits=limits, session_id="t", limits=LIMITS
        )
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        before = tools(session)
    turn.cancel()

    async with AgentRuntime(store=store, grace_s=0.05) as runtime:
        session = await Session.resume("t", ScriptedModel(["never"]), [Gate().tool], runtime=runtime)
        after = tools(session)

    assert ["Agent" in before[path] for path in ("main", "main/middle", "main/middle/leaf")] == [True, True, False]
    assert after == before


async def test_mail_after_a_kill_is_not_a_duplicate_of_earlier_mail() -> None:
    """Ids of mail continue after a kill. A message with the number of an earlier one would count as its duplicate."""
    store = MemoryStore()
    async with lost_runtime(store) as runtime:
        session = Session(ScriptedModel(["ready", "heard", "heard"]), runtime=runtime, session_id="talk")
        await session.ask("Go.")
        for word in ("one", "two"):
            session.send(word)
            await eventually(lambda word=word: session.messages[-2:][0].text == word)  # type: ignore[misc]

    model = ScriptedModel(["heard again"] * 3)
    async with AgentRuntime(store=store) as runtime:
        session = await Session.resume("talk", model, runtime=runtime)
        session.send("three")
        await eventually(lambda: model.requests)
        session.send("four")
        await eventually(lambda: "four" in str(model.requests[-1].messages))

    assert [each.text for each in model.requests[0].messages][-1] == "three"


async def test_a_mailbox_that_was_full_is_full_after_a_kill() -> None:
    """Unread mail counts with its bytes under the next kernel, too: a kill makes no room."""
    store, gate, text = MemoryStore(), Gate(), "x" * 200_000
    async with lost_runtime(store) as runtime:
        session = Session(ScriptedModel([Call("gate"), "never"]), [gate.tool], runtime=runtime, session_id="talk")
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()
        for _ in range(MAX_UNREAD_BYTES // len(text)):
            session.send(text)
        unread = len(run_of(session, "main").context.mailbox)
    turn.cancel()

    async with AgentRuntime(store=store, grace_s=0.05) as runtime:
        session = await Session.resume("talk", ScriptedModel(["heard"]), [Gate().tool], runtime=runtime)
        assert len(run_of(session, "main").context.mailbox) == unread
        with pytest.raises(MailRefused, match="unread bytes"):
            session.send(text)


async def test_a_spawn_that_fails_late_returns_its_budget(tmp_path: Any) -> None:
    """A slice, or the gift of a detached child, returns to the parent if the worktree cannot be made."""
    worker = Agent(name="worker", description="Works.", limits=SLICE, isolation="worktree")
    call = Call("Agent", {"prompt": "toil", "subagent_type": "worker"})
    async with Session(ScriptedModel([call, "refused"]), agents=[worker], cwd=tmp_path, limits=LIMITS) as session:
        await session.ask("Go.")
        of_a_child = budgets(session)
        request = SpawnRequest(prompt="x", mode="fresh", detached=True, isolation="worktree", limits=GIFT)
        with pytest.raises(Exception, match="commit once"):
            await session.spawn(request)
        of_a_detached_one = budgets(session)
        results = str(answers(session.messages))

    assert "commit once" in results
    calls, agents = of_a_child["main"]["model_calls"], of_a_child["main"]["agents"]
    assert (calls[0], calls[2], agents[0], agents[2]) == (60 - 2 - calls[3], 0, 40, 0)
    assert of_a_detached_one == of_a_child
