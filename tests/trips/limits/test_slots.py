"""AC-S2-4, AC-S2-5: active runs are bounded, waiting runs hold no slot, and no limit can deadlock a tree."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from ramet.core.errors import SpawnRefused
from ramet.core.events import RunEnded, RunSpawned, ToolEnded
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import Result, Status
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.models.scripted.dialogue import ReplyStep
from ramet.models.scripted.model import Call, ScriptedModel
from ramet.tools.context import current
from ramet.tools.spawn_request import SpawnRequest
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    Gate,
    answers,
    async_tool,
    background_call,
    brief_of,
    fork_call,
    has_no_reservation,
    is_tree_idle,
    is_valid,
    of_kind,
    open_tree_of,
    run_of,
    session_events,
    specialist_call,
)

ONE = SpawnLimits(running=1, depth=6)


# --- a cap of 1


async def test_nested_spawns_finish_with_one_slot() -> None:
    """AC-S2-5: five levels, each waiting for the next, finish with one slot."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        remaining = int(brief_of(messages)) if brief_of(messages).isdigit() else 5
        return (
            specialist_call(str(remaining - 1)) if messages[-1].type == "human" and remaining else f"level {remaining}"
        )

    async with Session(ScriptedModel(answer), spawn_limits=ONE) as session:
        result = await session.ask("Go.")

        assert (result.value, len(session.runs())) == ("level 5", 6)


async def test_parallel_children_finish_with_one_slot() -> None:
    """AC-S2-5: two levels of forks and fresh children finish with one slot."""

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        newest = str(messages[-1].text)
        if messages[-1].type == "tool":
            return "done"
        if newest == "Go.":
            return [specialist_call("wide"), fork_call("wide"), specialist_call("leaf")]
        return [specialist_call("leaf"), fork_call("leaf")] if newest.endswith("wide") else "leaf done"

    async with Session(ScriptedModel(answer), spawn_limits=ONE) as session:
        result = await session.ask("Go.")

        assert (result.value, len(session.runs())) == ("done", 8)


async def test_functions_that_gather_finish_with_one_slot() -> None:
    """AC-S2-5: functions wait for several handles concurrently, repeatedly and in any order."""

    async def node(depth: int) -> int:
        context = current()
        assert context.tree is not None

        async def below() -> int:
            assert context.tree is not None
            handle = await context.tree.spawn(context, SpawnRequest(agent=node, args=(depth - 1,)))
            return int((await handle.result()).value)

        if depth == 0:
            return 1
        first = sum(await asyncio.gather(below(), below(), below()))
        return 1 + first + await below()

    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(node, args=(3,), spawn_limits=SpawnLimits(running=1, depth=3))

        assert (await handle.result()).value == 1 + 4 + 16 + 64


async def test_synchronous_functions_hold_a_slot() -> None:
    """A plain function in a thread holds its slot while it runs: with one slot, one runs at a time."""
    at_work: list[int] = []
    max_active = 0

    def work(number: int) -> int:
        nonlocal max_active
        at_work.append(number)
        max_active = max(max_active, len(at_work))
        at_work.remove(number)
        return number

    async with Session(ScriptedModel(["ok"]), spawn_limits=ONE) as session:
        handles = [await session.spawn(SpawnRequest(agent=work, args=(number,))) for number in range(10)]
        results = await asyncio.gather(*(handle.result() for handle in handles))

    assert [result.value for result in results] == list(range(10))
    assert max_active == 1


async def test_waiting_with_task_output_holds_no_slot() -> None:
    """AC-S2-5: a parent that blocks in TaskOutput releases its slot for the child."""
    steps: list[ReplyStep] = [
        background_call("dig", "digger"),
        Call("TaskOutput", {"task_id": "digger"}),
        "ok",
        "noted",
    ]
    model = ScriptedModel({"dig": [Call("ListAgents"), "found"], "": steps})
    async with Session(model, spawn_limits=ONE) as session:
        result = await session.ask("Go.")
        output = list(answers(session.messages).values())[1]

    assert result.value in ("ok", "noted")
    assert output == "status: completed\nfound"


