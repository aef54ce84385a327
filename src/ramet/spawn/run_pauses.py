"""The pauses of one run, as its tree stores them: its requests that wait at limits, and a pause by a person."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ramet.concurrency.cuts import Cuts
from ramet.concurrency.limit_queue import QueuedRequest
from ramet.core.errors import BudgetExceeded
from ramet.core.events import LimitPaused


@dataclass(eq=False, kw_only=True, slots=True)
class RunPauses:
    """The state of one run that does not go on until somebody decides."""

    reason: str | None = None  #: of the person who paused it, and all below it; None: nobody did
    waits: int = 0  #: its requests that wait for the end of a pause by a person
    is_before_turn: bool = False  #: its turn waits for that end before it begins
    slot_line: Cuts = field(default_factory=Cuts)  #: the wait of its turn for a slot
    limit_waits: list[QueuedRequest[Any]] = field(default_factory=list)  #: its requests that wait at limits
    recorded_limit: LimitPaused | None = None  #: the recorded pause at a limit, until it goes on

    @property
    def refusal(self) -> BudgetExceeded | None:
        """The refusal of a request that waits until a limit is raised; None without one."""
        return next((each.refusal for each in self.limit_waits if each.is_exhausted), None)

    @property
    def awaits_decision(self) -> bool:
        """True if a request of it waits for the end of a pause by a person, or for a raise of a limit."""
        return self.waits > 0 or self.refusal is not None
