"""The children that a guest asks for: spawned, watched until they end, moved to the background."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import CallId, checked_name, safe_name
from ramet.core.outcome import EXIT_CODES, ErrorInfo, Result, Status
from ramet.spawn.grants import PackedFunction
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import GuestChannel, Reply
from ramet.tools.context import CurrentCall, Tree, current_call
from ramet.tools.spawn_request import SpawnHandle, SpawnRequest
from ramet.wire.code.capsule import PackedCall
from ramet.wire.guest_protocol import answer_data, guest_to_host, host_to_guest
from ramet.wire.values.values import EncodedValue

#: Limits for an ended child: characters of each text, and number of files. In JSON a character may take six bytes, and
#: the control part of a frame holds 1 MiB.
MAX_SAID, MAX_FILES = 20_000, 200


class ChildHandle(SpawnHandle, Protocol):
    """A handle of a child, as the requests of its parent use it."""

    def take_value(self, result: Result) -> EncodedValue:
        """Return the value as encoded by the child's own sandbox, or as data."""


class ChildRequests:
    """The children of a run, as the guest of one sandbox knows them."""

    def __init__(self, run: Run, call: CurrentCall) -> None:
        self._run, self._call = run, call
        self._children: dict[str, ChildHandle] = {}
        self._watched_runs = set[str]()  #: children whose end must be reported to the guest
        self._ended_runs = set[str]()  #: children that had ended when they were watched: nothing is waited for again
        self._moves: dict[str, asyncio.Event] = {}  #: set for a child that the guest no longer waits for, by its run

    @property
    def _tree(self) -> Tree:
        tree = self._run.context.tree
        assert tree is not None, "a spawned run has a tree"
        return tree

    def adopt(self) -> None:
        """Continue with the recorded children: a guest that outlived a kernel does not request them again."""
        self._children |= {each.id: each for each in self._tree.resume_children(self._run.context)}  # type: ignore[misc]  # as in `add`

    def find(self, run: str) -> ChildHandle:
        """Return the handle of a child. Raises Unknown."""
        child = self._children.get(run)
        if child is None:
            raise Unknown("child", run, tuple(self._children))
        return child

    async def spawn(self, guest_request: guest_to_host.Spawn, body: bytes) -> Reply:
        """Spawn a child: a function, packed in the body, or an agent by its type. Raises InvalidValue."""
        agent = None
        if guest_request.function:
            name = safe_name(guest_request.function, "function")
            agent = Agent(
                name=name,
                function=PackedFunction(PackedCall(name, guest_request.capsule_tag, body, guest_request.heavy)),
            )
        if guest_request.mode not in (None, "fresh", "fork"):
            raise InvalidValue("mode", guest_request.mode, "'fresh' or 'fork'")
        request = SpawnRequest(
            prompt=guest_request.prompt,
            name=checked_name("name", guest_request.name) if guest_request.name is not None else None,
            description=guest_request.description[:1_000],
            subagent_type=guest_request.subagent_type,
            agent=agent,
            mode=guest_request.mode,  # type: ignore[arg-type]  # checked above
            model=guest_request.model,
            background=guest_request.background,
            isolation=guest_request.isolation,
            cwd=guest_request.cwd,
            policy=guest_request.policy,
            branch=guest_request.branch,
            call_id=CallId(guest_request.call_id) if guest_request.call_id else None,
        )
        return self.add(await self._tree.spawn(self._run.context, request))

    def add(self, handle: Any) -> Reply:
        """Add a spawned child, and return the reply that names it."""
        self._children[handle.id] = handle
        spawned = answer_data.SpawnReply(
            run=handle.id, path=handle.path, name=handle.name, background=handle.background
        )
        return Reply(spawned)

    async def watch(self, run: str, channel: GuestChannel) -> None:
        """Wait for the end of a child and report it, unless the guest moves the child to the background meanwhile."""
        child = self._children.get(run)
        if child is None:
            unknown = Unknown("child", run, tuple(self._children))
            info = ErrorInfo(type="Unknown", message=str(unknown))
            status = Status.LOST
            return await channel.send(
                host_to_guest.ChildEnded(run=run, status=status, exit_code=EXIT_CODES[status], error=info)
            )
        if run in self._watched_runs:
            return None  # The end is reported only once.
        self._watched_runs.add(run)
        try:
            current_call.set(self._call)
            result = await (child.result() if run in self._ended_runs else self._end_unless_moved(child, run))
            if result is None:
                return
            self._ended_runs.add(run)
            await channel.run_in_order(lambda: self._report_end(child, run, result, channel))
        finally:
            self._watched_runs.discard(run)

    async def _end_unless_moved(self, child: ChildHandle, run: str) -> Result | None:
        """Return the result of a child; None once the guest waits for the child no longer."""
        moved = self._moves[run] = asyncio.Event()
        waits = (asyncio.create_task(child.result()), asyncio.create_task(moved.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[0].result() if waits[0].done() else None
        finally:
            del self._moves[run]
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)

    async def move_to_background(self, request: guest_to_host.MoveToBackground, _: bytes) -> Reply:
        """Let a child continue in the background, and end the wait for it. Raises Unknown."""
        child = self.find(request.run)
        await self._tree.move_to_background(self._run.context, child)
        if (moved := self._moves.get(request.run)) is not None:
            moved.set()
        return Reply(None)

    async def _report_end(self, child: ChildHandle, run: str, result: Result, channel: GuestChannel) -> None:
        value = child.take_value(result)
        message = host_to_guest.ChildEnded(
            run=run,
            status=result.status,
            exit_code=result.exit_code,
            json_size=value.json_size,
            error=result.error,
            partial=result.partial[:MAX_SAID],
            artifacts=tuple(each.without_path() for each in result.files[:MAX_FILES]),
            changes=result.artifacts if result.branch else (),
            usage=result.usage_subtree,
            stdout=result.stdout[-MAX_SAID:],
            stderr=result.stderr[-MAX_SAID:],
        )
        await channel.send(message, value.body)
