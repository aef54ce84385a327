"""AC-S1-9, AC-S2-2, AC-S2-7: a cancelled run has ended; partial results stay, and all other runs stay valid."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from ramet.agent.definition import Agent
from ramet.concurrency.clock import FakeClock
from ramet.core.errors import MailRefused, RametError, SpawnRefused, Unknown
from ramet.core.events import Event, MessageRecorded, RunEnded, RunSpawned, ToolEnded, TurnStarted
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, Hang, ScriptedModel
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    WIDE_LIMITS,
    BlockingTool,
    Gate,
    answers,
    async_tool,
    background_call,
    has_no_reservation,
    is_valid,
    of_kind,
    open_tree_of,
    run_of,
    session_events,
    specialist_call,
    typed_texts,
)

#: main → left → (leaf, twin), right; all wait at the gate, but for `main` and `left`, which wait for those below.
TREE: Script = {
    "be the leaf": [Call("gate"), "leaf found"],
    "be the twin": [Call("gate"), "twin found"],
    "be on the left": [[specialist_call("be the leaf", "leaf"), specialist_call("be the twin", "twin")], "left found"],
    "be on the right": [Call("gate"), "right found"],
    "": [
        [specialist_call("be on the left", "left"), specialist_call("be on the right", "right")],
        "all found",
        "again",
    ],
}
ALL = {"main", "main/left", "main/left/leaf", "main/left/twin", "main/right"}


def impatient_runtime() -> AgentRuntime:
    """Return a runtime that waits only briefly for tools that ignore a cancel."""
    return AgentRuntime(grace_s=0.05)


def statuses_by_path(session: Session) -> dict[str, Status]:
    return {event.path: event.result.status for event in of_kind(session_events(session), RunEnded)}


async def start_turn_until_gate(session: Session, gate: Gate, calls: int) -> asyncio.Task[Any]:
    turn = asyncio.create_task(session.ask("Go."))
    await eventually(lambda: gate.calls == calls)
    return turn


# --- somewhere in a tree


async def test_cancelling_the_root_ends_every_run() -> None:
    """AC-S2-2: every descendant has ended when `cancel` returns.

    The error of each names the parent's end and the reason.
    """
    gate = Gate()
    async with Session(ScriptedModel(TREE), [gate.tool], runtime=impatient_runtime()) as session:
        turn = await start_turn_until_gate(session, gate, 3)

        receipt = await session.cancel("enough")

        assert (set(receipt.stopped), receipt.left) == (ALL, ())
        assert statuses_by_path(session) == dict.fromkeys(ALL, Status.CANCELLED)
        assert {view.state for view in session.runs()} == {"cancelled"}
        result = await turn
        assert (result.status, result.error and result.error.message) == (Status.CANCELLED, "enough")
        leaf = (await session.handle("leaf").result()).error
        assert leaf is not None
        assert leaf.message == "stopped with its parent: enough"
        assert has_no_reservation(session)


async def test_cancelling_a_leaf_does_not_end_its_siblings_or_parent() -> None:
    """AC-S2-2: the cancel ends the leaf alone; the parent reads a failure, not a result, and continues."""
    gate = Gate()
    async with Session(ScriptedModel(TREE), [gate.tool], runtime=impatient_runtime()) as session:
        turn = await start_turn_until_gate(session, gate, 3)

        receipt = await session.handle("leaf").cancel("not needed")

        assert receipt.stopped == ("main/left/leaf",)
        assert {view.path for view in session.runs() if view.state == "cancelled"} == {"main/left/leaf"}
        gate.open.set()
        assert (await turn).value == "all found"
        reports = sorted(answers(run_of(session, "left").context.history).values())
        assert reports == ["Agent leaf did not finish: cancelled (not needed).", "twin found"]
        assert has_no_reservation(session)


async def test_cancelling_a_child_ends_its_subtree_only() -> None:
    """AC-S1-9: the cancel of a child ends the child and all runs below it, and no other run."""
    gate = Gate()
    async with Session(ScriptedModel(TREE), [gate.tool], runtime=impatient_runtime()) as session:
        turn = await start_turn_until_gate(session, gate, 3)

        receipt = await session.handle("left").cancel("wrong way")

        assert set(receipt.stopped) == {"main/left", "main/left/leaf", "main/left/twin"}
        gate.open.set()
        result = await turn
        assert result.value == "all found"
        reports = sorted(answers(session.messages).values())
        assert reports == ["Agent left did not finish: cancelled (wrong way).", "right found"]
        assert statuses_by_path(session)["main/right"] is Status.COMPLETED
        assert has_no_reservation(session)


async def test_a_second_cancel_changes_nothing() -> None:
    """A second cancel ends no run, and the first reason stays."""
    gate = Gate()
    async with Session(ScriptedModel(TREE), [gate.tool], runtime=impatient_runtime()) as session:
        turn = await start_turn_until_gate(session, gate, 3)
        await session.handle("left").cancel("first")

        receipt = await session.handle("left").cancel("second")

        assert receipt.stopped == ()
        error = (await session.handle("left").result()).error
        assert error is not None
        assert error.message == "first"
        gate.open.set()
        await turn


async def test_concurrent_cancels_return_after_the_subtree_has_ended() -> None:
    """Each of three concurrent cancels returns only once the subtree has ended."""
    gate = Gate()
    async with Session(ScriptedModel(TREE), [gate.tool], runtime=impatient_runtime()) as session:
        turn = await start_turn_until_gate(session, gate, 3)

        async def cancel(target: str) -> list[str]:
            await session.handle(target).cancel()
            return [
                view.path for view in session.runs() if view.path.startswith("main/left/") and not has_ended(view.state)
            ]

        outcomes = await asyncio.gather(cancel("left"), cancel("leaf"), cancel("left"))

        assert list(outcomes) == [[], [], []]
        gate.open.set()
        await turn


def has_ended(state: str) -> bool:
    return state in set(Status) - {Status.PAUSED}


async def test_a_cancelled_session_refuses_a_prompt() -> None:
    """A session raises RametError for a prompt after `cancel`."""
    async with Session(ScriptedModel(["ok"])) as session:
        await session.cancel()

        with pytest.raises(RametError, match="ended"):
            await session.ask("Go.")


async def test_cancelling_a_session_ends_detached_children() -> None:
    """`session.cancel` ends the whole tree: a detached child outlives its parent, not its session."""
    gate = Gate()
    model = ScriptedModel({"wait": [Call("gate"), "ok"], "": ["ok"]})
    async with Session(model, [gate.tool], runtime=impatient_runtime()) as session:
        await session.ask("Go.")
        loner = await session.spawn(SpawnRequest(prompt="wait", mode="fresh", detached=True, name="loner"))
        await gate.entered.wait()

        await session.cancel("enough")

        assert {view.path: view.state for view in session.runs()} == {"main": "cancelled", "main/loner": "cancelled"}
        assert (await loner.result()).status is Status.CANCELLED


# --- tools that do not listen


async def test_cancel_names_a_stuck_thread_after_the_grace() -> None:
    """Cancel cannot end a synchronous tool: it returns after the grace, and names that call alone as left."""
    stuck, gate = BlockingTool(), Gate()
    model = ScriptedModel(
        {
            "sit": [Call("stuck"), "never"],
            "wait": [Call("gate"), "ok"],
            "": [[specialist_call("sit", "sitter"), specialist_call("wait", "waiter")], "ok"],
        }
    )
    async with Session(model, [stuck.tool, gate.tool], runtime=impatient_runtime()) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: stuck.entered.is_set() and gate.calls)

        receipt = await session.cancel()

        assert set(receipt.stopped) == {"main", "main/sitter", "main/waiter"}
        assert receipt.left == ("main/sitter: stuck",)
        assert (await turn).status is Status.CANCELLED
        before = session_events(session)
        stuck.free.set()
        await eventually(lambda: not run_of(session, "sitter").context.orphaned_threads)
        assert session_events(session) == before  # Its late result is nobody's.
        assert "came back late" not in str(typed_texts(run_of(session, "sitter").context.history))


async def test_cancel_does_not_name_a_thread_that_ends_within_the_grace() -> None:
    """Cancel does not name a synchronous tool that returns within the grace."""
    stuck = BlockingTool()
    async with Session(
        ScriptedModel([Call("stuck"), "never"]), [stuck.tool], runtime=AgentRuntime(grace_s=60)
    ) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(stuck.entered.is_set)
        cancelling = asyncio.create_task(session.cancel())
        await eventually(lambda: run_of(session, "main").context.orphaned_threads)
        stuck.free.set()

        receipt = await cancelling

        assert receipt.left == ()
        await turn


async def test_a_coroutine_that_ignores_cancel_records_and_spends_nothing() -> None:
    """Cancel names a coroutine that ignores it after the grace.

    Later acts of the coroutine are neither recorded nor charged.
    """
    has_entered, free = asyncio.Event(), asyncio.Event()

    async def deaf() -> str:
        """Ignore everybody."""
        has_entered.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return "came back late"

    model = ScriptedModel({"": [specialist_call("be deaf", "deaf"), "ok"], "be deaf": [Call("deaf"), "a late word"]})
    async with Session(model, [async_tool(deaf)], runtime=impatient_runtime()) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await has_entered.wait()

        receipt = await session.handle("deaf").cancel("enough")

        assert receipt.left == ("main/deaf: its task ignores cancelling",)
        assert (await turn).value == "ok"
        run = run_of(session, "deaf")
        usage, events = run.context.usage, [event for event in session_events(session) if event.path == "main/deaf"]
        assert isinstance(events[-1], RunEnded)
        free.set()
        assert run.task is not None
        await asyncio.wait([run.task])
        assert [event for event in session_events(session) if event.path == "main/deaf"] == events
        assert run.context.usage == usage
        assert len(model.requests) == 3  # The deaf run's model is not asked again.
        assert (await session.handle("deaf").result()).status is Status.CANCELLED


# --- before the start, and in mid-stream


async def test_a_run_cancelled_before_its_start_does_nothing() -> None:
    """A cancelled run that waits for a slot ends without a request to its model and without a tool call."""
    gate = Gate()
    model = ScriptedModel({"hold": [Call("gate"), "held"], "late": ["never"], "": ["ok"]})
    async with Session(model, [gate.tool], spawn_limits=SpawnLimits(running=1), runtime=impatient_runtime()) as session:
        first = await session.spawn(SpawnRequest(prompt="hold", mode="fresh", name="first"))
        await gate.entered.wait()
        second = await session.spawn(SpawnRequest(prompt="late", mode="fresh", name="second"))

        await second.cancel("changed my mind")

        result = await second.result()
        assert (result.status, result.usage.model_calls) == (Status.CANCELLED, 0)
        assert not of_kind(session_events(session), TurnStarted, "main/second")
        gate.open.set()
        assert (await first.result()).value == "held"
        assert len(model.requests) == 2


async def test_a_run_cancelled_at_its_spawn_ends() -> None:
    """A cancel before the first line of the run's task ends the run completely."""
    model = ScriptedModel({"late": ["never"], "": ["ok"]})
    async with Session(model, runtime=impatient_runtime()) as session:
        handle = await session.spawn(SpawnRequest(prompt="late", mode="fresh", name="second"))

        receipt = await handle.cancel("at once")

        assert receipt == (("main/second",), ())
        assert (await handle.result()).status is Status.CANCELLED
        assert model.requests == []


