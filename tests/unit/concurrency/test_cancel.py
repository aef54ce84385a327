"""concurrency/cancel.py: stopping goes down the tree, once, and nothing that is finished is remembered."""

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


class Heard:
    """A listener that remembers; its `hear` is a bound method."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    def hear(self, controller: AbortController) -> None:
        self.reasons.append(controller.reason)


# --- down the tree, and only down -----------------------------------------------------------------------------------


def test_aborting_the_root_stops_every_descendant_before_it_returns() -> None:
    """No await point lies between the word and its effect."""
    root = AbortController()
    children = [root.child() for _ in range(3)]
    grandchildren = [child.child() for child in children for _ in range(3)]

    root.abort("enough")

    assert {each.reason for each in [root, *children, *grandchildren]} == {"enough"}


def test_aborting_a_leaf_leaves_parent_and_siblings_alone() -> None:
    """A child's end is nobody else's."""
    root = AbortController()
    leaf, sibling = root.child(), root.child()

    leaf.abort("mine")

    assert (root.aborted, sibling.aborted, leaf.reason) == (False, False, "mine")


def test_the_first_reason_stays() -> None:
    """Whoever asks later learns why it really ended."""
    controller = AbortController()
    controller.abort("first")

    controller.abort("second")

    assert controller.reason == "first"


def test_a_child_that_was_stopped_before_keeps_its_own_reason() -> None:
    """The root's word does not rewrite history below."""
    root = AbortController()
    child = root.child()
    grandchild = child.child()
    child.abort("child first")

    root.abort("root later")

    assert (child.reason, grandchild.reason) == ("child first", "child first")


@pytest.mark.parametrize("reason", ["", "aborted"])
def test_any_word_is_a_reason(reason: str) -> None:
    """An empty reason stops as well as any other."""
    controller = AbortController()

    controller.abort(reason)

    assert (controller.aborted, controller.reason) == (True, reason)


def test_a_chain_of_a_hundred_thousand_is_stopped_and_forgotten_without_recursion() -> None:
    """Depth is bounded by policy, not by the interpreter's stack."""
    root = leaf = AbortController()
    for _ in range(100_000):
        leaf = leaf.child()
    gone = weakref.ref(leaf)

    root.abort("deep")
    reason = leaf.reason
    del leaf

    assert (reason, gone()) == ("deep", None)


def test_a_chain_that_was_never_stopped_is_forgotten_without_recursion() -> None:
    """Letting go of the last one lets go of all above that nobody holds."""
    root = AbortController()
    top = leaf = root.child()
    for _ in range(20_000):
        leaf = leaf.child()
    gone = weakref.ref(top)
    del top

    del leaf

    assert gone() is None


# --- before a start -------------------------------------------------------------------------------------------------


def test_an_abort_before_the_start_prevents_the_start() -> None:
    """The check before a start raises, with the reason."""
    controller = AbortController()
    controller.abort("too late")

    with pytest.raises(Aborted) as stop:
        controller.raise_if_aborted()

    assert stop.value.reason == "too late"


def test_nothing_is_raised_before_an_abort() -> None:
    """The check before a start lets starts happen, here and below, up to the abort and no further."""
    started: list[str] = []
    root = AbortController()
    below = root.child()

    def start(what: AbortController) -> None:
        what.raise_if_aborted()
        started.append("root" if what is root else "below")

    start(root)
    start(below)
    below.abort("enough")
    start(root)
    with pytest.raises(Aborted):
        start(below)

    assert started == ["root", "below", "root"]


def test_a_child_of_the_stopped_is_born_stopped() -> None:
    """A birth that races with the end of its parent does not escape it, nor do births below."""
    root = AbortController()
    root.abort("over")

    grandchild = root.child().child()

    assert grandchild.reason == "over"


def test_a_child_born_while_the_tree_is_being_stopped_is_stopped() -> None:
    """A listener that gives birth in answer to the abort has a stopped child."""
    root = AbortController()
    middle = root.child()
    born: list[AbortController] = []

    def give_birth(controller: AbortController) -> None:
        born.extend((controller.child(), middle.child()))

    root.add_listener(give_birth)
    middle.add_listener(give_birth)
    root.abort("over")

    assert [each.reason for each in born] == ["over"] * 4


