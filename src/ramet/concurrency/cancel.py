"""Stopping: a tree of controllers, from parent to child only.

A parent refers to its children weakly: whatever finished is forgotten without anybody having to say so. A child refers
to its parent strongly. A listener that is a bound method lives as long as its object does; any other listener is held
until the abort, since a lambda or a closure has nobody else.
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
_FEW = 64
Listener = Callable[["AbortController"], Any]
#: Returns a listener, or None if its object is gone.
_Held = Callable[[], Listener | None]


def is_being_cancelled() -> bool:
    """Whether somebody asked the current task to end; any other CancelledError is the work's own doing."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class AbortController:
    """Stops itself and everything below it, once, with a reason. Aborting a child never touches its parent."""

    __slots__ = ("__weakref__", "_children", "_event", "_listeners", "_sweep_at", "deadline", "parent", "reason")

    def __init__(self, parent: AbortController | None = None, *, deadline: float | None = None) -> None:
        self.parent = parent
        self.reason: str | None = None  #: set exactly once; not None means aborted
        self.deadline = deadline  #: on the clock's monotonic scale; the nearest of own and parent's
        self._children: list[weakref.ref[AbortController]] | None = None
        self._sweep_at = _FEW  #: so many references, and the dead ones among them are dropped
        self._listeners: list[_Held] | None = None
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
        """Whether it has been stopped, by itself or from above."""
        return self.reason is not None

    def child(self, *, deadline: float | None = None) -> AbortController:
        """A controller below this one; born aborted if this one is."""
        return AbortController(self, deadline=deadline)

    def abort(self, reason: str = "aborted") -> None:
        """Stop this one and all below it. The first reason stays; a failing listener stops nobody else."""
        stopped = [self] if self.reason is None else []
        for controller in stopped:  # It grows as it goes: all are stopped before the first listener hears of it.
            controller.reason = reason
            if controller._children:
                living = (reference() for reference in controller._children)
                stopped.extend(each for each in living if each is not None and each.reason is None)
            controller._children = None
        for controller in stopped:
            controller._tell()

    def raise_if_aborted(self) -> None:
        """Raise Aborted with the reason, if it has been stopped: the check before a start."""
        if self.reason is not None:
            raise Aborted(self.reason)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener(self)` once on abort, or now if the abort has happened.

        A bound method is held weakly: keep its object alive yourself. A plain function, or any other callable, is held
        until the abort, or until `remove_listener`. Raises InvalidValue for a listener that cannot be called.
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
        self._listeners.append(_held(listener))

    def remove_listener(self, listener: Listener) -> None:
        """Forget a listener; unknown ones are no error."""
        if self._listeners:
            self._listeners = [each for each in self._listeners if each() not in (None, listener)]

    async def wait_aborted(self) -> str:
        """Return the reason, once there is one."""
        if self.reason is None:
            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()
        assert self.reason is not None
        return self.reason

    def _adopt(self, child: AbortController) -> None:
        """Know a child, weakly. A list that is swept now and then costs less than a WeakSet, at births and at ends."""
        if self._children is None:
            self._children = []
        elif len(self._children) >= self._sweep_at:
            self._children = [reference for reference in self._children if reference() is not None]
            self._sweep_at = max(_FEW, 2 * len(self._children))
        self._children.append(weakref.ref(child))

    def _tell(self) -> None:
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
            _log.exception("an abort listener failed; the others are told all the same")


def _held(listener: Listener) -> _Held:
    """Hold a bound method of an object that allows it weakly, and anything else as it is."""
    if isinstance(listener, types.MethodType):
        try:
            return weakref.WeakMethod(listener)
        except TypeError:  # An object with __slots__ and no place for weak references.
            pass
    return lambda: listener