async def test_a_cancelled_tree_refuses_a_spawn() -> None:
    """A spawn in a cancelled tree raises SpawnRefused and records no run."""
    async with Session(ScriptedModel(["ok"])) as session:
        await session.cancel()

        with pytest.raises(SpawnRefused):
            await session.spawn(SpawnRequest(prompt="late", mode="fresh"))

        assert len(of_kind(session_events(session), RunSpawned)) == 1


async def test_cancelling_in_mid_stream_keeps_the_partial_text() -> None:
    """The text that the model had streamed is the result's `partial`, for the run and for its parent."""
    model = ScriptedModel({"tell": [Hang(13, "Once upon a time …")], "": [specialist_call("tell", "teller"), "ok"]})
    async with Session(model, runtime=impatient_runtime()) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: len(model.requests) == 2 and run_of(session, "teller").activity.streamed_text)

        await session.handle("teller").cancel("too slow")

        result = await session.handle("teller").result()
        assert (result.status, result.partial) == (Status.CANCELLED, "Once upon a t")
        assert (await turn).value == "ok"
        (report,) = answers(session.messages).values()
        assert "unfinished, not a result" in report
        assert "Once upon a t" in report


# --- interrupting a turn


async def test_interrupting_keeps_the_agent_and_a_valid_history() -> None:
    """An interrupt answers open calls and keeps the answers of others; the next turn works."""
    gate = Gate(safe=False)

    async def quickly() -> str:
        """Answer at once."""
        return "quick answer"

    calls = [Call("quickly", id="q"), Call("gate", id="g"), Call("quickly", id="never")]
    model = ScriptedModel({"": [calls, "resumed"]})
    async with Session(model, [gate.tool, async_tool(quickly)], runtime=impatient_runtime()) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await gate.entered.wait()

        await session.interrupt("hold on")

        result = await turn
        assert (result.status, result.error and result.error.message) == (Status.CANCELLED, "hold on")
        assert is_valid(session.messages)
        assert answers(session.messages)["q"] == "quick answer"
        assert "interrupted" in answers(session.messages)["g"]
        second_result = await session.ask("And now?")
        assert (second_result.status, second_result.value) == (Status.COMPLETED, "resumed")
        assert is_valid(model.requests[-1].messages)


