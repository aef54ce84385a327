"""The handle that a spawn returns: gives its owner access to one run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ramet.core.events import Event, RunEnded
from ramet.core.ids import Path, RunId
from ramet.core.limits import Limits
from ramet.core.outcome import Result
from ramet.spawn.lifecycle.mail import MailRouter
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.limits.raises import raise_limits
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.spawn.watches.run_waits import view_of
from ramet.tools.context import current_call
from ramet.tools.run_info import PauseReceipt, RunView, StopReceipt
from ramet.wire.values.values import EncodedValue, encode_result


class Handle:
    """A handle of one run: wait for it, send to it, stop it.

    Dropping a handle does not affect the run.
    """

    __slots__ = ("_mail_router", "_register", "_run", "_supervisor")

    def __init__(self, run: Run, register: RunRegistry, supervisor: Supervisor, mail_router: MailRouter) -> None:
        self._run, self._register, self._supervisor, self._mail_router = run, register, supervisor, mail_router

    @property
    def run(self) -> Run:
        """The run object in its tree; read only."""
        return self._run

    @property
    def id(self) -> RunId:
        """The run's id: unguessable, never reused."""
        return self._run.info.id

    @property
    def name(self) -> str:
        """The name that addresses the run inside its tree."""
        return self._run.name

    @property
    def path(self) -> Path:
        """The names from the root down to the run."""
        return self._run.info.path

    @property
    def background(self) -> bool:
        """True if a notice reports the run's end and no caller waits for it."""
        return self._run.background

    def view(self) -> RunView:
        """Return the current state of the run."""
        return view_of(self._run)

    async def result(self) -> Result:
        """Wait without a time limit for the run's end, and return its result.

        Never raises for an error of the run.
        """
        return await self._wait(self._run.recorded_end())

    async def end(self) -> Result:
        """Wait for the run's end and return its result, before the end is durable.

        Only for callers whose single action is to record the result after the end. Effects outside wait for that record
        anyway.
        """
        return await self._wait(self._run.conclusion())

    async def _wait(self, result_future: asyncio.Future[Result]) -> Result:
        end = asyncio.shield(result_future)
        call = current_call.get(None)
        caller = self._register.runs.get(call.context.run.id) if call is not None else None
        if call is None or caller is None:
            return await end
        caller.waits_for.append(self._run)
        self._register.admission.recheck_queue()  # This wait may be why one can never be admitted.
        try:
            return await call.context.slot.while_waiting(end, key=call.step_id)
        finally:
            caller.waits_for.remove(self._run)

    async def events(self) -> AsyncGenerator[Event]:
        """Iterate over the run's events: recorded ones since its spawn, then live ones, until its end.

        Events of children are not included.
        """
        run = self._run
        had_ended = run.result is not None
        async with aclosing(self._register.services.follow(run.info)) as events:
            async for event in events:
                yield event
                if isinstance(event, RunEnded) and (had_ended or not run.is_living):
                    return

    def take_value(self, result: Result) -> EncodedValue:
        """Return the value for another sandbox.

        The first call returns the value as encoded by the run's own sandbox; later calls encode it as data.
        """
        output = self._run.sandbox.output
        if output.value is None or result.value is None:
            return encode_result(result.value)
        self._run.sandbox.output = output._replace(value=None)
        return output.value

    def send(self, text: str, *, dedupe_s: float | None = None) -> str:
        """Put a user's message into the run's mailbox, waking or resuming the run, and return what happens with it.

        With `dedupe_s`, a message that equals one of the last `dedupe_s` seconds is not delivered again. Raises
        MailRefused if the run cannot accept mail.
        """
        return self._mail_router.deliver(self._run, text, sender="user", kind="user", dedupe_s=dedupe_s)

    async def raise_limits(self, add: Limits, *, key: str = "") -> Limits:
        """Add to the run's limits, and return the new ones once that is recorded; requests that wait there go on.

        A repeated call with the same `key` adds nothing. Raises InvalidValue for what is not limited here and for a run
        without limits of its own, BudgetExceeded if the run above has not that much free, StoreFailed.
        """
        limits = raise_limits(self._supervisor, self._run, add, key)
        await self._run.context.wait_persisted()
        return limits

    async def pause(self, reason: str = "", *, now: bool = False) -> PauseReceipt:
        """Pause the run and all runs below it, and return once that is recorded.

        What is under way ends and is recorded; nothing new begins before `resume`. With `now`, work under way is cut.
        `working` of the receipt names the runs that still have some. Raises InvalidValue for a run that has ended,
        StoreFailed.
        """
        receipt = self._supervisor.pauses.pause(self._run, reason, now=now)
        await self._run.context.wait_persisted()
        return receipt

    async def resume(self) -> None:
        """End the pause of the run: it goes on, and all runs below it that are not paused themselves.

        Nothing happens if it is not paused. Raises InvalidValue for a run that has ended, or that is paused with a run
        above it, StoreFailed.
        """
        self._supervisor.pauses.end(self._run)
        await self._run.context.wait_persisted()

    async def cancel(self, reason: str = "cancelled by its owner") -> StopReceipt:
        """Stop the run and all runs below it, and wait until they have ended.

        `left` of the receipt names work that could not be ended.
        """
        return await self._supervisor.stop(self._run, reason)
