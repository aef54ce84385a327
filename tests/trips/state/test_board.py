"""Boards that agents share: one winner per task, no cycle and no loss, on every store and after kills."""

from __future__ import annotations

import asyncio
import pathlib

import msgspec
import pytest

from ramet import AgentRuntime, Session
from ramet.core.errors import Damaged, InvalidValue, RametError, Unknown
from ramet.host.board.board import Board, boards
from ramet.host.board.document import KIND, MAX_TASKS
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.store.memory import MemoryStore
from ramet.tools.agents.board import Owner, Task, TaskRefused, board_tools
from tests.conformance.stores import STORES
from tests.support.store_addresses import KINDS, run_program_until_killed, store_at
from tests.trips.kits.sessions import answers, specialist_call
from tests.trips.programs.board import STEPS, do, model, tools

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "board.py"
ANN, BOB = Owner("run-ann", "main/ann"), Owner("run-bob", "main/bob")


#: Any write in a file; on a server, which commits the same documents, some.
KILLS = [
    *(("sqlite", kill_point, number) for number in range(1, len(STEPS) + 1) for kill_point in ("before", "after")),
    *(("postgres", "after", number) for number in (1, 3, 5, 7)),
]


def always_living(_: str) -> bool:
    """Return True: every owner lives."""
    return True


@pytest.mark.parametrize("store", STORES)
async def test_one_of_fifty_concurrent_claims_wins(store: str, tmp_path: pathlib.Path) -> None:
    """AC-S1-11: the others read who has the task, and leave no change."""
    async with STORES[store](tmp_path).open() as open_store:
        await Board(open_store, "list").create("dig")

        async def claim(number: int) -> Task:
            return await Board(open_store, "list", is_living=always_living).claim(
                "1", Owner(f"run-{number}", f"main/{number}")
            )

        outcomes = await asyncio.gather(*map(claim, range(50)), return_exceptions=True)
        (won,) = [each for each in outcomes if isinstance(each, Task)]
        refusals = [each for each in outcomes if isinstance(each, TaskRefused)]

        assert won.owner is not None
        assert {each.owner for each in refusals} == {won.owner.path}
        assert len(refusals) == 49
        assert await Board(open_store, "list").list() == [won]


@pytest.mark.parametrize("store", STORES)
async def test_concurrent_changes_lose_nothing_and_make_no_cycle(store: str, tmp_path: pathlib.Path) -> None:
    """Twenty tasks are created concurrently. Of two tasks that would wait for each other, one change is refused."""
    async with STORES[store](tmp_path).open() as open_store:
        tasks = await asyncio.gather(*(Board(open_store, "list").create(f"task {n}") for n in range(20)))
        assert sorted(int(task.id) for task in tasks) == list(range(1, 21))

        board = Board(open_store, "list")
        outcomes = await asyncio.gather(
            board.update("1", add_blocked_by=["2"]), board.update("2", add_blocked_by=["1"]), return_exceptions=True
        )
        assert [type(each) for each in outcomes if isinstance(each, Exception)] == [InvalidValue]
        assert len(await board.list()) == 20


@pytest.mark.parametrize("store", KINDS)
async def test_a_board_survives_a_restart(store: str, tmp_path: pathlib.Path) -> None:
    """AC-S1-11: blocked tasks, owners and ids stay the same. Other lists are other boards."""
    closed_store = STORES[store](tmp_path)
    async with closed_store.open() as open_store:
        board = Board(open_store, "list", is_living=always_living)
        await board.create("dig", "deep", metadata={"tools": ["spade"], "gone": None})
        await board.create("fill", blocked_by=["1"])
        await board.create("spare")
        await board.delete("3")
        await board.claim("1", ANN)
        before = await board.list()
    async with closed_store.open() as open_store:
        board = Board(open_store, "list", is_living=always_living)
        assert await board.list() == before
        assert (before[0].metadata, before[0].blocks, before[1].open_blockers) == ({"tools": ["spade"]}, ("2",), ("1",))
        with pytest.raises(TaskRefused) as refusal:
            await board.claim("2", BOB)
        assert refusal.value.blocked_by == ("1",)
        await board.complete("1", ANN)
        assert (await board.claim("2", BOB)).owner == BOB
        assert (await board.create("new")).id == "4"
        assert await Board(open_store, "another").list() == []


