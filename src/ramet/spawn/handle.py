"""What a spawn returns: the way to one run for whoever started it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from ramet.core.events import Event
from ramet.core.ids import Path, RunId
from ramet.core.outcome import Result
from ramet.spawn.post import Post
from ramet.spawn.run import Run
from ramet.spawn.supervisor import Supervisor
from ramet.tools.context import RunView, StopReceipt, current_call


class Handle:
    """One run: wait for it, write to it, stop it. Letting a handle go does nothing to the run."""

    __slots__ = ("_post", "_run", "_supervisor")

    def __init__(self, run: Run, supervisor: Supervisor, post: Post) -> None:
        self._run, self._supervisor, self._post = run, supervisor, post

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
        end = asyncio.shield(self._run.ended())
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

    def send(self, text: str) -> str:
        """Put a user's word into its mailbox, waking or resuming it. Raises MailRefused."""
        return self._post.deliver(self._run, text, sender="user", kind="user")

    async def cancel(self, reason: str = "cancelled by its owner") -> StopReceipt:
        """End it and all below it; when this returns they are gone. What could not be ended is in `left`."""
        return await self._supervisor.stop(self._run, reason)
