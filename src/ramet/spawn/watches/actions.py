"""The actions of a watch, besides the event: a notice to the run above, a pause, or the end of the run."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import assert_never, cast

from ramet.core.events import RunLooping, RunSilent
from ramet.core.liveness.findings import describe_finding
from ramet.core.liveness.watch_settings import WatchAction
from ramet.spawn.lifecycle.mail import MailRouter
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.run import Run

_log = logging.getLogger("ramet.watches")


class WatchActions:
    """The actions of the watches of one tree."""

    def __init__(self, supervisor: Supervisor, mail: MailRouter) -> None:
        self._supervisor, self._mail = supervisor, mail
        self._ends = set[asyncio.Task[None]]()

    def __call__(self, run: Run, event: RunSilent | RunLooping) -> None:
        """Do what the watch on a run says, after `event` was recorded."""
        reason = describe_finding(event)
        _log.warning("%s (%s): %s", run.path, run.info.id, reason)
        action = cast("WatchAction", event.action)
        match action:
            case "report":
                pass
            case "notify_parent":
                # The same after a restart, so that the notice comes once.
                self._mail.report_watch(run, f"watch:{run.info.id}:{event.call_id or event.seq}", reason)
            case "pause":
                # What a silent run does may never end: it is cut.
                self._supervisor.pauses.pause(run, reason, now=isinstance(event, RunSilent))
            case "end":
                self._end(run, reason, type(event).__name__)
            case _:
                assert_never(action)

    def _end(self, run: Run, reason: str, error_type: str) -> None:
        """End a run; of the root of a session, its turn. The run must not wait for itself, so a task does it."""

        async def end() -> None:
            if run.persistent:
                await self._supervisor.interrupt(run, reason, error_type=error_type)
            else:
                await self._supervisor.stop(run, reason, error_type=error_type)

        task = asyncio.create_task(end(), name=f"{run.path}: watch", context=contextvars.Context())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
