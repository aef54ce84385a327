"""A conversation in a sandbox whose kernel was killed just behind an answer: it stands if it would have stood."""

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


class Found(BaseModel):
    """What an answer is to be."""

    count: int


def _is_reply(event: Event) -> bool:
    return isinstance(event, MessageRecorded) and event.step_id is not None


async def _killed_behind_the_first_reply(
    folder: pathlib.Path, first: str, *later: str, **agent: Any
) -> tuple[Result, ScriptedModel]:
    """What came of it under the next kernel, and the model that was asked there."""
    store = MemoryStore()
    async with AgentRuntime(folder / "one", store=store, backend="local") as runtime:
        asked = Agent(name="lead", model=ScriptedModel([first, *later]), **agent)
        await (await runtime.spawn(asked, "go", policy=Policy())).result()
    model = ScriptedModel(list(later))
    async with AgentRuntime(folder / "one", store=await cut_behind(store, _is_reply), backend="local") as runtime:
        [again] = await runtime.resume(llm=model, agents=[Agent(name="lead", model=model, **agent)])
        return await again.result(), model


async def test_an_answer_of_another_form_is_asked_for_again(tmp_path: pathlib.Path) -> None:
    """As it would have been: its model is told what is wrong with it."""
    result, model = await _killed_behind_the_first_reply(tmp_path, "many", '{"count": 3}', output=Found)

    assert (result.status, result.value) == ("completed", Found(count=3)), result.error
    assert "JSON" in model.requests[0].messages[-1].text


async def test_a_hook_that_wants_more_gets_it(tmp_path: pathlib.Path) -> None:
    """An answer that no hook has seen does not stand."""

    def wants_more(payload: dict[str, Any]) -> dict[str, str] | None:
        return {"decision": "block", "reason": "run the tests"} if payload["last_assistant_message"] == "done" else None

    result, model = await _killed_behind_the_first_reply(tmp_path, "done", "tested, too", hooks={"Stop": [wants_more]})

    assert (result.status, result.value) == ("completed", "tested, too")
    assert model.requests[0].messages[-1].text == "run the tests"


async def test_answers_of_another_form_are_counted_over_a_kill() -> None:
    """Of three tries, two were under another kernel: the third is the last."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(["one", "two", '{"count": 3}']), output=Found)
        await (await runtime.spawn(lead, "go")).result()
    left = await cut_behind(store, _is_reply, 2)
    model = ScriptedModel(["three", '{"count": 3}'])
    async with AgentRuntime(store=left) as runtime:
        [again] = await runtime.resume(llm=model, agents=[Agent(name="lead", model=model, output=Found)])
        result = await again.result()

    assert result.error is not None, result.value
    assert result.error.type == "OutputInvalid"
    assert len(model.requests) == 1


@pytest.mark.parametrize("policy", [None, Policy()], ids=["host", "sandbox"])
async def test_what_a_hook_wants_more_of_is_counted_over_a_kill(tmp_path: pathlib.Path, policy: Policy | None) -> None:
    """Nobody is made to go on for ever, nor in each process anew; the hook hears that it is not the first time."""
    again_and_again = list[bool]()

    def wants_more(payload: dict[str, Any]) -> dict[str, str]:
        again_and_again.append(payload["stop_hook_active"])
        return {"decision": "block", "reason": "more"}

    hooks = {"Stop": [wants_more]}
    store, model = MemoryStore(), ScriptedModel(lambda _: "done")
    async with AgentRuntime(tmp_path / "one", store=store, backend="local") as runtime:
        await (await runtime.spawn(Agent(name="lead", model=model, hooks=hooks), "go", policy=policy)).result()
    left = await cut_behind(store, _is_reply, 6)
    again_and_again.clear()
    async with AgentRuntime(tmp_path / "two", store=left, backend="local") as runtime:
        [again] = await runtime.resume(llm=model, agents=[Agent(name="lead", model=model, hooks=hooks)])
        assert (await again.result()).value == "done"
        said = [str(each.text) for each in again.run.context.history]

    assert said.count("more") == STOP_HOOK_LIMIT
    assert again_and_again == [True] * 3


async def test_tries_are_counted_behind_what_a_hook_wanted() -> None:
    """An answer of another form is no less one since a hook wanted more of a good one in between."""

    def wants_more(payload: dict[str, Any]) -> dict[str, str] | None:
        return None if payload["stop_hook_active"] else {"decision": "block", "reason": "more"}

    hooks = {"Stop": [wants_more]}
    store, script = MemoryStore(), ["one", "two", '{"count": 3}', "three", '{"count": 4}']
    async with AgentRuntime(store=store) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(script), output=Found, hooks=hooks)
        undisturbed = await (await runtime.spawn(lead, "go")).result()
    model = ScriptedModel(script[4:])
    async with AgentRuntime(store=await cut_behind(store, _is_reply, 4)) as runtime:
        [again] = await runtime.resume(llm=model, agents=[Agent(name="lead", model=model, output=Found, hooks=hooks)])
        result = await again.result()

    assert undisturbed.error is not None
    assert result.error == undisturbed.error
