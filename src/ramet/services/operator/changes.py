"""Requests to the feed of changes, and its messages. This module has data only, like `contract`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from ramet.core.outcome import Result
from ramet.host.control.run_queries import OpenCall, Question, RunRow
from ramet.services.contract import BaseRequest


class ChangeOptions(BaseRequest):
    """Choose changes: after the `id` of a message, or all runs first, with `ended` those of ended trees as well.

    With `run`, only that run and all runs below it.
    """

    after: str = ""
    ended: bool = False
    run: str = ""
    interval_ms: Annotated[int, Meta(ge=50, le=5_000)] = 200  #: changes are gathered for that long


class ChangedRow(RunRow, frozen=True, kw_only=True, omit_defaults=True):
    """A `RunRow` in a message about changes, where fields with their default values are left out.

    It has neither the result nor the children of the run: the children name their parent.
    """

    parent: str | None = None
    born: datetime | None = None
    ended: datetime | None = None
    description: str = ""
    model: str = ""
    children: tuple[str, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    unread: int = 0
    approvals: tuple[Question, ...] = ()
    result: Result | None = None


class RunChanges(Struct, kw_only=True, omit_defaults=True):
    """The new rows of runs that changed, a parent's before its children's."""

    runs: Sequence[ChangedRow] = ()
    removed: Sequence[str] = ()  #: roots of trees that were removed from the journal, with all their runs
    events: int = 0  #: number of recorded events behind the changes
    complete: bool = True  #: False: more rows of the first picture follow
    reset: bool = False  #: rows that were sent before are outdated: a whole picture begins
    cursor: str = ""  #: the id of this message; empty if a reader cannot resume after it
