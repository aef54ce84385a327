"""Reservations of forwarded requests: made at once, or held for a while, and never longer than `HOLD_S`.

A request that does not fit waits where it may fit soon. At a limit that pauses it waits for a raise. At any limit of
tokens or money it waits for other forwarded requests of its tree: each of them reserves up to all that is left, and
returns most of it. A program asks several things at once, and ends if one of them is refused.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ramet.concurrency.deadline import wait_with_timeout
from ramet.core.budget import Hold
from ramet.core.errors import BudgetExceeded
from ramet.core.ids import RunId
from ramet.host.charging import Account
from ramet.tools.context import ToolUseContext

#: Seconds for which a request is held that does not fit. A pause by a person does not count.
HOLD_S: Final = 60.0
#: Resources of which a request returns what it did not use.
_RETURNED: Final = frozenset({"tokens", "usd"})


class HoldTimedOut(Exception):
    """A request did not fit within `HOLD_S`."""

    def __init__(self, refusal: BudgetExceeded | None) -> None:
        super().__init__("a request did not fit in time")
        self.refusal = refusal  #: of its last attempt


class _Tree:
    """The requests of one tree that have a reservation."""

    def __init__(self) -> None:
        self.count = 0
        self.end = asyncio.Event()  #: set when one of them has ended


class RequestsUnderWay:
    """The forwarded requests that have a reservation, by tree."""

    def __init__(self) -> None:
        self._trees: dict[RunId, _Tree] = {}

    def of(self, root: RunId) -> asyncio.Event | None:
        """Return what is set when one of a tree's requests has ended; None if there are none."""
        tree = self._trees.get(root)
        return tree.end if tree is not None else None

    def add(self, root: RunId) -> None:
        """Count a request that has a reservation now."""
        self._trees.setdefault(root, _Tree()).count += 1

    def remove(self, root: RunId) -> None:
        """Count a request no longer: its reservation is settled. The others of its tree may fit now."""
        tree = self._trees[root]
        tree.count -= 1
        end, tree.end = tree.end, asyncio.Event()
        end.set()
        if not tree.count:
            del self._trees[root]


async def reserve(account: Account, context: ToolUseContext, under_way: RequestsUnderWay) -> tuple[Hold, int | None]:
    """Return a reservation, and the maximum of output that it covers. The request counts as under way from then on.

    Raises BudgetExceeded where a limit ends the run, HoldTimedOut, and Unknown for a model without a price.
    """
    granted: list[Hold] = []
    refusals: list[BudgetExceeded] = []

    def attempt() -> tuple[Hold, int | None]:
        try:
            reserved = account.reserve(1)
        except BudgetExceeded as refusal:
            refusals[:] = [refusal]
            raise
        granted.append(reserved[0])
        under_way.add(context.run.root)
        return reserved

    def undo(reserved: tuple[Hold, int | None]) -> None:
        granted.remove(reserved[0])
        account.refund(reserved[0])
        under_way.remove(context.run.root)

    async def wait() -> tuple[Hold, int | None]:
        while True:
            try:
                return await context.reserve(attempt, undo)
            except BudgetExceeded as refusal:
                others = under_way.of(context.run.root)
                if others is None or not _may_fit(context, refusal):
                    raise
                await others.wait()

    try:
        while True:
            try:
                return await wait_with_timeout(wait(), clock=context.clock, seconds=HOLD_S)
            except TimeoutError:
                if not context.is_paused:
                    raise HoldTimedOut(refusals[0] if refusals else None) from None
            await context.wait_unpaused()
    except BaseException:
        for hold in granted:  # Cancelled at the moment when it fitted.
            account.refund(hold)
            under_way.remove(context.run.root)
        raise


def _may_fit(context: ToolUseContext, refusal: BudgetExceeded) -> bool:
    """Return whether a request would fit if those under way cost nothing."""
    if refusal.resource not in _RETURNED:
        return False
    owner = context.budget.owner(refusal.resource)
    return owner is not None and not owner.is_closed and owner.can_fit(refusal.resource, refusal.asked)
