"""`run_tools` answers every call of a turn, in the order of the calls, whatever their results."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.messages.tool import tool_call
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException, tool

from ramet.agent.hooks.hooks import HookRunner
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.slots import Slot, Slots
from ramet.core.budget import Budget
from ramet.core.errors import Aborted, Bug, StoreFailed
from ramet.core.events import BudgetRefused, Event, ToolEnded, ToolStarted
from ramet.core.limits import Limits
from ramet.tools.context import ToolUseContext, current, current_call
from ramet.tools.dispatch import PREVIEW_CHARS, find_tool, is_async, run_tools
from tests.support.context import make_context
from tests.support.waiting import eventually
from tests.trips.kits.sessions import BlockingTool, Gate, async_tool, of_kind


class RecordingContext:
    """A context with the events of its calls."""

    def __init__(self, *tools: BaseTool, **fields: Any) -> None:
        self.events: list[Event] = []
        self.context: ToolUseContext = make_context(None, tools, record=self._keep, **fields)

    def _keep(self, event: Event) -> Event:
        self.events.append(event)
        return event

    async def run(self, *calls: Any) -> list[ToolMessage]:
        return await run_tools(self.context, list(calls))


def call(name: str, number: int = 1, **args: Any) -> Any:
    return tool_call(name=name, args=args, id=f"call-{number}")


def texts(answers: list[ToolMessage]) -> list[str]:
    return [str(answer.text) for answer in answers]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def fail(kind: str) -> str:
    """Fail in some way."""
    raise {"value": ValueError("wrong"), "tool": ToolException("refused"), "timeout": TimeoutError("its own")}[kind]


# --- order and concurrency


async def test_answers_come_in_the_order_of_the_calls() -> None:
    """Answers do not come in the order of completion; each has the id of its call and the name of its tool."""
    gates = [Gate(f"g{number}") for number in range(3)]
    recording = RecordingContext(*(gate.tool for gate in gates))
    running = asyncio.create_task(recording.run(*(call(f"g{number}", number) for number in range(3))))
    for gate in reversed(gates):
        await gate.entered.wait()
        gate.open.set()

    answers = await running

    assert [(answer.tool_call_id, answer.name) for answer in answers] == [(f"call-{n}", f"g{n}") for n in range(3)]
    assert recording.context.answers == {}


async def test_safe_calls_run_concurrently_up_to_the_limit() -> None:
    """The number of concurrent calls is at most `max_parallel_tools`."""
    at_work, max_active = 0, 0

    async def busy() -> str:
        """Work."""
        nonlocal at_work, max_active
        at_work += 1
        max_active = max(max_active, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        return "done"

    recording = RecordingContext(async_tool(busy, concurrency_safe=True), max_parallel_tools=3)

    answers = await recording.run(*(call("busy", number) for number in range(10)))

    assert (len(answers), max_active) == (10, 3)


async def test_waiting_calls_do_not_count_against_the_limit() -> None:
    """The limits of the tree alone bound the number of children that `waits` allows."""
    gate = Gate("gate")
    gate.tool.metadata = {"concurrency_safe": True, "waits": True}
    recording = RecordingContext(gate.tool, max_parallel_tools=2)
    running = asyncio.create_task(recording.run(*(call("gate", number) for number in range(7))))

    await eventually(lambda: gate.calls == 7)

    gate.open.set()
    assert len(await running) == 7


async def test_a_tool_without_the_safe_flag_runs_alone() -> None:
    """The tool waits for the calls before it, and the calls after it wait for it."""
    safe, lone = Gate("safe"), Gate("lone", safe=False)
    recording = RecordingContext(safe.tool, lone.tool)
    running = asyncio.create_task(recording.run(call("safe", 1), call("lone", 2), call("safe", 3)))
    await safe.entered.wait()
    assert lone.calls == 0
    safe.open.set()

    await lone.entered.wait()

    assert safe.calls == 1
    lone.open.set()
    assert len(await running) == 3
    assert safe.calls == 2


# --- one failing alone


@pytest.mark.parametrize(
    ("bad", "answer"),
    [
        (call("nonsense"), "There is no tool named 'nonsense'. Tools here: add, fail."),
        (call("add", a=1), "b"),
        (call("add", a="x", b=2), "a"),
        (call("fail", kind="value"), "ValueError: wrong"),
        (call("fail", kind="tool"), "refused"),
        (call("fail", kind="timeout"), "TimeoutError: its own"),
    ],
    ids=["unknown", "missing", "type", "exception", "ToolException", "its own timeout"],
)
async def test_a_failing_call_is_an_error_result_for_that_call_only(bad: Any, answer: str) -> None:
    """AC-S2-4: the model receives unknown tools, bad arguments and exceptions as errors, and the other calls run."""
    recording = RecordingContext(add, fail)

    before, failure, after = await recording.run(
        call("add", 1, a=1, b=2), {**bad, "id": "bad"}, call("add", 3, a=3, b=4)
    )

    assert (before.text, after.text) == ("3", "7")
    assert failure.status == "error"
    assert answer in failure.text
    assert failure.tool_call_id == "bad"


async def test_broken_arguments_are_reported_and_not_guessed() -> None:
    """A call with unreadable JSON does not run with other arguments."""
    recording = RecordingContext(add)

    (answer,) = await recording.run({**call("add"), "error": "Expecting value: line 1 column 7"})

    assert answer.status == "error"
    assert "Expecting value" in answer.text
    assert of_kind(recording.events, ToolStarted) == []


async def test_a_bug_of_ours_is_not_shown_to_the_model() -> None:
    """A failure of our machinery is raised, by a single call and by several."""

    async def ours() -> str:
        """Break."""
        raise Bug("a state that should not have been possible")

    recording = RecordingContext(async_tool(ours, concurrency_safe=True))

    with pytest.raises(Bug):
        await recording.run(call("ours"))
    with pytest.raises(Bug):
        await recording.run(call("ours", 1), call("ours", 2))


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    """A limit of the tool goes before that of the context; the answer gives the limit."""

    async def slow() -> str:
        """Never finish."""
        return str(await asyncio.get_running_loop().create_future())

    async def hasty() -> str:
        """Never finish, sooner."""
        return str(await asyncio.get_running_loop().create_future())

    recording = RecordingContext(async_tool(slow), async_tool(hasty, timeout_s=0.01), tool_timeout_s=0.02)

    answers = await recording.run(call("slow", 1), call("hasty", 2))

    assert texts(answers) == [
        "slow did not finish within 0.02 s and was stopped.",
        "hasty did not finish within 0.01 s and was stopped.",
    ]


async def test_a_thread_that_takes_too_long_is_abandoned() -> None:
    """A thread cannot be ended: it is recorded as left running until it returns, and its result is not used."""
    stuck = BlockingTool()
    stuck.tool.metadata = {"timeout_s": 0.01}
    recording = RecordingContext(stuck.tool)

    (answer,) = await recording.run(call("stuck"))

    assert "did not finish" in answer.text
    assert [thread.tool for thread in recording.context.orphaned_threads.values()] == ["stuck"]
    stuck.free.set()
    await eventually(lambda: not recording.context.orphaned_threads)


# --- where tools run, and what they find there


async def test_synchronous_tools_run_in_their_own_thread() -> None:
    """A tool that blocks stops no other run, and it still finds its context."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("from the caller")

    @tool
    def location() -> str:
        """Tell."""
        return f"{threading.current_thread() is threading.main_thread()} {variable.get()} {current().run.path}"

    recording = RecordingContext(location)

    answers = await recording.run(call("location"))

    assert texts(answers) == ["False from the caller main"]


