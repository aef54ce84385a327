"""AC-S1-7, AC-S1-8, AC-S2-3, AC-S2-6: background children report their end once, and no message is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from ramet.agent.definition import Agent
from ramet.agent.history.compaction import Compaction
from ramet.concurrency.mailbox import MAX_MAILS
from ramet.core.errors import MailRefused, Unknown
from ramet.core.events import Compacted, MailDelivered, MailPushed, MessageRecorded, RunEnded, TurnStarted
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Status
from ramet.host.registry import AGENT_REGISTRY
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.dialogue import ReplyStep, Script
from ramet.models.scripted.model import Call, Fail, ScriptedModel
from ramet.spawn.lifecycle.supervisor import MAX_WAKES
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    Gate,
    answers,
    async_tool,
    background_call,
    brief_of,
    is_tree_idle,
    is_valid,
    newest_human,
    of_kind,
    open_tree_of,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
)

NOTICE = "<task-notification"


def notices(messages: Sequence[BaseMessage]) -> list[str]:
    return [text for _, text in typed_texts(messages) if text.startswith(NOTICE)]


def is_idle(session: Session) -> bool:
    """Return whether the root is idle and has no unread mail."""
    root = run_of(session, "main")
    return root.state == "idle" and not len(root.context.mailbox)


# --- AC-S1-7, AC-S2-6: the end of a background child


async def test_a_background_spawn_returns_an_id_at_once() -> None:
    """AC-S1-7: the parent gets the id while the child works, and continues."""
    gate = Gate()
    model = ScriptedModel(
        {"toil": [Call("gate"), "found"], "": [background_call("toil", "worker"), "meanwhile", "noted"]}
    )
    async with Session(model, [gate.tool]) as session:
        result = await session.ask("Go.")

        worker = session.handle("worker")
        assert result.value == "meanwhile"
        assert f"task_id={worker.id} name=worker" in str(typed_texts(session.messages)[2])
        assert worker.view().state == "running"
        gate.open.set()
        assert (await worker.result()).value == "found"
        await eventually(lambda: is_idle(session))


async def test_a_background_child_s_end_wakes_an_idle_parent() -> None:
    """AC-S2-6: the parent's mailbox receives the notice, and its next model request has the notice once, as data."""
    gate = Gate()
    model = ScriptedModel(
        {"toil": [Call("gate"), "found"], "": [background_call("toil", "worker"), "meanwhile", "noted"]}
    )
    async with Session(model, [gate.tool]) as session:
        await session.ask("Go.")
        gate.open.set()

        await eventually(lambda: session.messages[-1].text == "noted")

        worker = session.handle("worker")
        (notice,) = notices(session.messages)
        assert notice == (
            f'<task-notification task_id="{worker.id}" name="worker" path="main/worker" status="completed">\n'
            "found\n</task-notification>"
        )
        assert model.requests[-1].messages[-1].type == "human"
        assert model.requests[-1].messages[-1].text == notice
        assert len(of_kind(session_events(session), MailDelivered, "main")) == 1


async def test_a_background_child_s_end_is_delivered_in_the_current_turn() -> None:
    """AC-S1-7: a parent in mid-turn reads the notice once, before its next model call, and its history stays valid."""
    gate, long = Gate(), Gate("long")
    model = ScriptedModel(
        {"toil": [Call("gate"), "found"], "": [background_call("toil", "worker"), Call("long"), "ok"]}
    )
    async with Session(model, [gate.tool, long.tool]) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: gate.calls and long.calls)
        gate.open.set()
        await session.handle("worker").result()
        long.open.set()

        result = await turn

        assert result.value == "ok"
        assert len(notices(session.messages)) == 1
        assert [kind for kind, _ in typed_texts(session.messages)][-3:] == ["tool", "human", "ai"]
        assert is_valid(model.requests[-1].messages)
        assert is_idle(session)


async def test_a_failed_background_child_is_reported_as_a_failure() -> None:
    """The notice has the status and the error, and does not look like a finding."""
    model = ScriptedModel({"toil": [Fail("no luck")], "": [background_call("toil", "worker"), "meanwhile", "noted"]})
    async with Session(model) as session:
        await session.ask("Go.")
        await eventually(lambda: session.messages[-1].text == "noted")

        (notice,) = notices(session.messages)

    assert 'status="failed"' in notice
    assert "did not finish: failed (scripted: no luck)" in notice