async def test_active_runs_never_exceed_the_limit() -> None:
    """The number of active runs, measured inside a tool, never exceeds `running`."""
    at_work, max_active = 0, 0

    async def busy() -> str:
        """Work for some turns of the loop."""
        nonlocal at_work, max_active
        at_work += 1
        max_active = max(max_active, at_work)
        for _ in range(4):
            await asyncio.sleep(0)
        at_work -= 1
        return "worked"

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "Go.":
            return [specialist_call(f"t {number}") for number in range(20)] if len(messages) == 1 else "ok"
        return Call("busy") if messages[-1].type == "human" else "done"

    async with Session(ScriptedModel(answer), [async_tool(busy)], spawn_limits=SpawnLimits(running=3)) as session:
        result = await session.ask("Go.")

    assert (result.value, max_active) == ("ok", 3)


# --- living counts: queue and refuse


async def test_a_spawn_waits_for_room() -> None:
    """`when_full="queue"`: the fourth child under a limit of three starts once one of them has ended."""
    gate = Gate()

    def answer(messages: list[BaseMessage]) -> ReplyStep:
        if brief_of(messages) == "Go.":
            return [specialist_call(f"t {number}") for number in range(6)] if len(messages) == 1 else "ok"
        return Call("gate") if messages[-1].type == "human" else brief_of(messages)

    async with Session(ScriptedModel(answer), [gate.tool], spawn_limits=SpawnLimits(children=3)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: gate.calls == 3)
        assert len(session.runs()) == 4
        assert open_tree_of(session).tree.register.admission.queue_length == 3
        gate.open.set()

        result = await turn

        reports = list(answers(session.messages).values())
    assert result.value == "ok"
    assert reports == [f"t {number}" for number in range(6)]


async def test_a_spawn_without_room_is_refused() -> None:
    """`when_full="refuse"`: that call gets an error with what is free, and a later call succeeds."""
    model = ScriptedModel(
        {
            "dig": ["found"],
            "": [
                [specialist_call("dig"), specialist_call("dig"), specialist_call("dig")],
                specialist_call("dig"),
                "ok",
            ],
        }
    )
    async with Session(model, spawn_limits=SpawnLimits(children=2, when_full="refuse")) as session:
        await session.ask("Go.")
        reports = list(answers(session.messages).values())

    assert reports[:2] == ["found", "found"]
    assert reports[2] == "spawn refused (children): 2 living children of main is the limit; free now: 0"
    assert reports[3] == "found"


async def test_a_spawn_that_only_its_waiting_ancestors_could_admit_is_refused() -> None:
    """Promise 8: with room for two runs, the grandchild is refused at once and is not queued for ever."""
    model = ScriptedModel(
        {"deep": ["never"], "dig": [specialist_call("deep"), "did it myself"], "": [specialist_call("dig"), "ok"]}
    )
    async with Session(model, spawn_limits=SpawnLimits(runs=2)) as session:
        result = await session.ask("Go.")
        spawns = of_kind(session_events(session), RunSpawned)

    assert (result.value, len(spawns)) == ("ok", 2)
    assert "only runs that wait for this spawn could make room" in str(model.requests[2].messages[-1].text)


async def test_a_spawn_waits_for_the_end_of_an_unrelated_run() -> None:
    """The spawn is queued because a run outside its ancestors can make room, and starts then."""
    gate = Gate()
    model = ScriptedModel(
        {
            "deep": ["deep found"],
            "dig": [specialist_call("deep"), "dug"],
            "hold": [Call("gate"), "held"],
            "": [[specialist_call("hold"), specialist_call("dig")], "ok"],
        }
    )
    async with Session(model, [gate.tool], spawn_limits=SpawnLimits(runs=3)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: open_tree_of(session).tree.register.admission.queue_length == 1)
        gate.open.set()

        assert (await turn).value == "ok"

        assert len(session.runs()) == 4