async def test_a_tool_finds_its_context_and_its_key() -> None:
    """`current_call` is set during a call, differs from call to call, and is unset afterwards."""
    keys: list[tuple[str, str]] = []

    async def look() -> str:
        """Look."""
        call = current_call.get()
        assert call is not None
        assert call.context is recording.context
        keys.append((call.call_id, call.step_id))
        return "ok"

    recording = RecordingContext(async_tool(look, concurrency_safe=True))

    await recording.run(call("look", 1), call("look", 2))

    started_keys = {(event.call_id, event.step_id) for event in of_kind(recording.events, ToolStarted)}
    assert len(set(keys)) == 2
    assert set(keys) == started_keys
    assert current_call.get(None) is None


@pytest.mark.parametrize(("tool_given", "expected"), [(add, False), (fail, True)])
def test_coroutine_tools_run_in_the_event_loop(tool_given: BaseTool, expected: bool) -> None:
    """Synchronous functions get a thread."""
    assert is_async(tool_given) is expected


async def test_tools_are_found_by_name_and_alias() -> None:
    """`Task` is an alias of `Agent`; a tool with the exact name goes before an alias."""
    gate = Gate("Agent")
    gate.open.set()
    recording = RecordingContext(gate.tool)

    answers = await recording.run(call("Task"))

    assert (gate.calls, answers[0].status) == (1, "success")
    gate_tool = Gate("Task")
    assert find_tool({"Agent": gate.tool, "Task": gate_tool.tool}, "Task") is gate_tool.tool
    assert find_tool({"Agent": gate.tool}, "Task") is gate.tool
    assert find_tool({"Agent": gate.tool}, "Bash") is None


