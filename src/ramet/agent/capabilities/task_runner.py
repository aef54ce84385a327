"""Who does the work of a task that is called: the host's runtime, or, inside a sandbox, the channel to it.

Recursion passes through this value: whoever calls a task knows nothing of what stands behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Protocol

from ramet.core.agent_ref import AgentRef


class TaskRunner(Protocol):
    """What a `Task` asks, and an `Agent` that was declared inside another. Arguments are JSON data that was checked."""

    def create(self, agent: Any) -> AgentRef | None:
        """Keep an agent that was declared inside another one, in that one's registry; None where there is none."""

    def call(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """The task's value; in an event loop an awaitable of it. Raises TaskFailed, NeedsInput."""

    def submit(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Begin, and return what can be waited for."""

    def stream(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Begin, and follow what happens: an async iterator of events, with `result()` beside it."""

    def map(self, task: Any, several: list[Mapping[str, Any]], *, max_parallel: int) -> Any:
        """One run for each, at most so many at a time; results in order, each a value or an error."""

    def answer(self, task: Any, token: str, text: str) -> Any:
        """Go on with a run that asked back; its value, as `call` gives it."""


#: Set where an agent's own code runs; elsewhere the host's, which is started by its name.
current: ContextVar[TaskRunner | None] = ContextVar("ramet_performer", default=None)
_default = ["ramet.host.tasks.performer", "HOST"]


def use_runner(module: str, name: str) -> None:
    """Who does the work in this process from now on, found by its name: a sandbox has no host in it."""
    _default[:] = [module, name]


def performer() -> TaskRunner:
    """Who does the work here."""
    found = current.get()
    if found is None:
        module, name = _default
        found = getattr(import_module(module), name)
    return found