async def test_interrupting_ends_foreground_children_and_keeps_background_ones() -> None:
    """An interrupt ends the children that the turn waits for; background children continue and report later."""
    gate = Gate()
    model = ScriptedModel(
        {
            "front": [Call("gate"), "front found"],
            "back": [Call("gate"), "back found"],
            "": [[background_call("back", "back"), specialist_call("front", "front")], "I see"],
        }
    )
    async with Session(model, [gate.tool], runtime=impatient_runtime()) as session:
        turn = await start_turn_until_gate(session, gate, 2)

        await session.interrupt()

        assert (await turn).status is Status.CANCELLED
        assert {view.name: has_ended(view.state) for view in session.runs()} == {
            "main": False,
            "front": True,
            "back": False,
        }
        gate.open.set()
        assert (await session.handle("back").result()).value == "back found"
        assert len(model.requests) == 4  # Two of its own: an interrupted session is not set to work by a notice.
        assert (await session.ask("And now?")).value == "I see"
        assert sum("back found" in text for _, text in typed_texts(session.messages)) == 1


async def test_interrupting_does_not_ask_the_model_again() -> None:
    """The end of a child after an interrupt does not wake its parent, however long the child takes to end."""
    stuck = BlockingTool()
    model = ScriptedModel({"front": [Call("stuck"), "front found"], "": [specialist_call("front"), "wasted"]})
    async with Session(model, [stuck.tool], runtime=impatient_runtime()) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(stuck.entered.is_set)

        await session.interrupt()

        await turn
        assert len(model.requests) == 2
        stuck.free.set()
        await eventually(lambda: not run_of(session, "main/1").context.orphaned_threads)


