"""Run steps in parallel: results are in the order of the steps, whichever ends first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from ramet.agent.composition.chain import Step
from ramet.agent.composition.steps import (
    NO_INPUT,
    Composition,
    StepContext,
    composition_input,
    step_context,
    step_output,
)
from ramet.agent.definition import Agent, as_agent
from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, RametError, StepFailed
from ramet.core.outcome import Status, StepFailure
from ramet.tools.spawn_request import SpawnHandle

OnFailure = Literal["keep", "stop"]


@dataclass(frozen=True)
class Parallel(Composition):
    """Steps that receive the same value, or one step that receives each item of a list."""

    branches: tuple[Agent, ...]
    for_each: bool = False
    max_parallel: int = 8
    on_failure: OnFailure = "keep"

    async def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run every branch; return the result of each, or its StepFailure, in order."""
        composition, value = step_context(), composition_input(args, kwargs)
        jobs = self._jobs(value)
        semaphore = asyncio.Semaphore(self.max_parallel)
        tasks = [
            asyncio.create_task(self._branch(composition, semaphore, number, *job)) for number, job in enumerate(jobs)
        ]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for each in tasks:
                each.cancel()
            await run_shielded(asyncio.gather(*tasks, return_exceptions=True))
            raise
        results = [each.result() for each in tasks]
        if results and all(isinstance(each, StepFailure) for each in results):
            first = results[0]
            reason = f"and so did every other of {len(results)}: {first.message}" if len(results) > 1 else first.message
            raise StepFailed(first.step, status=first.status, path=first.path, reason=reason)
        return results

    def _jobs(self, value: Any) -> list[tuple[Agent, Any]]:
        if not self.for_each:
            return [(branch, value) for branch in self.branches]
        if not isinstance(value, list | tuple):
            raise InvalidValue("input", None if value is NO_INPUT else value, "a list: each item is a step's input")
        return [(self.branches[0], item) for item in value]

    async def _branch(
        self, composition: StepContext, semaphore: asyncio.Semaphore, number: int, step: Agent, value: Any
    ) -> Any:
        async with semaphore:
            handle = None
            try:
                handle = await composition.start_step(step, value, key=f"{number}:")
                return step_output(step, handle, await handle.result())
            except RametError as failure:
                if self.on_failure == "stop":
                    raise
                return _step_failure(step, handle, failure)
            except asyncio.CancelledError:
                if handle is not None and not composition.context.abort.aborted:
                    await run_shielded(handle.cancel(f"another step of {composition.context.run.path} failed"))
                raise

    def parts(self) -> tuple[Agent, ...]:
        return self.branches


def parallel(
    *branches: Step,
    for_each: bool = False,
    max_parallel: int = 8,
    on_failure: OnFailure = "keep",
    name: str = "parallel",
    description: str = "",
) -> Agent:
    """Return an agent that runs its branches in parallel, at most `max_parallel` at once; its result is a list.

    Each receives the same input. With `for_each` there is one branch, which receives each item of a list. A failed
    branch gives a `StepFailure` and does not affect the others; the agent fails only if all fail. `on_failure="stop"`
    ends the others with the first failure. Raises InvalidValue for an invalid argument.
    """
    if not branches:
        raise InvalidValue("branches", branches, "one branch or more")
    if for_each and len(branches) != 1:
        raise InvalidValue("for_each", for_each, f"one branch, which receives each item; got {len(branches)}")
    if isinstance(max_parallel, bool) or not isinstance(max_parallel, int) or max_parallel < 1:
        raise InvalidValue("max_parallel", max_parallel, "a whole number from 1")
    if on_failure not in ("keep", "stop"):
        raise InvalidValue("on_failure", on_failure, "'keep' or 'stop'")
    function = Parallel(tuple(map(as_agent, branches)), bool(for_each), max_parallel, on_failure)
    return Agent(name=name, description=description, function=function)


def _step_failure(step: Agent, handle: SpawnHandle | None, failure: RametError) -> StepFailure:
    if isinstance(failure, StepFailed):
        status, message = Status(failure.status), failure.reason
    else:
        status, message = Status.FAILED, f"{type(failure).__name__}: {failure}"
    return StepFailure(step=step.name, status=status, message=message, path=handle.path if handle is not None else "")
