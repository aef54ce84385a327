"""Tasks called in the host: as a child of the calling run, else as a tree of the runtime of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ramet.agent.capabilities.task import Task
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import Event
from ramet.core.ids import RunId
from ramet.host.runtime import AgentRuntime, reachable
from ramet.host.tasks.tasks import HostTaskFuture, Outcome, answer, begin
from ramet.tools.context import ToolUseContext, current_call

T = TypeVar("T")
#: The folder of the runs of a program that opened no runtime of its own.
DEFAULT_DIR = "."


class LazyTask:
    """A task that begins when it is first iterated or its value is requested."""

    def __init__(self, task: Task, arguments: Mapping[str, Any]) -> None:
        self._task, self._arguments = task, arguments
        self._submission: asyncio.Task[HostTaskFuture] | None = None

    def _start(self) -> asyncio.Task[HostTaskFuture]:
        if self._submission is None:
            self._submission = asyncio.ensure_future(_submit(self._task, self._arguments))
        return self._submission

    async def __aiter__(self) -> AsyncGenerator[Event]:
        async for event in (await self._start()).events():
            yield event

    async def result(self) -> Any:
        """Wait for the value. Raises TaskFailed, NeedsInput."""
        return await (await self._start()).result()

    async def exception(self) -> RametError | None:
        """Wait for the end; return the reason for a missing value, or None if there is a value."""
        return await (await self._start()).exception()


class HostTaskRunner:
    """The task runner that `ramet.agent.capabilities.task_runner` returns outside of an agent's own code."""

    def create(self, agent: Any) -> AgentRef | None:
        """Return None: an agent of host code is not stored, since its code is found again."""
        return None

    def call(self, task: Task, arguments: Mapping[str, Any]) -> Any:
        """Return the task's value; in an event loop an awaitable of it."""
        return _either(_call(task, arguments))

    def submit(self, task: Task, arguments: Mapping[str, Any]) -> Any:
        """Return an awaitable of the started task."""
        _needs_loop("submit")
        return _submit(task, arguments)

    def stream(self, task: Task, arguments: Mapping[str, Any]) -> LazyTask:
        """Return a lazy task with the events of the work, and the value."""
        return LazyTask(task, arguments)

    def map(self, task: Task, rows: list[Mapping[str, Any]], *, max_parallel: int) -> Any:
        """Return the outcomes in order; in an event loop an awaitable of them."""
        return _either(_map(task, rows, max_parallel))

    def answer(self, task: Task, token: str, text: str) -> Any:
        """Return the value of the continued run; in an event loop an awaitable of it."""
        return _either(_answer(task, token, text))


HOST = HostTaskRunner()


async def _call(task: Task, arguments: Mapping[str, Any]) -> Any:
    async with _runtime() as (runtime, context):
        return await HostTaskFuture(runtime, task, await begin(runtime, task, arguments, context)).result()


async def _submit(task: Task, arguments: Mapping[str, Any]) -> HostTaskFuture:
    runtime, context = _living()
    if runtime is None:
        raise RametError(
            f"{task.name}.submit() needs a runtime that stays open: `async with AgentRuntime(…):` around it"
        )
    return HostTaskFuture(runtime, task, await begin(runtime, task, arguments, context))


async def _map(task: Task, argument_sets: list[Mapping[str, Any]], max_parallel: int) -> list[Outcome]:
    async with _runtime() as (runtime, context):
        slots = asyncio.Semaphore(max_parallel)

        async def one(arguments: Mapping[str, Any]) -> Outcome:
            async with slots:
                try:
                    future = await begin(runtime, task, arguments, context)
                    return Outcome(await HostTaskFuture(runtime, task, future).result(), None)
                except RametError as error:
                    return Outcome(None, error)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(each)) for each in argument_sets]
        return [each.result() for each in tasks]


async def _answer(task: Task, token: str, text: str) -> Any:
    async with _runtime() as (runtime, _):
        return await answer(runtime, task, token, text)


@asynccontextmanager
async def _runtime() -> AsyncGenerator[tuple[AgentRuntime, ToolUseContext | None]]:
    """Yield the runtime of the calling run, the one of this process, or one for this call alone."""
    runtime, context = _living()
    if runtime is not None:
        yield runtime, context
        return
    async with AgentRuntime(DEFAULT_DIR) as own_runtime:
        yield own_runtime, None


def _living() -> tuple[AgentRuntime | None, ToolUseContext | None]:
    running, call = reachable(), current_call.get(None)
    if call is not None:
        for each in running:
            if RunId(call.context.run.root) in each.trees:
                return each, call.context
    if len(running) > 1:
        raise InvalidValue(
            "runtime", f"{len(running)} running runtimes", "one in this process, or a call from inside a run"
        )
    return (running[0] if running else None), None


def _either(work: Coroutine[Any, Any, T]) -> Any:
    """Return the coroutine in an event loop; elsewhere run it and return its result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return work
    try:
        runtime, _ = _living()
        if runtime is None:
            return asyncio.run(work)
        return runtime.call_in_loop(work)
    except BaseException:
        work.close()
        raise


def _needs_loop(operation: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RametError(f"{operation}() continues while the program does other work: it needs an event loop") from None
