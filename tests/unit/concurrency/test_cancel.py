"""Tests of `concurrency/cancel.py`: an abort reaches the whole tree once, and finished controllers are forgotten."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import weakref
from typing import Any

import pytest

from ramet.concurrency.cancel import _FIRST_SWEEP_AT, AbortController
from ramet.core.errors import Aborted, InvalidValue


class RecordingListener:
    """Listener that records the reasons of aborts; its `hear` is a bound method."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    def hear(self, controller: AbortController) -> None:
        self.reasons.append(controller.reason)


# --- down the tree, and only down -----------------------------------------------------------------------------------


def test_aborting_the_root_stops_every_descendant_before_it_returns() -> None:
    """`abort` sets the reason of every descendant without an await in between."""
    root = AbortController()
    children = [root.child() for _ in range(3)]
    grandchildren = [child.child() for child in children for _ in range(3)]

    root.abort("enough")

    assert {each.reason for each in [root, *children, *grandchildren]} == {"enough"}


def test_aborting_a_leaf_leaves_parent_and_siblings_alone() -> None:
    """An abort does not spread to the parent or to siblings."""
    root = AbortController()
    leaf, sibling = root.child(), root.child()

    leaf.abort("mine")

    assert (root.aborted, sibling.aborted, leaf.reason) == (False, False, "mine")


def test_the_first_reason_stays() -> None:
    """A later abort does not replace the reason of the first."""
    controller = AbortController()
    controller.abort("first")

    controller.abort("second")

    assert controller.reason == "first"


def test_a_child_aborted_before_its_root_keeps_its_own_reason() -> None:
    """An abort of the root does not replace the reason of descendants that are already aborted."""
    root = AbortController()
    child = root.child()
    grandchild = child.child()
    child.abort("child first")

    root.abort("root later")

    assert (child.reason, grandchild.reason) == ("child first", "child first")


@pytest.mark.parametrize("reason", ["", "aborted"])
def test_any_text_is_accepted_as_a_reason(reason: str) -> None:
    """An empty reason aborts as well as any other."""
    controller = AbortController()

    controller.abort(reason)

    assert (controller.aborted, controller.reason) == (True, reason)


def test_a_chain_of_100000_is_aborted_and_freed_without_recursion() -> None:
    """The interpreter's stack does not bound the depth of a chain."""
    root = leaf = AbortController()
    for _ in range(100_000):
        leaf = leaf.child()
    leaf_ref = weakref.ref(leaf)

    root.abort("deep")
    reason = leaf.reason
    del leaf

    assert (reason, leaf_ref()) == ("deep", None)


def test_a_chain_that_was_never_aborted_is_freed_without_recursion() -> None:
    """Dropping the last controller frees every unreferenced controller above it."""
    root = AbortController()
    top = leaf = root.child()
    for _ in range(20_000):
        leaf = leaf.child()
    top_ref = weakref.ref(top)
    del top

    del leaf

    assert top_ref() is None


# --- before a start -------------------------------------------------------------------------------------------------


def test_an_abort_before_the_start_prevents_the_start() -> None:
    """`raise_if_aborted` raises Aborted with the reason."""
    controller = AbortController()
    controller.abort("too late")

    with pytest.raises(Aborted) as stop:
        controller.raise_if_aborted()

    assert stop.value.reason == "too late"


def test_nothing_is_raised_before_an_abort() -> None:
    """`raise_if_aborted` passes until its own controller is aborted, and passes for the parent after that."""
    calls: list[str] = []
    root = AbortController()
    grandchild = root.child()

    def start(controller: AbortController) -> None:
        controller.raise_if_aborted()
        calls.append("root" if controller is root else "below")

    start(root)
    start(grandchild)
    grandchild.abort("enough")
    start(root)
    with pytest.raises(Aborted):
        start(grandchild)

    assert calls == ["root", "below", "root"]


def test_a_child_of_an_aborted_controller_starts_aborted() -> None:
    """Children and grandchildren that are created after an abort have its reason."""
    root = AbortController()
    root.abort("over")

    grandchild = root.child().child()

    assert grandchild.reason == "over"


def test_a_child_created_during_an_abort_is_aborted() -> None:
    """A child that a listener creates during the abort has its reason."""
    root = AbortController()
    middle = root.child()
    controllers: list[AbortController] = []

    def give_birth(controller: AbortController) -> None:
        controllers.extend((controller.child(), middle.child()))

    root.add_listener(give_birth)
    middle.add_listener(give_birth)
    root.abort("over")

    assert [each.reason for each in controllers] == ["over"] * 4