async def test_interrupting_before_the_turn_has_begun_ends_the_turn() -> None:
    """An interrupt directly after the prompt ends the turn, and the session accepts the next prompt."""
    model = ScriptedModel(["the answer"])
    async with Session(model, runtime=impatient_runtime()) as session:
        items = session.submit_message("Go.")
        reading = asyncio.ensure_future(anext(items, None))
        await asyncio.sleep(0)
        assert run_of(session, "main").turns == 1

        await session.interrupt("at once")

        await reading
        await items.aclose()
        assert (await session.ask("Go again.")).value == "the answer"


async def test_interrupting_an_idle_session_does_nothing() -> None:
    """An interrupt of an idle session changes nothing: there is no turn to end."""
    async with Session(ScriptedModel(["one", "two"])) as session:
        await session.ask("Go.")

        await session.interrupt()

        assert (await session.ask("Again.")).value == "two"


async def test_leaving_submit_message_early_interrupts_the_turn() -> None:
    """A reader that leaves the iteration ends the turn and its children; the next prompt works."""
    gate = Gate()
    model = ScriptedModel({"wait": [Call("gate"), "ok"], "": [specialist_call("wait", "child"), "resumed"]})
    async with Session(model, [gate.tool], runtime=impatient_runtime()) as session:
        async with aclosing(session.submit_message("Go.")) as items:
            async for _ in items:
                if gate.calls or len(of_kind(session_events(session), RunSpawned)) == 2:
                    break

        assert run_of(session, "main").task is not None
        assert statuses_by_path(session) == {"main/child": Status.CANCELLED}
        assert session.result is not None
        assert session.result.status is Status.CANCELLED
        assert (await session.ask("Again.")).value == "resumed"
        assert is_valid(session.messages)


