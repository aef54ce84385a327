"""The budget of a tree: reserve before, settle after, return the unused rest.

A `Budget` is one scope: a run and all runs below it. A scope with a limit of its own for a resource takes that amount
from the scope above as a slice when it opens. When it closes, it returns the amount that it did not spend. A resource
without a limit of its own is drawn directly from the nearest scope above that has one. So every resource has one owner,
a reservation costs the same at any depth, and in each scope free + held + kept + spent always equals the limit. The
kept amount is for the owner's last answer: no one else can draw it, and the unused rest of it returns. Nothing here
waits, so every operation is atomic within one event loop.

A scope ends its runs at a limit, or pauses them: see `Limits.at_limit`. A pausing scope keeps nothing for a last
answer. Requests wait there in line (`ramet.concurrency.limit_queue`), and no later request passes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ramet.core.errors import BudgetExceeded, InvalidValue
from ramet.core.limits import MAX_EXACT, RESOURCES, Amount, Limits

_ZERO = Amount()
_INDEXES = range(len(RESOURCES))
_TOLERANCE = 1e-9  #: sums of money in binary fractions are off by less than this

#: The reserve for a last answer: one call, and this share of tokens and money, at most FINAL_ANSWER_TOKENS tokens.
FINAL_ANSWER_SHARE = 0.1
FINAL_ANSWER_TOKENS = 4096


class Budget:
    """A scope of a budget, for the run at `scope` and all runs below it.

    A new scope below `parent` reserves its limits there. Raises BudgetExceeded, having taken nothing, if they do not
    fit into the free amount.
    """

    __slots__ = (
        "_final_answer_reserve",
        "_kept_amounts",
        "_limit",
        "_owner",
        "_reserved_amounts",
        "_returned_amounts",
        "_slice",
        "_spent_amounts",
        "limits",
        "on_change",
        "parent",
        "pauses",
        "refused_resource",
        "scope",
        "served_resource",
        "waiting",
    )

    def __init__(self, limits: Limits, *, scope: str, parent: Budget | None = None) -> None:
        self.limits, self.scope, self.parent = limits, scope, parent
        self.refused_resource: str | None = None  #: the resource that this scope itself refused first
        #: Whether a request that does not fit waits here, instead of ending its run.
        self.pauses: bool = limits.at_limit == "pause" if limits.at_limit else parent is not None and parent.pauses
        self.waiting: list[int] | None = None  #: requests in line for each resource; None until one is
        self.served_resource = ""  #: the first in line for it is tried now: it does not wait behind itself
        self.on_change: Callable[[], None] | None = None  #: called when more may be free; set by what waits
        self._limit: list[float | None] = [getattr(limits, name) for name in RESOURCES]
        self._owner: list[Budget | None] = [
            self if limit is not None else parent._owner[index] if parent is not None else None
            for index, limit in enumerate(self._limit)
        ]
        self._spent_amounts: list[float] = [0] * len(RESOURCES)
        self._reserved_amounts: list[float] = [0] * len(RESOURCES)
        self._kept_amounts: list[float] = [0] * len(RESOURCES)  #: of the reserved amounts, those that may last
        self._final_answer_reserve: list[float] = [0] * len(RESOURCES)
        if not self.pauses:
            calls, tokens, usd = limits.model_calls, limits.tokens, limits.usd
            self._final_answer_reserve[0] = min(int((tokens or 0) * FINAL_ANSWER_SHARE), FINAL_ANSWER_TOKENS)
            self._final_answer_reserve[1] = (usd or 0.0) * FINAL_ANSWER_SHARE
            self._final_answer_reserve[2] = 1 if calls else 0
        self._returned_amounts: list[float] = [0] * len(RESOURCES)  #: counted as spent above, of earlier slices
        self._slice: Hold | None = None
        if parent is not None:
            self._slice = parent._lend(self._grant())

    def owner(self, resource: str) -> Budget | None:
        """Return the scope whose limit bounds `resource` here; None if nothing limits it."""
        return self._owner[RESOURCES.index(resource)]

    def remaining(self, resource: str, *, is_final_answer: bool = False) -> float:
        """Return how much of `resource` could be reserved now; infinity if nothing limits it."""
        index = RESOURCES.index(resource)
        owner = self._owner[index]
        return math.inf if owner is None else max(0, owner._free(index, is_final_answer and owner is self))

    def limit(self, resource: str) -> float:
        """Return the most that the owner of `resource` may ever use; infinity if nothing limits it."""
        index = RESOURCES.index(resource)
        owner = self._owner[index]
        return math.inf if owner is None else owner._limit[index] or 0

    def reserve(self, amount: Amount, *, is_final_answer: bool = False) -> Hold:
        """Hold all of `amount`, or nothing.

        Raises BudgetExceeded, naming the scope whose limit fired, if `amount` does not fit, or if other requests wait
        there in line. `is_final_answer` draws on the amount that this scope keeps for its owner's last answer. A closed
        scope has nothing left. Raises InvalidValue if `amount` is not a valid quantity.
        """
        _check(amount)
        for index, requested in enumerate(amount):
            owner = self._owner[index]
            if requested and owner is not None:
                free = owner._free(index, is_final_answer and owner is self)
                if requested > free + _TOLERANCE or owner._is_queue(index):
                    owner.refused_resource = owner.refused_resource or RESOURCES[index]
                    raise BudgetExceeded(RESOURCES[index], asked=requested, left=max(0, free), scope=owner.scope)
        reserve_part = _ZERO
        if is_final_answer:
            reserve_part = Amount(*map(min, self._final_answer_reserve, amount))  # type: ignore[arg-type]  # whole numbers stay whole
            self._change_reserve(reserve_part, -1)
        for index, requested in enumerate(amount):
            owner = self._owner[index]
            if requested and owner is not None:
                owner._reserved_amounts[index] += requested
        return Hold(self, amount, reserve_part)

    @contextmanager
    def passing_lines(self) -> Iterator[None]:
        """Reserve in this context without waiting behind others: for what was granted before, or by the owner."""
        lines = {id(each): (each, each.waiting) for each in self._owner if each is not None}
        for owner, _ in lines.values():
            owner.waiting = None
        try:
            yield
        finally:
            for owner, waiting in lines.values():
                owner.waiting = waiting

    def can_fit(self, resource: str, requested: float) -> bool:
        """Return whether `requested` would fit here if all requests that are under way cost nothing.

        Amounts that are kept count as used: those of scopes below, and those of work that itself waits for others.
        """
        index = RESOURCES.index(resource)
        under_way = self._reserved_amounts[index] - self._kept_amounts[index]
        return requested <= self._free(index, False) + under_way + _TOLERANCE

    def raise_limits(self, amount: Amount) -> None:
        """Raise the limits of this scope; a scope below another one takes the amounts from there.

        Raises BudgetExceeded, naming the scope above and having raised nothing, if it has not that much free; and
        InvalidValue for a resource that is not limited here, and for a closed scope.
        """
        _check(amount)
        for index, more in enumerate(amount):
            if more and self._limit[index] is None:
                limited = ", ".join(name for name in RESOURCES if getattr(self.limits, name) is not None)
                raise InvalidValue(f"add.{RESOURCES[index]}", more, f"what {self.scope} limits: {limited or 'nothing'}")
        if self.is_closed:
            raise InvalidValue("scope", self.scope, "one whose run has not ended")
        added: dict[str, Any] = {name: more for name, more in zip(RESOURCES, amount, strict=True) if more}
        limits = self.limits.add(Limits(**added))
        if self._slice is not None:
            assert self.parent is not None, "a slice is of a scope above"
            self._slice.add(self.parent._lend(amount, passes_line=True))
            for owner in self.parent._owner:
                if owner is not None:
                    owner._report_change()  # Who waits there may wait for longer now.
        self.limits, self._limit = limits, [getattr(limits, name) for name in RESOURCES]
        self.refused_resource = None
        self._report_change()

    def end_at_limit(self) -> None:
        """End the runs whose requests do not fit here from now on, those included that wait here."""
        self.pauses = False
        self._report_change()

    def charge(self, amount: Amount) -> None:
        """Count an amount that another process reserved and used; nothing is refused here."""
        _check(amount)
        for index, used in enumerate(amount):
            owner = self._owner[index]
            if used and owner is not None:
                owner._spent_amounts[index] += used
                owner._final_answer_reserve[index] = min(
                    owner._final_answer_reserve[index], max(0, owner._free(index, True))
                )

    def close(self) -> None:
        """Return the amount that is neither spent nor held here to the scope above. Idempotent.

        A held amount counts as spent above until its hold is settled; settling then corrects it.
        """
        if self._slice is not None:
            used_amounts = [
                spent + reserved for spent, reserved in zip(self._spent_amounts, self._reserved_amounts, strict=True)
            ]
            unreported_amounts = (
                used_amounts[w] - self._returned_amounts[w] if self._limit[w] is not None else 0 for w in _INDEXES
            )
            self._slice._settle(Amount(*unreported_amounts))  # type: ignore[arg-type]  # whole numbers stay whole
            self._slice, self._returned_amounts = None, used_amounts
            self._report_change()

    @property
    def is_closed(self) -> bool:
        """True if the slice was returned to the scope above.

        A scope without a scope above never closes.
        """
        return self._slice is None and self.parent is not None

    def reopen(self, parent: Budget) -> None:
        """Take the rest of the grant from `parent` again for a run that continues; spent amounts stay spent.

        Raises BudgetExceeded, taking nothing, if the rest is no longer free.
        """
        if self._slice is None:
            used_amounts = [
                spent + reserved for spent, reserved in zip(self._spent_amounts, self._reserved_amounts, strict=True)
            ]
            remaining = (max(0, (self._limit[w] or 0) - used_amounts[w]) for w in _INDEXES)
            self._slice = parent._lend(Amount(*remaining))  # type: ignore[arg-type]  # whole numbers stay whole
            self._returned_amounts, self.parent = used_amounts, parent
            self._owner = [self if self._limit[w] is not None else parent._owner[w] for w in _INDEXES]

    def spent_amount(self, resource: str) -> float:
        """Return the amount settled here so far.

        The spending of a living scope below from its own slice is included when that scope closes.
        """
        return self._spent_amounts[RESOURCES.index(resource)]

    def reserved_amount(self, resource: str) -> float:
        """Return the amount that is reserved and not yet settled, slices of scopes below included."""
        return self._reserved_amounts[RESOURCES.index(resource)]

    def final_answer_reserve(self, resource: str) -> float:
        """Return the amount that is set aside for the owner's last answer."""
        return self._final_answer_reserve[RESOURCES.index(resource)]

    def describe_remaining(self) -> str:
        """Describe what remains of the limited resources; empty if nothing is limited."""
        return ", ".join(
            f"{name} {self.remaining(name):.12g}" for name in RESOURCES if self.remaining(name) != math.inf
        )

    def _lend(self, amount: Amount, *, passes_line: bool = False) -> Hold:
        """Hold an amount for a scope below. Raises BudgetExceeded."""
        with self.passing_lines() if passes_line else nullcontext():
            hold = self.reserve(amount)
        hold.keep()
        return hold

    def _is_queue(self, index: int) -> bool:
        return self.waiting is not None and self.waiting[index] > 0 and self.served_resource != RESOURCES[index]

    def _report_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _free(self, index: int, is_final_answer: bool) -> float:
        limit = self._limit[index]
        assert limit is not None, "`_free` is called on the owner of a limit"
        if self.is_closed:
            return 0
        return (
            limit
            - self._spent_amounts[index]
            - self._reserved_amounts[index]
            - (0 if is_final_answer else self._final_answer_reserve[index])
        )

    def _change_reserve(self, amount: Amount, sign: int) -> None:
        self._final_answer_reserve = [
            reserve + sign * value for reserve, value in zip(self._final_answer_reserve, amount, strict=True)
        ]

    def _grant(self) -> Amount:
        return Amount(*(limit or 0 for limit in self._limit))  # type: ignore[arg-type]  # whole numbers stay whole


