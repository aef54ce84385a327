"""The dispatch of a claimed tick: its run is noted before the spawn, spawned like other runs, and noted at its end.

A tick of a scheduler that has died is taken over: its run is continued here, or its result is noted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec.structs import replace

from ramet.agent.definition import Agent, as_agent
from ramet.agent.tool_entry import parse_entry
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import BusyError, DefinitionMissing, Expired, StoreFailed, Unknown
from ramet.core.limits import NO_LIMITS
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.core.policy.capabilities import is_code
from ramet.core.policy.policy import Policy, secrets_of, variables_of
from ramet.core.schedules import ticks
from ramet.core.schedules.schedule import NamedTarget, Schedule
from ramet.core.schedules.ticks import Claim, TickResult, TickStatus
from ramet.host.control.schedules import ScheduleTable
from ramet.host.retention.results import recorded_result
from ramet.host.runtime import AgentRuntime, running_runtimes
from ramet.host.schedules.target import LoadedTarget, load
from ramet.host.schedules.view import shorten, shorten_error
from ramet.spawn.handle import Handle
from ramet.tools.agents.task_result import CLARIFY, FAIL, SUCCESS
from ramet.tools.workspace import workspace_tools

_log = logging.getLogger("ramet.scheduler")


class TickDispatcher:
    """A dispatcher that runs ticks in one runtime, for one scheduler, and takes over ticks of dead schedulers."""

    def __init__(
        self, runtime: AgentRuntime, table: ScheduleTable, definitions: Callable[[], Mapping[str, Agent]]
    ) -> None:
        self._runtime, self._table, self._definitions = runtime, table, definitions
        self._handles_by_task: dict[asyncio.Task[None], Handle] = {}
        self._is_leaving = False  #: other schedulers continue the runs that can be continued

    async def fire(self, schedule: Schedule, claim: Claim) -> None:
        """Run a claimed tick to its end and note that; if the wait is cancelled, end the run first.

        A problem with the tick becomes its result. Raises StoreFailed.
        """
        try:
            loaded = load(schedule.target, self._definitions)
        except Exception as problem:  # loading runs the user's own code
            await self._note_failure(schedule, claim, problem)
            return
        started_claim = replace(claim, run=self._runtime.mint())
        try:
            if (
                await self._table.change(schedule.id, lambda record: ticks.update_claim(record, claim, started_claim))
                is None
            ):
                return  # The schedule was cancelled, or a scheduler that considered this one dead took the claim over.
        except asyncio.CancelledError:
            await run_shielded(self._release_claim(schedule, claim))
            raise
        await self._spawn_run(schedule, started_claim, loaded)

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
            await self._follow(schedule, own_claim, continuation)
        elif isinstance(continuation, Result):
            await self._record_result(schedule, own_claim, continuation)
        else:
            await self._spawn_run(schedule, own_claim, continuation)
        return True

    async def _spawn_run(self, schedule: Schedule, claim: Claim, loaded: LoadedTarget) -> None:
        """Spawn the run that a claim names, and follow it to its end, like `fire`. Raises StoreFailed."""
        try:
            handle = await self._spawn(schedule, claim, loaded)
        except asyncio.CancelledError:  # A spawn does not wait after it has begun: nothing was spawned.
            await run_shielded(self._release_claim(schedule, claim))
            raise
        except StoreFailed:
            raise
        except Exception as problem:
            if self._runtime not in running_runtimes():
                await self._release_claim(schedule, claim)
            else:
                await self._note_failure(schedule, claim, problem)
            return
        await self._follow(schedule, claim, handle)

    async def _spawn(self, schedule: Schedule, claim: Claim, loaded: LoadedTarget) -> Handle:
        folder = self._runtime.working_dir
        return await self._runtime.spawn(
            loaded.agent,
            schedule.prompt,
            args=schedule.args,
            kwargs=schedule.kwargs,
            tools=workspace_tools() if isinstance(loaded.agent, Agent) and loaded.agent.tools else (),
            agents=loaded.definitions,
            cwd=folder if folder is not None and folder.is_dir() else None,
            limits=schedule.limits if schedule.limits != NO_LIMITS else None,
            policy=_policy_of(schedule, as_agent(loaded.agent)),
            run=claim.run or "",
            repeatable=schedule.repeatable,
        )

    async def _follow(self, schedule: Schedule, claim: Claim, handle: Handle) -> None:
        """Wait for the end of a tick's run, and note it; if the wait is cancelled, end the run first."""
        task = asyncio.current_task()
        assert task is not None, "called in a task"
        self._handles_by_task[task] = handle
        try:
            if self._is_leaving and _is_resumable(handle):
                return
            result = await handle.result()
        except asyncio.CancelledError:
            if not (self._is_leaving and (schedule.repeatable or _is_resumable(handle))):
                await run_shielded(self._cut_off(schedule, claim, handle))
            raise
        finally:
            del self._handles_by_task[task]
        reported = result if result.status is Status.COMPLETED else await self._recorded_result(claim, result)
        if reported is not None:
            await self._record_result(schedule, claim, reported)

    def drain(self) -> None:
        """Leave the runs that can continue in their middle to other schedulers; a later cancellation ends the rest."""
        self._is_leaving = True
        for task, handle in self._handles_by_task.items():
            if _is_resumable(handle):
                task.cancel()

    async def _cut_off(self, schedule: Schedule, claim: Claim, handle: Handle) -> None:
        await handle.cancel("its scheduler was closed")
        await self._record_result(schedule, claim, await handle.result())

    async def _record_result(self, schedule: Schedule, claim: Claim, result: Result) -> None:
        """Note the result of a claim's run. Raises StoreFailed."""
        await self._note(schedule, claim, result.status, run=claim.run, text=result.text, error=result.error)

    async def _recorded_result(self, claim: Claim, result: Result) -> Result | None:
        """Return the result of a run that another kernel may have continued; None if another kernel still runs it."""
        journal, run = self._runtime.journal, claim.run or ""
        if journal is None or not journal.is_open:
            return result
        if (owner := await journal.store.owner_of(run)) is not None:
            return result if owner.name == journal.store.kernel else None
        with suppress(Unknown, Expired, BusyError):
            return await recorded_result(journal, run, self._runtime.clock.now())
        return result

    async def _note_failure(self, schedule: Schedule, claim: Claim, problem: Exception) -> None:
        message = _message_of(problem)
        _log.warning("a tick of schedule %s was not run: %s: %s", schedule.id, type(problem).__name__, message[:500])
        error = ErrorInfo(type=type(problem).__name__, message=message)
        await self._note(schedule, claim, Status.FAILED, error=error)

    async def _release_claim(self, schedule: Schedule, claim: Claim) -> None:
        await self._table.change(schedule.id, lambda record: ticks.release(record, claim))

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
            text=shorten(text),
            error=shorten_error(error),
        )
        await self._table.change(schedule.id, lambda record: ticks.complete_claim(record, result, claim.owner))

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
            if journal is None or self._table.store is not journal.store:
                raise  # It may have been spawned elsewhere.
            return load(schedule.target, self._definitions)

    def _policy(self, schedule: Schedule) -> Policy | None:
        """Return the policy of the schedule's definition, with its values: schedules and journals store none."""
        definition = self._definitions().get(schedule.target.name) if isinstance(schedule.target, NamedTarget) else None
        return definition.policy if definition is not None else None

    async def _mark_lost(self, schedule: Schedule, claim: Claim, problem: Exception) -> None:
        message = _message_of(problem)
        _log.warning("run %s of schedule %s cannot be resumed: %s", claim.run, schedule.id, message[:500])
        now, message = self._runtime.clock.now(), f"its process ended, and no process can resume it: {message}"
        await self._table.change(schedule.id, lambda record: ticks.mark_lost(record, claim, now, message))