# --- listeners ------------------------------------------------------------------------------------------------------


def test_a_listener_is_called_once() -> None:
    """Repeated aborts, of the controller or of its parent, call a listener once."""
    root = AbortController()
    child = root.child()
    listener = RecordingListener()
    child.add_listener(listener.hear)

    child.abort("one")
    child.abort("two")
    root.abort("three")

    assert listener.reasons == ["one"]


def test_a_listener_added_after_an_abort_is_called_at_once() -> None:
    """A late listener does not miss the abort."""
    controller = AbortController()
    controller.abort("past")
    listener = RecordingListener()

    controller.add_listener(listener.hear)

    assert listener.reasons == ["past"]


@pytest.mark.parametrize("failure", [ValueError("mine"), asyncio.CancelledError(), RecursionError()], ids=repr)
def test_a_failing_listener_does_not_keep_others_from_being_called(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The other listeners and those of children are called, `abort` returns, and the failure is logged."""
    root = AbortController()
    child = root.child()
    before, after, below = RecordingListener(), RecordingListener(), RecordingListener()

    def fail(_: AbortController) -> None:
        raise failure

    root.add_listener(before.hear)
    root.add_listener(fail)
    root.add_listener(after.hear)
    child.add_listener(below.hear)

    root.abort("stop")

    assert [each.reasons for each in (before, after, below)] == [["stop"]] * 3
    assert [record.name for record in caplog.records] == ["ramet.cancel"]


def test_every_controller_is_aborted_before_the_first_listener_is_called() -> None:
    """A listener that aborts other controllers cannot replace the first reason."""
    root = AbortController()
    chain = [root]
    for _ in range(5):
        chain.append(chain[-1].child())
    reasons: list[list[str | None]] = []

    def meddle(_: AbortController) -> None:
        for each in reversed(chain):
            each.abort("meddled")
        reasons.append([each.reason for each in chain])

    for each in chain:
        each.add_listener(meddle)
    root.abort("first")

    assert reasons == [["first"] * 6] * 6


def test_an_interrupt_in_a_listener_reaches_the_caller_after_the_abort() -> None:
    """KeyboardInterrupt is not swallowed, and every descendant is aborted."""
    root = AbortController()
    leaves = [root.child().child() for _ in range(3)]

    def interrupt(_: AbortController) -> None:
        raise KeyboardInterrupt

    root.add_listener(interrupt)

    with pytest.raises(KeyboardInterrupt):
        root.abort("stop")

    assert [leaf.reason for leaf in leaves] == ["stop"] * 3


def test_a_removed_listener_is_not_called() -> None:
    """Removing one listener leaves the others; removing an unknown listener is no error."""
    controller = AbortController()
    stays, goes, stranger = RecordingListener(), RecordingListener(), RecordingListener()
    controller.add_listener(stays.hear)
    controller.add_listener(goes.hear)

    controller.remove_listener(goes.hear)
    controller.remove_listener(stranger.hear)
    controller.abort("now")

    assert (stays.reasons, goes.reasons) == (["now"], [])


def test_a_controller_does_not_keep_a_bound_listener_alive() -> None:
    """A dropped listener object is freed, and is not called."""
    controller = AbortController()
    listener = RecordingListener()
    reasons, listener_ref = listener.reasons, weakref.ref(listener)
    controller.add_listener(listener.hear)

    del listener
    controller.abort("now")

    assert (listener_ref(), reasons) == (None, [])


class SlottedListener:
    """Listener without weak references; its `hear` is a bound method."""

    __slots__ = ("controllers",)

    def __init__(self) -> None:
        self.controllers: list[AbortController] = []

    def hear(self, controller: AbortController) -> None:
        self.controllers.append(controller)


@pytest.mark.parametrize(
    "kind", ["lambda", "closure", "partial", "callable object", "built-in method", "slotted object"]
)
def test_a_listener_that_is_no_bound_method_is_held_until_the_abort(kind: str) -> None:
    """A controller holds functions, and objects without weak references, until it calls them."""
    controller, notified, slotted = AbortController(), list[AbortController](), SlottedListener()

    def listeners() -> dict[str, Any]:
        def closure(controller: AbortController) -> None:
            notified.append(controller)

        class Caller:
            def __call__(self, controller: AbortController) -> None:
                notified.append(controller)

        return {
            "lambda": lambda controller: notified.append(controller),
            "closure": closure,
            "partial": functools.partial(list.append, notified),
            "callable object": Caller(),
            "built-in method": notified.append,
            "slotted object": slotted.hear,
        }

    controller.add_listener(listeners()[kind])
    gc.collect()
    controller.abort("now")

    assert (notified or slotted.controllers) == [controller]


def test_a_function_is_not_held_beyond_the_abort_or_its_removal() -> None:
    """A controller holds no listener after the abort or after `remove_listener`."""
    one, other = AbortController(), AbortController()

    def stopped(_: AbortController) -> None: ...

    stopped_ref = weakref.ref(stopped)
    one.add_listener(stopped)
    other.add_listener(stopped)
    one.abort("now")
    other.remove_listener(stopped)

    del stopped
    gc.collect()

    assert stopped_ref() is None


def test_a_listener_that_cannot_be_called_is_refused() -> None:
    """The error names the field, the value, and what is accepted."""
    with pytest.raises(InvalidValue, match="listener: 5 is not accepted; expected a function"):
        AbortController().add_listener(5)  # type: ignore[arg-type]  # the act under test


# --- nothing stays --------------------------------------------------------------------------------------------------


def test_ten_thousand_finished_children_leave_nothing_referenced() -> None:
    """Dropped children and listeners are freed at once, without the garbage collector."""
    root = AbortController()
    refs: list[weakref.ref[Any]] = []
    for _ in range(10_000):
        child = root.child()
        listener = RecordingListener()
        child.add_listener(listener.hear)
        refs += [weakref.ref(child), weakref.ref(child.child()), weakref.ref(listener)]
        del child, listener

    assert sum(ref() is not None for ref in refs) == 0
    assert root._children is not None
    assert [child for child in root._children if child() is not None] == []
    assert len(root._children) <= 2 * _FIRST_SWEEP_AT, "the dead references are swept now and then"


def test_a_controller_drops_references_to_dead_listeners() -> None:
    """A controller keeps at most 64 references to ten thousand short-lived listeners."""
    root = AbortController()
    listening = RecordingListener()
    root.add_listener(listening.hear)

    for _ in range(10_000):
        root.add_listener(RecordingListener().hear)

    assert root._listeners is not None
    assert len(root._listeners) <= 64
    root.abort("now")
    assert listening.reasons == ["now"]


def test_an_aborted_tree_does_not_keep_its_children_alive() -> None:
    """A child that is dropped after an abort is freed."""
    root = AbortController()
    child = root.child()
    child_ref = weakref.ref(child)
    root.abort("over")

    del child

    assert child_ref() is None


def test_a_grandchild_stays_connected_when_its_parent_is_dropped() -> None:
    """An abort of the root reaches a grandchild whose parent nobody references."""
    root = AbortController()
    grandchild = root.child().child()
    gc.collect()

    root.abort("all")

    assert grandchild.reason == "all"


# --- waiting --------------------------------------------------------------------------------------------------------


async def test_every_waiter_gets_the_reason() -> None:
    """One abort wakes all waiters of the controller and of its children."""
    root = AbortController()
    child = root.child()
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(each.wait_aborted()) for each in (root, root, child)]
        await asyncio.sleep(0)

        root.abort("wake")

    assert [wait.result() for wait in waits] == ["wake"] * 3


async def test_waiting_for_a_past_abort_returns_at_once() -> None:
    """`wait_aborted` returns the reason of an earlier abort."""
    controller = AbortController()
    controller.abort("past")

    assert await controller.wait_aborted() == "past"


async def test_a_waiter_that_gives_up_leaves_the_others_waiting() -> None:
    """Cancelling one wait does not end other waits."""
    controller = AbortController()
    impatient, patient = (asyncio.create_task(controller.wait_aborted()) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait({impatient})

    controller.abort("now")

    assert await patient == "now"


# --- deadlines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("above", "own", "nearest"),
    [
        (None, None, None),
        (None, 5.0, 5.0),
        (5.0, None, 5.0),
        (5.0, 3.0, 3.0),
        (5.0, 8.0, 5.0),
        (5.0, math.inf, 5.0),
        (0.0, -1.0, -1.0),
    ],
)
def test_the_nearest_deadline_counts(above: float | None, own: float | None, nearest: float | None) -> None:
    """A descendant's deadline is never later than that of its ancestors."""
    root = AbortController(deadline=above)

    grandchild = root.child(deadline=own).child()

    assert grandchild.deadline == nearest


@pytest.mark.parametrize("above", [None, 5.0])
def test_a_deadline_of_nan_is_refused(above: float | None) -> None:
    """NaN is neither before nor after the parent's deadline, and would escape the limit."""
    with pytest.raises(InvalidValue, match="deadline"):
        AbortController(deadline=above).child(deadline=math.nan)
