"""The policy adapter of a runtime: an organisation's own decision on spawns, requested before each spawn.

An adapter that raises, takes too long, or returns an invalid answer has refused: nothing is spawned without an answer.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from typing import Any, Final, Protocol

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.core.errors import Aborted, InvalidValue, RametError
from ramet.core.policy.decision import (
    MAX_REASON,
    Allow,
    Narrow,
    PolicyAnswer,
    PolicyDecision,
    PolicyRequest,
    Refuse,
    check_narrow,
)

_log = logging.getLogger("ramet.policy")
TIMEOUT_S: Final = 10.0
MAX_NAME: Final = 100
#: Calls that did not end when they were cancelled; at this number, no more calls are made.
MAX_STUCK: Final = 64
_ACCEPTED = "a policy adapter (ramet.host.policy_adapters.PolicyAdapter), with a name and `async def decide(request)`"


class PolicyAdapter(Protocol):
    """An adapter that decides on spawns.

    Called for every root and every child, on the event loop: it must not block.
    """

    @property
    def name(self) -> str:
        """The recorded name: 1 to 100 printable characters."""

    async def decide(self, request: PolicyRequest) -> PolicyAnswer:
        """Return `Allow`, `Narrow` or `Refuse`. May be called for many spawns concurrently, and cancelled."""


def check_policy_adapter(field: str, adapter: object) -> None:
    """Raise InvalidValue if an object is not a policy adapter."""
    try:
        name = getattr(adapter, "name", None)
    except Exception as problem:  # The name may be computed by code of the adapter.
        raise InvalidValue(
            field, type(adapter).__name__, f"{_ACCEPTED}; its name raised {type(problem).__name__}"
        ) from None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidValue(field, adapter, f"{_ACCEPTED}; its name is not 1 to {MAX_NAME} printable characters")
    if not inspect.iscoroutinefunction(getattr(adapter, "decide", None)):
        raise InvalidValue(field, adapter, f"{_ACCEPTED}; its `decide` is no async method")


class PolicyDecider:
    """A decider that asks one adapter, each time for at most `timeout_s` seconds."""

    def __init__(self, adapter: PolicyAdapter, clock: Clock, *, timeout_s: float = TIMEOUT_S) -> None:
        """Set up the decider. Raises InvalidValue for an invalid adapter, and for an invalid time."""
        check_policy_adapter("policy_adapter", adapter)
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not is_number or not 0 < timeout_s < math.inf:
            raise InvalidValue("policy_timeout_s", timeout_s, "seconds above 0")
        self._adapter, self._clock, self._timeout_s = adapter, clock, timeout_s
        self._name = str(adapter.name)
        self._stuck_tasks: set[asyncio.Task[Any]] = set()

    async def __call__(self, request: PolicyRequest, abort: AbortController | None = None) -> PolicyDecision:
        """Return the adapter's decision; without one a refusal with the reason. Raises Aborted when `abort` fires."""
        try:
            answer = _check_answer(await self._ask(request, abort))
            if isinstance(answer, Refuse) and not request.depth:  # No run is spawned that could record it.
                _log.warning("policy adapter %s refused the root %s: %s", self._name, request.agent, answer.reason)
            return PolicyDecision(self._name, answer)
        except Aborted:
            raise
        except Exception as problem:
            # The error text is for the operator: the refused agent gets only the type of the error.
            _log.error("policy adapter %s gave no answer about %s: %r", self._name, request.agent, problem)
            why = str(problem) if isinstance(problem, _NoAnswer) else f"it raised {type(problem).__name__}"
            return PolicyDecision(self._name, Refuse(f"no answer: {why}"[:MAX_REASON]), failure=why)

    async def _ask(self, request: PolicyRequest, abort: AbortController | None) -> object:
        if abort is not None and abort.reason is not None:
            raise Aborted(abort.reason)
        if len(self._stuck_tasks) >= MAX_STUCK:
            raise _NoAnswer(f"{MAX_STUCK} earlier calls have not ended")
        task = asyncio.ensure_future(_decide(self._adapter, request))
        timer: asyncio.Future[Any] = asyncio.ensure_future(self._clock.sleep(self._timeout_s))
        abort_task = asyncio.ensure_future(abort.wait_aborted()) if abort is not None else None
        tasks = {task, timer} if abort_task is None else {task, timer, abort_task}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                if task.cancelled():
                    raise _NoAnswer("it cancelled itself")
                return task.result()
            if abort_task is not None and abort_task.done():
                raise Aborted(abort_task.result())
            raise _NoAnswer(f"none within {self._timeout_s:g} s")
        finally:
            # A call that does not end when it is cancelled delays no one.
            for each in tasks:
                each.cancel()
            if not task.done():
                self._stuck_tasks.add(task)
                task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._stuck_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Mark the exception as retrieved: there is no waiter any more.


class _NoAnswer(Exception):
    """A missing answer, with a reason that the agent may read."""


async def _decide(adapter: PolicyAdapter, request: PolicyRequest) -> object:
    try:
        return await adapter.decide(request)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:  # Some would end the event loop, and others the caller.
        raise RametError(f"it raised {error!r}") from None


def _check_answer(answer: object) -> PolicyAnswer:
    """Return the answer, with its reason bounded. Raises an error for an invalid answer."""
    if not isinstance(answer, Allow | Narrow | Refuse):
        raise _NoAnswer(f"a value of type {type(answer).__name__} is no Allow, Narrow or Refuse")
    if not isinstance(answer.reason, str):
        raise _NoAnswer("its reason is not a string")
    reason = answer.reason[:MAX_REASON]
    if isinstance(answer, Allow):
        return Allow(reason)
    if isinstance(answer, Refuse):
        return Refuse(reason)
    try:
        check_narrow(answer)
    except InvalidValue as problem:
        raise _NoAnswer(f"{problem.field} cannot narrow") from problem
    return Narrow(policy=answer.policy, limits=answer.limits, reason=reason)