async def test_a_notice_survives_compaction() -> None:
    """AC-S1-7: a parent whose history was compacted receives the notice once, and still knows the child's id."""
    gate = Gate()
    long = "much to read " * 300

    async def read() -> str:
        """Read much."""
        return long

    steps: Iterator[ReplyStep] = iter([background_call("toil", "worker"), *[Call("read")] * 8, "meanwhile", "noted"])

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "toil":
            return "found" if messages[-1].type == "tool" else Call("gate")
        return next(steps)

    model = ScriptedModel(answer)
    compaction = Compaction(window_tokens=4_000, keep_last=4, summarise=summary)
    async with Session(model, [gate.tool, async_tool(read)], compaction=compaction) as session:
        await session.ask("Go.")
        worker = session.handle("worker")
        assert of_kind(session_events(session), Compacted, "main")
        assert worker.id in str(typed_texts(session.messages))
        gate.open.set()

        await eventually(lambda: session.messages[-1].text == "noted")

        assert len(notices(session.messages)) == 1
        contents = [event.message["content"] for event in of_kind(session_events(session), MessageRecorded, "main")]
        assert sum(str(text).startswith(NOTICE) for text in contents) == 1


async def summary(messages: list[BaseMessage]) -> str:
    return "A good deal was read."


async def test_the_end_of_each_of_many_background_children_is_reported_once() -> None:
    """The order of the ends, and what the parent is doing, make no difference."""
    names = [f"w-{number}" for number in range(30)]

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        brief = brief_of(messages)
        if brief == "Go.":
            return [background_call(name, name) for name in names] if len(messages) == 1 else "noted"
        turns = sum(isinstance(message, AIMessage) for message in messages)
        return Call("pause") if turns < int(brief[2:]) % 4 else f"{brief} found"

    async def pause() -> str:
        """Wait for a moment."""
        await asyncio.sleep(0)
        return "waited"

    model = ScriptedModel(answer)
    async with Session(model, [async_tool(pause)]) as session:
        await session.ask("Go.")
        await eventually(lambda: is_idle(session) and len(of_kind(session_events(session), RunEnded)) == 30)

        texts = notices(session.messages)

    assert sorted(each.split('name="')[1].split('"')[0] for each in texts) == sorted(names)


async def test_notices_wake_a_parent_a_limited_number_of_times() -> None:
    """Notices wake an idle parent MAX_WAKES times without a prompt. Later notices wait for the next prompt."""
    gates = [Gate(f"gate_{number}") for number in range(MAX_WAKES + 2)]
    names = [f"w-{number}" for number in range(len(gates))]
    script: dict[str, Any] = {name: [Call(f"gate_{name[2:]}"), f"{name} found"] for name in reversed(names)}
    script[""] = [[background_call(f"be {name}.", name) for name in names], *["noted"] * 30]
    script = {(f"be {key}." if key else ""): steps for key, steps in script.items()}
    async with Session(ScriptedModel(script), [gate.tool for gate in gates], spawn_limits=SpawnLimits()) as session:
        await session.ask("Go.")
        for gate in gates:
            gate.open.set()
            name = f"w-{gate.tool.name[5:]}"
            await session.handle(name).result()
            await eventually(lambda: run_of(session, "main").state == "idle")

        wake_count = len(of_kind(session_events(session), TurnStarted, "main")) - 1
        assert (wake_count, len(notices(session.messages))) == (MAX_WAKES, MAX_WAKES)
        await session.ask("And?")
        assert len(notices(session.messages)) == MAX_WAKES + 2
        assert is_idle(session)


