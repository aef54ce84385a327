"""`kernel` of the client for programs without an event loop: the same methods, which block."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ramet.services.client.blocking import blocking, iterating
from ramet.services.client.operator import Kernel

T = TypeVar("T")


class SyncKernel:
    """What goes on in a server, for its operator."""

    def __init__(self, client: Kernel, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """`call` does what it is given in the client's own loop, and waits."""
        self.client, self._call = client, call

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the client's own loop, and wait."""
        done: T = self._call(work)
        return done

    runs = blocking(Kernel.runs)
    run = blocking(Kernel.run)
    tree = blocking(Kernel.tree)
    events = iterating(Kernel.events)
    send = blocking(Kernel.send)
    stop = blocking(Kernel.stop)
    read_file = blocking(Kernel.read_file)
    keep = blocking(Kernel.keep)
    sessions = blocking(Kernel.sessions)
    session = blocking(Kernel.session)
    remove_session = blocking(Kernel.remove_session)
    approvals = blocking(Kernel.approvals)
    answer = blocking(Kernel.answer)
    schedules = blocking(Kernel.schedules)
    schedule = blocking(Kernel.schedule)
    add_schedule = blocking(Kernel.add_schedule)
    pause_schedule = blocking(Kernel.pause_schedule)
    resume_schedule = blocking(Kernel.resume_schedule)
    trigger_schedule = blocking(Kernel.trigger_schedule)
    remove_schedule = blocking(Kernel.remove_schedule)
    schedule_results = blocking(Kernel.schedule_results)
    recipes = blocking(Kernel.recipes)
    state = blocking(Kernel.state)
    state_versions = blocking(Kernel.state_versions)
    policies = blocking(Kernel.policies)
    policy = blocking(Kernel.policy)
    put_policy = blocking(Kernel.put_policy)
    passages = blocking(Kernel.passages)
    follow_passages = iterating(Kernel.follow_passages)
