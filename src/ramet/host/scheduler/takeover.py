"""The takeover of ticks from a dead scheduler: the run of a tick is continued here, or its result is noted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ramet.agent.definition import Agent
from ramet.core.errors import BusyError, DefinitionMissing, StoreFailed, Unknown
from ramet.core.outcome import Result
from ramet.core.policy.policy import Policy, secrets_of, variables_of
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import NamedTarget, Schedule
from ramet.core.schedules.ticks import Claim
from ramet.host.runtime import AgentRuntime, running_runtimes
from ramet.host.scheduler.dispatch import TickDispatcher
from ramet.host.schedules.table import ScheduleTable
from ramet.host.schedules.target import load
from ramet.spawn.handle import Handle

if TYPE_CHECKING:
    from ramet.host.schedules.target import LoadedTarget

_log = logging.getLogger("ramet.scheduler")


class TickTakeover:
    """The continuation, in one runtime, of ticks whose schedulers have died."""

    def __init__(
        self,
        runtime: AgentRuntime,
        table: ScheduleTable,
        dispatcher: TickDispatcher,
        definitions: Callable[[], Mapping[str, Agent]],
    ) -> None:
        self._runtime, self._table, self._dispatcher, self._definitions = runtime, table, dispatcher, definitions

    async def take_over(self, schedule: Schedule, claim: Claim, owner: str) -> bool:
        """Continue the run of a claim to its end, and note that; return False if a living kernel has the run.

        A run that was not spawned yet is spawned, under the noted id. A function is called again only if its schedule
        allows that. Raises StoreFailed; any other error that prevents the run is the tick's result.
        """
        try:
            continuation = await self._find(schedule, claim)
        except BusyError:
            return False
        except StoreFailed:
            raise
        except Exception as problem:  # Any error, including errors of the user's own code at loading.
            if self._runtime in running_runtimes():  # Otherwise the runtime is the problem, and not the run.
                await self._mark_lost(schedule, claim, problem)
            return True
        own_claim = replace(claim, owner=owner)
        if await self._table.change(schedule.id, lambda record: ticks.update_claim(record, claim, own_claim)) is None:
            return True  # The schedule was cancelled, or another living scheduler has the claim.
        if isinstance(continuation, Handle):
            await self._dispatcher.follow(schedule, own_claim, continuation)
        elif isinstance(continuation, Result):
            await self._dispatcher.record_result(schedule, own_claim, continuation)
        else:
            await self._dispatcher.spawn_run(schedule, own_claim, continuation)
        return True

    async def _find(self, schedule: Schedule, claim: Claim) -> Handle | Result | LoadedTarget:
        """Return the run, active here; or its result; or, if it was not spawned, its loaded target.

        Raises BusyError if another kernel has the run, DefinitionMissing, and any error that prevents the run from
        continuing here.
        """
        assert claim.run is not None, "it was started"
        policy = self._policy(schedule)
        for handle in await self._runtime.resume(
            only=claim.run, secrets=secrets_of(policy), env_vars=variables_of(policy)
        ):
            return handle
        with suppress(Unknown):
            return self._runtime.get(claim.run)  # A component that adopts trees was faster.
        try:
            return await self._runtime.result(claim.run)
        except Unknown:
            journal = self._runtime.journal
            if journal is None or not self._table.is_in(journal.store):
                raise  # It may have been spawned elsewhere.
            return load(schedule.target, self._definitions)

    def _policy(self, schedule: Schedule) -> Policy | None:
        """Return the policy of the schedule's definition, with its values: schedules and journals store none."""
        definition = self._definitions().get(schedule.target.name) if isinstance(schedule.target, NamedTarget) else None
        return definition.policy if definition is not None else None

    async def _mark_lost(self, schedule: Schedule, claim: Claim, problem: Exception) -> None:
        message = f"{problem} ({problem.__cause__})" if isinstance(problem, DefinitionMissing) else str(problem)
        _log.warning("run %s of schedule %s cannot be resumed: %s", claim.run, schedule.id, message[:500])
        now, message = self._runtime.clock.now(), f"its process ended, and no process can resume it: {message}"
        await self._table.change(schedule.id, lambda record: ticks.mark_lost(record, claim, now, message))
