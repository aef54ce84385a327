"""A claimed tick becomes a run: noted before it is born, born where all runs are, noted when it has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ramet.agent.definition import Agent
from ramet.concurrency.deadline import to_its_end
from ramet.core import ticks
from ramet.core.budget import NO_LIMITS
from ramet.core.errors import DefinitionMissing, StoreFailed
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.core.schedule import Schedule
from ramet.core.ticks import Claim, TickResult, TickStatus
from ramet.host.runtime import AgentRuntime, living
from ramet.host.scheduler.outcome import kept, kept_error
from ramet.host.schedules.books import Books
from ramet.host.schedules.target import load
from ramet.spawn.handle import Handle

if TYPE_CHECKING:
    from ramet.host.schedules.target import Loaded

_log = logging.getLogger("ramet.scheduler")


class Firing:
    """Runs ticks in one runtime, for one scheduler."""

    def __init__(self, runtime: AgentRuntime, books: Books, definitions: Callable[[], Mapping[str, Agent]]) -> None:
        self._runtime, self._books, self._definitions = runtime, books, definitions

    async def fire(self, schedule: Schedule, claim: Claim) -> None:
        """Run a claimed tick to its end and note that; whoever gives up waiting ends the run first.

        Whatever is wrong with the tick is its result. Raises StoreFailed.
        """
        try:
            loaded = load(schedule.target, self._definitions)
        except Exception as problem:  # loading runs the user's own code
            await self._failed(schedule, claim, problem)
            return
        try:
            if await self._books.change(schedule.id, lambda book: ticks.start(book, claim)) is None:
                return  # The schedule was cancelled, or somebody who believed us to be dead took the claim over.
            handle = await self._spawn(schedule, loaded)
        except asyncio.CancelledError:  # A birth does not wait once it has begun: none happened.
            await to_its_end(self._give_back(schedule, claim))
            raise
        except StoreFailed:
            raise
        except Exception as problem:
            if self._runtime not in living():
                await self._give_back(schedule, claim)
            else:
                await self._failed(schedule, claim, problem)
            return
        await self._follow(schedule, claim, handle)

    async def _spawn(self, schedule: Schedule, loaded: Loaded) -> Handle:
        folder = self._runtime.working_dir
        return await self._runtime.spawn(
            loaded.agent,
            schedule.prompt,
            args=schedule.args,
            kwargs=schedule.kwargs,
            agents=loaded.definitions,
            cwd=folder if folder is not None and folder.is_dir() else None,
            limits=schedule.limits if schedule.limits != NO_LIMITS else None,
            policy=schedule.policy,
        )

    async def _follow(self, schedule: Schedule, claim: Claim, handle: Handle) -> None:
        try:
            await self._books.change(schedule.id, lambda book: ticks.name_run(book, claim, handle.id))
            result = await handle.result()
        except asyncio.CancelledError:
            await to_its_end(self._cut_off(schedule, claim, handle))
            raise
        await self._ended(schedule, claim, handle, result)

    async def _cut_off(self, schedule: Schedule, claim: Claim, handle: Handle) -> None:
        await handle.cancel("its scheduler was closed")
        await self._ended(schedule, claim, handle, await handle.result())

    async def _ended(self, schedule: Schedule, claim: Claim, handle: Handle, result: Result) -> None:
        await self._note(schedule, claim, result.status, run=handle.id, text=result.text, error=result.error)

    async def _failed(self, schedule: Schedule, claim: Claim, problem: Exception) -> None:
        why = f"{problem} ({problem.__cause__})" if isinstance(problem, DefinitionMissing) else str(problem)
        _log.warning("a tick of schedule %s was not run: %s: %s", schedule.id, type(problem).__name__, why[:500])
        error = ErrorInfo(type=type(problem).__name__, message=why)
        await self._note(schedule, claim, Status.FAILED, error=error)

    async def _give_back(self, schedule: Schedule, claim: Claim) -> None:
        await self._books.change(schedule.id, lambda book: ticks.release(book, claim))

    async def _note(
        self,
        schedule: Schedule,
        claim: Claim,
        status: Status,
        *,
        run: str | None = None,
        text: str = "",
        error: ErrorInfo | None = None,
    ) -> None:
        result = TickResult(
            id=claim.id,
            tick=claim.due.tick,
            status=TickStatus(status.value),
            manual=claim.due.manual,
            run=run,
            began=claim.at,
            ended=self._runtime.clock.now(),
            text=kept(text),
            error=kept_error(error),
        )
        await self._books.change(schedule.id, lambda book: ticks.end(book, result))