async def test_a_detached_child_outlives_its_parent() -> None:
    """A detached child continues after its parent's end. The nearest living run above receives its notice."""
    gate = Gate()
    model = ScriptedModel({"alone": [Call("gate"), "found alone"], "spawn": [Call("let_go"), "done"], "": ["ok"] * 3})

    async def let_go() -> str:
        """Start somebody who outlives us."""
        context = current()
        assert context.tree is not None
        request = SpawnRequest(prompt="alone", mode="fresh", detached=True, name="loner")
        return (await context.tree.spawn(context, request)).name

    async with Session(model, [gate.tool, async_tool(let_go)]) as session:
        await session.ask("Go.")
        parent = await session.spawn(SpawnRequest(prompt="spawn", mode="fresh", name="boss"))

        assert (await parent.result()).value == "done"

        loner = session.handle("loner")
        assert loner.view().state in ("starting", "running")
        gate.open.set()
        assert (await loner.result()).value == "found alone"
        await eventually(lambda: is_idle(session))
        assert 'name="loner" path="main/boss/loner"' in notices(session.messages)[-1]


async def test_a_detached_child_outlives_a_cancelled_parent() -> None:
    """Cancelling the parent does not reach a detached child."""
    gate, hold = Gate(), Gate("hold")
    model = ScriptedModel(
        {"alone": [Call("gate"), "found alone"], "spawn": [Call("let_go"), Call("hold")], "": ["ok"] * 3}
    )

    async def let_go() -> str:
        """Start somebody who outlives us."""
        context = current()
        assert context.tree is not None
        request = SpawnRequest(prompt="alone", mode="fresh", detached=True, name="loner")
        return (await context.tree.spawn(context, request)).name

    async with Session(
        model, [gate.tool, hold.tool, async_tool(let_go)], runtime=AgentRuntime(grace_s=0.05)
    ) as session:
        await session.ask("Go.")
        parent = await session.spawn(SpawnRequest(prompt="spawn", mode="fresh", name="boss"))
        await eventually(lambda: hold.calls and gate.calls)

        receipt = await parent.cancel()

        assert receipt.stopped == ("main/boss",)
        gate.open.set()
        assert (await session.handle("loner").result()).value == "found alone"


# --- AC-S1-8, AC-S2-3: messages


async def test_a_message_to_a_running_child_arrives_at_its_next_step() -> None:
    """AC-S1-8: the child reads the message after its tool results, before its next model call.

    The host sets the sender.
    """
    gate = Gate()
    model = ScriptedModel(
        {
            "toil": [Call("gate"), "done"],
            "": [
                background_call("toil", "worker"),
                Call("SendMessage", {"to": "worker", "message": "look left"}),
                "ok",
                "ok",
            ],
        }
    )
    async with Session(model, [gate.tool]) as session:
        await session.ask("Go.")
        gate.open.set()
        await session.handle("worker").result()
        history = run_of(session, "worker").context.history
        await eventually(lambda: is_idle(session))

    assert [kind for kind, _ in typed_texts(history)] == ["human", "ai", "tool", "human", "ai"]
    assert history[3].text == '<agent-message from="main" id="mail-1">\nlook left\n</agent-message>'
    assert list(answers(session.messages).values())[1] == "Delivered to main/worker; it reads it at its next step."


async def test_a_message_to_a_finished_child_resumes_it_with_its_history() -> None:
    """AC-S1-8: the child resumes in the background, with the same id and its whole history."""
    model = ScriptedModel(
        {
            "toil": ["first answer", "second answer"],
            "": [
                specialist_call("toil", "worker"),
                Call("SendMessage", {"to": "worker", "message": "and the rest?"}),
                "ok",
                "noted",
            ],
        }
    )
    async with Session(model) as session:
        await session.ask("Go.")
        worker = session.handle("worker")
        await worker.result()
        await eventually(lambda: is_idle(session))
        history = run_of(session, "worker").context.history
        ends = of_kind(session_events(session), RunEnded, "main/worker")

    assert typed_texts(history)[-3:-1] == [
        ("ai", "first answer"),
        ("human", '<agent-message from="main" id="mail-1">\nand the rest?\n</agent-message>'),
    ]
    assert [event.result.value for event in ends] == ["first answer", "second answer"]
    assert {event.run for event in ends} == {worker.id}
    assert "second answer" in notices(session.messages)[0]


