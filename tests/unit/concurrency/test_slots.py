"""Tests of `concurrency/slots.py`: no more runs work than there are slots, and no capacity blocks a tree forever."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.concurrency.slots import Slot, Slots
from ramet.core.errors import Bug


async def run_pending_tasks() -> None:
    """Let every task run that can run."""
    for _ in range(20):
        await asyncio.sleep(0)


# --- places ---------------------------------------------------------------------------------------------------------


async def test_only_as_many_callers_as_slots_hold_one() -> None:
    """Two of five callers of two slots hold a slot, and three wait."""
    slots = Slots(2)
    tasks = [asyncio.create_task(slots.acquire()) for _ in range(5)]
    await run_pending_tasks()

    state = [task.done() for task in tasks], slots.in_use, slots.queue_length

    for _ in range(5):
        slots.release()
        await run_pending_tasks()
    assert state == ([True, True, False, False, False], 2, 3)
    assert (slots.in_use, slots.queue_length) == (0, 0)


async def test_slots_are_given_in_the_order_of_requests() -> None:
    """A hundred waiting callers are served first come, first served."""
    slots, order = Slots(1), list[int]()

    async def work(number: int) -> None:
        await slots.acquire()
        order.append(number)
        await asyncio.sleep(0)
        slots.release()

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(work(number))

    assert order == list(range(100))


async def test_a_freed_slot_belongs_to_the_first_waiter() -> None:
    """`try_take` fails while a waiter exists, even before that waiter has woken."""
    slots = Slots(1)
    await slots.acquire()
    first = asyncio.create_task(slots.acquire())
    await run_pending_tasks()
    slots.release()

    overtaken = slots.try_acquire()

    await first
    assert overtaken is False
    assert slots.in_use == 1


async def test_unbounded_slots_make_no_caller_wait() -> None:
    """A capacity of None is no bound, and taken slots are still counted."""
    slots = Slots(None)
    for _ in range(1_000):
        await slots.acquire()

    assert (slots.in_use, slots.queue_length) == (1_000, 0)


async def test_a_cancelled_waiter_takes_no_slot() -> None:
    """A cancelled waiter leaves the queue, and the next waiter gets the slot."""
    slots = Slots(1)
    await slots.acquire()
    first, behind = (asyncio.create_task(slots.acquire()) for _ in range(2))
    await run_pending_tasks()
    first.cancel()
    await run_pending_tasks()

    slots.release()
    await run_pending_tasks()

    assert (first.cancelled(), behind.done(), slots.in_use, slots.queue_length) == (True, True, 1, 0)


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_slot_given_to_a_cancelled_waiter_is_passed_on(behind: int) -> None:
    """No slot is lost when hand-over and cancel meet in one turn of the loop."""
    slots = Slots(1)
    await slots.acquire()
    waiter = asyncio.create_task(slots.acquire())
    waiting = [asyncio.create_task(slots.acquire()) for _ in range(behind)]
    await run_pending_tasks()

    slots.release()
    waiter.cancel()
    await run_pending_tasks()

    assert waiter.cancelled()
    assert [task.done() for task in waiting] == [True] * behind
    assert slots.in_use == behind


async def test_a_waiter_whose_coroutine_is_closed_takes_no_slot() -> None:
    """The slot goes to the next waiter instead of the discarded coroutine."""
    slots = Slots(1)
    await slots.acquire()
    thrown_away = slots.acquire()
    thrown_away.send(None)
    behind = asyncio.create_task(slots.acquire())
    await run_pending_tasks()
    thrown_away.close()

    slots.release()
    await run_pending_tasks()

    assert (behind.done(), slots.in_use) == (True, 1)


def test_releasing_a_slot_that_is_not_taken_raises_bug() -> None:
    """An extra release would raise the capacity permanently."""
    slots = Slots(1)

    with pytest.raises(Bug):
        slots.release()

    assert slots.in_use == 0


# --- a run's hold on a place ----------------------------------------------------------------------------------------


async def test_a_run_holds_one_slot_after_repeated_requests() -> None:
    """Repeated `take` calls take one slot, and one `let_go` releases it."""
    slots = Slots(3)
    slot = Slot(slots)
    await slot.acquire()
    await slot.acquire()
    slots_in_use = slots.in_use

    slot.release()
    slot.release()

    assert (slots_in_use, slots.in_use, slot.is_held) == (1, 0, False)


@pytest.mark.parametrize("calls", [1, 2, 5])
async def test_a_run_releases_its_slot_when_all_its_calls_wait(calls: int) -> None:
    """A run holds its slot while one of its calls works."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(calls)
    states = []
    for _ in range(calls):
        states.append(slot.is_held)
        slot.begin_wait()

    assert (states, slot.is_held) == ([True] * calls, False)


