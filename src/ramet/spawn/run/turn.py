"""The state of a run's current turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ramet.core.outcome import ErrorInfo, Result, Status


class TurnResult(NamedTuple):
    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    partial: str = ""


@dataclass(eq=False, kw_only=True, slots=True)
class RunTurn:
    """Data of a run's current turn, or of its last one."""

    woken_by_mail: bool = False  #: mail began the turn, not a prompt
    resumes: bool = False  #: it continues a turn that another process began
    replies: int = 0  #: replies of the model in the resumed turn before it continued here
    objections: int = 0  #: messages in that turn that told the run to continue instead of ending
    attempt: int = 1  #: of the turn that continues here
    spawn_requests: Counter[str] = field(default_factory=Counter)  #: spawns that were requested in it, by content
    spawns_before: int = 0  #: spawns of the run before it
    streamed_text: list[str] = field(default_factory=list)  #: text of the reply that is streaming
    verdict: TurnResult | None = None  #: its result
    stop_result: TurnResult | None = None  #: the result with which the run was stopped, while stopping
    on_result: Callable[[Result], None] | None = None  #: called with its result, if a caller waits for it