async def test_a_queued_spawn_can_be_cancelled() -> None:
    """A cancelled spawn leaves the queue, and the next one in the queue starts."""
    gate = Gate()
    model = ScriptedModel({"hold": [Call("gate"), "held"], "": ["ok"]})
    async with Session(
        model, [gate.tool], spawn_limits=SpawnLimits(children=1), runtime=AgentRuntime(grace_s=1)
    ) as session:
        first = await session.spawn(SpawnRequest(prompt="hold", mode="fresh"))
        await gate.entered.wait()
        waiting = [asyncio.create_task(session.spawn(SpawnRequest(prompt="hold", mode="fresh"))) for _ in range(2)]
        await eventually(lambda: open_tree_of(session).tree.register.admission.queue_length == 2)
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        gate.open.set()

        second = await waiting[1]

        assert (await first.result()).value == (await second.result()).value == "held"
        admission = open_tree_of(session).tree.register.admission
        assert (admission.slot_count, admission.queue_length) == (1, 0)


async def test_a_parent_that_waits_for_a_detached_child_does_not_deadlock() -> None:
    """The detached child's spawn is refused, because its waiting parent could never make room."""

    async def leaf() -> str:
        return "leaf"

    async def loner() -> str:
        context = current()
        assert context.tree is not None
        try:
            handle = await context.tree.spawn(context, SpawnRequest(agent=leaf))
        except SpawnRefused as refusal:
            return refusal.limit
        return str((await handle.result()).value)

    async def root() -> str:
        context = current()
        assert context.tree is not None
        handle = await context.tree.spawn(context, SpawnRequest(agent=loner, detached=True))
        return str((await handle.result()).value)

    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(root, spawn_limits=SpawnLimits(runs=2))

        assert (await handle.result()).value == "runs"


@pytest.mark.parametrize("first", ["asks", "waits"])
async def test_a_function_that_waits_for_its_sibling_does_not_deadlock(first: str) -> None:
    """A function waits for its sibling by handle, so the sibling's spawn cannot wait for that function's end."""
    ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def leaf() -> str:
        return "leaf"

    async def asker() -> str:
        context = current()
        assert context.tree is not None
        await dawdle(first == "waits")
        try:
            handle = await context.tree.spawn(context, SpawnRequest(agent=leaf))
        except SpawnRefused as refusal:
            return refusal.limit
        return str((await handle.result()).value)

    async def waiter() -> str:
        await dawdle(first == "asks")
        return str((await (await ready).result()).value)

    async def root() -> list[str]:
        context = current()
        assert context.tree is not None
        first = await context.tree.spawn(context, SpawnRequest(agent=asker))
        second = await context.tree.spawn(context, SpawnRequest(agent=waiter))
        ready.set_result(first)
        results = await asyncio.gather(first.result(), second.result())
        return [str(result.value) for result in results]

    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(root, spawn_limits=SpawnLimits(runs=3))

        assert (await handle.result()).value == ["runs", "runs"]


async def dawdle(is_waiting: bool) -> None:
    for _ in range(10 * is_waiting):
        await asyncio.sleep(0)


# --- trees of any shape, under any limits


