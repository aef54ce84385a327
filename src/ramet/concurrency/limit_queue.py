"""Lines of requests at limits that pause: each waits until it fits, in the order in which the requests came.

A request joins the line of the scope and the resource that refused it. When more may be free there, the first one is
tried again, then the next; the first that does not fit keeps all behind it waiting, so that small requests cannot
starve a large one. A request that then meets another limit joins the line there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded
from ramet.core.events import LimitPaused
from ramet.core.limits import RESOURCES

T = TypeVar("T")


class QueuedRequest(Generic[T]):
    """A request in line."""

    __slots__ = ("_attempt", "_on_change", "budget", "future", "is_exhausted", "lines", "pause", "refusal")

    def __init__(self, budget: Budget, attempt: Callable[[], T], on_change: Callable[[], None]) -> None:
        self.budget, self._attempt, self._on_change = budget, attempt, on_change
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.refusal: BudgetExceeded | None = None  #: the newest
        #: True if it, or one before it in line, would not fit after all requests under way have returned their rest.
        self.is_exhausted = False
        self.pause: LimitPaused | None = None  #: the record of its pause where it waits now
        self.lines: _ScopeLines | None = None  #: the lines of the scope where it waits

    def attempt(self) -> T:
        """Make the reservation. Raises BudgetExceeded."""
        return self._attempt()

    def report(self, is_exhausted: bool) -> None:
        """Note whether only a raise can help, and report a change."""
        if is_exhausted is not self.is_exhausted:
            self.is_exhausted = is_exhausted
            self._on_change()

    def move_to_front(self) -> None:
        """Let no other request of its line go on before it."""
        if self.lines is not None and self.refusal is not None:
            self.lines.move_to_front(self, self.refusal.resource)

    def serve_line(self) -> None:
        """Let what fits go on now: only for a caller whose own changes are complete and recorded."""
        if self.lines is not None:
            self.lines.serve()

    def renew_pause(self) -> None:
        """Report the pause again, as another one."""
        self.pause = None
        self._on_change()

    def refuse(self) -> None:
        """Refuse the request to its waiter, as a limit that ends its runs does."""
        if self.refusal is not None and not self.future.done():
            self.future.set_exception(self.refusal)


class LimitQueue:
    """The lines of one tree."""

    def __init__(self) -> None:
        self._lines: dict[int, _ScopeLines] = {}  #: by id of the scope, which its lines keep alive

    def join(self, request: QueuedRequest[Any], refusal: BudgetExceeded) -> None:
        """Put a refused request at the end of the line that it needs. Raises `refusal` if the limit does not pause."""
        owner = pausing_scope(request.budget, refusal)
        if owner is None:
            raise refusal
        lines = self._lines.get(id(owner))
        if lines is None:
            lines = self._lines[id(owner)] = _ScopeLines(owner, self)
        lines.add(request, refusal)

    def leave(self, request: QueuedRequest[Any]) -> None:
        """Take a request that waits no longer out of its line."""
        refusal = request.refusal
        owner = pausing_scope(request.budget, refusal) if refusal is not None else None
        if owner is not None and refusal is not None and (lines := self._lines.get(id(owner))) is not None:
            lines.remove(request, refusal.resource)

    def forget(self, owner: Budget) -> None:
        """Drop the empty lines of a scope."""
        self._lines.pop(id(owner), None)


def pausing_scope(budget: Budget, refusal: BudgetExceeded) -> Budget | None:
    """Return the scope that refused, if its requests wait there."""
    owner = budget.owner(refusal.resource) if refusal.resource in RESOURCES else None
    return owner if owner is not None and owner.pauses and not owner.is_closed else None


class _ScopeLines:
    """The lines of one scope, by resource."""

    def __init__(self, owner: Budget, queue: LimitQueue) -> None:
        self._owner, self._queue = owner, queue
        self._lines: dict[str, deque[QueuedRequest[Any]]] = {}
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        owner.waiting, owner.on_change = [0] * len(RESOURCES), self._schedule

    def add(self, request: QueuedRequest[Any], refusal: BudgetExceeded) -> None:
        request.refusal, request.pause, request.lines = refusal, None, self
        line = self._lines.setdefault(refusal.resource, deque())
        line.append(request)
        self._count(refusal.resource)
        self._report(refusal.resource)

    def remove(self, request: QueuedRequest[Any], resource: str) -> None:
        line = self._lines.get(resource)
        if line is None or request not in line:
            return
        line.remove(request)
        self._count(resource)
        self._schedule()  # The next one may fit.

    def move_to_front(self, request: QueuedRequest[Any], resource: str) -> None:
        line = self._lines.get(resource)
        if line is not None and request in line:
            line.remove(request)
            line.appendleft(request)
            self._schedule()

    def _count(self, resource: str) -> None:
        """Make later requests wait behind those in line, and none once it is empty."""
        line = self._lines[resource]
        assert self._owner.waiting is not None, "set while there are lines"
        self._owner.waiting[RESOURCES.index(resource)] = len(line)
        if not line:
            del self._lines[resource]
        if not self._lines:
            self._owner.waiting = self._owner.on_change = None
            self._queue.forget(self._owner)

    def _schedule(self) -> None:
        """Try the first ones soon: not now, in the middle of what made room, whose record comes first."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.serve)

    def serve(self) -> None:
        """Try the first ones now."""
        self._is_scheduled = False
        for resource in [each for each in RESOURCES if each in self._lines]:
            while (line := self._lines.get(resource)) and self._try(line[0], resource):
                pass
            if resource in self._lines:
                self._report(resource)

    def _try(self, request: QueuedRequest[Any], resource: str) -> bool:
        """Try the first request of a line; return whether it left the line."""
        if request.future.done():  # Its waiter was cancelled, and leaves the line a moment later.
            self._lines[resource].popleft()
            self._count(resource)
            return True
        granted: Any = None
        problem: BaseException | None = None
        self._owner.served_resource = resource
        try:
            granted = request.attempt()
        except BudgetExceeded as refusal:
            if pausing_scope(request.budget, refusal) is self._owner and refusal.resource == resource:
                request.refusal = refusal
                return False
            problem = refusal
        except Exception as error:
            problem = error
        finally:
            self._owner.served_resource = ""
        self._lines[resource].popleft()
        self._count(resource)
        if isinstance(problem, BudgetExceeded):
            try:
                self._queue.join(request, problem)
            except BudgetExceeded:
                pass  # The limit that it met now does not pause.
            else:
                return True
        if not request.future.done():
            request.report(False)
            if problem is None:
                request.future.set_result(granted)
            else:
                request.future.set_exception(problem)
        return True

    def _report(self, resource: str) -> None:
        line = self._lines[resource]
        first = line[0].refusal
        assert first is not None, "a request in line was refused"
        is_exhausted = not self._owner.can_fit(resource, first.asked)
        for request in list(line):
            request.report(is_exhausted)