async def test_a_failed_child_can_be_resumed() -> None:
    """AC-S1-13: a message resumes a child that failed at its provider, and the child keeps its history."""
    model = ScriptedModel(
        {
            "toil": [Call("ListAgents"), Fail("down"), "better now"],
            "": [
                specialist_call("toil", "worker"),
                Call("SendMessage", {"to": "worker", "message": "again"}),
                "ok",
                "noted",
            ],
        }
    )
    async with Session(model) as session:
        await session.ask("Go.")
        await eventually(lambda: is_idle(session) and len(of_kind(session_events(session), RunEnded)) == 2)
        ends = [event.result.status for event in of_kind(session_events(session), RunEnded, "main/worker")]

    assert ends == [Status.FAILED, Status.COMPLETED]
    assert is_valid(model.requests[-2].messages) or is_valid(model.requests[-1].messages)


@pytest.mark.parametrize(
    ("to", "answer"),
    [
        ("nobody", "unknown agent 'nobody'; known: main, worker"),
        ("main", "that is yourself"),
        ("x" * 900_000, "unknown agent 'xxx"),
    ],
    ids=["unknown", "itself", "1 MB"],
)
async def test_mail_to_an_unknown_agent_is_refused(to: str, answer: str) -> None:
    """Promise 6: the sender reads an error with the names that exist."""
    call = Call("SendMessage", {"to": to, "message": "hi"})
    async with Session(ScriptedModel({"toil": ["ok"], "": [specialist_call("toil", "worker"), call, "ok"]})) as session:
        await session.ask("Go.")
        (_, result) = answers(session.messages).values()

    assert answer in result
    assert len(result) < 1_000


async def test_a_flood_of_mail_is_bounded() -> None:
    """A mailbox holds MAX_MAILS unread messages and refuses more, but still takes the notice of a child's end."""
    gate, back = Gate(), Gate("back")
    script: Script = {
        "aside": [Call("back"), "aside done"],
        "toil": [background_call("aside", "aside"), Call("gate"), "x", "done"],
    }
    async with Session(ScriptedModel({**script, "": ["ok", "noted"]}), [gate.tool, back.tool]) as session:  # type: ignore[dict-item]  # a mapping of steps
        await session.ask("Go.")
        worker = await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name="worker", background=True))
        await eventually(lambda: gate.calls and back.calls)
        for number in range(MAX_MAILS):
            worker.send(f"mail {number}")

        with pytest.raises(MailRefused, match="1000 unread messages"):
            worker.send("one too many")

        back.open.set()
        await session.handle("aside").result()
        gate.open.set()
        await worker.result()
        history = run_of(session, "worker").context.history
        assert [text for _, text in typed_texts(history) if text.startswith("mail ")] == [
            f"mail {n}" for n in range(MAX_MAILS)
        ]
        assert len(notices(history)) == 1
        await eventually(lambda: is_idle(session))


async def test_a_message_of_nearly_a_megabyte_is_refused() -> None:
    """A message that is too large is refused. It neither arrives nor resumes its recipient."""
    call = Call("SendMessage", {"to": "worker", "message": "x" * 900_000})
    async with Session(ScriptedModel({"toil": ["ok"], "": [specialist_call("toil", "worker"), call, "ok"]})) as session:
        await session.ask("Go.")

        assert "at most 262144 are accepted" in list(answers(session.messages).values())[1]
        assert session.handle("worker").view().state == "completed"


