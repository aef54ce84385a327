"""A kernel killed between the end of a run's turn and the run's own end: the next one ends it with the same result."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from ramet import Agent, AgentRuntime
from ramet.core.events import Event, TurnEnded
from ramet.core.outcome import Result
from ramet.models.scripted.model import Call, Script, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.agents.task_result import task_result_tools
from tests.support.cut_journals import cut_behind


class Found(BaseModel):
    """What an answer is to be."""

    count: int


def _is_over(event: Event) -> bool:
    return isinstance(event, TurnEnded)


async def _both(script: Script, nth: int = 1, **agent: Any) -> tuple[Result, Result]:
    """What came of it where nothing happened, and of the last one where its kernel was killed."""
    store, tools = MemoryStore(), task_result_tools()
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", instructions="Look.", model=ScriptedModel(script), **agent)
        for _ in range(nth):
            undisturbed = await (await runtime.spawn(lead, "go", tools=tools)).result()
    async with AgentRuntime(store=await cut_behind(store, _is_over, nth)) as runtime:
        model = ScriptedModel(["another answer"])
        lead = Agent(name="lead", instructions="Look.", model=model, **agent)
        again = await runtime.resume(llm=model, tools=tools, agents=[lead])
        return undisturbed, await again[-1].result()


@pytest.mark.parametrize(
    ("script", "more"),
    [
        (["found it"], {}),
        (['{"count": 3}'], {"output": Found}),
        ([Call("task_success", {"result": {"a": [1]}})], {}),
        ([Call("task_fail", {"message": "no way"})], {}),
        ([Call("task_clarify", {"question": "what?"})], {}),
        ([Call("nothing")] * 3, {"max_turns": 2}),
    ],
    ids=["text", "form", "success", "failure", "question", "turns"],
)
async def test_it_ends_with_what_its_turn_had_left(script: Script, more: dict[str, Any]) -> None:
    """As the agreed form has it, as it concluded, or with what a budget refused."""
    undisturbed, after = await _both(script, **more)

    assert (after.status, after.value) == (undisturbed.status, undisturbed.value)
    assert after.error == undisturbed.error


async def test_one_that_failed_says_that_nobody_knows_why() -> None:
    """What is on no record is not made up, and who reads an error finds one."""
    undisturbed, after = await _both(["many"] * 3, output=Found)

    assert undisturbed.error is not None
    assert undisturbed.error.type == "OutputInvalid"
    assert after.status == "failed"
    assert after.error is not None
    assert "before the reason was recorded" in after.error.message