async def test_cancelling_the_reading_task_interrupts_the_turn() -> None:
    """A cancel of the reading task (Ctrl-C) interrupts the turn, as leaving the iteration does."""
    model = ScriptedModel([Hang(4, "Hm, let me see"), "resumed"])
    async with Session(model, runtime=impatient_runtime()) as session:
        reader = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: run_of(session, "main").activity.streamed_text)

        reader.cancel()
        await asyncio.wait([reader])

        assert reader.cancelled()
        assert session.result is not None
        assert (session.result.status, session.result.partial) == (Status.CANCELLED, "Hm, ")
        assert (await session.ask("Again.")).value == "resumed"


async def test_closing_a_session_in_mid_turn_ends_the_reader() -> None:
    """`close` ends every run, and the reader of the turn gets a cancelled result."""
    model = ScriptedModel([Hang(4, "Hm, let me see")])
    async with Session(model, runtime=impatient_runtime()) as session:
        reader = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: run_of(session, "main").activity.streamed_text)

    assert (await reader).status is Status.CANCELLED


# --- time


async def test_a_turn_beyond_its_time_limit_ends_as_timeout_with_its_children() -> None:
    """`Limits(seconds=…)`: the root's turn ends as `timeout`, its children as cancelled; the next turn works."""
    clock, gate = FakeClock(), Gate()
    model = ScriptedModel({"wait": [Call("gate"), "ok"], "": [specialist_call("wait", "child"), "resumed"]})
    runtime = AgentRuntime(clock=clock, grace_s=0.05)
    async with Session(model, [gate.tool], limits=Limits(seconds=10), runtime=runtime) as session:
        turn = await start_turn_until_gate(session, gate, 1)
        await clock.advance(9)
        assert not turn.done()

        await clock.advance(1)

        result = await turn
        assert (result.status, statuses_by_path(session)) == (Status.TIMEOUT, {"main/child": Status.CANCELLED})
        assert is_valid(session.messages)
        assert (await session.ask("Again.")).value == "resumed"
        assert clock.sleeping == 0