def _policy_of(schedule: Schedule, agent: Agent) -> Policy | None:
    """Return the policy of a run: the default of `run_agent` if none was given and the run needs a sandbox."""
    if schedule.policy is not None or agent.policy is not None or schedule.in_process or not _needs_sandbox(agent):
        return schedule.policy
    return Policy()


def _needs_sandbox(agent: Agent) -> bool:
    """Return whether an agent of this definition uses files, processes, the network or foreign code.

    An agent that leads others counts too (`tools=None` is every tool of its root), because they may use these.
    """
    if agent.function is not None or agent.memory is not None or agent.isolation is not None or agent.setup:
        return True
    if agent.tools is None or any(map(is_code, agent.capabilities)):
        return True
    # Every tool counts as using the machine, except those that only end a task.
    harmless_tools = (SUCCESS, FAIL, CLARIFY)
    return any(not isinstance(each, str) or parse_entry(each).name not in harmless_tools for each in agent.tools)


def _is_resumable(handle: Handle) -> bool:
    """Return whether another kernel can continue a run in its middle.

    A function can be continued only in a sandbox that outlives this kernel.
    """
    return not handle.run.restarts_from_scratch or handle.run.sandbox.can_outlive_kernel


def _message_of(problem: Exception) -> str:
    return f"{problem} ({problem.__cause__})" if isinstance(problem, DefinitionMissing) else str(problem)
