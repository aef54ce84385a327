"""The runner of called tasks: the host's runtime, or, inside a sandbox, the channel to it.

Recursive calls use this value: the caller of a task does not know the runner behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Protocol

from ramet.core.agent_ref import AgentRef


class TaskRunner(Protocol):
    """The operations that a `Task`, or an `Agent` declared inside another, needs. Arguments are checked JSON data."""

    def create(self, agent: Any) -> AgentRef | None:
        """Record an agent that was declared inside another one, in that agent's registry; return None without one."""

    def call(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Return the task's value; in an event loop an awaitable of it. Raises TaskFailed and NeedsInput."""

    def submit(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Start the task, and return an object to wait for."""

    def stream(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Start the task; return an async iterator of its events, which also has `result()`."""

    def map(self, task: Any, rows: list[Mapping[str, Any]], *, max_parallel: int) -> Any:
        """Start one run for each item, at most `max_parallel` at once; results in order, each a value or an error."""

    def answer(self, task: Any, token: str, text: str) -> Any:
        """Continue a run that asked a question; return its value, like `call`."""


#: Set while an agent's own code runs; elsewhere the host's, which is imported by name.
current: ContextVar[TaskRunner | None] = ContextVar("ramet_performer", default=None)
_default = ["ramet.host.tasks.performer", "HOST"]


def use_runner(module: str, name: str) -> None:
    """Set the runner of this process, by name: a sandbox does not contain the host."""
    _default[:] = [module, name]


def current_runner() -> TaskRunner:
    """Return the runner of the current context."""
    runner = current.get()
    if runner is None:
        module, name = _default
        runner = getattr(import_module(module), name)
    return runner
