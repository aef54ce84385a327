"""What a spawn returns: the way to one run for whoever started it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from ramet.core.events import Event
from ramet.core.ids import Path, RunId
from ramet.core.outcome import Result
from ramet.spawn.lifecycle.mail import MailRouter
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.run import Run
from ramet.tools.context import RunView, StopReceipt, current_call
from ramet.wire.values.values import Encoded, encode_result


class Handle:
    """One run: wait for it, write to it, stop it. Letting a handle go does nothing to the run."""

    __slots__ = ("_post", "_run", "_supervisor")

    def __init__(self, run: Run, supervisor: Supervisor, post: MailRouter) -> None:
        self._run, self._supervisor, self._post = run, supervisor, post

    @property
    def run(self) -> Run:
        """What its tree knows of it; to look at."""
        return self._run

    @property
    def id(self) -> RunId:
        """The run's id: unguessable, never used again."""
        return self._run.info.id

    @property
    def name(self) -> str:
        """The name it can be addressed by inside its tree."""
        return self._run.name

    @property
    def path(self) -> Path:
        """Names from the root down."""
        return self._run.info.path

    @property
    def background(self) -> bool:
        """Whether its end is told by a notice instead of being waited for."""
        return self._run.background

    def view(self) -> RunView:
        """Where it stands now."""
        return self._run.view()

    async def result(self) -> Result:
        """Wait for its end, however long that takes, and return its result; never raises for what the run did."""
        return await self._wait(self._run.ended())

    async def end(self) -> Result:
        """The same, before that survives a kill: for who does nothing but put it on record, which is behind it there.

        Whatever is done outside because of it waits for the record anyway.
        """
        return await self._wait(self._run.over())

    async def _wait(self, ends: asyncio.Future[Result]) -> Result:
        end = asyncio.shield(ends)
        call = current_call.get(None)
        caller = self._supervisor.run_of(call.context) if call is not None else None
        if call is None or caller is None:
            return await end
        caller.waits_for.append(self._run)
        self._supervisor.begins_to_wait()
        try:
            return await call.context.slot.while_waiting(end, key=call.step_id)
        finally:
            caller.waits_for.remove(self._run)

    async def events(self) -> AsyncGenerator[Event]:
        """Follow it: what was kept of it from its birth, then live, until its end. Children have their own."""
        async for event in self._supervisor.follow(self._run):
            yield event

    def take_value(self, result: Result) -> Encoded:
        """The value for another sandbox: as it came from its own, once; else as data."""
        left = self._run.left
        if left.value is None or result.value is None:
            return encode_result(result.value)
        self._run.left = left._replace(value=None)
        return left.value

    def send(self, text: str, *, dedupe_s: float | None = None) -> str:
        """Put a user's word into its mailbox, waking or resuming it, and say what becomes of it.

        With `dedupe_s`, a word that equals one of the last so many seconds is not delivered again. Raises MailRefused.
        """
        return self._post.deliver(self._run, text, sender="user", kind="user", dedupe_s=dedupe_s)

    async def cancel(self, reason: str = "cancelled by its owner") -> StopReceipt:
        """End it and all below it; when this returns they are gone. What could not be ended is in `left`."""
        return await self._supervisor.stop(self._run, reason)
