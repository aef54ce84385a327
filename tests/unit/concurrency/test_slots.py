"""concurrency/slots.py: never more at work than there are places, and no number of places stops a tree."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet.concurrency.slots import Slot, Slots
from ramet.core.errors import Bug


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


# --- places ---------------------------------------------------------------------------------------------------------


async def test_there_are_as_many_places_as_said() -> None:
    """Of five that ask for two places, two get one and three wait."""
    slots = Slots(2)
    tasks = [asyncio.create_task(slots.acquire()) for _ in range(5)]
    await settle()

    state = [task.done() for task in tasks], slots.in_use, slots.queued

    for _ in range(5):
        slots.release()
        await settle()
    assert state == ([True, True, False, False, False], 2, 3)
    assert (slots.in_use, slots.queued) == (0, 0)


async def test_places_are_given_in_the_order_of_asking() -> None:
    """First come, first served, however many wait."""
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


async def test_nobody_overtakes_those_who_wait() -> None:
    """A place that was just freed belongs to the first in line, even before it has noticed."""
    slots = Slots(1)
    await slots.acquire()
    first = asyncio.create_task(slots.acquire())
    await settle()
    slots.release()

    overtaken = slots.try_acquire()

    await first
    assert overtaken is False
    assert slots.in_use == 1


async def test_without_a_bound_nobody_waits() -> None:
    """None is no bound, and what is taken is counted all the same."""
    slots = Slots(None)
    for _ in range(1_000):
        await slots.acquire()

    assert (slots.in_use, slots.queued) == (1_000, 0)


async def test_a_cancelled_waiter_takes_nothing() -> None:
    """It leaves the line, and those behind it move up."""
    slots = Slots(1)
    await slots.acquire()
    gone, behind = (asyncio.create_task(slots.acquire()) for _ in range(2))
    await settle()
    gone.cancel()
    await settle()

    slots.release()
    await settle()

    assert (gone.cancelled(), behind.done(), slots.in_use, slots.queued) == (True, True, 1, 0)


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_place_handed_to_one_that_is_being_cancelled_is_passed_on(behind: int) -> None:
    """The hand-over and the cancel meet in one turn of the loop: the place is not lost."""
    slots = Slots(1)
    await slots.acquire()
    gone = asyncio.create_task(slots.acquire())
    waiting = [asyncio.create_task(slots.acquire()) for _ in range(behind)]
    await settle()

    slots.release()
    gone.cancel()
    await settle()

    assert gone.cancelled()
    assert [task.done() for task in waiting] == [True] * behind
    assert slots.in_use == behind


async def test_a_waiter_that_is_closed_rather_than_cancelled_takes_nothing() -> None:
    """As happens to a task that is thrown away: its turn is not handed to nobody."""
    slots = Slots(1)
    await slots.acquire()
    thrown_away = slots.acquire()
    thrown_away.send(None)
    behind = asyncio.create_task(slots.acquire())
    await settle()
    thrown_away.close()

    slots.release()
    await settle()

    assert (behind.done(), slots.in_use) == (True, 1)


def test_a_place_that_nobody_took_cannot_be_given_back() -> None:
    """It would be one place more than there are, for ever: that is a bug of ours and says so."""
    slots = Slots(1)

    with pytest.raises(Bug):
        slots.release()

    assert slots.in_use == 0


# --- a run's hold on a place ----------------------------------------------------------------------------------------


async def test_a_run_takes_one_place_however_often_it_asks() -> None:
    """Asking again is free, and one letting go gives back what there is."""
    slots = Slots(3)
    slot = Slot(slots)
    await slot.acquire()
    await slot.acquire()
    taken = slots.in_use

    slot.release()
    slot.release()

    assert (taken, slots.in_use, slot.is_held) == (1, 0, False)


@pytest.mark.parametrize("calls", [1, 2, 5])
async def test_a_run_lets_go_when_its_last_working_call_begins_to_wait(calls: int) -> None:
    """Not sooner: while one call works, the run works."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(calls)
    held = []
    for _ in range(calls):
        held.append(slot.is_held)
        slot.begin_wait()

    assert (held, slot.is_held) == ([True] * calls, False)


async def test_a_run_lets_go_when_its_last_working_call_is_answered() -> None:
    """Of two calls one waits and the other ends: from then on the run only waits."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(2)
    slot.begin_wait()
    while_one_works = slot.is_held

    slot.end_call()

    assert (while_one_works, slot.is_held) == (True, False)


async def test_a_run_without_calls_keeps_its_place() -> None:
    """Between calls it works: that it waits for nobody is no reason to let go."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(1)

    slot.end_call()

    assert slot.is_held


async def test_one_call_that_waits_for_two_others_lets_go() -> None:
    """A tool that starts two children and waits for both must not keep the place they need."""
    slots = Slots(1)
    slot = Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)

    async def child() -> None:
        own = Slot(slots)
        await own.acquire()
        own.release()

    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(slot.while_waiting(group.create_task(child()))) for _ in range(2)]

    assert all(wait.done() for wait in waits)
    assert (slot.is_held, slots.in_use) == (True, 1)


