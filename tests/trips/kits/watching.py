"""Helpers for watches: the events of silence and loops, and the state of a row."""

from __future__ import annotations

from typing import Any, TypeVar

from ramet.core.events import Event, RunLooping, RunSilent
from ramet.host.session import Session
from ramet.tools.run_info import RunView
from tests.trips.kits.sessions import of_kind, session_events

E = TypeVar("E", bound=Event)


def silences(session: Session[Any], path: str | None = None) -> list[RunSilent]:
    """Return the recorded silences."""
    return of_kind(session_events(session), RunSilent, path)


def loops(session: Session[Any], path: str | None = None) -> list[RunLooping]:
    """Return the recorded loops."""
    return of_kind(session_events(session), RunLooping, path)


def view_at(session: Session[Any], path: str = "main") -> RunView:
    """Return the line of a run in a listing."""
    return next(each for each in session.runs() if each.path == path)
