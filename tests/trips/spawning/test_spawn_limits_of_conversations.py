"""`max_sub_agents` of a conversation: a bound on the births of one turn and on the living, not on all its life."""

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


def agent(prompt: str, **more: object) -> Call:
    """A call of the Agent tool for a reader of that name."""
    return Call("Agent", {"subagent_type": "reader", "prompt": prompt, "name": prompt, **more})


def answer(messages: list[BaseMessage]) -> ReplyStep:
    """Do what the newest word of a user says: "start a b" starts two agents, "begin a b" two in the background.

    One that is told "sit…" hangs, all others say that they are done.
    """
    at, (word, *names) = max(
        (at, each.text.split()) for at, each in enumerate(messages) if each.type == "human" and "<" not in each.text
    )
    if word.startswith("sit"):
        return Hang(0)
    asked = sum(isinstance(each, AIMessage) and bool(each.tool_calls) for each in messages[at:])
    if word in ("start", "begin") and asked < len(names):
        return agent(names[asked], **({"run_in_background": True} if word == "begin" else {}))
    return "done"


def session(runtime: AgentRuntime) -> Session:
    """A conversation whose own loop is in a sandbox, too."""
    return Session(ScriptedModel(answer), agents=[READER], runtime=runtime, root_policy=POLICY, session_id="talk")


def opened(folder: pathlib.Path, store: Store | None = None) -> AgentRuntime:
    """A runtime that counts."""
    runtime = AgentRuntime(folder, backend="local", store=store)
    runtime.telemetry.counts = Counts(runtime.clock.now)
    return runtime


def refusals(messages: Sequence[BaseMessage]) -> list[str]:
    """What tools were answered that were refused."""
    return [str(each.text) for each in messages if each.type == "tool" and "policy.max_sub_agents" in str(each.text)]


def counted(runtime: AgentRuntime) -> int:
    """How many births were refused, as monitoring sees it."""
    assert runtime.telemetry.counts is not None
    return runtime.telemetry.counts.spawn_refusals["policy.max_sub_agents"]


async def test_a_conversation_starts_agents_in_every_turn(tmp_path: pathlib.Path) -> None:
    """More in all its life than may live at once."""
    async with opened(tmp_path) as runtime, session(runtime) as talk:
        for turn in range(4):
            assert (await talk.ask(f"start a{turn} b{turn}")).value == "done"
        assert refusals(talk.messages) == []
        assert len([each for each in talk.runs() if each.depth and each.state == "completed"]) == 4 * MOST
        assert counted(runtime) == 0


async def test_one_turn_of_a_conversation_starts_no_more_than_the_policy_says(tmp_path: pathlib.Path) -> None:
    """A loop that starts and waits comes to its end; the refusal is told to the model and counted."""
    async with opened(tmp_path) as runtime, session(runtime) as talk:
        await talk.ask("start a b c")
        (refusal,) = refusals(talk.messages)
        assert f"it may start at most {MOST} in one turn" in refusal
        assert counted(runtime) == 1
        await talk.ask("start d")
        assert talk.handle("d").view().state == "completed"


async def test_of_the_agents_of_a_conversation_no_more_live_than_the_policy_says(tmp_path: pathlib.Path) -> None:
    """Those of earlier turns count; an end makes room, and mail to one that has ended needs room as well."""
    async with opened(tmp_path) as runtime, session(runtime) as talk:
        await talk.ask("start a")
        await talk.ask("begin sit1 sit2")
        await talk.ask("start b")
        (refusal,) = refusals(talk.messages)
        assert f"at most {MOST} may run at once" in refusal
        with pytest.raises(MailRefused, match="max_sub_agents"):
            talk.handle("a").send("Again.")
        await talk.handle("sit1").cancel("enough")
        await eventually(lambda: run_of(talk, "main").state == "idle" and not run_of(talk, "main").context.mailbox)
        await talk.ask("start c")
        assert talk.handle("c").view().state == "completed"


async def test_the_births_of_a_turn_are_counted_on_after_a_kill(tmp_path: pathlib.Path) -> None:
    """Both of its turn were had under a kernel that was killed; the next turn has its own."""
    store = MemoryStore()
    async with opened(tmp_path / "one", store) as runtime, session(runtime) as talk:
        await talk.ask("start z")
        await talk.ask("start a b c")
    left = await cut_behind(store, lambda event: isinstance(event, RunEnded) and event.path == "main/b")
    async with opened(tmp_path / "one", left) as runtime:
        talk = await Session.resume("talk", ScriptedModel(answer), agents=[READER], runtime=runtime)
        root = run_of(talk, "main")
        await eventually(lambda: root.state == "idle")
        assert len(refusals(talk.messages)) == 1
        assert [each.name for each in talk.runs() if each.depth] == ["a", "b", "z"]
        await talk.ask("start d")
        assert talk.handle("d").view().state == "completed"
        await talk.close()
