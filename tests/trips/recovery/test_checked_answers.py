"""A kernel killed just after an answer of an agent: the next kernel checks the answer as the first would have."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from pydantic import BaseModel

from ramet import Agent, AgentRuntime, Policy
from ramet.agent.loop import STOP_HOOK_LIMIT
from ramet.core.events import Event, MessageRecorded
from ramet.core.outcome import Result
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind


class Finding(BaseModel):
    """The required form of an answer."""

    count: int


def _is_reply(event: Event) -> bool:
    return isinstance(event, MessageRecorded) and event.step_id is not None


async def _resume_after_first_reply(
    folder: pathlib.Path, first: str, *replies: str, **agent: Any
) -> tuple[Result, ScriptedModel]:
    """Return the result under the next kernel, and the model that was asked there."""
    store = MemoryStore()
    async with AgentRuntime(folder / "one", store=store, backend="local") as runtime:
        agent_under_test = Agent(name="lead", model=ScriptedModel([first, *replies]), **agent)
        await (await runtime.spawn(agent_under_test, "go", policy=Policy())).result()
    model = ScriptedModel(list(replies))
    async with AgentRuntime(folder / "one", store=await cut_behind(store, _is_reply), backend="local") as runtime:
        [handle] = await runtime.resume(llm=model, agents=[Agent(name="lead", model=model, **agent)])
        return await handle.result(), model


async def test_resume_asks_again_for_an_answer_of_the_wrong_form(tmp_path: pathlib.Path) -> None:
    """A resumed run tells its model what is wrong with a recorded answer that is not of the required form."""
    result, model = await _resume_after_first_reply(tmp_path, "many", '{"count": 3}', output=Finding)

    assert (result.status, result.value) == ("completed", Finding(count=3)), result.error
    assert "JSON" in model.requests[0].messages[-1].text


async def test_a_stop_hook_checks_an_answer_after_resume(tmp_path: pathlib.Path) -> None:
    """An answer that no Stop hook has seen is not final: the hook asks for more under the next kernel."""

    def wants_more(payload: dict[str, Any]) -> dict[str, str] | None:
        return {"decision": "block", "reason": "run the tests"} if payload["last_assistant_message"] == "done" else None

    result, model = await _resume_after_first_reply(tmp_path, "done", "tested, too", hooks={"Stop": [wants_more]})

    assert (result.status, result.value) == ("completed", "tested, too")
    assert model.requests[0].messages[-1].text == "run the tests"


async def test_a_kill_does_not_reset_the_count_of_answers_of_the_wrong_form() -> None:
    """Two of three tries happened under another kernel, so the next wrong answer fails the run."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(["one", "two", '{"count": 3}']), output=Finding)
        await (await runtime.spawn(lead, "go")).result()
    cut_store = await cut_behind(store, _is_reply, 2)
    model = ScriptedModel(["three", '{"count": 3}'])
    async with AgentRuntime(store=cut_store) as runtime:
        [handle] = await runtime.resume(llm=model, agents=[Agent(name="lead", model=model, output=Finding)])
        result = await handle.result()

    assert result.error is not None, result.value
    assert result.error.type == "OutputInvalid"
    assert len(model.requests) == 1


@pytest.mark.parametrize("policy", [None, Policy()], ids=["host", "sandbox"])
async def test_a_kill_does_not_reset_the_count_of_stop_hook_blocks(
    tmp_path: pathlib.Path, policy: Policy | None
) -> None:
    """A Stop hook can block only STOP_HOOK_LIMIT times in all.

    After resume, the hook reads `stop_hook_active` as true.
    """
    again_and_again = list[bool]()

    def wants_more(payload: dict[str, Any]) -> dict[str, str]:
        again_and_again.append(payload["stop_hook_active"])
        return {"decision": "block", "reason": "more"}

    hooks = {"Stop": [wants_more]}
    store, model = MemoryStore(), ScriptedModel(lambda _: "done")
    async with AgentRuntime(tmp_path / "one", store=store, backend="local") as runtime:
        await (await runtime.spawn(Agent(name="lead", model=model, hooks=hooks), "go", policy=policy)).result()
    cut_store = await cut_behind(store, _is_reply, 6)
    again_and_again.clear()
    async with AgentRuntime(tmp_path / "two", store=cut_store, backend="local") as runtime:
        [handle] = await runtime.resume(llm=model, agents=[Agent(name="lead", model=model, hooks=hooks)])
        assert (await handle.result()).value == "done"
        texts = [str(each.text) for each in handle.run.context.history]

    assert texts.count("more") == STOP_HOOK_LIMIT
    assert again_and_again == [True] * 3


async def test_a_stop_hook_block_does_not_reset_the_count_of_wrong_answers() -> None:
    """Answers of the wrong form still count after a hook blocked a good answer between them."""

    def wants_more(payload: dict[str, Any]) -> dict[str, str] | None:
        return None if payload["stop_hook_active"] else {"decision": "block", "reason": "more"}

    hooks = {"Stop": [wants_more]}
    store, script = MemoryStore(), ["one", "two", '{"count": 3}', "three", '{"count": 4}']
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(script), output=Finding, hooks=hooks)
        undisturbed_result = await (await runtime.spawn(lead, "go")).result()
    model = ScriptedModel(script[4:])
    async with AgentRuntime(store=await cut_behind(store, _is_reply, 4)) as runtime:
        [handle] = await runtime.resume(
            llm=model, agents=[Agent(name="lead", model=model, output=Finding, hooks=hooks)]
        )
        result = await handle.result()

    assert undisturbed_result.error is not None
    assert result.error == undisturbed_result.error
