"""The tools of a board: what a model reads and may do, in its own name only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.messages.tool import tool_call

from ramet.agent.hooks.hooks import HookRunner
from ramet.host.board.board import Board
from ramet.store.memory import MemoryStore
from ramet.tools.agents.board import board_tools
from ramet.tools.context import ToolUseContext
from ramet.tools.dispatch import run_tools
from tests.support.context import make_context, run_info


@pytest.fixture
async def board() -> AsyncIterator[Board]:
    """Yield a board in memory, on which every run is active."""
    store = await MemoryStore().open()
    yield Board(store, "list", is_living=lambda run: True)
    await store.close()


def agent(board: Board, number: int = 1, **more: Any) -> ToolUseContext:
    """Return the context of a run that has the tools."""
    return make_context(tools=board_tools(board), run=run_info(number, path=f"main/a{number}"), **more)


async def call(context: ToolUseContext, name: str, **args: Any) -> ToolMessage:
    """Make one call with the dispatcher."""
    (answer,) = await run_tools(context, [tool_call(name=name, args=args, id=f"c{context.steps}")])
    return answer


async def test_a_list_is_completed_in_the_order_of_its_dependencies(board: Board) -> None:
    """A task is created, refused while it waits, claimed, completed and then free."""
    one, two = agent(board, 1), agent(board, 2)
    assert (await call(one, "TaskList")).content == "The board is empty."
    await call(one, "TaskCreate", subject="dig", description="to the bottom")
    await call(one, "TaskCreate", subject="fill", addBlockedBy=["1"])
    early = await call(two, "TaskUpdate", taskId="2", status="in_progress")
    await call(one, "TaskUpdate", taskId="1", status="in_progress")
    late = await call(two, "TaskUpdate", taskId="1", status="in_progress")
    task_list = await call(two, "TaskList")
    await call(one, "TaskUpdate", taskId="1", status="completed")
    freed = await call(two, "TaskUpdate", taskId="2", status="in_progress")

    assert (early.status, early.content) == ("error", "task '2': it waits for 1")
    assert (late.status, late.content) == ("error", "task '1': main/a1 is working on it")
    assert task_list.content == "#1 [in_progress] dig (main/a1)\n#2 [pending] fill [blocked by #1]"
    assert freed.content == "#2 [in_progress] fill (main/a2)"
    task_answer = await call(two, "TaskGet", taskId="1")
    assert task_answer.content == "#1 [completed] dig (main/a1)\nblocks: 2\nto the bottom"


async def test_no_run_acts_in_the_name_of_another(board: Board) -> None:
    """A run cannot complete, change, release or delete the task of another, and no argument names an owner."""
    one, two = agent(board, 1), agent(board, 2)
    await call(one, "TaskCreate", subject="dig")
    await call(one, "TaskUpdate", taskId="1", status="in_progress")

    for args in ({"status": "completed"}, {"status": "pending"}, {"status": "deleted"}, {"subject": "mine"}):
        answer = await call(two, "TaskUpdate", taskId="1", **args)
        assert (answer.status, answer.content) == ("error", "task '1': main/a1 is working on it")
    assert (await call(two, "TaskUpdate", taskId="1", owner="run-01")).status == "error"
    assert (await call(one, "TaskUpdate", taskId="1", status="pending")).content == "#1 [pending] dig"


@pytest.mark.parametrize(
    ("tool", "args", "message"),
    [
        ("TaskGet", {"taskId": "7"}, "unknown task '7'"),
        ("TaskUpdate", {"taskId": "1"}, "a status, or anything else to change"),
        ("TaskUpdate", {"taskId": "1", "status": "done"}, "status"),
        ("TaskUpdate", {"taskId": "1", "addBlockedBy": ["1"]}, "does not itself wait"),
        ("TaskUpdate", {"taskId": "1", "addBlocks": ["9"]}, "unknown task '9'"),
        ("TaskCreate", {"subject": ""}, "one line"),
        ("TaskCreate", {"subject": "a\n#9 [completed] b"}, "one line"),
        ("TaskCreate", {"subject": "x" * 201}, "one line"),
        ("TaskCreate", {"subject": "x", "description": "x" * 20_001}, "at most 20000"),
        ("TaskCreate", {"subject": "x", "description": "\ud800"}, "description"),
        ("TaskCreate", {"subject": "x", "metadata": {"k": "x" * 8_000}}, "at most 8000"),
        ("TaskCreate", {"subject": "x", "addBlockedBy": ["0"]}, "unknown task '0'"),
    ],
)
async def test_an_invalid_change_is_refused_and_changes_nothing(
    board: Board, tool: str, args: dict[str, Any], message: str
) -> None:
    """The model receives the wrong value, and what would have been accepted."""
    await board.create("first")
    before = await board.list()
    answer = await call(agent(board), tool, **args)

    assert answer.status == "error"
    assert message in str(answer.content)
    assert await board.list() == before


async def test_a_task_is_created_once_for_each_step(board: Board) -> None:
    """A call that a crash interrupted is made again as the same step, and finds its task."""
    context = agent(board)
    await call(context, "TaskCreate", subject="dig")
    context.interrupted_calls = {"c9": f"{context.run.id}:1"}  # type: ignore[dict-item]  # ids
    (second_result,) = await run_tools(context, [tool_call(name="TaskCreate", args={"subject": "dig"}, id="c9")])

    assert second_result.content == "Task #1 created: dig"
    assert [task.id for task in await board.list()] == ["1"]


async def test_hooks_veto_creation_and_completion(board: Board) -> None:
    """TaskCreated and TaskCompleted get the task, and a veto leaves the board unchanged."""
    payloads: list[dict[str, Any]] = []

    def look(payload: dict[str, Any]) -> dict[str, str] | None:
        payloads.append(payload)
        return {"decision": "block", "reason": "not like that"} if "bad" in payload["task_subject"] else None

    context = agent(board, hooks=HookRunner({"TaskCreated": [look], "TaskCompleted": [look]}))
    result = await call(context, "TaskCreate", subject="bad idea")
    await call(context, "TaskCreate", subject="good idea", description="do it")
    await board.update("2", subject="gone bad")
    update_result = await call(context, "TaskUpdate", taskId="2", status="completed")
    await board.update("2", subject="good again")
    answer = await call(context, "TaskUpdate", taskId="2", status="completed")
    await call(context, "TaskUpdate", taskId="2", status="completed")

    assert (result.status, update_result.status) == ("error", "error")
    assert "not like that" in str(result.content)
    assert answer.content == "#2 [completed] good again (main/a1)"
    hook_calls = [(each["hook_event_name"], each["task_id"], each["task_subject"]) for each in payloads]
    assert hook_calls == [
        ("TaskCreated", "1", "bad idea"),
        ("TaskCreated", "2", "good idea"),
        ("TaskCompleted", "2", "gone bad"),
        ("TaskCompleted", "2", "good again"),
    ]
    assert (payloads[1]["task_description"], payloads[1]["agent_id"]) == ("do it", context.run.id)


async def test_each_tree_has_its_own_board_where_a_factory_is_given() -> None:
    """The factory is called with the id of the caller's root."""
    store = await MemoryStore().open()
    tools = board_tools(lambda root: Board(store, root))
    await call(make_context(tools=tools), "TaskCreate", subject="dig")

    assert [task.subject for task in await Board(store, "run-00").list()] == ["dig"]
    await store.close()