async def test_a_run_takes_no_place_while_its_only_call_waits_for_two() -> None:
    """Whoever asks on its behalf meanwhile goes on without: the place is for those that are waited for."""
    slots = Slots(1)
    slot = Slot(slots)
    slot.begin_calls(1)
    slot.begin_wait()
    slot.begin_wait()

    await slot.acquire()

    assert (slot.is_held, slots.in_use) == (False, 0)


async def test_a_run_takes_its_place_again_when_its_wait_is_over() -> None:
    """It gets in line like anybody else, and its result is not lost meanwhile."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(slot.while_waiting(answer))
    await settle()
    await other.acquire()
    answer.set_result("answer")
    await settle()
    waited = not call.done()

    other.release()

    assert await call == "answer"
    assert (waited, slot.is_held, other.is_held) == (True, True, False)


async def test_a_run_whose_calls_come_back_at_the_same_time_takes_one_place() -> None:
    """Two calls of a run in line for a place: one is enough for both, and none is taken twice."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await other.acquire()
    back = [asyncio.create_task(slot.acquire()) for _ in range(2)]
    await settle()

    other.release()
    await settle()

    done = [task.done() for task in back]
    slot.release()
    await settle()
    for task in back:
        task.cancel()
    await asyncio.wait(back)
    assert done == [True, True]
    assert (slots.in_use, slots.queued) == (0, 0)


async def test_a_call_that_is_cancelled_in_line_leaves_the_line_to_the_others_of_its_run() -> None:
    """The first of two in line is stopped; the second still gets the place."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await other.acquire()
    first, second = (asyncio.create_task(slot.acquire()) for _ in range(2))
    await settle()
    first.cancel()
    await settle()

    other.release()
    await second

    assert (slot.is_held, slots.in_use) == (True, 1)


async def test_a_place_that_comes_while_all_wait_goes_to_those_they_wait_for() -> None:
    """One strand of a call stands in line when another begins to wait: the place would be kept from its child."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)
    loop = asyncio.get_running_loop()
    first, second, third = (loop.create_future() for _ in range(3))
    strands = [asyncio.create_task(slot.while_waiting(each)) for each in (first, second)]
    await settle()
    await other.acquire()
    first.set_result(None)
    await settle()
    second.set_result(None)
    await settle()
    strands.append(asyncio.create_task(slot.while_waiting(third)))
    await settle()

    other.release()
    await settle()

    free_for_the_child = slots.in_use == 0
    third.set_result(None)
    await asyncio.wait(strands)
    assert free_for_the_child
    assert (slot.is_held, slots.in_use) == (True, 1)


async def test_a_run_takes_its_place_again_when_its_wait_fails() -> None:
    """A refused birth is a result like any other: the call goes on, and works in its run's place."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(1)
    refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refusal.set_exception(ValueError("refused"))

    with pytest.raises(ValueError, match="refused"):
        await slot.while_waiting(refusal)

    assert slot.is_held


async def test_a_run_that_is_stopped_while_it_waits_takes_no_place() -> None:
    """It is over at once, instead of standing in line first."""
    slots = Slots(1)
    slot, other = Slot(slots), Slot(slots)
    await slot.acquire()
    slot.begin_calls(1)
    call = asyncio.create_task(slot.while_waiting(asyncio.get_running_loop().create_future()))
    await settle()
    await other.acquire()

    call.cancel()
    await asyncio.wait({call})

    assert (call.cancelled(), slot.is_held, slots.queued) == (True, False, 0)


@pytest.mark.parametrize("end", ["error", "cancelled"])
async def test_a_wait_that_fails_is_over(end: str) -> None:
    """A failed wait is not counted for ever: the next one lets go as the first did."""
    slot = Slot(Slots(1))
    await slot.acquire()
    slot.begin_calls(1)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    call = asyncio.create_task(slot.while_waiting(answer))
    await settle()
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


async def test_the_host_hears_when_a_run_comes_to_wait_and_when_it_works_again() -> None:
    """In this order, and not for waits that change nothing."""
    heard: list[bool] = []
    slot = Slot(Slots(1), on_wait=heard.append)
    await slot.acquire()
    heard.clear()
    slot.begin_calls(2)

    slot.begin_wait()
    slot.begin_wait()
    slot.end_wait()
    slot.end_wait()
    await slot.acquire()
    await slot.acquire()

    assert heard == [True, False]


# --- trees ----------------------------------------------------------------------------------------------------------

Shape = list["Shape"]
shapes: st.SearchStrategy[Shape] = st.recursive(
    st.builds(list), lambda below: st.lists(below, min_size=1, max_size=3), max_leaves=12
)


class Tree:
    """Runs that only give birth, wait, and work for some turns of the loop: as agents do, and as functions do."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.slots = Slots(capacity)
        self.chance = random.Random(seed)
        self.most = 0

    async def work(self) -> None:
        self.most = max(self.most, self.slots.in_use)
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
async def test_a_tree_of_any_shape_finishes_with_any_number_of_places(shape: Shape, capacity: int, seed: int) -> None:
    """A parent that waits holds no place: nested spawns with a cap of 1 finish, and nobody is above the cap."""
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
    assert tree.most <= capacity
    assert (tree.slots.in_use, tree.slots.queued) == (0, 0)
