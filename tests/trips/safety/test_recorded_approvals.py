"""An answer to a question is recorded before the person reads that it counts."""

from __future__ import annotations

from typing import Any

import pytest

from ramet import Agent, AgentRuntime
from ramet.core.errors import Unknown
from ramet.core.events import ApprovalAnswered, ApprovalAsked, Event
from ramet.host.control.operator import OperatorControl
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate

HOOKS: dict[str, Any] = {"PreToolUse": [lambda _: "ask"]}


def _model() -> ScriptedModel:
    return ScriptedModel(lambda messages: "done" if messages[-1].type == "tool" else Call("gate"))


def _lead() -> Agent:
    return Agent(name="lead", model=_model(), hooks=HOOKS)


def _is_question(event: Event) -> bool:
    return isinstance(event, ApprovalAsked)


def _is_answer(event: Event) -> bool:
    return isinstance(event, ApprovalAnswered)


def _answers(store: MemoryStore) -> int:
    return [each.type for each in store._tables.all_events].count("approval_answered")


async def test_an_accepted_answer_counts_under_every_later_kernel() -> None:
    """The answer counts also if it came before the resumed run asked again."""
    store, gate = MemoryStore(), Gate()
    async with AgentRuntime(store=store) as runtime:
        handle = await runtime.spawn(_lead(), "go", tools=[gate.tool])
        steering = OperatorControl([runtime._trees], store)
        await eventually(steering.approvals)
        await steering.answer(steering.approvals()[0].id, False, "no")
        assert _answers(store) == 1
        await handle.result()

    cut_store = await cut_behind(store, _is_question)
    async with AgentRuntime(store=cut_store) as runtime:
        [resumed_handle] = await runtime.resume(llm=_model(), agents=[_lead()], tools=[gate.tool])
        steering = OperatorControl([runtime._trees], cut_store)
        id = steering.approvals()[0].id
        await steering.answer(id, False, "no")
        assert _answers(cut_store) == 1
        with pytest.raises(Unknown):
            await steering.answer(id, True, "yes")
        await resumed_handle.result()
    assert _answers(cut_store) == 1

    last = await cut_behind(cut_store, _is_answer)
    async with AgentRuntime(store=last) as runtime:
        [resumed_handle] = await runtime.resume(llm=_model(), agents=[_lead()], tools=[gate.tool])
        assert OperatorControl([runtime._trees], last).approvals() == []
        assert (await resumed_handle.result()).status == "completed"
    assert gate.calls == 0