# --- records


async def test_each_call_is_recorded_before_and_after() -> None:
    """Intent, effect and outcome follow each other, with a preview; a call that never ran has no start."""
    recording = RecordingContext(add, fail)

    await recording.run(call("add", 1, a=1, b=2), call("fail", 2, kind="value"), call("nonsense", 3))

    assert [(type(event).__name__, event.call_id) for event in recording.events] == [
        ("ToolStarted", "call-1"),
        ("ToolEnded", "call-1"),
        ("ToolStarted", "call-2"),
        ("ToolEnded", "call-2"),
        ("ToolEnded", "call-3"),
    ]
    assert [(event.status, event.preview[:17]) for event in of_kind(recording.events, ToolEnded)] == [
        ("ok", "3"),
        ("error", "ValueError: wrong"),
        ("error", "There is no tool "),
    ]


async def test_a_long_result_is_cut_and_kept(tmp_path: Path) -> None:
    """Above the limit, a file has the whole and the model a preview; without a place for it, the answer says so."""

    async def read(size: int) -> str:
        """Read."""
        return "x" * size

    def spill(call_id: str, text: str) -> Path:
        file = tmp_path / f"{call_id}.txt"
        file.write_text(text)
        return file

    spilling, dropping = RecordingContext(async_tool(read), spill=spill), RecordingContext(async_tool(read))

    (short,) = await spilling.run(call("read", 1, size=30_000))
    (long,) = await spilling.run(call("read", 2, size=30_001))
    (dropped_message,) = await dropping.run(call("read", 3, size=30_001))

    assert len(short.text) == 30_000
    assert long.text.startswith("x" * PREVIEW_CHARS + "\n… [30001 characters, the first 2000 shown.")
    assert str(tmp_path / "call-2.txt") in long.text
    assert (tmp_path / "call-2.txt").stat().st_size == 30_001
    assert "dropped" in dropped_message.text
    assert of_kind(spilling.events, ToolEnded)[1].spilled_to == str(tmp_path / "call-2.txt")


# --- budgets, slots, stops


async def test_tool_calls_are_reserved_one_by_one() -> None:
    """Three of five run; the others are refused and recorded, and the context keeps the reason to end."""
    recording = RecordingContext(add, budget=Budget(Limits(tool_calls=3), scope="main"))

    answers = await recording.run(*(call("add", number, a=number, b=0) for number in range(5)))

    assert texts(answers)[:3] == ["0", "1", "2"]
    assert [answer.status for answer in answers[3:]] == ["error", "error"]
    assert recording.context.final_refusal is not None
    assert len(of_kind(recording.events, BudgetRefused)) == 2
    assert recording.context.usage.tool_calls == 3
    assert recording.context.budget.reserved_amount("tool_calls") == 0


async def test_denied_and_unknown_calls_cost_nothing() -> None:
    """Calls that run are counted, and no others."""
    hooks = HookRunner({"PreToolUse": [{"matcher": "add", "hooks": [lambda _: "deny"]}]})
    recording = RecordingContext(add, fail, hooks=hooks, budget=Budget(Limits(tool_calls=3), scope="main"))

    await recording.run(call("add", 1, a=1, b=2), call("nonsense", 2), call("fail", 3, kind="value"))

    assert recording.context.usage.tool_calls == 1
    assert recording.context.budget.spent_amount("tool_calls") == 1


