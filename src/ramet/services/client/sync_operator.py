"""`kernel` of the synchronous client: the methods of `OperatorClient`, but blocking."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ramet.services.client.blocking import blocking, iterating
from ramet.services.client.operator import OperatorClient


class SyncKernel:
    """The operator's view of a server, with blocking methods."""

    def __init__(self, client: OperatorClient, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        """Wrap an async client. `call` runs a coroutine in the client's own loop, and waits."""
        self.client, self.call = client, call

    runs = blocking(OperatorClient.runs)
    run = blocking(OperatorClient.run)
    tree = blocking(OperatorClient.tree)
    events = iterating(OperatorClient.events)
    send = blocking(OperatorClient.send)
    stop = blocking(OperatorClient.stop)
    read_file = blocking(OperatorClient.read_file)
    keep = blocking(OperatorClient.keep)
    sessions = blocking(OperatorClient.sessions)
    session = blocking(OperatorClient.session)
    remove_session = blocking(OperatorClient.remove_session)
    approvals = blocking(OperatorClient.approvals)
    answer = blocking(OperatorClient.answer)
    schedules = blocking(OperatorClient.schedules)
    schedule = blocking(OperatorClient.schedule)
    add_schedule = blocking(OperatorClient.add_schedule)
    pause_schedule = blocking(OperatorClient.pause_schedule)
    resume_schedule = blocking(OperatorClient.resume_schedule)
    trigger_schedule = blocking(OperatorClient.trigger_schedule)
    remove_schedule = blocking(OperatorClient.remove_schedule)
    schedule_results = blocking(OperatorClient.schedule_results)
    recipes = blocking(OperatorClient.recipes)
    state = blocking(OperatorClient.state)
    state_versions = blocking(OperatorClient.state_versions)
    policies = blocking(OperatorClient.policies)
    policy = blocking(OperatorClient.policy)
    put_policy = blocking(OperatorClient.put_policy)
    passages = blocking(OperatorClient.passages)
    follow_passages = iterating(OperatorClient.follow_passages)
