"""Helpers for limits that pause: the limits, a tool that lets every call pass, and the states of runs."""

from __future__ import annotations

from typing import Any

from ramet.core.limits import Limits
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle
from tests.support.waiting import eventually
from tests.trips.kits.sessions import Gate


def pausing(**limits: Any) -> Limits:
    """Return limits that pause."""
    return Limits(at_limit="pause", **limits)


def noting(calls: int) -> list[Any]:
    """Return replies that call the tool `gate` so many times, and then are done."""
    return [*[Call("gate", {})] * calls, "done"]


def open_gate() -> Gate:
    """Return a gate that lets every call pass."""
    gate = Gate()
    gate.open.set()
    return gate


def states(session: Session) -> dict[str, str]:
    """Return the state of each run by path."""
    return {str(view.path): str(view.state) for view in session.runs()}


async def paused(session: Session, target: str = "main") -> Handle:
    """Wait until a run is paused, and return its handle."""
    await eventually(lambda: states(session).get(target) == "paused")
    return session.handle(target)