async def test_a_loop_of_messages_between_two_agents_ends() -> None:
    """Two finished agents answer each other until mail is refused, after a bounded number of turns."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        brief = brief_of(messages)
        if brief == "Go.":
            return (
                [specialist_call("be ping", "ping"), specialist_call("be pong", "pong")]
                if len(messages) == 1
                else "noted"
            )
        if newest_human(messages).startswith("<agent-message") and messages[-1].type == "human":
            return Call("SendMessage", {"to": "pong" if brief == "be ping" else "ping", "message": "your turn"})
        return "ok"

    async with Session(ScriptedModel(answer)) as session:
        await session.ask("Go.")
        await eventually(lambda: is_idle(session))
        root = run_of(session, "main")
        assert root.context.tree is not None
        await root.context.tree.send(root.context, "ping", "begin")

        def are_all_idle() -> bool:
            return {view.state for view in session.runs()} == {"idle", "completed"}

        await eventually(are_all_idle)
        turns = len(of_kind(session_events(session), TurnStarted))

    assert 2 < turns < 100


async def test_mail_to_a_function_agent_is_refused() -> None:
    """A plain function would never read its mail."""
    async with Session(ScriptedModel(["ok"])) as session:
        handle = await session.spawn(SpawnRequest(agent=asyncio.Event().wait))

        with pytest.raises(MailRefused, match="function"):
            handle.send("hi")

        await handle.cancel()


async def test_mail_to_an_idle_root_begins_a_turn() -> None:
    """AC-S2-3: mail wakes an idle root, which reads it in its next turn."""
    model = ScriptedModel(["one", "two", "three"])
    async with Session(model) as session:
        await session.ask("Go.")

        session.send("a word")
        await eventually(lambda: is_idle(session))

        assert typed_texts(session.messages)[-2:] == [("human", "a word"), ("ai", "two")]


async def test_mail_before_the_first_prompt_wakes_a_session() -> None:
    """The session reads the mail after the initial prompt of its definition, in a turn of its own."""
    model = ScriptedModel(["I have read it.", "yes"])
    async with Session(model, agent=Agent(name="clerk", initial_prompt="Be brief.")) as session:
        session.send("a word")
        await eventually(lambda: is_idle(session))
        assert typed_texts(session.messages) == [("human", "Be brief."), ("human", "a word"), ("ai", "I have read it.")]
        assert (await session.ask("Read?")).value == "yes"
        assert typed_texts(session.messages)[3:] == [("human", "Read?"), ("ai", "yes")]


async def test_a_first_prompt_joins_the_turn_that_mail_began() -> None:
    """The turn answers mail and prompt in their order, and has the initial prompt once."""
    model = ScriptedModel(["both"])
    async with Session(model, agent=Agent(name="clerk", initial_prompt="Be brief.")) as session:
        session.send("a word")
        assert (await session.ask("And my question?")).value == "both"
        texts = [text for kind, text in typed_texts(session.messages) if kind == "human"]
    assert texts == ["Be brief.", "a word", "And my question?"]


async def test_a_notice_before_the_first_prompt_waits_for_it() -> None:
    """The notice of a child that code spawned does not wake a root that has no task yet."""
    model = ScriptedModel({"toil": ["found"], "": ["noted"]})
    async with Session(model) as session:
        child = await session.spawn(SpawnRequest(prompt="toil", mode="fresh", background=True))
        await child.result()
        await eventually(lambda: len(run_of(session, "main").context.mailbox) == 1)
        assert run_of(session, "main").turns == 0
        await session.ask("Go.")
        assert len(notices(session.messages)) == 1


async def test_a_prompt_joins_the_turn_that_a_notice_began() -> None:
    """A prompt during a turn for a notice is read in that turn, without a BusyError."""
    gate, hold = Gate(), Gate("hold")
    model = ScriptedModel(
        {"toil": [Call("gate"), "found"], "": [background_call("toil", "w"), "meanwhile", Call("hold"), "both"]}
    )
    async with Session(model, [gate.tool, hold.tool]) as session:
        await session.ask("Go.")
        gate.open.set()
        await hold.entered.wait()
        asking = asyncio.create_task(session.ask("And my question?"))
        await eventually(lambda: len(run_of(session, "main").context.mailbox))
        hold.open.set()

        result = await asking

        assert result.value == "both"
        assert [text for kind, text in typed_texts(session.messages) if kind == "human"][-1] == "And my question?"
        assert is_idle(session)


async def test_the_registry_pushes_and_drains() -> None:
    """AC-S2-3: `AGENT_REGISTRY` has every run, takes mail for it, and returns the mail once, first in first out."""
    gate = Gate()
    model = ScriptedModel({"toil": [Call("gate"), "done"], "": ["ok", "noted"]})
    async with Session(model, [gate.tool]) as session:
        await session.ask("Go.")
        worker = await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name="worker", background=True))
        await gate.entered.wait()

        for text in ("one", "two", "three"):
            AGENT_REGISTRY.push(worker.id, text)
        drained = [AGENT_REGISTRY.drain(worker.id), AGENT_REGISTRY.drain(worker.id)]

        assert AGENT_REGISTRY[worker.id].path == "main/worker"
        assert [[mail.text for mail in each] for each in drained] == [["one", "two", "three"], []]
        with pytest.raises(Unknown):
            AGENT_REGISTRY.push("run-0000000000000000", "hi")
        gate.open.set()
        await worker.result()
        await eventually(lambda: is_idle(session))


# --- races: nothing is lost, nothing comes twice


class RandomTiming:
    """A child that answers after a random number of event loop turns, and a sender with random pauses."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    async def dawdle(self) -> None:
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(0)

    async def pause(self) -> str:
        """Take a moment."""
        await self.dawdle()
        return "paused"

    def answer(self, messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "Go.":
            return "noted"
        return Call("pause") if self.chance.random() < 0.4 else "done"


@pytest.mark.parametrize("seed", range(60))
async def test_mail_that_races_with_completion_is_never_lost(seed: int) -> None:
    """AC-S1-8, NEG-14: each accepted message is read once, in order, and each end is reported once."""
    hasty = RandomTiming(seed)
    async with Session(ScriptedModel(hasty.answer), [async_tool(hasty.pause)]) as session:
        await session.ask("Go.")
        worker = await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name="worker", background=True))
        texts = [f"word {number}" for number in range(12)]
        for text in texts:
            await hasty.dawdle()
            worker.send(text)
        await eventually(lambda: is_tree_idle(session))
        history = run_of(session, "worker").context.history
        ends = of_kind(session_events(session), RunEnded, "main/worker")
        notice_texts = notices(session.messages)
        waiting = len(run_of(session, "main").context.mailbox)

    assert [text for _, text in typed_texts(history) if text.startswith("word")] == texts
    assert is_valid(history)
    assert len(notice_texts) + waiting == len(ends)
    assert len(of_kind(session_events(session), MailPushed, "main/worker")) == len(texts)