async def test_a_run_releases_its_slot_when_its_last_working_call_ends() -> None:
    """A run with one waiting call releases its slot once the other call ends."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(2)
    slot.begin_wait()
    while_one_works = slot.is_held

    slot.end_call()

    assert (while_one_works, slot.is_held) == (True, False)


async def test_a_run_without_calls_keeps_its_slot() -> None:
    """A run works between its calls."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(1)

    slot.end_call()

    assert slot.is_held


async def test_a_call_that_waits_for_two_children_releases_the_slot() -> None:
    """A tool that waits for two children leaves them the slot that they need."""
    slots = Slots(1)
    slot = Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)

    async def child() -> None:
        own_slot = Slot(slots)
        await own_slot.acquire()
        own_slot.release()

    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(slot.while_waiting(group.create_task(child()))) for _ in range(2)]

    assert all(wait.done() for wait in waits)
    assert (slot.is_held, slots.in_use) == (True, 1)


async def test_take_acquires_no_slot_while_the_only_call_waits() -> None:
    """The slot stays free for the runs that the call waits for."""
    slots = Slots(1)
    slot = Slot(slots)
    slot.begin_calls(1)
    slot.begin_wait()
    slot.begin_wait()

    await slot.acquire()

    assert (slot.is_held, slots.in_use) == (False, 0)


async def test_a_run_takes_its_slot_again_after_its_wait() -> None:
    """A run queues for its slot after a wait, and the result of the wait is kept."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(slot.while_waiting(answer))
    await run_pending_tasks()
    await other.acquire()
    answer.set_result("answer")
    await run_pending_tasks()
    waited = not call.done()

    other.release()

    assert await call == "answer"
    assert (waited, slot.is_held, other.is_held) == (True, True, False)


async def test_two_returning_calls_of_a_run_take_one_slot() -> None:
    """One slot is enough for both calls, and none is taken twice."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await other.acquire()
    back = [asyncio.create_task(slot.acquire()) for _ in range(2)]
    await run_pending_tasks()

    other.release()
    await run_pending_tasks()

    are_done = [task.done() for task in back]
    slot.release()
    await run_pending_tasks()
    for task in back:
        task.cancel()
    await asyncio.wait(back)
    assert are_done == [True, True]
    assert (slots.in_use, slots.queue_length) == (0, 0)


async def test_a_cancelled_call_leaves_the_queue_to_other_calls_of_its_run() -> None:
    """The second of two queued calls gets the slot after the first is cancelled."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await other.acquire()
    first, second = (asyncio.create_task(slot.acquire()) for _ in range(2))
    await run_pending_tasks()
    first.cancel()
    await run_pending_tasks()

    other.release()
    await second

    assert (slot.is_held, slots.in_use) == (True, 1)


async def test_a_slot_that_arrives_while_all_calls_wait_is_released() -> None:
    """A queued strand leaves the slot to the child for which another strand now waits."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)
    loop = asyncio.get_running_loop()
    first, second, third = (loop.create_future() for _ in range(3))
    strands = [asyncio.create_task(slot.while_waiting(each)) for each in (first, second)]
    await run_pending_tasks()
    await other.acquire()
    first.set_result(None)
    await run_pending_tasks()
    second.set_result(None)
    await run_pending_tasks()
    strands.append(asyncio.create_task(slot.while_waiting(third)))
    await run_pending_tasks()

    other.release()
    await run_pending_tasks()

    free_for_the_child = slots.in_use == 0
    third.set_result(None)
    await asyncio.wait(strands)
    assert free_for_the_child
    assert (slot.is_held, slots.in_use) == (True, 1)