async def test_a_childs_time_limit_ends_its_subtree_only() -> None:
    """A child's own limit ends the child and all runs below it; its parent reads a timeout and continues."""
    clock, gate = FakeClock(), Gate()
    slow = Agent(name="slow", description="Slow.", instructions="You are slow.", limits=Limits(seconds=5))
    model = ScriptedModel(
        {
            "You are slow": [specialist_call("wait", "grandchild"), "never"],
            "wait": [Call("gate"), "never"],
            "": [Call("Agent", {"prompt": "go", "subagent_type": "slow", "name": "slow"}), "went on"],
        }
    )
    runtime = AgentRuntime(clock=clock, grace_s=0.05)
    async with Session(model, [gate.tool], agents=[slow], runtime=runtime) as session:
        turn = await start_turn_until_gate(session, gate, 1)

        await clock.advance(5)

        assert (await turn).value == "went on"
        assert statuses_by_path(session) == {"main/slow": Status.TIMEOUT, "main/slow/grandchild": Status.CANCELLED}
        assert "did not finish: timeout (its time of 5 s is over)" in str(typed_texts(session.messages))
        assert has_no_reservation(session)


async def test_a_tree_of_runtime_spawn_ends_at_its_time_limit() -> None:
    """A tree that `runtime.spawn` started ends as `timeout` at its time limit."""
    clock, gate = FakeClock(), Gate()
    async with AgentRuntime(clock=clock, grace_s=0.05) as runtime:
        agent = Agent(name="slow", model=ScriptedModel([Call("gate"), "never"]))
        handle = await runtime.spawn(agent, "go", tools=[gate.tool], limits=Limits(seconds=3))
        await gate.entered.wait()

        await clock.advance(3)

        assert (await handle.result()).status is Status.TIMEOUT


async def test_a_tool_ends_at_its_own_time_limit() -> None:
    """The host stops a tool at the time that it declares: that call gets an error, and the turn continues."""

    async def slow() -> str:
        """Never finish."""
        return str(await asyncio.get_running_loop().create_future())

    model = ScriptedModel([Call("slow"), "went on"])
    async with Session(model, [async_tool(slow, timeout_s=0.01)]) as session:
        result = await session.ask("Go.")

    assert result.value == "went on"
    assert "did not finish within 0.01 s" in str(typed_texts(session.messages))


# --- TaskStop, tombstones


STOPPING: Script = {
    "be the leaf": [Call("gate", id="g"), "leaf found"],
    "be on the left": [background_call("be the leaf", "leaf"), "left waits"],
    "": [
        background_call("be on the left", "left"),
        Call("gate_2"),
        Call("TaskStop", {"task_id": "left"}),
        "stopped it",
    ],
}


async def stop_trip(script: Script, check: Callable[[Session], Any]) -> Any:
    gate, second = Gate(), Gate("gate_2")
    async with Session(ScriptedModel(script), [gate.tool, second.tool], runtime=impatient_runtime()) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: gate.calls and second.calls)
        second.open.set()
        await turn
        return check(session)


async def test_a_model_can_stop_its_children() -> None:
    """AC-S2-7: TaskStop ends the child and all runs below it before it answers, and lists them."""

    def check(session: Session) -> Any:
        return list(answers(session.messages).values())[-1], statuses_by_path(session)

    answer, end_statuses = await stop_trip(STOPPING, check)

    assert answer == "Stopped: main/left, main/left/leaf."
    assert end_statuses == {"main/left": Status.CANCELLED, "main/left/leaf": Status.CANCELLED}


async def test_the_history_of_a_stopped_agent_stays_valid() -> None:
    """AC-S2-7: each call that was open at the stop gets an answer that says "interrupted"."""

    def check(session: Session) -> Any:
        return run_of(session, "leaf").context.history

    history = await stop_trip(STOPPING, check)

    assert is_valid(history)
    assert "interrupted" in answers(history)["g"]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (Call("TaskStop", {"task_id": "left"}), "unknown running agent 'left'"),
        (Call("TaskOutput", {"task_id": "left"}), "status: cancelled"),
        (Call("TaskStop", {"task_id": "nobody"}), "unknown agent 'nobody'; known: main, left, leaf"),
        (Call("TaskStop", {"task_id": "main"}), "it is not below you"),
        (Call("SendMessage", {"to": "left", "message": "hi"}), "it was stopped, and a stopped run is not resumed"),
    ],
)
async def test_answers_distinguish_stopped_agents_from_unknown_ones(call: Call, answer: str) -> None:
    """AC-S2-7, AC-S1-9: stopped, finished and unknown are different words; mail to a stopped agent is refused."""
    steps = STOPPING[""]  # type: ignore[index,call-overload]  # it is a mapping
    script = {**STOPPING, "": [*steps[:-1], call, "ok"]}  # type: ignore[dict-item]  # likewise

    def check(session: Session) -> Any:
        return list(answers(session.messages).values())[-1]

    assert answer in await stop_trip(script, check)


