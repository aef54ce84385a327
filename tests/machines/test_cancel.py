"""Trees of controllers grow, are aborted at any node, and are forgotten in any order."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramet.concurrency.cancel import AbortController

indexes = st.integers(0, 11)
deadlines = st.none() | st.integers(-5, 20).map(float)


class Listener:
    """Listener that remembers each reason, and then fails if it is of that kind."""

    def __init__(self, reasons: list[str | None], *, fails: bool) -> None:
        self.reasons, self.fails = reasons, fails

    def hear(self, controller: AbortController) -> None:
        self.reasons.append(controller.reason)
        if self.fails:
            raise RuntimeError("a listener of the test")


@dataclass(eq=False)
class ListenerRecord:
    """Listener with the reasons that it received and those that it must have received."""

    listener: Listener | None
    reasons: list[str | None]
    due: list[str | None] = field(default_factory=list)
    removed: bool = False


@dataclass(eq=False)
class Node:
    """Node of the oracle for one controller, whether or not the controller is still held."""

    parent: Node | None
    deadline: float | None
    real: AbortController | None  #: None once it was dropped
    ref: weakref.ref[AbortController]
    reason: str | None = None
    records: list[ListenerRecord] = field(default_factory=list)

    def above(self) -> list[Node]:
        return [self, *(self.parent.above() if self.parent is not None else [])]


class CancelTree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.words = 0
        logging.getLogger("ramet.cancel").disabled = True  # failing listeners are what this is about

    def teardown(self) -> None:
        logging.getLogger("ramet.cancel").disabled = False

    def held(self) -> list[Node]:
        return [node for node in self.nodes if node.real is not None]

    def alive(self) -> set[Node]:
        """Return the nodes that must live: each held controller and every one above it."""
        return {above for node in self.held() for above in node.above()}

    def pick(self, which: int) -> tuple[Node, AbortController]:
        held = self.held()
        node = held[which % len(held)]
        assert node.real is not None
        return node, node.real

    # --- what may happen ----------------------------------------------------------------------------------------------

    @rule(deadline=deadlines)
    def add_root(self, deadline: float | None) -> None:
        real = AbortController(deadline=deadline)
        self.nodes.append(Node(None, deadline, real, weakref.ref(real)))

    @precondition(lambda self: self.held())
    @rule(which=indexes, deadline=deadlines)
    def add_child(self, which: int, deadline: float | None) -> None:
        node, real = self.pick(which)
        child = real.child(deadline=deadline)
        nearest = min((each for each in (node.deadline, deadline) if each is not None), default=None)
        self.nodes.append(Node(node, nearest, child, weakref.ref(child), node.reason))

    @precondition(lambda self: self.held())
    @rule(which=indexes)
    def abort(self, which: int) -> None:
        node, real = self.pick(which)
        self.words += 1
        reason = f"word {self.words}"
        real.abort(reason)
        for each in self.alive():
            if each.reason is None and node in each.above():
                each.reason = reason
                for record in each.records:
                    if record.listener is not None and not record.removed:
                        record.due.append(reason)

    @precondition(lambda self: self.held())
    @rule(which=indexes, fails=st.booleans())
    def listen(self, which: int, fails: bool) -> None:
        node, real = self.pick(which)
        reasons: list[str | None] = []
        listener = Listener(reasons, fails=fails)
        real.add_listener(listener.hear)
        node.records.append(ListenerRecord(listener, reasons, [] if node.reason is None else [node.reason]))

    @precondition(lambda self: self.held())
    @rule(which=indexes, listener=indexes)
    def stop_listening(self, which: int, listener: int) -> None:
        node, real = self.pick(which)
        live = [record for record in node.records if record.listener is not None]
        if live:
            record = live[listener % len(live)]
            assert record.listener is not None
            real.remove_listener(record.listener.hear)
            record.removed = True

    @precondition(lambda self: self.held())
    @rule(which=indexes, listener=indexes)
    def drop_listener(self, which: int, listener: int) -> None:
        node, _ = self.pick(which)
        live = [record for record in node.records if record.listener is not None]
        if live:
            live[listener % len(live)].listener = None

    @precondition(lambda self: self.held())
    @rule(which=indexes)
    def drop(self, which: int) -> None:
        node, _ = self.pick(which)
        node.real = None

    # --- what holds at all times --------------------------------------------------------------------------------------

    @invariant()
    def an_abort_reaches_exactly_the_controllers_below(self) -> None:
        for node in self.held():
            assert node.real is not None
            assert node.real.reason == node.reason
            assert node.real.aborted == (node.reason is not None)

    @invariant()
    def the_nearest_deadline_counts(self) -> None:
        for node in self.held():
            assert node.real is not None
            assert node.real.deadline == node.deadline

    @invariant()
    def every_listener_is_called_once_or_never(self) -> None:
        for node in self.nodes:
            for record in node.records:
                assert record.reasons == record.due

    @invariant()
    def controllers_without_holders_are_freed(self) -> None:
        """Controllers without a holder are freed at once, without the garbage collector; needed ones stay."""
        assert {node for node in self.nodes if node.ref() is not None} == self.alive()


TestCancelTree = CancelTree.TestCase
TestCancelTree.settings = settings(max_examples=150, stateful_step_count=40)
