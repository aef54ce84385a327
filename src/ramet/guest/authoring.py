"""Agents and their tasks as an agent's own code has them, inside its sandbox: what it declares goes out as data.

The host keeps the agents and starts the children. Whatever code claims here, an agent gets no capability that its
creator lacks, and a child no right that its parent lacks: both are decided there.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, cast

import msgspec

from ramet.agent.capabilities.declarations import handle_of, recipe_of
from ramet.agent.typed.values import decode_value
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import Denied, InvalidValue, NeedsInput, RametError, TaskFailed
from ramet.core.outcome import Status
from ramet.guest.async_channel import End
from ramet.guest.thread_channel import ChannelClient, current_channel
from ramet.wire import guest_protocol
from ramet.wire.guest_protocol import Created, Spawned
from ramet.wire.values import values
from ramet.wire.values.json_object import json_body

#: While it is open, code waits for another agent; set by whoever counts its time.
_waiting: list[Callable[[], contextlib.AbstractContextManager[None]]] = [contextlib.nullcontext]


def count_waiting_by(waiting: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Let somebody know when code waits for other agents."""
    _waiting[:] = [waiting]


class ChannelPerformer:
    """What `ramet.agent.capabilities.task_runner.TaskRunner` promises, by the channel."""

    def create(self, agent: Any) -> AgentRef:
        """Have an agent kept in the registry of the one whose code this is. Raises InvalidValue, Denied."""
        entry = recipe_of(agent).entry()
        created = current_channel().ask(guest_protocol.CreateAgent, json_body(entry, "recipe")).as_(Created)
        if created.dropped:
            sys.stdout.write(f"[{agent.name} did not get, for you do not have it: {', '.join(created.dropped)}]\n")
        return AgentRef.parse(created.ref)

    def call(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """The task's value; in an event loop an awaitable of it. Raises TaskFailed, NeedsInput."""
        begun = self._begin(task, arguments)
        return begun.result() if asyncio._get_running_loop() is None else begun

    def submit(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Begin, and go on: what was begun; in an event loop an awaitable of it. Raises SpawnRefused and the like."""
        begun = self._begin(task, arguments)
        return begun if asyncio._get_running_loop() is None else _soon(begun)

    def stream(self, task: Any, arguments: Mapping[str, Any]) -> Any:
        """Refused: what happens in a child is on the host's record, which no sandbox reads."""
        raise Denied("a stream of events", "inside a sandbox a task is called, submitted or mapped")

    def answer(self, task: Any, token: str, text: str) -> Any:
        """Refused: a run that asked back is gone on with by whoever called the agent whose code this is."""
        raise Denied("an answer", "inside a sandbox a task that asked back is called again, with what it must know")

    def _begin(self, task: Any, arguments: Mapping[str, Any]) -> TaskFuture:
        ref = _handle_of(task)
        host = current_channel()
        body = json_body(arguments, "arguments")
        born = host.ask(guest_protocol.PerformTask, body, ref=str(ref), task=task.name, branch=task.branch).as_(Spawned)
        return TaskFuture(host, born, task)

    def map(self, task: Any, several: list[Mapping[str, Any]], *, max_parallel: int) -> Any:
        """One for each, at most so many at a time; in an event loop an awaitable of all."""
        if asyncio._get_running_loop() is None:
            return self._mapped(task, several, max_parallel)
        return asyncio.to_thread(self._mapped, task, several, max_parallel)

    def _mapped(self, task: Any, several: list[Mapping[str, Any]], max_parallel: int) -> list[TaskFuture | FailedTask]:
        begun: list[TaskFuture | FailedTask] = []
        living: set[Future[End]] = set()
        try:
            with _waiting[0]():
                for arguments in several:
                    if len(living) >= max_parallel:
                        living = wait(living, return_when=FIRST_COMPLETED).not_done
                    try:
                        one = self._begin(task, arguments)
                    except RametError as refused:  # That one alone: none of the others is lost.
                        begun.append(FailedTask(refused))
                        continue
                    begun.append(one)
                    living.add(one.end())
                wait(living)
        except BaseException:
            for each in begun:
                with contextlib.suppress(RametError):  # It has ended, or the host has gone and takes care of it.
                    if isinstance(each, TaskFuture) and not each.done():
                        each.cancel("the code that waited for it was stopped")
            raise
        return begun


class TaskFuture:
    """A task that an agent is at, as a child of this one."""

    def __init__(self, host: ChannelClient, born: Spawned, task: Any) -> None:
        self.id, self.path, self.name = born.run, born.path, born.name
        self._host, self._task = host, task
        self._end = host.end_of(self.id)

    def end(self) -> Future[End]:
        """Its end, to be waited for with others."""
        return self._end

    def done(self) -> bool:
        """Whether it has ended."""
        return self._end.done()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for its value, or in an event loop an awaitable of it. Raises TaskFailed, NeedsInput.

        Raises TimeoutError after `timeout` seconds; it goes on.
        """
        if asyncio._get_running_loop() is not None:
            return asyncio.wait_for(self._waited_for(), timeout)
        with _waiting[0]():
            end = self._end.result(timeout)
        return self._value(end)

    def exception(self, timeout: float | None = None) -> Any:
        """Wait for its end, or in an event loop an awaitable of that: what `result` would raise, or None."""
        if asyncio._get_running_loop() is not None:
            return asyncio.wait_for(self._problem(), timeout)
        try:
            self.result(timeout)
        except RametError as problem:
            return problem
        return None

    async def _waited_for(self) -> Any:
        return await self

    async def _problem(self) -> RametError | None:
        try:
            await self
        except RametError as problem:
            return problem
        return None

    def cancel(self, reason: str = "cancelled by its parent") -> None:
        """End it and all below it; when this returns they are gone."""
        self._host.ask(guest_protocol.Cancel, target=self.id, reason=reason)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for its value without holding up the event loop."""
        with _waiting[0]():
            end = yield from asyncio.shield(asyncio.wrap_future(self._end)).__await__()
        return self._value(end)

    def _value(self, end: End) -> Any:
        told, task = end.told, self._task
        if told.status != Status.COMPLETED:
            reason = told.error.message if told.error is not None else "no reason given"
            if told.status == Status.NEEDS_INPUT:
                raise NeedsInput(reason, token=self.id)
            raise TaskFailed(reason, task=task.name, status=told.status, run=self.id)
        data = plain(values.decode(end.body, told.json_size)) if told.json_size else None
        if task.definition.returns is None:
            return None
        if task.gives_task:
            return data  # Its handle: another agent's task is called by that agent's creator, or by the host.
        try:
            return decode_value(task.returns, data, f"{task.name} -> ")
        except InvalidValue as misfit:
            raise TaskFailed(str(misfit), task=task.name, run=self.id) from None


async def _soon(begun: TaskFuture) -> TaskFuture:
    return begun


class FailedTask:
    """A task of a `map` that was never begun."""

    def __init__(self, error: RametError) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> Any:
        """Raises why."""
        raise self._error

    def exception(self, timeout: float | None = None) -> RametError:
        """Why."""
        return self._error


def plain(value: Any) -> Any:
    """A value that came over the channel as JSON data: without the names of types, which are the reader's own."""
    return _untyped(msgspec.to_builtins(value, str_keys=True))


def _untyped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untyped(each) for key, each in value.items() if key != "@type"}
    return [_untyped(each) for each in value] if isinstance(value, list | tuple) else value


#: Who does the work in a sandbox, found by this name.
GUEST = ChannelPerformer()


def _handle_of(task: Any) -> AgentRef:
    """The handle of a task's agent: of one that was made here, or that a module declares which the host has, too.

    Raises InvalidValue for one that is not kept yet.
    """
    if task.agent.ref is not None:
        return cast("AgentRef", task.agent.ref)
    found: Any = sys.modules.get(task.__module__)
    for step in task.__qualname__.split("."):
        found = getattr(found, step, None)
    if found is not task or task.__module__ == "__main__":
        raise InvalidValue(
            f"task {task.name}", task.agent.name, "a task of an agent that is kept: leave its `with` block first"
        )
    return handle_of(task.agent)