async def test_answers_distinguish_expired_runs_from_unknown_ones() -> None:
    """A run that ended long ago leaves a tombstone with its status; its name stays taken."""
    async with Session(ScriptedModel(["ok"]), spawn_limits=WIDE_LIMITS) as session:

        async def nothing() -> int:
            return 1

        for number in range(258):
            await (await session.spawn(SpawnRequest(agent=nothing, name=f"n-{number}"))).result()

        with pytest.raises(Unknown, match="n-0 \\(it ended as completed; its history has expired\\)"):
            session.handle("n-0")
        with pytest.raises(Unknown, match="unknown agent 'n-258'"):
            session.handle("n-258")
        second_handle = await session.spawn(SpawnRequest(agent=nothing, name="n-0"))
        assert second_handle.name == "n-0-2"
        await second_handle.result()


async def test_a_session_forgets_old_finished_children() -> None:
    """AC-S2-2: a session with 2,000 finished children holds at most 256 of them in memory."""
    async with Session(ScriptedModel(["ok"]), spawn_limits=WIDE_LIMITS) as session:

        async def nothing() -> int:
            return 1

        alive: list[weakref.ref[Any]] = []
        for _ in range(20):
            handles = [await session.spawn(SpawnRequest(agent=nothing)) for _ in range(100)]
            alive += [weakref.ref(run_of(session, handle.path).context.abort) for handle in handles]
            await asyncio.gather(*(handle.result() for handle in handles))
            del handles
        gc.collect()

        alive_count = sum(each() is not None for each in alive)

        assert alive_count <= 256
        assert len(open_tree_of(session).tree.register.runs) <= 257


async def test_a_handle_refuses_mail_to_a_stopped_agent() -> None:
    """`handle.send` raises MailRefused for an agent that a user stopped."""
    gate = Gate()
    async with Session(ScriptedModel(TREE), [gate.tool], runtime=impatient_runtime()) as session:
        turn = await start_turn_until_gate(session, gate, 3)
        handle = session.handle("left")
        await handle.cancel()

        with pytest.raises(MailRefused, match="stopped"):
            handle.send("come back")

        gate.open.set()
        await turn


def event_types(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_a_cancelled_call_is_recorded_as_cancelled() -> None:
    """The journal has the cut tool call as cancelled, and the answer that replaces its result."""
    gate = Gate()
    async with Session(
        ScriptedModel([Call("gate", id="g"), "ok"]), [gate.tool], runtime=impatient_runtime()
    ) as session:
        turn = await start_turn_until_gate(session, gate, 1)
        await session.interrupt()
        await turn

        (tool_end,) = of_kind(session_events(session), ToolEnded)
        messages = [event.message for event in of_kind(session_events(session), MessageRecorded)]

    assert (tool_end.status, tool_end.call_id) == ("cancelled", "g")
    assert [message["type"] for message in messages] == ["human", "ai", "tool"]


async def test_a_turn_shows_no_chunks_of_an_abandoned_turn() -> None:
    """The reader of a turn gets the text of that turn only."""
    model = ScriptedModel([Hang(4, "old text"), "new text"])
    async with Session(model, runtime=impatient_runtime()) as session:
        async with aclosing(session.submit_message("Go.")) as items:
            async for item in items:
                if isinstance(item, AIMessageChunk):
                    break

        text = [item.text async for item in session.submit_message("Again.") if isinstance(item, AIMessageChunk)]

    assert "".join(text) == "new text"