@pytest.mark.parametrize(("store_address", "kill_point", "number"), KILLS, indirect=["store_address"])
async def test_a_process_killed_at_any_write_leaves_whole_steps(
    store_address: str, kill_point: str, number: int
) -> None:
    """AC-S1-11, NEG-15: the board has the result of the finished steps, and the other steps can still be done."""
    await run_program_until_killed(PROGRAM, store_address, kill_point, number)
    expected = await MemoryStore().open()
    step_count = number - (kill_point == "before")
    for step in STEPS[:step_count]:
        await do(Board(expected, "list"), step)

    store = await store_at(store_address).open()
    assert await Board(store, "list").list() == await Board(expected, "list").list()
    for step in STEPS[step_count:]:
        await do(Board(store, "list"), step)
    assert [(task.id, task.status) for task in await Board(store, "list").list()] == [("2", "completed")]
    await store.close()
    await expected.close()


async def test_the_task_of_a_killed_agent_waits_for_its_resume(store_address: str) -> None:
    """The run has not ended, so no other agent can claim the task. The resumed agent completes it."""
    await run_program_until_killed(PROGRAM, store_address, "agent")

    async with AgentRuntime(store=store_at(store_address)) as runtime:
        board = boards(runtime)("list")
        with pytest.raises(TaskRefused, match="main is working on it"):
            await board.claim("1", BOB)
        (handle,) = await runtime.resume(llm=model(), tools=tools(runtime))
        assert (await handle.result()).value == "it is dug"
        (task,) = await board.list()

    assert task.status == "completed"
    assert task.owner == Owner(handle.id, "main")


async def test_a_lease_ends_with_its_owner() -> None:
    """Others can claim the task of a child that ended without completing it. The child's late change is refused."""
    llm = ScriptedModel(
        {
            "be lazy": [Call("TaskUpdate", {"taskId": "1", "status": "in_progress"}), "I give up"],
            "Go.": [
                Call("TaskCreate", {"subject": "dig"}),
                specialist_call("be lazy", "lazy"),
                Call("TaskUpdate", {"taskId": "1", "status": "completed"}),
                "done",
            ],
        }
    )
    async with AgentRuntime() as runtime:
        board = boards(runtime)("release")
        async with Session(llm, board_tools(board), runtime=runtime) as session:
            await session.ask("Go.")
            (task,) = await board.list()
            lazy = session.handle("lazy")

            assert (task.status, task.owner) == ("completed", Owner(session.id, "main"))
            assert "#1 [completed] dig (main)" in answers(session.messages).values()
            with pytest.raises(TaskRefused):
                await board.complete("1", Owner(lazy.id, lazy.path))


async def test_a_living_owner_keeps_its_task() -> None:
    """No other agent can claim, complete, release or delete the task. The host can release it."""
    store = await MemoryStore().open()
    board = Board(store, "list", is_living=always_living)
    await board.create("dig")
    await board.claim("1", ANN)
    for attempt in (board.claim, board.complete, board.release, board.delete):
        with pytest.raises(TaskRefused, match="main/ann is working on it"):
            await attempt("1", BOB)

    assert (await board.claim("1", ANN)).owner == ANN
    assert (await board.release("1")).status == "pending"
    assert (await board.claim("1", BOB)).owner == BOB
    assert (await board.complete("1", BOB)) == (await board.complete("1", BOB))
    with pytest.raises(TaskRefused, match="it is completed"):
        await board.claim("1", ANN)
    await store.close()


async def test_a_long_cycle_of_tasks_is_refused() -> None:
    """The length of the cycle makes no difference. A deleted task blocks no other task."""
    store = await MemoryStore().open()
    board = Board(store, "list")
    for n in range(1, 51):
        await board.create("link", blocked_by=[str(n - 1)] if n > 1 else [])
    with pytest.raises(InvalidValue, match="does not itself wait"):
        await board.update("1", add_blocked_by=["50"])
    with pytest.raises(InvalidValue, match="does not itself wait"):
        await board.update("50", add_blocks=["1"])

    await board.delete("25")
    await board.update("1", add_blocked_by=["50"])
    assert (await board.get("26")).blocked_by == ()
    with pytest.raises(Unknown):
        await board.get("25")
    await store.close()


async def test_a_full_or_unreadable_board_is_not_written() -> None:
    """Too many tasks, damaged data and a newer version are refused, and their documents do not change."""
    store = await MemoryStore().open()
    row = {"subject": "x"}
    full = {"version": 1, "newest": MAX_TASKS, "rows": {str(n): row for n in range(1, MAX_TASKS + 1)}}
    await store.put(KIND, "full", msgspec.json.encode(full))
    await store.put(KIND, "newer", b'{"version": 2, "tasks": []}')
    await store.put(KIND, "torn", b'{"version": 1, "rows":')

    with pytest.raises(InvalidValue, match="at most 1000"):
        await Board(store, "full").create("one more")
    for name in ("newer", "torn"):
        with pytest.raises(Damaged):
            await Board(store, name).create("one more")
    assert [each.version for each in await store.list(KIND)] == [1, 1, 1]
    with pytest.raises(RametError):
        Board(store, "")
    await store.close()
