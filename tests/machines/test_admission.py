"""Admissions are requested, granted, refused and cancelled in any order.

Counts stay exact, and no request waits forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet.core.errors import SpawnRefused
from ramet.core.limits import SpawnLimits
from ramet.spawn.admission import Admission, AdmissionSlot, ResourceShare

indexes = st.integers(0, 10**6)


@dataclass(eq=False)
class Node:
    """Run, as far as admission must know it."""

    path: str
    parent: Node | None
    slot: AdmissionSlot
    persistent: bool = False
    detached: bool = False
    living_descendants: list[Node] = field(default_factory=list)
    waits_for: list[Node] = field(default_factory=list)
    envelope: ResourceShare | None = None
    living: bool = True
    paused: bool = False  #: it holds its place, asks for nothing, and cannot end before somebody lets it go on
    births: int = 0

    def ancestors(self) -> Iterator[Node]:
        node: Node | None = self
        while node is not None:
            yield node
            node = None if node.detached else node.parent


@dataclass(eq=False)
class Request:
    """Request for admission. Decided when its task is done, and over when the test has handled the decision."""

    parent: Node
    task: asyncio.Task[AdmissionSlot]
    over: bool = False

    @property
    def waits(self) -> bool:
        return not self.task.done()

    @property
    def granted(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    @property
    def refused(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is not None


class Births(RuleBasedStateMachine):
    """Machine whose oracle keeps the tree. A request may be refused if no end of a run can make room for it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.nodes: list[Node] = []
        self.asked: list[Request] = []

    @initialize(
        children=st.integers(1, 3),
        runs=st.integers(1, 5),
        when_full=st.sampled_from(["queue", "queue", "queue", "refuse"]),
        persistent=st.booleans(),
    )
    def begin(self, children: int, runs: int, when_full: Literal["queue", "refuse"], persistent: bool) -> None:
        limits = SpawnLimits(children=children, runs=runs, when_full=when_full, depth=50)
        self.admission = Admission(limits, lambda: [node for node in self.nodes if node.living])
        self.nodes.append(Node("main", None, self.admission.admit_root(), persistent=persistent))

    def turn(self) -> None:
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.living]

    @property
    def waiting(self) -> list[Request]:
        return [each for each in self.asked if each.waits]

    @property
    def under_way(self) -> list[Request]:
        return [each for each in self.asked if each.granted and not each.over]

    def may_end(self, node: Node, asking: set[int]) -> bool:
        """Return whether a run can end by itself: it has no open request, no open wait and no attached child."""
        return (
            node.living
            and not node.paused
            and not node.persistent
            and id(node) not in asking
            and not any(each.living for each in node.waits_for)
            and not any(child.living and not child.detached for child in node.living_descendants)
            and not any(each.parent is node for each in self.under_way)
        )

    # --- what may happen ----------------------------------------------------------------------------------------------

    @rule()
    def let_the_loop_turn(self) -> None:
        self.act_and_check_refusals(lambda: None)

    @precondition(lambda self: self.living)
    @rule(run_index=indexes)
    def ask(self, run_index: int) -> None:
        parent = self.living[run_index % len(self.living)]
        if parent.paused:
            return
        self.act_and_check_refusals(
            lambda: self.asked.append(Request(parent, self.loop.create_task(self.admission.admit(parent))))
        )

    @precondition(lambda self: self.under_way)
    @rule(which=indexes, detached=st.booleans())
    def add_admitted_run(self, which: int, detached: bool) -> None:
        """Add an admitted run to the tree, some time after its admission."""
        born = self.under_way[which % len(self.under_way)]
        born.over = True
        born.parent.births += 1
        path = f"{born.parent.path}/{born.parent.births}"
        node = Node(path, born.parent, born.task.result(), detached=detached)
        self.nodes.append(node)
        born.parent.living_descendants.append(node)

    @precondition(lambda self: self.under_way)
    @rule(which=indexes)
    def fail_after_admission(self, which: int) -> None:
        """Fail a spawn after its admission, which releases the slot."""
        lost = self.under_way[which % len(self.under_way)]
        lost.over = True
        self.act_and_check_refusals(lambda: self.admission.release(lost.task.result()))

    @precondition(lambda self: self.living)
    @rule(run_index=indexes)
    def end(self, run_index: int) -> None:
        asking = {id(each.parent) for each in self.waiting}
        able = [node for node in self.living if self.may_end(node, asking)]
        if able:
            self.act_and_check_refusals(lambda: self.finish(able[run_index % len(able)]))

    def finish(self, node: Node) -> None:
        node.living = False
        node.waits_for.clear()
        self.admission.release(node.slot)
        self.admission.release(node.slot)  # A second time does nothing.
        if node.parent is not None:
            node.parent.living_descendants.remove(node)

    @precondition(lambda self: self.living)
    @rule(run_index=indexes)
    def pause_or_resume(self, run_index: int) -> None:
        """Pause a run, or let it go on: nobody gets room by that, and no spawn is refused, since it can end later."""
        node = self.living[run_index % len(self.living)]
        before = (self.admission.slot_count, len(self.waiting))
        node.paused = not node.paused
        self.act_and_check_refusals(self.admission.recheck_queue)
        assert (self.admission.slot_count, len(self.waiting)) == before

    @precondition(lambda self: self.waiting)
    @rule(which=indexes)
    def cancel_request(self, which: int) -> None:
        each = self.waiting[which % len(self.waiting)]
        self.act_and_check_refusals(lambda: each.task.cancel())

    @precondition(lambda self: self.waiting)
    @rule(run_index=indexes, which=indexes)
    def cancel_request_as_a_run_ends(self, run_index: int, which: int) -> None:
        """End a run and cancel a request that may get its room, between two turns of the loop."""
        asking = {id(each.parent) for each in self.waiting}
        able = [node for node in self.living if self.may_end(node, asking)]
        each = self.waiting[which % len(self.waiting)]

        def both() -> None:
            if able:
                self.finish(able[run_index % len(able)])
            each.task.cancel()

        self.act_and_check_refusals(both)

    @precondition(lambda self: len(self.living) > 1)
    @rule(run_index=indexes, whom=indexes)
    def wait_for(self, run_index: int, whom: int) -> None:
        """Wait for another run by its handle, unless that run waits for this one.

        Waiting in a circle is an error of the user.
        """
        others = [each.parent for each in self.waiting] or self.living  # Those who are stuck are who matters most.
        node, other = self.living[run_index % len(self.living)], others[whom % len(others)]
        if not self.needs(other, node) and not other.persistent:
            self.act_and_check_refusals(lambda: self.begin_to_wait(node, other))

    def begin_to_wait(self, node: Node, other: Node) -> None:
        node.waits_for.append(other)
        self.admission.recheck_queue()

    def needs(self, node: Node, other: Node) -> bool:
        """Return whether `node` cannot end before `other` does."""
        if node is other:
            return True
        below = [child for child in node.living_descendants if child.living and not child.detached]
        return any(self.needs(each, other) for each in [*below, *(each for each in node.waits_for if each.living)])

    # --- what must hold -----------------------------------------------------------------------------------------------

    def act_and_check_refusals(self, act: Callable[[], object]) -> None:
        """Act, then check that no refused request could have been served later."""
        act()
        self.turn()
        refused = [each for each in self.asked if each.refused and not each.over]
        for each in refused:
            each.over = True
            error = each.task.exception()
            assert isinstance(error, SpawnRefused)
            assert error.free == 0
            if self.admission.limits.when_full == "queue":
                assert not self.would_be_served(each, refused), "refused although somebody's end would have made room"

    def would_be_served(self, asker: Request, refused: list[Request]) -> bool:
        """Return whether the request would get room if no request were refused and every run ended that can."""
        asking = {id(each.parent) for each in [*self.waiting, *refused]}
        gone: set[int] = set()
        under_way = [id(each.parent) for each in self.under_way]

        def stays(node: Node) -> bool:
            return node.living and id(node) not in gone

        while True:
            living = [node for node in self.nodes if stays(node)]
            children = sum(child.parent is asker.parent for child in living)
            if len(living) < self.admission.limits.runs and children < self.admission.limits.children:
                return True
            able = next(
                (
                    node
                    for node in living
                    if not node.persistent
                    and id(node) not in asking
                    and not any(stays(each) for each in node.waits_for)
                    and not any(stays(child) and not child.detached for child in node.living_descendants)
                ),
                None,
            )
            if able is None:
                return bool(under_way)  # It will be born, and end.
            gone.add(id(able))

    @invariant()
    def counts_are_exact(self) -> None:
        if not self.nodes:
            return
        limits = self.admission.limits
        assert self.admission.slot_count == len(self.living) + len(self.under_way) <= max(limits.runs, 1)
        for node in self.nodes:
            below = sum(child.living for child in node.living_descendants)
            assert below + sum(each.parent is node for each in self.under_way) <= limits.children
        assert self.admission.queue_length == len(self.waiting)

    @invariant()
    def no_request_waits_while_there_is_room(self) -> None:
        for each in self.waiting:
            held = sum(child.living for child in each.parent.living_descendants)
            held += sum(other.parent is each.parent for other in self.under_way)
            assert held >= self.admission.limits.children or self.admission.slot_count >= self.admission.limits.runs

    def teardown(self) -> None:
        """Check that every request is decided once each run that can end has ended, and no new request comes."""
        try:
            for node in self.living:
                node.paused = False
            progress = bool(self.nodes)
            while progress:
                progress = False
                while self.under_way:
                    self.add_admitted_run(0, False)
                    progress = True
                asking = {id(each.parent) for each in self.waiting}
                able = next((node for node in self.living if self.may_end(node, asking)), None)
                if able is not None:
                    self.act_and_check_refusals(partial(self.finish, able))
                    progress = True
            assert not self.waiting, "a deadlock"
            assert all(node.persistent for node in self.living)
        finally:
            for each in self.waiting:
                each.task.cancel()
            self.turn()
            self.loop.close()


TestBirths = Births.TestCase
TestBirths.settings = settings(max_examples=300, stateful_step_count=40)