class Hold:
    """A reservation: settle it with the used amount, or refund it.

    Only the first call of `settle` or `refund` counts; later calls do nothing.
    """

    __slots__ = ("_budget", "_reserve_part", "amount", "is_kept", "is_open")

    def __init__(self, budget: Budget, amount: Amount, reserve_part: Amount = _ZERO) -> None:
        self._budget, self.amount, self.is_open = budget, amount, True
        self.is_kept = False  #: it may last: nobody should wait for its rest
        self._reserve_part = reserve_part  #: the part that came from the reserve for a last answer

    def settle(self, actual: Amount) -> None:
        """Return the hold and count `actual`, which may be more if an estimate was wrong.

        Raises InvalidValue if `actual` is not a valid quantity (negative, NaN), having counted the reservation instead.
        """
        if not self.is_open:
            return
        self.is_open = False
        try:
            _check(actual)
        except InvalidValue:
            self._settle(self.amount)
            raise
        self._settle(actual)

    def refund(self) -> None:
        """Return the hold; nothing was used."""
        self.settle(_ZERO)

    def keep(self) -> None:
        """Let the hold count as used for others that wait here: its work may last. Idempotent."""
        if self.is_kept or not self.is_open:
            return
        self.is_kept = True
        for index, owner in enumerate(self._budget._owner):
            if owner is not None and self.amount[index]:
                owner._kept_amounts[index] += self.amount[index]
                owner._report_change()

    def add(self, other: Hold) -> None:
        """Take over the amount of another hold of the same scope."""
        other.is_open = False
        sums = (mine + more for mine, more in zip(self.amount, other.amount, strict=True))
        self.amount = Amount(*sums)  # type: ignore[arg-type]  # whole numbers stay whole

    def _settle(self, actual: Amount) -> None:
        for index, owner in enumerate(self._budget._owner):
            if owner is None:
                continue
            reserved, used = self.amount[index], actual[index]
            owner._reserved_amounts[index] -= reserved
            if self.is_kept:
                owner._kept_amounts[index] -= reserved
            owner._spent_amounts[index] += used
            while (
                owner.is_closed and owner.parent is not None
            ):  # The scope above counted `reserved` as spent when it closed.
                parent_owner = owner.parent._owner[index]
                if parent_owner is None:
                    break
                parent_owner._spent_amounts[index] += used - reserved
                owner = parent_owner
            owner._report_change()
        if self._reserve_part is not _ZERO:
            unused_amounts = (max(0, reserved - used) for reserved, used in zip(self.amount, actual, strict=True))
            self._budget._change_reserve(Amount(*map(min, self._reserve_part, unused_amounts)), 1)  # type: ignore[arg-type]  # as above


def _check(amount: Amount) -> None:
    """Refuse an amount that would create budget: a negative number, or NaN, which passes every limit.

    Raises InvalidValue.
    """
    for index, value in enumerate(amount):
        if not 0 <= value <= MAX_EXACT:
            raise InvalidValue(f"amount.{RESOURCES[index]}", value, "a number from 0 to 2^53")
