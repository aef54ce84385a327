"""A name leads to one agent only, whoever chose it. A run's rights, hooks and calls are its own."""

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
from ramet.tools.context import current_call
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    GENERAL_PURPOSE,
    Gate,
    answers,
    async_tool,
    background_call,
    is_tree_idle,
    of_kind,
    run_of,
    session_events,
    specialist_call,
)


async def spawn_toiler(session: Session, name: str | None) -> Handle:
    return await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name=name))


def recipients_of(session: Session, word: str) -> list[str]:
    """Return the paths of the runs that received mail with this word."""
    return [event.path for event in of_kind(session_events(session), MailPushed) if word in event.text]


# --- names


async def test_a_child_named_like_another_s_id_gets_neither_its_mail_nor_its_stop() -> None:
    """An id is never a name: mail to it, or a stop of it, reaches the run that has the id."""
    gate, ids = Gate(), dict[str, str]()
    steps: list[Any] = [
        lambda _: Call("SendMessage", {"to": ids["victim"], "message": "a secret"}),
        lambda _: Call("TaskStop", {"task_id": ids["victim"]}),
        "ok",
    ]
    async with Session(ScriptedModel({"toil": [Call("gate"), "done"], "Go.": steps}), [gate.tool]) as session:
        victim = await spawn_toiler(session, "victim")
        ids["victim"] = victim.id
        impostor = await spawn_toiler(session, victim.id)
        await eventually(lambda: gate.calls == 2)

        await session.ask("Go.")

        assert recipients_of(session, "a secret") == ["main/victim"]
        assert (await victim.result()).status is Status.CANCELLED
        assert impostor.name != victim.id
        assert session.handle(victim.id).id == victim.id
        assert impostor.view().state == "running"


async def test_a_name_never_equals_the_number_of_a_nameless_child() -> None:
    """Children with numbers as names and children without names all have different paths and names."""
    async with Session(ScriptedModel({"toil": ["done"]})) as session:
        handles = [await spawn_toiler(session, name) for name in (None, "1", "4", None, "main-1", None, None)]

        assert len({handle.path for handle in handles}) == len(handles)
        assert [session.handle(handle.path).id for handle in handles] == [handle.id for handle in handles]
        assert [session.handle(handle.name).id for handle in handles] == [handle.id for handle in handles]


async def test_a_child_named_parent_does_not_replace_the_parent() -> None:
    """The name `parent` always means the run above. A child that asks for that name gets another one."""
    model = ScriptedModel(
        {
            "task-notification": ["noted"],
            "dig": ["found"],
            "lead": [
                background_call("dig", "parent"),
                Call("SendMessage", {"to": "parent", "message": "a word"}),
                "done",
            ],
            "Go.": [specialist_call("lead", "mid"), "ok"],
            "": ["heard"],
        }
    )
    async with Session(model) as session:
        await session.ask("Go.")
        await eventually(lambda: is_tree_idle(session))

        assert recipients_of(session, "a word") == ["main"]
        assert "main/mid/parent" not in {view.path for view in session.runs()}


async def test_the_registry_is_a_mapping_of_existing_runs() -> None:
    """An unknown id is not in the registry, and `get` returns None for it."""
    async with Session(ScriptedModel(["ok"])) as session:
        assert session.id in AGENT_REGISTRY
        assert "nope" not in AGENT_REGISTRY
        assert AGENT_REGISTRY.get("nope") is None


# --- whose call it is


async def test_no_run_works_inside_the_call_that_started_it() -> None:
    """A child, or a root that its child's message woke, does not inherit the current tool call of another run."""
    gate, calls = Gate(), list[Any]()

    def answer(messages: list[Any]) -> Any:
        calls.append(current_call.get(None))
        prompts, newest = [str(each.text) for each in messages if each.type == "human"], messages[-1].type
        if "toil" in prompts[0]:
            replies = sum(each.type == "ai" for each in messages)
            return (Call("gate"), Call("SendMessage", {"to": "main", "message": "a word"}), "done")[replies]
        return background_call("toil", "kid") if newest == "human" and prompts[-1] == "Go." else "ok"

    async with Session(ScriptedModel(answer), [gate.tool]) as session:
        await session.ask("Go.")
        gate.open.set()
        await eventually(lambda: recipients_of(session, "a word") and is_tree_idle(session))

    assert len(calls) >= 6
    assert set(calls) == {None}


async def test_a_root_woken_by_its_child_ends_that_child_when_it_fails() -> None:
    """The child's message wakes its root. The root's turn fails while the child works, and the child is cancelled."""
    gate, never = Gate(), Gate("never")
    model = ScriptedModel(
        {
            "toil": [Call("gate"), [Call("SendMessage", {"to": "main", "message": "fail"}), Call("never")], "no"],
            "fail": [lambda _: Fail("no provider")],
            "Go.": [background_call("toil", "kid"), "meanwhile"],
        }
    )
    boss = Agent(name="boss", instructions="Lead.", model=model)
    kinds = {GENERAL_PURPOSE: Agent(name=GENERAL_PURPOSE, instructions="Work.")}
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


async def test_a_definition_s_hook_binds_its_children_and_forks() -> None:
    """A call that a definition's own PreToolUse hook denies is denied to children, grandchildren and forks, too.

    Such a hook runs once for each call, also of a fork, which has its definition.
    """
    ran: list[str] = []
    observed: list[Any] = []

    async def danger() -> str:
        """Do harm."""
        ran.append("ran")
        return "boom"

    async def look() -> str:
        """Look around."""
        return "nothing"

    guarded = Agent(
        name="guarded",
        instructions="Take care.",
        hooks={
            "PreToolUse": [
                {"matcher": "danger", "hooks": [lambda _: "deny"]},
                {"matcher": "look", "hooks": [observed.append]},
            ]
        },
    )
    model = ScriptedModel(
        {
            "below": [Call("danger"), Call("look"), "no luck"],
            "toil": [Call("danger"), specialist_call("below", "lower"), "done"],
            "guard": [
                Call("danger"),
                specialist_call("toil", "kid"),
                Call("Agent", {"prompt": "below", "name": "twin"}),
                "done",
            ],
            "Go.": [Call("Agent", {"prompt": "guard", "subagent_type": "guarded", "name": "guard"}), "ok"],
        }
    )
    limits = SpawnLimits(depth=5)
    tools = [async_tool(danger), async_tool(look)]
    async with Session(model, tools, agents=[guarded], spawn_limits=limits) as session:
        result = await session.ask("Go.")
        paths = {view.path for view in session.runs()}
        refusals = [answers(run_of(session, name).context.history) for name in ("guard", "kid", "lower", "twin")]

    assert result.value == "ok"
    assert {"main/guard/kid/lower", "main/guard/twin"} <= paths
    assert ran == []
    assert len(observed) == 2, "of `lower` and `twin`"
    assert all(any(text.startswith("Denied") for text in each.values()) for each in refusals), refusals
