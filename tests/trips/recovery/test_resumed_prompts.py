"""A kernel killed between the start of a session's turn and the first message in that turn."""

from __future__ import annotations

import pathlib

import pytest

from ramet import Agent, AgentRuntime, Policy, Session
from ramet.core.errors import Unknown
from ramet.core.events import Event, TurnEnded, TurnStarted
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.trips.kits.sessions import typed_texts


def _is_turn_start(event: Event) -> bool:
    return isinstance(event, TurnStarted)


@pytest.mark.parametrize("policy", [None, Policy()], ids=["host", "sandbox"])
async def test_a_turn_without_a_recorded_prompt_is_not_resumed(tmp_path: pathlib.Path, policy: Policy | None) -> None:
    """The caller prompts again, and does not get the answer of the turn before.

    A start of a sandbox can take seconds.
    """
    store = MemoryStore()
    async with AgentRuntime(tmp_path / "one", store=store, backend="local") as runtime:
        session = Session(ScriptedModel(["one", "two"]), runtime=runtime, session_id="talk", root_policy=policy)
        await session.ask("first")
        await session.ask("second")

    none: list[tuple[str, str]] = []
    for nth, before in ((1, none), (2, [("human", "first"), ("ai", "one")])):
        cut_store, model = await cut_behind(store, _is_turn_start, nth), ScriptedModel(["asked again"])
        async with AgentRuntime(tmp_path / "one", store=cut_store, backend="local") as runtime:
            session = await Session.resume("talk", model, runtime=runtime)
            assert session.listen() is None
            assert (await session.ask("again")).value == "asked again"
            assert typed_texts(session.messages) == [*before, ("human", "again"), ("ai", "asked again")]
            assert session.handle("main").run.turns == nth
        assert len(model.requests) == 1


async def test_a_session_start_hook_runs_again_if_its_output_was_not_recorded() -> None:
    """The kill came before any message of the turn was recorded, so the next kernel asks the hook again."""
    store = MemoryStore()
    hooks = {"SessionStart": [lambda _: {"hookSpecificOutput": {"additionalContext": "Mind the gap."}}]}

    def lead(model: ScriptedModel) -> Agent:
        return Agent(name="lead", model=model, hooks=hooks)

    async with AgentRuntime(store=store) as runtime:
        await (await runtime.spawn(lead(ScriptedModel(["done"])), "go")).result()
    model = ScriptedModel(["done"])
    async with AgentRuntime(store=await cut_behind(store, _is_turn_start)) as runtime:
        [handle] = await runtime.resume(llm=model, agents=[lead(model)])
        await handle.result()
    assert typed_texts(model.requests[0].messages) == [("human", "go"), ("human", "Mind the gap.")]


async def test_a_conversation_or_fork_whose_root_was_not_recorded_can_be_begun_again() -> None:
    """The kernel was killed after it wrote the tree, and before the root: the id of the session is not lost."""
    store = MemoryStore()
    async with AgentRuntime(store=store) as runtime:
        async with Session(ScriptedModel(["one"]), runtime=runtime, session_id="talk") as session:
            await session.ask("first")
            talk = session.id
        async with Session(ScriptedModel(["one"]), runtime=runtime, session_id="other"):
            pass
        async with await Session.fork(talk, ScriptedModel(["two"]), runtime=runtime, session_id="what-if"):
            pass

    cut_store = await cut_behind(store, lambda event: isinstance(event, TurnEnded))
    async with AgentRuntime(store=cut_store) as runtime:
        with pytest.raises(Unknown):
            await Session.resume("other", ScriptedModel(["one"]), runtime=runtime)
        async with Session(ScriptedModel(["one"]), runtime=runtime, session_id="other") as session:
            await session.ask("begin")
        async with await Session.fork(talk, ScriptedModel(["two"]), runtime=runtime, session_id="what-if") as session:
            await session.ask("second")
        for name, texts in (("other", ["begin", "one"]), ("what-if", ["first", "one", "second", "two"])):
            async with await Session.resume(name, ScriptedModel([]), runtime=runtime) as session:
                assert [each.text for each in session.messages] == texts
