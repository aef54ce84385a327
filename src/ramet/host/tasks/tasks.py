"""Asking a task: one run of its agent, whose answer becomes a value of the task's type, or a typed failure."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any

import msgspec

from ramet.agent.capabilities.task import Task
from ramet.agent.definition import Agent
from ramet.agent.typed.values import decode_value
from ramet.core.errors import AgentNotResolved, BusyError, InvalidValue, NeedsInput, RametError, TaskFailed
from ramet.core.events import Event
from ramet.core.outcome import Result, Status
from ramet.host.dynamic.agents import ref_of
from ramet.host.dynamic.task_run import task_agent, task_request
from ramet.host.runtime import AgentRuntime
from ramet.spawn.handle import Handle
from ramet.tools.context import ToolUseContext
from ramet.tools.spawn_request import SpawnHandle

#: The kind of the documents with the answer to a run's question, and the run that continued with the answer.
ANSWERS = "answer"


class HostTaskFuture:
    """A started task: `await` it, or its `result()`, or inspect its `exception()`."""

    def __init__(self, runtime: AgentRuntime, task: Task, handle: SpawnHandle) -> None:
        self._runtime, self._task, self._handle = runtime, task, handle

    @property
    def id(self) -> str:
        """The run's id, by which `AgentRuntime.result` finds the result in any process."""
        return self._handle.id

    async def result(self) -> Any:
        """Wait for the value. Raises TaskFailed, NeedsInput."""
        return await value(self._runtime, self._task, await self._handle.result(), self._handle.id)

    async def exception(self) -> RametError | None:
        """Wait for the end; return the reason for a missing value, or None if there is a value."""
        try:
            await self.result()
        except RametError as error:
            return error
        return None

    async def events(self) -> AsyncGenerator[Event]:
        """Yield the events of the run, from its spawn to its end."""
        assert isinstance(self._handle, Handle), "a run of this process"
        async for event in self._handle.events():
            yield event

    async def cancel(self, reason: str = "cancelled by its owner") -> Any:
        """End the run and all below it, and wait until they have ended."""
        return await self._handle.cancel(reason)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()


class Outcome:
    """The outcome of one item of a `map`."""

    def __init__(self, worth: Any, error: RametError | None) -> None:
        self._value, self._error = worth, error

    def result(self) -> Any:
        """Return the value. Raises TaskFailed, NeedsInput, SpawnRefused as the reason for a missing value."""
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self) -> RametError | None:
        """Return the reason for a missing value; None if there is a value."""
        return self._error


async def begin(
    runtime: AgentRuntime, task: Task, arguments: Mapping[str, Any], context: ToolUseContext | None = None
) -> SpawnHandle:
    """Start the run: as a child of the run of `context`, else as a tree of its own."""
    request = task_request(task, arguments)
    request = dataclasses.replace(request, agent=await runtime.dynamic.refresh(request.agent))
    if context is not None and context.tree is not None:
        return await context.tree.spawn(context, request)
    if request.branch:
        raise InvalidValue("on_branch", task.name, "a call from inside a run, at whose state the branch begins")
    return await runtime.spawn(request.agent, request.prompt)


async def answer(runtime: AgentRuntime, task: Task, token: str, text: str) -> Any:
    """Continue a run that asked back, once. Raises InvalidValue if it did not ask, BusyError for a second answer."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidValue("answer", text, "text")
    asking_result = await runtime.result(token)
    if asking_result.status is not Status.NEEDS_INPUT:
        raise InvalidValue(
            "token", token, f"the token of a run that asked a question; that run is {asking_result.status}"
        )
    store = await runtime.open_store()
    previous = await store.get(ANSWERS, token)
    recorded = msgspec.json.decode(previous.data) if previous is not None else None
    if recorded is not None and recorded["text"] != text:
        raise BusyError(f"{token} was already answered with another text")
    if recorded is not None and recorded["run"]:
        return await value(runtime, task, await runtime.result(recorded["run"]), recorded["run"])
    document = await store.put(ANSWERS, token, _encode_answer(text, ""), expected=previous.version if previous else 0)
    handle = await runtime.fork(token, text, agents=(task_agent(task),))
    await store.put(ANSWERS, token, _encode_answer(text, handle.id), expected=document.version)
    return await value(runtime, task, await handle.result(), handle.id)


def _encode_answer(text: str, run: str) -> bytes:
    return msgspec.json.encode({"text": text, "run": run})


async def value(runtime: AgentRuntime, task: Task, result: Result, run: str) -> Any:
    """Return the value of a run's result for the caller of the task. Raises TaskFailed, NeedsInput."""
    if result.status is Status.NEEDS_INPUT:
        raise NeedsInput(result.error.message if result.error is not None else "?", token=run)
    if result.status is not Status.COMPLETED:
        reason = result.error.message if result.error is not None else str(result.status)
        raise TaskFailed(reason, task=f"{task.agent.name}.{task.name}", status=str(result.status), run=run)
    if task.definition.returns is None:
        return None
    if task.returns_task:
        return await _task(runtime, task, result.value, run)
    if task.output is None:
        return result.value
    try:
        return decode_value(task.returns, result.value, task.name) if _is_data(result.value) else result.value
    except InvalidValue as problem:
        raise TaskFailed(str(problem), task=f"{task.agent.name}.{task.name}", run=run) from None


async def _task(runtime: AgentRuntime, task: Task, returned: Any, run: str) -> Task:
    """Return the task that an agent returned: by its handle, or by the local id of an agent that it created."""
    failure_fields = {"task": f"{task.agent.name}.{task.name}", "run": run}
    text = returned.strip().strip("`'\"") if isinstance(returned, str) else ""
    agents, own_ref = runtime.dynamic, ref_of(task_agent(task))
    try:
        if "@" in text:
            named_task = await agents.task(text)
        else:
            local, _, name = text.replace(".", ":").partition(":")
            agent = await agents.load(await agents.local(own_ref, local))
            names = [name] if name else list(agent.tasks)
            if len(names) != 1 or names[0] not in agent.tasks:
                raise TaskFailed(
                    f"{returned!r} is no task of {local}; expected one of: {', '.join(agent.tasks)}", **failure_fields
                )
            named_task = agent.tasks[names[0]]
    except (AgentNotResolved, InvalidValue) as problem:
        raise TaskFailed(
            f"{str(returned)[:200]!r} is no task of an agent that it created: {problem}", **failure_fields
        ) from None
    ref = ref_of(named_task.agent) if isinstance(named_task.agent, Agent) else own_ref
    if (ref.root, ref.path[: len(own_ref.path)]) != (own_ref.root, own_ref.path):
        raise TaskFailed(f"{text} is not an agent below {own_ref.namespace}", **failure_fields)
    return named_task


def _is_data(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)