async def test_a_run_takes_its_slot_again_when_its_wait_fails() -> None:
    """A call continues after a refused spawn, and works in the slot of its run."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(1)
    refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refusal.set_exception(ValueError("refused"))

    with pytest.raises(ValueError, match="refused"):
        await slot.while_waiting(refusal)

    assert slot.is_held


async def test_a_run_cancelled_while_it_waits_takes_no_slot() -> None:
    """A cancelled wait ends at once instead of queueing for the slot."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)
    call = asyncio.create_task(slot.while_waiting(asyncio.get_running_loop().create_future()))
    await run_pending_tasks()
    await other.acquire()

    call.cancel()
    await asyncio.wait({call})

    assert (call.cancelled(), slot.is_held, slots.queue_length) == (True, False, 0)


@pytest.mark.parametrize("end", ["error", "cancelled"])
async def test_a_failed_wait_is_not_counted_again(end: str) -> None:
    """The next wait of one of two calls keeps the slot for the other."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(1)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(slot.while_waiting(answer))
    await run_pending_tasks()
    if end == "error":
        answer.set_exception(ValueError("no"))
    else:
        call.cancel()
    await asyncio.wait({call})
    slot.end_call()
    await slot.acquire()
    slot.begin_calls(2)

    slot.begin_wait()

    assert slot.is_held, "one of two calls works"


async def test_on_wait_reports_the_start_and_the_end_of_waiting() -> None:
    """`on_wait` gets True, then False, and nothing for waits that change no state."""
    changes: list[bool] = []
    slot = Slot(Slots(1), on_wait=changes.append)
    await slot.acquire()
    changes.clear()
    slot.begin_calls(2)

    slot.begin_wait()
    slot.begin_wait()
    slot.end_wait()
    slot.end_wait()
    await slot.acquire()
    await slot.acquire()

    assert changes == [True, False]


# --- trees ----------------------------------------------------------------------------------------------------------

Shape = list["Shape"]
shapes: st.SearchStrategy[Shape] = st.recursive(
    st.builds(list), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=12
)


class Tree:
    """Tree of runs that spawn, wait, and work for some turns of the loop, as agents and functions do."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.slots = Slots(capacity)
        self.chance = random.Random(seed)
        self.max_in_use = 0

    async def work(self) -> None:
        self.max_in_use = max(self.max_in_use, self.slots.in_use)
        for _ in range(self.chance.randrange(6)):
            await asyncio.sleep(0)

    async def run(self, shape: Shape) -> None:
        slot = Slot(self.slots)
        await slot.acquire()
        await self.work()
        if self.chance.random() < 0.5:
            slot.begin_calls(1)  # A function: one call, which waits for several at once, and again and again.
            await asyncio.gather(*(self.strand(slot, child) for child in shape))
            slot.end_call()
        else:
            slot.begin_calls(len(shape))  # A model: one call for each child.
            await asyncio.gather(*(self.call(slot, child) for child in shape))
        await slot.acquire()
        assert slot.is_held
        await self.work()
        slot.release()

    async def call(self, slot: Slot, child: Shape) -> None:
        try:
            await slot.while_waiting(asyncio.create_task(self.run(child)))
            await self.work()
        finally:
            slot.end_call()

    async def strand(self, slot: Slot, child: Shape) -> None:
        for _ in range(self.chance.randint(1, 3)):
            await slot.while_waiting(asyncio.create_task(self.run(child)))
            await self.work()


@given(shape=shapes, capacity=st.integers(1, 3), seed=st.integers(0, 2**32))
@example(shape=[[[[[]]]]], capacity=1, seed=0)
async def test_a_tree_of_any_shape_finishes_with_any_capacity(shape: Shape, capacity: int, seed: int) -> None:
    """A waiting parent holds no slot: nested spawns finish with a capacity of 1, and never exceed the capacity."""
    tree = Tree(capacity, seed)
    root = asyncio.create_task(tree.run(shape))
    for _ in range(20_000):
        if root.done():
            break
        await asyncio.sleep(0)

    stuck = not root.done()

    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
        await asyncio.wait({task})
    assert not stuck
    root.result()
    assert tree.max_in_use <= capacity
    assert (tree.slots.in_use, tree.slots.queue_length) == (0, 0)