# --- listeners ------------------------------------------------------------------------------------------------------


def test_a_listener_is_told_once() -> None:
    """However often a controller is stopped, from itself or above."""
    root = AbortController()
    child = root.child()
    heard = Heard()
    child.add_listener(heard.hear)

    child.abort("one")
    child.abort("two")
    root.abort("three")

    assert heard.reasons == ["one"]


def test_a_listener_that_comes_late_is_told_at_once() -> None:
    """It cannot miss what has already happened."""
    controller = AbortController()
    controller.abort("past")
    heard = Heard()

    controller.add_listener(heard.hear)

    assert heard.reasons == ["past"]


@pytest.mark.parametrize("failure", [ValueError("mine"), asyncio.CancelledError(), RecursionError()], ids=repr)
def test_a_failing_listener_keeps_nobody_from_hearing(failure: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the other listeners, nor those below, nor whoever stopped it; the failure is in the log."""
    root = AbortController()
    child = root.child()
    before, after, below = Heard(), Heard(), Heard()

    def fail(_: AbortController) -> None:
        raise failure

    root.add_listener(before.hear)
    root.add_listener(fail)
    root.add_listener(after.hear)
    child.add_listener(below.hear)

    root.abort("stop")

    assert [each.reasons for each in (before, after, below)] == [["stop"]] * 3
    assert [record.name for record in caplog.records] == ["ramet.cancel"]


def test_all_are_stopped_before_the_first_listener_hears_of_it() -> None:
    """A listener that looks around, or stops others for a reason of its own, cannot get ahead of the first word."""
    root = AbortController()
    chain = [root]
    for _ in range(5):
        chain.append(chain[-1].child())
    seen: list[list[str | None]] = []

    def meddle(_: AbortController) -> None:
        for each in reversed(chain):
            each.abort("meddled")
        seen.append([each.reason for each in chain])

    for each in chain:
        each.add_listener(meddle)
    root.abort("first")

    assert seen == [["first"] * 6] * 6


def test_an_interrupt_in_a_listener_reaches_its_caller_and_the_tree_is_stopped() -> None:
    """Ctrl-C is not swallowed, and does not leave half a tree running."""
    root = AbortController()
    leaves = [root.child().child() for _ in range(3)]

    def interrupt(_: AbortController) -> None:
        raise KeyboardInterrupt

    root.add_listener(interrupt)

    with pytest.raises(KeyboardInterrupt):
        root.abort("stop")

    assert [leaf.reason for leaf in leaves] == ["stop"] * 3


def test_a_removed_listener_is_not_told() -> None:
    """Removing one leaves the others; removing what was never added is no error."""
    controller = AbortController()
    stays, goes, stranger = Heard(), Heard(), Heard()
    controller.add_listener(stays.hear)
    controller.add_listener(goes.hear)

    controller.remove_listener(goes.hear)
    controller.remove_listener(stranger.hear)
    controller.abort("now")

    assert (stays.reasons, goes.reasons) == (["now"], [])


def test_a_listener_is_not_kept_alive() -> None:
    """An object that is dropped is forgotten, and is not told."""
    controller = AbortController()
    heard = Heard()
    reasons, gone = heard.reasons, weakref.ref(heard)
    controller.add_listener(heard.hear)

    del heard
    controller.abort("now")

    assert (gone(), reasons) == (None, [])


class Slotted:
    """An object that nothing can refer to weakly; its `hear` is a bound method."""

    __slots__ = ("heard",)

    def __init__(self) -> None:
        self.heard: list[AbortController] = []

    def hear(self, controller: AbortController) -> None:
        self.heard.append(controller)


@pytest.mark.parametrize(
    "kind", ["lambda", "closure", "partial", "callable object", "built-in method", "slotted object"]
)
def test_what_is_no_bound_method_is_held_until_the_abort(kind: str) -> None:
    """A function that only the controller knows is called: nothing else could keep a lambda alive."""
    controller, heard, slotted = AbortController(), list[AbortController](), Slotted()

    def listeners() -> dict[str, Any]:
        def closure(stopped: AbortController) -> None:
            heard.append(stopped)

        class Caller:
            def __call__(self, stopped: AbortController) -> None:
                heard.append(stopped)

        return {
            "lambda": lambda stopped: heard.append(stopped),
            "closure": closure,
            "partial": functools.partial(list.append, heard),
            "callable object": Caller(),
            "built-in method": heard.append,
            "slotted object": slotted.hear,
        }

    controller.add_listener(listeners()[kind])
    gc.collect()
    controller.abort("now")

    assert (heard or slotted.heard) == [controller]


def test_a_function_is_not_held_beyond_the_abort_or_its_removal() -> None:
    """A controller that was stopped refers to no listener any more."""
    one, other = AbortController(), AbortController()

    def stopped(_: AbortController) -> None: ...

    gone = weakref.ref(stopped)
    one.add_listener(stopped)
    other.add_listener(stopped)
    one.abort("now")
    other.remove_listener(stopped)

    del stopped
    gc.collect()

    assert gone() is None


def test_a_listener_that_cannot_be_called_is_refused() -> None:
    """The error names the field, the value, and what would be taken."""
    with pytest.raises(InvalidValue, match="listener: 5 is not accepted; expected a function"):
        AbortController().add_listener(5)  # type: ignore[arg-type]  # the act under test


# --- nothing stays --------------------------------------------------------------------------------------------------


def test_ten_thousand_finished_children_leave_nothing_referenced() -> None:
    """Without a word from anybody, and without waiting for the garbage collector."""
    root = AbortController()
    gone: list[weakref.ref[Any]] = []
    for _ in range(10_000):
        child = root.child()
        heard = Heard()
        child.add_listener(heard.hear)
        gone += [weakref.ref(child), weakref.ref(child.child()), weakref.ref(heard)]
        del child, heard

    assert sum(ref() is not None for ref in gone) == 0
    assert root._children is not None
    assert [child for child in root._children if child() is not None] == []
    assert len(root._children) <= 2 * _FIRST_SWEEP_AT, "the dead references are swept now and then"


def test_a_controller_of_many_lives_does_not_gather_dead_listeners() -> None:
    """A session's root hears of thousands of short listeners and remembers but a few."""
    root = AbortController()
    listening = Heard()
    root.add_listener(listening.hear)

    for _ in range(10_000):
        root.add_listener(Heard().hear)

    assert root._listeners is not None
    assert len(root._listeners) <= 64
    root.abort("now")
    assert listening.reasons == ["now"]


def test_a_stopped_tree_does_not_keep_its_children() -> None:
    """After an abort, too, whatever is dropped is gone."""
    root = AbortController()
    child = root.child()
    gone = weakref.ref(child)
    root.abort("over")

    del child

    assert gone() is None


def test_a_controller_that_somebody_waits_below_stays_connected() -> None:
    """Only the grandchild is held: it is stopped from the root all the same."""
    root = AbortController()
    grandchild = root.child().child()
    gc.collect()

    root.abort("all")

    assert grandchild.reason == "all"


# --- waiting --------------------------------------------------------------------------------------------------------


async def test_whoever_waits_gets_the_reason() -> None:
    """Many may wait on one controller, or below it; one word wakes all."""
    root = AbortController()
    child = root.child()
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(each.wait_aborted()) for each in (root, root, child)]
        await asyncio.sleep(0)

        root.abort("wake")

    assert [wait.result() for wait in waits] == ["wake"] * 3


async def test_waiting_for_what_has_happened_does_not_wait() -> None:
    """The reason is there at once."""
    controller = AbortController()
    controller.abort("past")

    assert await controller.wait_aborted() == "past"


async def test_a_waiter_that_gives_up_leaves_the_others_waiting() -> None:
    """Cancelling a wait stops nobody."""
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
    """A child has no more time than its parent, through however many levels."""
    root = AbortController(deadline=above)

    grandchild = root.child(deadline=own).child()

    assert grandchild.deadline == nearest


@pytest.mark.parametrize("above", [None, 5.0])
def test_a_deadline_that_is_no_time_is_refused(above: float | None) -> None:
    """NaN is neither before nor after its parent's deadline, and so would get past it."""
    with pytest.raises(InvalidValue, match="deadline"):
        AbortController(deadline=above).child(deadline=math.nan)