@pytest.mark.parametrize("seed", range(60))
async def test_stop_and_mail_that_race_with_completion_stay_consistent(seed: int) -> None:
    """NEG-14: each end of a child is recorded and reported once, and the child never reads refused mail."""
    hasty = RandomTiming(seed)
    async with Session(
        ScriptedModel(hasty.answer), [async_tool(hasty.pause)], runtime=AgentRuntime(grace_s=5)
    ) as session:
        await session.ask("Go.")
        worker = await session.spawn(SpawnRequest(prompt="toil", mode="fresh", name="worker", background=True))

        async def write() -> list[str]:
            words = []
            for number in range(8):
                await hasty.dawdle()
                try:
                    worker.send(f"word {number}")
                except MailRefused:
                    continue
                words.append(f"word {number}")
            return words

        async def stop() -> None:
            for _ in range(4):
                await hasty.dawdle()
            await worker.cancel("enough")

        sent_words, _ = await asyncio.gather(write(), stop())
        await eventually(lambda: is_tree_idle(session))
        run = run_of(session, "worker")
        texts = [text for _, text in typed_texts(run.context.history) if text.startswith("word")]
        unread = [mail.text for mail in run.context.mailbox.drain()]
        waiting = len(run_of(session, "main").context.mailbox)
        ends = of_kind(session_events(session), RunEnded, "main/worker")

    assert texts + unread == sent_words
    assert is_valid(run.context.history)
    assert len(ends) == run.activations
    assert len(notices(session.messages)) + waiting == len(ends)


