"""Agents and tasks for an agent's own code inside its sandbox: declarations are sent to the host as data.

The host keeps the agents and starts the children. Whatever the code claims here, an agent gets no capability that its
creator lacks, and a child no right that its parent lacks: the host decides both.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, cast

import msgspec

from ramet.agent.capabilities.declarations import handle_of
from ramet.agent.typed.values import decode_value
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import Denied, InvalidValue, NeedsInput, RametError, TaskFailed
from ramet.core.outcome import Status
from ramet.guest.async_channel import End
from ramet.guest.thread_channel import ChannelClient, current_channel
from ramet.wire.guest_protocol import guest_to_host
from ramet.wire.guest_protocol.answer_data import CreateReply, SpawnReply
from ramet.wire.values import values
from ramet.wire.values.json_object import json_body

#: A context in which code waits for another agent; set by the code that counts its time.
_wait_context: list[Callable[[], contextlib.AbstractContextManager[None]]] = [contextlib.nullcontext]


def set_wait_context(waiting: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Set the context manager that is open while code waits for other agents."""
    _wait_context[:] = [waiting]


class ChannelPerformer:
    """An implementation of `ramet.agent.capabilities.task_runner.TaskRunner` over the channel."""

    def create(self, agent: Any) -> AgentRef:
        """Store an agent in the registry of the agent whose code this is.

        Raises InvalidValue or Denied.
        """
        entry = agent.recipe().entry()
        reply = current_channel().ask(guest_to_host.CreateAgent, json_body(entry, "recipe")).as_(CreateReply)
        if reply.dropped:
            sys.stdout.write(f"[{agent.name} did not get, because you do not have it: {', '.join(reply.dropped)}]\n")
        return AgentRef.parse(reply.ref)

    def call(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        future = self._begin(task, arguments)
        return future.result() if asyncio._get_running_loop() is None else future

    def submit(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Start a task and return its future; in an event loop an awaitable of it.

        Raises SpawnRefused and similar errors.
        """
        future = self._begin(task, arguments)
        return future if asyncio._get_running_loop() is None else _as_awaitable(future)

    def stream(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Raise Denied: events of a child are recorded by the host, and no sandbox reads that record."""
        raise Denied("a stream of events", "inside a sandbox a task is called, submitted or mapped")

    def answer(self, task: Any, token: str, text: str) -> Any:
        """Raise Denied: the caller of the agent whose code this is answers a run that asked back."""
        raise Denied("an answer", "inside a sandbox a task that asked back is called again, with what it must know")

    def _begin(self, task: Any, arguments: Mapping[str, Any]) -> TaskFuture:
        ref = _handle_of(task)
        host = current_channel()
        body = json_body(arguments, "arguments")
        spawn_reply = host.ask(guest_to_host.PerformTask, body, ref=str(ref), task=task.name, branch=task.branch).as_(
            SpawnReply
        )
        return TaskFuture(host, spawn_reply, task)

    def map(self, task: Any, rows: list[Mapping[str, Any]], *, max_parallel: int) -> Any:
        """Run one task for each item, at most `max_parallel` at a time; in an event loop an awaitable of all."""
        if asyncio._get_running_loop() is None:
            return self._map_all(task, rows, max_parallel)
        return asyncio.to_thread(self._map_all, task, rows, max_parallel)

    def _map_all(self, task: Any, items: list[Mapping[str, Any]], max_parallel: int) -> list[TaskFuture | FailedTask]:
        futures: list[TaskFuture | FailedTask] = []
        running: set[Future[End]] = set()
        try:
            with _wait_context[0]():
                for arguments in items:
                    if len(running) >= max_parallel:
                        running = wait(running, return_when=FIRST_COMPLETED).not_done
                    try:
                        future = self._begin(task, arguments)
                    except RametError as error:  # Only this one: none of the others is lost.
                        futures.append(FailedTask(error))
                        continue
                    futures.append(future)
                    running.add(future.end())
                wait(running)
        except BaseException:
            for each in futures:
                with contextlib.suppress(RametError):  # It has ended, or the host has ended and takes care of it.
                    if isinstance(each, TaskFuture) and not each.done():
                        each.cancel("the code that waited for it was stopped")
            raise
        return futures


class TaskFuture:
    """A task that an agent performs as a child of this one."""

    def __init__(self, host: ChannelClient, spawn_reply: SpawnReply, task: Any) -> None:
        self.id, self.path, self.name = spawn_reply.run, spawn_reply.path, spawn_reply.name
        self._host, self._task = host, task
        self._end = host.end_of(self.id)

    def end(self) -> Future[End]:
        """Return a future of its end, for waiting together with others."""
        return self._end

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._end.done()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for its value, or in an event loop return an awaitable of it.

        Raises TaskFailed or NeedsInput. Raises TimeoutError after `timeout` seconds; the task continues.
        """
        if asyncio._get_running_loop() is not None:
            return asyncio.wait_for(self._wait_for(), timeout)
        with _wait_context[0]():
            end = self._end.result(timeout)
        return self._value(end)

    def exception(self, timeout: float | None = None) -> Any:
        """Wait for its end, and return the error that `result` would raise, or None.

        In an event loop, return an awaitable of that.
        """
        if asyncio._get_running_loop() is not None:
            return asyncio.wait_for(self._problem(), timeout)
        try:
            self.result(timeout)
        except RametError as problem:
            return problem
        return None

    async def _wait_for(self) -> Any:
        return await self

    async def _problem(self) -> RametError | None:
        try:
            await self
        except RametError as problem:
            return problem
        return None

    def cancel(self, reason: str = "cancelled by its parent") -> None:
        """Stop the task's run and all runs below it, and wait until they have ended."""
        self._host.ask(guest_to_host.Cancel, target=self.id, reason=reason)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for its value without blocking the event loop."""
        with _wait_context[0]():
            end = yield from asyncio.shield(asyncio.wrap_future(self._end)).__await__()
        return self._value(end)

    def _value(self, end: End) -> Any:
        message, task = end.message, self._task
        if message.status != Status.COMPLETED:
            reason = message.error.message if message.error is not None else "no reason given"
            if message.status == Status.NEEDS_INPUT:
                raise NeedsInput(reason, token=self.id)
            raise TaskFailed(reason, task=task.name, status=message.status, run=self.id)
        data = to_json_data(values.decode(end.body, message.json_size)) if message.json_size else None
        if task.definition.returns is None:
            return None
        if task.returns_task:
            return data  # Its handle: only that agent's creator, or the host, calls another agent's task.
        try:
            return decode_value(task.returns, data, f"{task.name} -> ")
        except InvalidValue as error:
            raise TaskFailed(str(error), task=task.name, run=self.id) from None


async def _as_awaitable(future: TaskFuture) -> TaskFuture:
    return future


class FailedTask:
    """A task of a `map` that was never started."""

    def __init__(self, error: RametError) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> Any:
        raise self._error

    def exception(self, timeout: float | None = None) -> RametError:
        return self._error


def to_json_data(value: Any) -> Any:
    """Convert a value from the channel to JSON data, without type names, which are the reader's own."""
    return _as_data(msgspec.to_builtins(value, str_keys=True))


def _as_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_data(each) for key, each in value.items() if key != "@type"}
    return [_as_data(each) for each in value] if isinstance(value, list | tuple) else value


#: The object that performs the work in a sandbox; it is found by this name.
GUEST = ChannelPerformer()


def _handle_of(task: Any) -> AgentRef:
    """Return the handle of a task's agent.

    The agent was created here, or is declared by a module that the host has, too. Raises InvalidValue for an agent that
    is not stored yet.
    """
    if task.agent.ref is not None:
        return cast("AgentRef", task.agent.ref)
    target: Any = sys.modules.get(task.__module__)
    for step in task.__qualname__.split("."):
        target = getattr(target, step, None)
    if target is not task or task.__module__ == "__main__":
        raise InvalidValue(
            f"task {task.name}", task.agent.name, "a task of an agent that is kept: leave its `with` block first"
        )
    return handle_of(task.agent)
