"""`max_sub_agents` of a conversation bounds the spawns of one turn and the living agents, not all spawns."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, Session
from ramet.core.errors import MailRefused
from ramet.core.events import RunEnded
from ramet.host.observability.counters import Counts
from ramet.models.scripted.dialogue import Call, Hang, ReplyStep
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from tests.support.cut_journals import cut_behind
from tests.support.waiting import eventually
from tests.trips.kits.sessions import run_of

MOST = 2
POLICY = Policy(allow_sub_agents=True, max_sub_agents=MOST, memory_mb=1024, cpu_cores=8)
READER = Agent(name="reader", description="Reads", instructions="Read.", policy=Policy(memory_mb=64, cpu_cores=0.1))


def agent_call(prompt: str, **more: object) -> Call:
    """Return a call of the Agent tool for a reader with that name."""
    return Call("Agent", {"subagent_type": "reader", "prompt": prompt, "name": prompt, **more})


def answer(messages: list[BaseMessage]) -> ReplyStep:
    """Follow the newest prompt: "start a b" spawns two agents, and "begin a b" two in the background.

    An agent that is told "sit…" hangs. Any other one answers "done".
    """
    at, (word, *names) = max(
        (at, each.text.split()) for at, each in enumerate(messages) if each.type == "human" and "<" not in each.text
    )
    if word.startswith("sit"):
        return Hang(0)
    request_count = sum(isinstance(each, AIMessage) and bool(each.tool_calls) for each in messages[at:])
    if word in ("start", "begin") and request_count < len(names):
        return agent_call(names[request_count], **({"run_in_background": True} if word == "begin" else {}))
    return "done"


def new_conversation(runtime: AgentRuntime) -> Session:
    """Return a conversation whose own loop is in a sandbox, too."""
    return Session(ScriptedModel(answer), agents=[READER], runtime=runtime, root_policy=POLICY, session_id="talk")


def counting_runtime(folder: pathlib.Path, store: Store | None = None) -> AgentRuntime:
    """Return a runtime that counts refusals."""
    runtime = AgentRuntime(folder, backend="local", store=store)
    runtime.telemetry.counts = Counts(runtime.clock.now)
    return runtime


def refusals(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the tool results of refused spawns."""
    return [str(each.text) for each in messages if each.type == "tool" and "policy.max_sub_agents" in str(each.text)]


def count_refusals(runtime: AgentRuntime) -> int:
    """Return how many spawns were refused, as monitoring sees it."""
    assert runtime.telemetry.counts is not None
    return runtime.telemetry.counts.spawn_refusals["policy.max_sub_agents"]


async def test_a_conversation_can_spawn_agents_in_every_turn(tmp_path: pathlib.Path) -> None:
    """A conversation of several turns spawns more agents than may live concurrently."""
    async with counting_runtime(tmp_path) as runtime, new_conversation(runtime) as turn_queue:
        for turn in range(4):
            assert (await turn_queue.ask(f"start a{turn} b{turn}")).value == "done"
        assert refusals(turn_queue.messages) == []
        assert len([each for each in turn_queue.runs() if each.depth and each.state == "completed"]) == 4 * MOST
        assert count_refusals(runtime) == 0


async def test_one_turn_spawns_at_most_max_sub_agents(tmp_path: pathlib.Path) -> None:
    """The model reads the refusal, and monitoring counts it. The next turn can spawn again."""
    async with counting_runtime(tmp_path) as runtime, new_conversation(runtime) as turn_queue:
        await turn_queue.ask("start a b c")
        (refusal,) = refusals(turn_queue.messages)
        assert f"it may start at most {MOST} in one turn" in refusal
        assert count_refusals(runtime) == 1
        await turn_queue.ask("start d")
        assert turn_queue.handle("d").view().state == "completed"


async def test_at_most_max_sub_agents_live_concurrently(tmp_path: pathlib.Path) -> None:
    """Agents of earlier turns count. Their end makes room, and mail to an ended one needs room as well."""
    async with counting_runtime(tmp_path) as runtime, new_conversation(runtime) as turn_queue:
        await turn_queue.ask("start a")
        await turn_queue.ask("begin sit1 sit2")
        await turn_queue.ask("start b")
        (refusal,) = refusals(turn_queue.messages)
        assert f"at most {MOST} may run at once" in refusal
        with pytest.raises(MailRefused, match="max_sub_agents"):
            turn_queue.handle("a").send("Again.")
        await turn_queue.handle("sit1").cancel("enough")
        await eventually(
            lambda: run_of(turn_queue, "main").state == "idle" and not run_of(turn_queue, "main").context.mailbox
        )
        await turn_queue.ask("start c")
        assert turn_queue.handle("c").view().state == "completed"


async def test_a_kill_does_not_reset_the_spawn_count_of_a_turn(tmp_path: pathlib.Path) -> None:
    """Both spawns of the turn happened under the killed kernel, so a third is refused.

    The next turn can spawn again.
    """
    store = MemoryStore()
    async with counting_runtime(tmp_path / "one", store) as runtime, new_conversation(runtime) as session:
        await session.ask("start z")
        await session.ask("start a b c")
    cut_store = await cut_behind(store, lambda event: isinstance(event, RunEnded) and event.path == "main/b")
    async with counting_runtime(tmp_path / "one", cut_store) as runtime:
        session = await Session.resume("talk", ScriptedModel(answer), agents=[READER], runtime=runtime)
        root = run_of(session, "main")
        await eventually(lambda: root.state == "idle")
        assert len(refusals(session.messages)) == 1
        assert [each.name for each in session.runs() if each.depth] == ["a", "b", "z"]
        await session.ask("start d")
        assert session.handle("d").view().state == "completed"
        await session.close()