class RandomTree:
    """Mixed agents, models and functions that spawn others, wait for them in every way, and stop some."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def chance(self, brief: str, step: int) -> random.Random:
        return random.Random(f"{self.seed}/{brief}/{step}")

    def answer(self, messages: list[BaseMessage]) -> ReplyStep:
        own_texts = [
            str(m.text) for m in messages if m.type == "human" and "node" in str(m.text) and "<" not in str(m.text)
        ]
        brief = own_texts[-1].split("node")[-1] if own_texts else ""
        step = sum(isinstance(message, AIMessage) for message in messages)
        chance = self.chance(brief, step)
        if step > 6 or chance.random() < 0.3 + 0.1 * brief.count("."):
            return f"done {brief}"
        calls: list[Call] = []
        for number in range(chance.randint(1, 3)):
            name, child = f"n{brief}.{number}.{step}", f"node{brief}.{number}.{step}"
            kind = chance.randrange(8)
            if kind < 3:
                calls.append(specialist_call(child, name, run_in_background=kind == 0))
            elif kind == 3:
                calls.append(fork_call(child, name, run_in_background=chance.random() < 0.5))
            elif kind == 4:
                calls.append(Call("TaskOutput", {"task_id": f"n{brief}.0.{step - 1}", "timeout": 600}))
            elif kind == 5:
                calls.append(Call("TaskStop", {"task_id": f"n{brief}.0.{step - 1}"}))
            elif kind == 6:
                calls.append(Call("SendMessage", {"to": chance.choice(["main", "parent", name]), "message": "hello"}))
            else:
                calls.append(Call("lead", {"brief": child}))
        return calls

    async def lead(self, brief: str) -> str:
        """Start functions and agents from code, and wait for them."""
        context = current()
        assert context.tree is not None
        chance = self.chance(brief, 0)

        async def one(number: int) -> str:
            assert context.tree is not None
            request = SpawnRequest(agent=self.work, args=(f"{brief}.{number}",))
            if chance.random() < 0.3:
                request = SpawnRequest(prompt=f"{brief}.f{number}", mode="fresh", background=chance.random() < 0.5)
            try:
                handle = await context.tree.spawn(context, request)
            except SpawnRefused:
                return "refused"
            if chance.random() < 0.1:
                await handle.cancel("not needed")
            return str((await handle.result()).status)

        return ", ".join(await asyncio.gather(*(one(number) for number in range(chance.randint(1, 3)))))

    async def work(self, brief: str) -> str:
        chance = self.chance(brief, 1)
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return await self.lead(brief) if chance.random() < 0.5 and brief.count(".") < 4 else "worked"


@pytest.mark.parametrize("when_full", ["queue", "refuse"])
@pytest.mark.parametrize("seed", range(40))
async def test_a_random_tree_always_ends(seed: int, when_full: Literal["queue", "refuse"]) -> None:
    """No limits can deadlock a tree: 1 to 3 active runs, 3 to 6 living runs, 1 to 3 children each."""
    chance, wood = random.Random(seed), RandomTree(seed)
    limits = SpawnLimits(
        running=chance.randint(1, 3),
        runs=chance.randint(3, 6),
        children=chance.randint(1, 3),
        depth=chance.randint(2, 4),
        when_full=when_full,
    )
    model, tool = (
        ScriptedModel(wood.answer, keep_requests=False),
        async_tool(wood.lead, concurrency_safe=True, waits=True),
    )
    async with Session(model, [tool], spawn_limits=limits, runtime=AgentRuntime(grace_s=5)) as session:
        await session.ask("node")
        await eventually(lambda: is_tree_idle(session))
        register = open_tree_of(session).tree.register

        assert (register.admission.slot_count, register.admission.queue_length) == (1, 0)
        assert (register.slots.in_use, register.slots.queue_length) == (0, 0)
        assert has_no_reservation(session)
        spawns, run_ends = of_kind(session_events(session), RunSpawned), of_kind(session_events(session), RunEnded)
        assert {event.run for event in spawns} - {event.run for event in run_ends} == {session.id}


# --- AC-S2-4: the dispatcher, seen from outside


async def test_safe_tools_run_concurrently_and_answer_in_order() -> None:
    """AC-S2-4: twenty safe calls run ten at a time.

    Results keep the order of the calls, and a failed call harms no other.
    """
    at_work, max_active = 0, 0

    async def busy(number: int) -> str:
        """Work, the later called the sooner done."""
        nonlocal at_work, max_active
        at_work += 1
        max_active = max(max_active, at_work)
        for _ in range(40 - number):
            await asyncio.sleep(0)
        at_work -= 1
        if number == 7:
            raise ValueError("seven")
        return f"result {number}"

    calls = [Call("busy", {"number": number}) for number in range(20)]
    model = ScriptedModel([[*calls, Call("unknown")], "ok"])
    async with Session(model, [async_tool(busy, concurrency_safe=True)]) as session:
        result = await session.ask("Go.")
        results = [message for message in session.messages if isinstance(message, ToolMessage)]
        tool_ends = of_kind(session_events(session), ToolEnded)

    assert (result.value, max_active) == ("ok", 10)
    texts = [str(message.text) for message in results]
    assert texts[:20] == [f"result {n}" if n != 7 else "ValueError: seven" for n in range(20)]
    assert "There is no tool named 'unknown'" in texts[20]
    assert [message.status for message in results].count("error") == 2
    assert [event.status for event in tool_ends].count("error") == 2


async def test_a_tool_that_is_not_safe_runs_alone_in_its_place() -> None:
    """AC-S2-4: a tool that is not declared safe runs after the calls before it, and not concurrently with any."""
    log: list[str] = []

    def recorded(name: str) -> Callable[[], Awaitable[str]]:
        async def tool() -> str:
            """Work."""
            log.append(f"{name} begins")
            for _ in range(3):
                await asyncio.sleep(0)
            log.append(f"{name} ends")
            return name

        tool.__name__ = name
        return tool

    tools = [async_tool(recorded("safe"), concurrency_safe=True), async_tool(recorded("lone"))]
    model = ScriptedModel([[Call("safe"), Call("safe"), Call("lone"), Call("safe")], "ok"])
    async with Session(model, tools) as session:
        await session.ask("Go.")

    assert log == [
        "safe begins", "safe begins", "safe ends", "safe ends", "lone begins", "lone ends", "safe begins", "safe ends"
    ]  # fmt: skip


# --- and stopped anywhere, at any moment


def is_consistent(session: Session) -> bool:
    """Return whether a provider would accept every history, and each life of a run has exactly one recorded end."""
    events = session_events(session)
    runs = list(open_tree_of(session).tree.register.runs.values())
    ends = [event.run for event in of_kind(events, RunEnded)]
    return all(is_valid(run.context.history) for run in runs if not run.is_living or run.state == "idle") and all(
        ends.count(run.info.id) == run.activations - run.is_living for run in runs
    )


@pytest.mark.parametrize("seed", range(60))
async def test_interrupts_and_cancels_at_random_moments_leave_nothing(seed: int) -> None:
    """Interrupts, stops and prompts come at random moments, then a cancel: no run lives, and nothing is held."""
    chance, wood = random.Random(seed), RandomTree(seed)
    limits = SpawnLimits(running=chance.choice([1, 2, None]), runs=8, children=3, depth=4)
    tool = async_tool(wood.lead, concurrency_safe=True, waits=True)
    model, runtime = ScriptedModel(wood.answer, keep_requests=False), AgentRuntime(grace_s=5)
    budget = Limits(model_calls=300, tool_calls=500, tokens=10_000_000, agents=200)
    async with Session(model, [tool], spawn_limits=limits, runtime=runtime, limits=budget) as session:

        async def dawdle_a_while() -> None:
            await dawdle_for(chance.randrange(120))

        turn = asyncio.create_task(session.ask("node"))
        for number in range(4):
            await dawdle_a_while()
            action = chance.randrange(3)
            if action == 0:
                await session.interrupt()
                await turn
                assert (
                    is_valid(session.messages) or run_of(session, "main").state != "idle"
                )  # A word may have woken it.
                turn = asyncio.create_task(session.ask(f"node{number}"))
            elif action == 1:
                await session.handle(chance.choice(session.runs()[1:] or session.runs()[:1]).id).cancel("chance")
                if not run_of(session, "main").is_living:
                    break
            else:
                session.send(f"node{number}")
        await dawdle_a_while()

        await session.cancel("enough")

        result: Result | BaseException
        (result,) = await asyncio.gather(turn, return_exceptions=True)
        if isinstance(result, BaseException):  # The cancel came before its first step.
            assert str(result) == "this session has ended"
        else:
            assert result.status in set(Status) - {Status.PAUSED}
        register = open_tree_of(session).tree.register
        assert not list(register.living())
        assert (register.admission.slot_count, register.admission.queue_length) == (0, 0)
        assert (register.slots.in_use, register.slots.queue_length) == (0, 0)
        assert has_no_reservation(session)
        assert is_consistent(session)
        spent = {
            name: run_of(session, "main").context.budget.spent_amount(name) for name in ("model_calls", "tool_calls")
        }
        assert spent == {"model_calls": session.usage.model_calls, "tool_calls": session.usage.tool_calls}
        assert len(asyncio.all_tasks()) == 1


async def dawdle_for(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
