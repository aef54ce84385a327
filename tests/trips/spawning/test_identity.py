"""A name leads to one agent and to no other, whoever chose it; a run's rights, hooks and call are its own."""

from __future__ import annotations

from typing import Any

from ramet.agent.definition import Agent
from ramet.core.events import MailPushed
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.host.registry import AGENT_REGISTRY
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.model import Call, Fail, ScriptedModel
from ramet.spawn.handle import Handle
from ramet.tools.context import SpawnRequest, current_call
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    GENERAL,
    Gate,
    all_is_quiet,
    answers,
    async_tool,
    background,
    fresh,
    kept,
    of_kind,
    run_of,
)


async def toiler(session: Session, name: str | None) -> Handle:
    return await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name=name))


def arrived(session: Session, word: str) -> list[str]:
    """Whom the mail with this word reached."""
    return [event.path for event in of_kind(kept(session), MailPushed) if word in event.text]


# --- names


async def test_a_child_named_like_another_s_id_gets_neither_its_mail_nor_its_end() -> None:
    """An id is nobody's name: what a model sends to it, or stops by it, is the run that has it."""
    gate, ids = Gate(), dict[str, str]()
    steps: list[Any] = [
        lambda _: Call("SendMessage", {"to": ids["victim"], "message": "a secret"}),
        lambda _: Call("TaskStop", {"task_id": ids["victim"]}),
        "ok",
    ]
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"], "Go.": steps}), [gate.tool]) as session:
        victim = await toiler(session, "victim")
        ids["victim"] = victim.id
        impostor = await toiler(session, victim.id)
        await eventually(lambda: gate.calls == 2)

        await session.ask("Go.")

        assert arrived(session, "a secret") == ["main/victim"]
        assert (await victim.result()).status is Status.CANCELLED
        assert impostor.name != victim.id
        assert session.handle(victim.id).id == victim.id
        assert impostor.view().state == "running"


async def test_a_name_is_never_a_number_that_a_nameless_child_has() -> None:
    """`main/1` is the first nameless child, whether it came before or after somebody who wanted to be called so."""
    async with Session(ScriptedModel({"toil": ["done"]})) as session:
        handles = [await toiler(session, name) for name in (None, "1", "4", None, "main-1", None, None)]

        assert len({handle.path for handle in handles}) == len(handles)
        assert [session.handle(handle.path).id for handle in handles] == [handle.id for handle in handles]
        assert [session.handle(handle.name).id for handle in handles] == [handle.id for handle in handles]


async def test_a_child_named_parent_is_not_its_parent_s_parent() -> None:
    """To every agent 'parent' is who stands above it; a child that is called so has another name."""
    model = ScriptedModel(
        {
            "task-notification": ["noted"],
            "dig": ["found"],
            "lead": [background("dig", "parent"), Call("SendMessage", {"to": "parent", "message": "a word"}), "done"],
            "Go.": [fresh("lead", "mid"), "ok"],
            "": ["heard"],
        }
    )
    async with Session(model) as session:
        await session.ask("Go.")
        await eventually(lambda: all_is_quiet(session))

        assert arrived(session, "a word") == ["main"]
        assert "main/mid/parent" not in {view.path for view in session.runs()}


async def test_the_registry_is_a_mapping_of_what_there_is() -> None:
    """An id that nobody has is not in it, is no error to ask for, and is a KeyError to take."""
    async with Session(ScriptedModel(["ok"])) as session:
        assert session.id in AGENT_REGISTRY
        assert "nope" not in AGENT_REGISTRY
        assert AGENT_REGISTRY.get("nope") is None


# --- whose call it is


async def test_no_run_works_inside_the_call_that_started_it() -> None:
    """Neither a child, nor a root that its child's message woke, takes another's tool call for its own."""
    gate, calls = Gate(), list[Any]()

    def answer(messages: list[Any]) -> Any:
        calls.append(current_call.get(None))
        said, newest = [str(each.text) for each in messages if each.type == "human"], messages[-1].type
        if "toil" in said[0]:
            replies = sum(each.type == "ai" for each in messages)
            return (Call("gate"), Call("SendMessage", {"to": "main", "message": "a word"}), "done")[replies]
        return background("toil", "kid") if newest == "human" and said[-1] == "Go." else "ok"

    async with Session(ScriptedModel(answer), [gate.tool]) as session:
        await session.ask("Go.")
        gate.open.set()
        await eventually(lambda: arrived(session, "a word") and all_is_quiet(session))

    assert len(calls) >= 6
    assert set(calls) == {None}


async def test_a_root_woken_by_its_child_takes_that_child_with_it() -> None:
    """The child's message wakes its root, whose turn fails while the child works on: the child ends, too."""
    gate, never = Gate(), Gate("never")
    model = ScriptedModel(
        {
            "toil": [Call("gate"), [Call("SendMessage", {"to": "main", "message": "fail"}), Call("never")], "no"],
            "fail": [lambda _: Fail("no provider")],
            "Go.": [background("toil", "kid"), "meanwhile"],
        }
    )
    boss = Agent(name="boss", instructions="Lead.", model=model)
    kinds = {GENERAL: Agent(name=GENERAL, instructions="Work.")}
    async with AgentRuntime() as runtime:
        root = await runtime.spawn(boss, "Go.", tools=[gate.tool, never.tool], agents=kinds)
        await gate.entered.wait()
        register = runtime.trees[root.id].tree.register
        kid = register.find("kid")
        await eventually(lambda: register.find("main").state == "idle")
        gate.open.set()

        assert (await root.result()).status is Status.FAILED
        assert (await runtime.get(kid.info.id).result()).status is Status.CANCELLED
        assert register.admission.slot_count == 0


# --- gates


async def test_a_definition_s_gate_binds_its_children() -> None:
    """What a definition's own PreToolUse hook denies it, no child, grandchild or fork of it can do either."""
    ran: list[str] = []

    async def danger() -> str:
        """Do harm."""
        ran.append("ran")
        return "boom"

    guarded = Agent(
        name="guarded",
        instructions="Take care.",
        hooks={"PreToolUse": [{"matcher": "danger", "hooks": [lambda _: "deny"]}]},
    )
    model = ScriptedModel(
        {
            "below": [Call("danger"), "no luck"],
            "toil": [Call("danger"), fresh("below", "lower"), "done"],
            "guard": [Call("danger"), fresh("toil", "kid"), Call("Agent", {"prompt": "below", "name": "twin"}), "done"],
            "Go.": [Call("Agent", {"prompt": "guard", "subagent_type": "guarded", "name": "guard"}), "ok"],
        }
    )
    limits = SpawnLimits(depth=5)
    async with Session(model, [async_tool(danger)], agents=[guarded], spawn_limits=limits) as session:
        result = await session.ask("Go.")
        paths = {view.path for view in session.runs()}
        refused = [answers(run_of(session, name).context.history) for name in ("guard", "kid", "lower", "twin")]

    assert result.value == "ok"
    assert {"main/guard/kid/lower", "main/guard/twin"} <= paths
    assert ran == []
    assert all(any(text.startswith("Denied") for text in each.values()) for each in refused), refused
