"""A result that stands for the next call with the same inputs: looked up before the work, kept after it.

The key is the version of the definition as it runs, with everything that it inherited, and the inputs. Equal calls of
one process are worked on once: the others wait, unless they would wait for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from ramet.agent.definition import Agent
from ramet.agent.result_codec import recorded, value_of
from ramet.agent.version import canonical, version_of
from ramet.core.errors import InvalidValue, NotShippable, RametError
from ramet.core.events import ResultReused
from ramet.core.outcome import Status
from ramet.core.policy.policy import to_public_dict
from ramet.spawn.run import Run, TurnResult


class CachedResult(NamedTuple):
    """A result as it is kept."""

    value: Any  #: as on the record
    run: str  #: that left it
    at: datetime


class Results(Protocol):
    """Where results are kept, and who works on which now. Neither method raises for what is wrong with an entry."""

    computing: dict[str, InFlight]
    waiting: dict[Run, Run]  #: who waits for whose result

    async def get(self, key: str, ttl_s: float) -> CachedResult | None:
        """A result that is not older than `ttl_s`, if there is one that can be read."""

    async def put(self, key: str, kept: CachedResult, ttl_s: float) -> None:
        """Keep a result."""


class InFlight(NamedTuple):
    """A call that is worked on."""

    run: Run
    over: asyncio.Future[None]


async def cached_or_run(
    run: Run,
    results: Results,
    recipe: Callable[[Agent], dict[str, Any]],
    work: Callable[[], Awaitable[TurnResult]],
    *,
    begins_to_wait: Callable[[], None],
    now: Callable[[], datetime],
) -> TurnResult:
    """The verdict on an equal call, or on this one once its work is done."""
    key, ttl_s = key_of(run, recipe), run.agent.cache_ttl_seconds
    if key is None or ttl_s is None:
        return await work()
    while (other := results.computing.get(key)) is not None:
        if _would_wait_for_itself(run, other.run, results.waiting):
            return await work()
        await _wait(run, other, results, begins_to_wait)
    mine = results.computing[key] = InFlight(run, asyncio.get_running_loop().create_future())
    try:
        kept = await results.get(key, ttl_s)
        if kept is not None:
            try:
                verdict = TurnResult(Status.COMPLETED, value_of(run.agent, kept.value))
            except RametError:  # It was written by another version of what it is made of.
                pass
            else:
                run.context.emit(ResultReused, made_by=kept.run, made_at=kept.at)
                return verdict
        verdict = await work()
        if verdict.status is Status.COMPLETED and not run.context.abort.aborted:
            await results.put(key, CachedResult(recorded(run.agent, verdict.value), run.info.id, now()), ttl_s)
        return verdict
    finally:
        del results.computing[key]
        mine.over.set_result(None)


def key_of(run: Run, recipe: Callable[[Agent], dict[str, Any]]) -> str | None:
    """What equal calls of one definition have in common; None for a call that is like no other.

    Such are the ones with a conversation behind them or before them, those with late arguments, and those whose inputs
    are no data.
    """
    agent, request, context = run.agent, run.request, run.context
    if run.persistent or run.resumes or run.turns > 1 or context.history or run.worktree is not None:
        return None
    if request.late_args is not None:  # Read when the function is called, which is later.
        return None
    policy = run.grant or run.bound
    tools = [[tool.name, tool.description] for tool in context.tools] if agent.function is None else []
    values = dict(policy.env_vars) if policy is not None else {}
    about = [
        recipe(agent if agent.function is None else agent.replace(max_turns=None)),
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


def _settings_of(model: Any) -> Any:
    """What a model object was made with, as far as it says."""
    if model is None or isinstance(model, str):
        return None
    try:
        return [type(model).__qualname__, dict(getattr(model, "_identifying_params", {}))]
    except Exception:  # a provider's own code
        return model  # No data: its calls are like no others.


async def _wait(run: Run, other: InFlight, results: Results, begins_to_wait: Callable[[], None]) -> None:
    """Wait until another call is over, holding no slot."""
    slot = run.context.slot
    run.waits_for.append(other.run)
    results.waiting[run] = other.run
    slot.begin_calls()
    try:
        begins_to_wait()
        await slot.while_waiting(asyncio.shield(other.over))
    finally:
        slot.end_call()
        del results.waiting[run]
        run.waits_for.remove(other.run)
    await slot.take()


def _would_wait_for_itself(run: Run, other: Run, waiting: dict[Run, Run]) -> bool:
    """Whether the other one waits, over however many, for what this run, or one above it, works on."""
    seen, pending = set[Run](), [other]
    while pending:
        each = pending.pop()
        if run is each or run.is_below(each):
            return True
        seen.add(each)
        pending += [
            target
            for waiter, target in waiting.items()
            if target not in seen and (waiter is each or waiter.is_below(each))
        ]
    return False