async def test_every_waiter_gets_the_result() -> None:
    """Several callers wait for one result, and a cancelled caller does not take it from the others."""
    gate = Gate()
    async with Session(ScriptedModel({"toil": [Call("gate"), "found"], "": ["ok"]}), [gate.tool]) as session:
        await session.ask("Go.")
        worker = await session.spawn(SpawnRequest(prompt="toil", mode="fresh"))
        waiting = [asyncio.create_task(worker.result()) for _ in range(3)]
        await gate.entered.wait()
        waiting[0].cancel()
        gate.open.set()

        results = await asyncio.gather(*waiting, return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert [each.value for each in results[1:] if not isinstance(each, BaseException)] == ["found", "found"]


async def test_agents_can_be_listed() -> None:
    """ListAgents shows path, id, type and state of every run of the tree, and nothing else."""
    model = ScriptedModel({"toil": ["done"], "": [specialist_call("toil", "worker"), Call("ListAgents"), "ok"]})
    async with Session(model, agents=[Agent(name="spare")]) as session:
        await session.ask("Go.")
        listing = list(answers(session.messages).values())[1].splitlines()
        ids = {view.path: view.id for view in session.runs()}
        assert open_tree_of(session).tree.register.root is not None

    assert listing == [
        f"main  {ids['main']}  main  running",
        f"main/worker  {ids['main/worker']}  general-purpose  completed",
    ]


# --- told once somebody is idle


async def test_notify_when_idle_sends_one_notice_to_the_sender() -> None:
    """The notice has the recipient's result, and goes to the sender, which is not the parent."""
    gate = Gate()
    ask = Call("SendMessage", {"to": "worker", "message": "hurry", "notify_when_idle": True})
    model = ScriptedModel(
        {
            "toil": [Call("gate"), "found it"],
            "look out": [ask, Call("hold"), "seen"],
            "": [
                background_call("toil", "worker"),
                background_call("look out", "watcher"),
                "meanwhile",
                "noted",
                "noted",
                "noted",
            ],
        }
    )
    hold = Gate("hold")
    async with Session(model, [gate.tool, hold.tool]) as session:
        await session.ask("Go.")
        await hold.entered.wait()
        gate.open.set()
        await session.handle("worker").result()
        hold.open.set()
        await session.handle("watcher").result()
        watcher = run_of(session, "watcher").context.history
        mail = [each for each in of_kind(session_events(session), MailPushed) if each.mail_id.startswith("idle:")]

    (notice,) = notices(watcher)
    assert 'name="worker" path="main/worker" status="completed"' in notice
    assert "found it" in notice
    assert [each.path for each in mail] == ["main/watcher"]


async def test_repeated_notify_when_idle_sends_one_notice() -> None:
    """A notice has the whole result and is never refused, so many notices could fill the host's memory."""
    gate, hold = Gate(), Gate("hold")
    ask = Call("SendMessage", {"to": "worker", "message": "hurry", "notify_when_idle": True})
    model = ScriptedModel(
        {
            "toil": [Call("gate"), "found it", "still"],
            "look out": [ask, ask, ask, Call("hold"), "seen"],
            "": [background_call("toil", "worker"), background_call("look out", "watcher"), *["noted"] * 5],
        }
    )
    async with Session(model, [gate.tool, hold.tool]) as session:
        await session.ask("Go.")
        await hold.entered.wait()
        assert len(run_of(session, "worker").awaiting_idle) == 1
        gate.open.set()
        await session.handle("worker").result()
        hold.open.set()
        await session.handle("watcher").result()
        assert len(notices(run_of(session, "watcher").context.history)) == 1


async def test_notify_when_idle_does_not_repeat_a_completion_notice() -> None:
    """A parent that asked with `notify_when_idle` receives only the notice of its background child's end."""
    gate = Gate()
    ask = Call("SendMessage", {"to": "worker", "message": "hurry", "notify_when_idle": True})
    model = ScriptedModel(
        {"toil": [Call("gate"), "found it"], "": [background_call("toil", "worker"), ask, "meanwhile", "noted"]}
    )
    async with Session(model, [gate.tool]) as session:
        await session.ask("Go.")
        gate.open.set()
        await eventually(lambda: session.messages[-1].text == "noted")
        assert len(notices(session.messages)) == 1


async def test_notify_when_idle_reports_the_end_of_a_root_turn() -> None:
    """A child receives the answer of the conversation's turn once the root is idle."""
    hold = Gate("hold")
    ask = Call("SendMessage", {"to": "main", "message": "tell me", "notify_when_idle": True})
    model = ScriptedModel(
        {
            "look out": [ask, Call("hold"), "seen"],
            "": [background_call("look out", "watcher"), "the answer", "noted", "noted"],
        }
    )
    async with Session(model, [hold.tool]) as session:
        await session.ask("Go.")
        await hold.entered.wait()
        await eventually(lambda: len(run_of(session, "watcher").context.mailbox))
        hold.open.set()
        await session.handle("watcher").result()
        (notice,) = notices(run_of(session, "watcher").context.history)
    assert 'path="main" status="completed"' in notice
