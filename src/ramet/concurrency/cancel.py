"""Cancellation: a tree of controllers, from parent to child only.

A parent refers to its children weakly: a finished child is dropped without a call. A child refers to its parent
strongly. A listener that is a bound method lives as long as its object. Any other listener is held until the abort,
because a lambda or a closure has no other owner.
"""

from __future__ import annotations

import asyncio
import logging
import math
import types
import weakref
from collections.abc import Callable
from typing import Any

from ramet.core.errors import Aborted, InvalidValue

_log = logging.getLogger("ramet.cancel")
_FIRST_SWEEP_AT = 64
Listener = Callable[["AbortController"], Any]
#: Returns a listener, or None if its object no longer exists.
_ListenerRef = Callable[[], Listener | None]


def is_being_cancelled() -> bool:
    """Return whether the current task was cancelled from outside; if not, its own work raised CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class AbortController:
    """A controller that stops itself and everything below it, once, with a reason. It never affects its parent."""

    __slots__ = ("__weakref__", "_children", "_event", "_listeners", "_sweep_at", "deadline", "parent", "reason")

    def __init__(self, parent: AbortController | None = None, *, deadline: float | None = None) -> None:
        self.parent = parent
        self.reason: str | None = None  #: set exactly once; not None means aborted
        #: seconds on the clock's monotonic scale, the earlier of its own and its parent's; None if there is none
        self.deadline = deadline
        self._children: list[weakref.ref[AbortController]] | None = None
        self._sweep_at = _FIRST_SWEEP_AT  #: number of references at which dead ones are dropped
        self._listeners: list[_ListenerRef] | None = None
        self._event: asyncio.Event | None = None
        if deadline is not None and math.isnan(deadline):
            raise InvalidValue("deadline", deadline, "a time on the clock's monotonic scale, or None")
        if parent is not None:
            if parent.deadline is not None and (deadline is None or parent.deadline < deadline):
                self.deadline = parent.deadline
            if parent.reason is not None:
                self.reason = parent.reason
            else:
                parent._adopt(self)

    @property
    def aborted(self) -> bool:
        """Return whether the controller was aborted, directly or from above."""
        return self.reason is not None

    def child(self, *, deadline: float | None = None) -> AbortController:
        """Create a controller below this one; it starts aborted if this one is."""
        return AbortController(self, deadline=deadline)

    def abort(self, reason: str = "aborted") -> None:
        """Abort this controller and all below it.

        The first reason stays; a failing listener does not stop the others.
        """
        controllers = [self] if self.reason is None else []
        # The list grows during the loop: all controllers are aborted before the first listener is called.
        for controller in controllers:
            controller.reason = reason
            if controller._children:
                children = (reference() for reference in controller._children)
                controllers.extend(each for each in children if each is not None and each.reason is None)
            controller._children = None
        for controller in controllers:
            controller._notify()

    def raise_if_aborted(self) -> None:
        """Raise Aborted with the reason if the controller was aborted: the check before a start."""
        if self.reason is not None:
            raise Aborted(self.reason)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(self)` once on abort, or at once if the abort has happened.

        A bound method is held weakly: the caller must keep its object alive. A plain function, or any other callable,
        is held until the abort, or until `remove_listener`. Raises InvalidValue if the listener is not callable.
        """
        if not callable(listener):
            raise InvalidValue("listener", listener, "a function that takes the controller")
        if self.reason is not None:
            self._call(listener)
            return
        if self._listeners is None:
            self._listeners = []
        elif len(self._listeners) % 64 == 63:
            self._listeners = [each for each in self._listeners if each() is not None]
        self._listeners.append(_listener_ref(listener))

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener; an unknown one is no error."""
        if self._listeners:
            self._listeners = [each for each in self._listeners if each() not in (None, listener)]

    async def wait_aborted(self) -> str:
        """Wait for the abort, and return its reason."""
        if self.reason is None:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()
        assert self.reason is not None
        return self.reason

    def _adopt(self, child: AbortController) -> None:
        """Add a child, weakly.

        A list with occasional cleanup costs less than a WeakSet, for additions and for removals.
        """
        if self._children is None:
            self._children = []
        elif len(self._children) >= self._sweep_at:
            self._children = [reference for reference in self._children if reference() is not None]
            self._sweep_at = max(_FIRST_SWEEP_AT, 2 * len(self._children))
        self._children.append(weakref.ref(child))

    def _notify(self) -> None:
        if self._event is not None:
            self._event.set()
        listeners, self._listeners = self._listeners, None
        for reference in listeners or ():
            listener = reference()
            if listener is not None:
                self._call(listener)

    def _call(self, listener: Listener) -> None:
        try:
            listener(self)
        except (Exception, asyncio.CancelledError):
            _log.exception("an abort listener failed; the other listeners are called anyway")


def _listener_ref(listener: Listener) -> _ListenerRef:
    """Hold a bound method weakly, if its object allows this, and anything else strongly."""
    if isinstance(listener, types.MethodType):
        try:
            return weakref.WeakMethod(listener)
        except TypeError:  # The object has __slots__ without a slot for weak references.
            pass
    return lambda: listener
