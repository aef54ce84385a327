"""Reuse of results: a result stands for later calls with the same inputs.

The result is looked up before the work and stored after it. The key consists of the version of the definition as it
runs, with everything that it inherited, and the inputs. Of concurrent equal calls in one process, one does the work;
the others wait, unless the wait would never end.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from ramet.agent.definition import Agent
from ramet.agent.result_codec import decode_result, encode_result
from ramet.agent.version import canonical, version_of
from ramet.core.errors import InvalidValue, NotShippable, RametError
from ramet.core.events import ResultReused
from ramet.core.outcome import Status
from ramet.core.policy.policy import to_public_dict
from ramet.spawn.run import Run, TurnResult


class CachedResult(NamedTuple):
    value: Any  #: as recorded
    run: str  #: id of the run that produced it
    at: datetime


class Results(Protocol):
    """The store of results, and the calls in progress.

    Neither method raises for a defective entry.
    """

    in_flight: dict[str, InFlight]
    waiting: dict[Run, Run]  #: waiting run → run whose result it waits for

    async def get(self, key: str, ttl_s: float) -> CachedResult | None:
        """Return a readable result that is not older than `ttl_s`, if there is one."""

    async def put(self, key: str, cached: CachedResult, ttl_s: float) -> None:
        """Store a result."""


class InFlight(NamedTuple):
    """A call in progress."""

    run: Run
    done: asyncio.Future[None]


async def cached_or_run(
    run: Run,
    results: Results,
    recipe: Callable[[Agent], dict[str, Any]],
    work: Callable[[], Awaitable[TurnResult]],
    *,
    on_wait_began: Callable[[], None],
    now: Callable[[], datetime],
) -> TurnResult:
    """Return the result of an equal call, or of this call after its work is done."""
    key, ttl_s = key_of(run, recipe), run.agent.cache_ttl_seconds
    if key is None or ttl_s is None:
        return await work()
    while (in_flight := results.in_flight.get(key)) is not None:
        if _would_wait_for_itself(run, in_flight.run, results.waiting):
            return await work()
        await _wait_for_result(run, in_flight, results, on_wait_began)
    own_entry = results.in_flight[key] = InFlight(run, asyncio.get_running_loop().create_future())
    try:
        cached = await results.get(key, ttl_s)
        if cached is not None:
            try:
                verdict = TurnResult(Status.COMPLETED, decode_result(run.agent, cached.value))
            except RametError:  # Another version of the definition wrote it.
                pass
            else:
                run.context.emit(ResultReused, made_by=cached.run, made_at=cached.at)
                return verdict
        verdict = await work()
        if verdict.status is Status.COMPLETED and not run.context.abort.aborted:
            await results.put(key, CachedResult(encode_result(run.agent, verdict.value), run.info.id, now()), ttl_s)
        return verdict
    finally:
        del results.in_flight[key]
        own_entry.done.set_result(None)


def key_of(run: Run, recipe: Callable[[Agent], dict[str, Any]]) -> str | None:
    """Return the key that equal calls of one definition share, or None for a call without equal calls.

    Calls without a key are those with a conversation before or after them, those with late arguments, and those whose
    inputs are not data.
    """
    agent, request, context = run.agent, run.request, run.context
    if run.persistent or run.turn.resumes or run.turns > 1 or context.history:
        return None
    if run.worktree is not None or run.sandbox.clone is not None:
        return None
    if request.fork_place:  # Its state is an input, too.
        return None
    if request.attachments:  # An input, too, which few calls share.
        return None
    if request.late_args is not None:  # Read later, when the function is called.
        return None
    policy = run.grant or run.step_ceiling
    tools = [[tool.name, tool.description] for tool in context.tools] if agent.function is None else []
    values = dict(policy.env_vars) if policy is not None else {}
    about = [
        recipe(_with_equal_results(agent)),
        run.model,
        _settings_of(agent.model),
        [str.__str__(message.text) for message in context.system_messages],
        tools,
        str(context.cwd),
        to_public_dict(policy) if policy is not None else None,
        values,
    ]
    try:
        inputs = canonical([request.prompt, list(request.args), dict(request.kwargs)])
        version = version_of(agent, *about)
    except (InvalidValue, NotShippable):
        return None
    return hashlib.sha256(version.encode() + inputs).hexdigest()


def _with_equal_results(agent: Agent) -> Agent:
    """Return the agent without the settings that say nothing about its task."""
    if agent.function is not None:
        return agent.replace(max_turns=None)
    return agent if agent.budget_note is None else agent.replace(budget_note=None)


def _settings_of(model: Any) -> Any:
    """Return the settings of a model object, as far as it reports them."""
    if model is None or isinstance(model, str):
        return None
    try:
        return [type(model).__qualname__, dict(getattr(model, "_identifying_params", {}))]
    except Exception:  # a provider's own code
        return model  # Not data: its calls have no key.


async def _wait_for_result(run: Run, in_flight: InFlight, results: Results, on_wait_began: Callable[[], None]) -> None:
    """Wait until another call has ended, without holding a slot."""
    slot = run.context.slot
    run.waits_for.append(in_flight.run)
    results.waiting[run] = in_flight.run
    slot.begin_calls()
    try:
        on_wait_began()
        await slot.while_waiting(asyncio.shield(in_flight.done))
    finally:
        slot.end_call()
        del results.waiting[run]
        run.waits_for.remove(in_flight.run)
    await slot.acquire()


def _would_wait_for_itself(run: Run, awaited_run: Run, waiting: dict[Run, Run]) -> bool:
    """Return whether the other run waits, directly or not, for a call of this run or of a run above it."""
    visited_runs, pending = set[Run](), [awaited_run]
    while pending:
        each = pending.pop()
        if run is each or run.is_below(each):
            return True
        visited_runs.add(each)
        pending += [
            target
            for waiter, target in waiting.items()
            if target not in visited_runs and (waiter is each or waiter.is_below(each))
        ]
    return False
