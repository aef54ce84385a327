"""A kernel killed between the end of a turn and the end of its run: the next kernel keeps the result."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from ramet import Agent, AgentRuntime
from ramet.core.events import Event, TurnEnded
from ramet.core.outcome import Result
from ramet.models.scripted.model import Call, Script, ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.agents.task_result import task_result_tools
from tests.support.cut_journals import cut_behind


class Finding(BaseModel):
    """The required form of an answer."""

    count: int


def _is_turn_end(event: Event) -> bool:
    return isinstance(event, TurnEnded)


async def _results_without_and_with_a_kill(script: Script, nth: int = 1, **agent: Any) -> tuple[Result, Result]:
    """Return the result of an undisturbed run, and of the same run after a kill."""
    store, tools = MemoryStore(), task_result_tools()
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", instructions="Look.", model=ScriptedModel(script), **agent)
        for _ in range(nth):
            undisturbed_result = await (await runtime.spawn(lead, "go", tools=tools)).result()
    async with AgentRuntime(store=await cut_behind(store, _is_turn_end, nth)) as runtime:
        model = ScriptedModel(["another answer"])
        lead = Agent(name="lead", instructions="Look.", model=model, **agent)
        handles = await runtime.resume(llm=model, tools=tools, agents=[lead])
        return undisturbed_result, await handles[-1].result()


@pytest.mark.parametrize(
    ("script", "more"),
    [
        (["found it"], {}),
        ([AIMessage([{"type": "text", "text": "found "}, {"type": "text", "text": "it"}])], {}),
        (['{"count": 3}'], {"output": Finding}),
        ([Call("task_success", {"result": {"a": [1]}})], {}),
        ([Call("task_fail", {"message": "no way"})], {}),
        ([Call("task_clarify", {"question": "what?"})], {}),
        ([Call("nothing")] * 3, {"max_turns": 2}),
    ],
    ids=["text", "blocks", "form", "success", "failure", "question", "turns"],
)
async def test_a_resumed_run_ends_with_the_result_of_its_last_turn(script: Script, more: dict[str, Any]) -> None:
    """The result is the text, the typed value, the conclusion, or the error of a used up budget."""
    undisturbed_result, after = await _results_without_and_with_a_kill(script, **more)

    assert (after.status, after.value) == (undisturbed_result.status, undisturbed_result.value)
    assert after.error == undisturbed_result.error


async def test_a_failed_turn_without_a_recorded_reason_says_so() -> None:
    """The next kernel does not invent a reason: the error says that the reason was not recorded."""
    undisturbed_result, after = await _results_without_and_with_a_kill(["many"] * 3, output=Finding)

    assert undisturbed_result.error is not None
    assert undisturbed_result.error.type == "OutputInvalid"
    assert after.status == "failed"
    assert after.error is not None
    assert "before the reason was recorded" in after.error.message