async def test_a_stopped_run_starts_no_call() -> None:
    """A call after an abort does not start; answers before it are kept for the history."""
    abort = AbortController()

    async def stop() -> str:
        """Stop the run."""
        abort.abort("enough")
        return "stopped it"

    recording = RecordingContext(async_tool(stop), add, abort=abort)

    with pytest.raises(Aborted, match="enough"):
        await recording.run(call("stop", 1), call("add", 2, a=1, b=2))

    assert {key: str(answer.text) for key, answer in recording.context.answers.items()} == {"call-1": "stopped it"}


async def test_cancelling_keeps_existing_answers() -> None:
    """Calls that were done stay done; other concurrent calls are recorded as cancelled."""
    gate, quick = Gate("gate"), Gate("quick")
    quick.open.set()
    recording = RecordingContext(gate.tool, quick.tool)
    running = asyncio.create_task(recording.run(call("quick", 1), call("gate", 2)))
    await eventually(lambda: gate.calls and "call-1" in recording.context.answers)

    running.cancel()
    await asyncio.wait([running])

    assert set(recording.context.answers) == {"call-1"}
    assert {event.call_id: event.status for event in of_kind(recording.events, ToolEnded)} == {
        "call-1": "ok",
        "call-2": "cancelled",
    }


async def test_the_slot_is_taken_again_after_all_answers() -> None:
    """A run whose calls all waited takes its place again before it continues."""
    slots = Slots(1)
    slot = Slot(slots)
    other = asyncio.Event()

    async def wait() -> str:
        """Wait for somebody else."""
        await current().slot.while_waiting(other.wait())
        return "waited"

    recording = RecordingContext(async_tool(wait, concurrency_safe=True, waits=True), slot=slot)
    await slot.acquire()
    running = asyncio.create_task(recording.run(call("wait", 1), call("wait", 2)))
    await eventually(lambda: not slot.is_held)
    assert slots.in_use == 0
    other.set()

    await running

    assert slot.is_held
    assert slots.in_use == 1


class Ownership:
    """Ownership of a tree that is lost one turn of the event loop after its record is durable."""

    def __init__(self) -> None:
        self.is_lost = False

    async def wait(self) -> None:
        """Return at once, as for an event that is on disk."""
        asyncio.get_running_loop().call_soon(setattr, self, "is_lost", True)

    async def confirm(self) -> None:
        """Raise if the tree is lost."""
        if self.is_lost:
            raise StoreFailed("the store", "another kernel owns the tree")


async def test_a_tool_does_not_begin_after_its_tree_was_lost() -> None:
    """The tree is lost in the turn of the event loop between the wait for the record and the tool's first step.

    A tool that changes nothing waits for no record, and begins."""
    calls: list[str] = []

    async def act() -> str:
        """Act."""
        calls.append("act")
        return "acted"

    async def look() -> str:
        """Look."""
        calls.append("look")
        return "seen"

    tools = async_tool(act), async_tool(look, read_only=True)
    ownership = Ownership()
    recording = RecordingContext(*tools, durable=ownership.wait, confirm_ownership=ownership.confirm)

    with pytest.raises(StoreFailed, match="another kernel owns the tree"):
        await recording.run(call("act"))

    assert texts(await recording.run(call("look"))) == ["seen"]
    assert calls == ["look"]


async def test_a_checked_tool_gets_its_arguments_and_keeps_its_state() -> None:
    """A tool of a class, which asks for LangChain's configuration, counts its calls in itself."""

    class Counting(BaseTool):
        name: str = "count"
        description: str = "Counts."
        calls: int = 0

        def _run(self) -> str:
            raise NotImplementedError

        async def _arun(self, by: int, config: RunnableConfig, run_manager: Any = None) -> str:
            self.calls += by
            return f"{self.calls} {'callbacks' in config} {run_manager is not None}"

    async def confirm() -> None:
        """The tree is this kernel's."""

    counting = Counting(metadata={"concurrency_safe": True})
    recording = RecordingContext(counting, confirm_ownership=confirm)

    answers = await recording.run(call("count", 1, by=2), call("count", 2, by=3))

    assert texts(answers) == ["2 True True", "5 True True"]
    assert counting.calls == 5


async def test_two_calls_with_one_id_are_both_answered() -> None:
    """A caller with equal ids gets as many answers as calls, each with its own content."""
    recording = RecordingContext(add)

    answers = await recording.run(call("add", 1, a=1, b=1), call("add", 1, a=2, b=2))

    assert texts(answers) == ["2", "4"]
