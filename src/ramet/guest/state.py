"""An agent's own state, as its code uses it: the same in a sandbox, in a tool, and in a function of the host.

In the host, in an event loop that must not wait, each call returns an awaitable; elsewhere it returns its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from ramet.concurrency.threads import owner_loop
from ramet.core.errors import InvalidValue, MergeConflict, RametError
from ramet.guest.thread_channel import current_channel
from ramet.guest.tree import ChannelTree
from ramet.store.state import values
from ramet.store.state.sync import run_nowait
from ramet.store.state.values import MISSING
from ramet.tools.context import ToolUseContext, Tree, current_call
from ramet.wire.guest_protocol.answer_data import StateCommit, StateReply
from ramet.wire.guest_protocol.guest_to_host import UseState

T = TypeVar("T")
#: Number of times that one commit or merge calls `resolve` again, because another run changed the same keys again.
_TRIES = 20

Resolve = Callable[[str, Any, Any, Any], Any]


class StateTransport(Protocol):
    """A connection from code to its state."""

    async def ask(self, body: bytes, **fields: Any) -> tuple[StateReply, bytes]:
        """Send a request to the host."""

    def run(self, work: Coroutine[Any, Any, T]) -> Any:
        """Return the result of the work, or an awaitable of it if the caller must not wait."""


class AgentState:
    """Values by key, in the agent's own namespace; other runs see a value once it is committed."""

    def __init__(self, transport: StateTransport) -> None:
        self._transport = transport

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, decoded on each call."""
        return self._transport.run(self._get(key, default))

    def set(self, key: str, value: Any) -> Any:
        """Set a key to a copy of a value: JSON data, up to 1 MiB.

        Raises InvalidValue, which names the path inside the value.
        """
        return self._transport.run(self._request("set", values.encode(value, str(key)), name=key))

    def remove(self, key: str) -> Any:
        """Remove a key; return False if it had no value."""
        return self._transport.run(self._request_bool("remove", name=key))

    def has(self, key: str) -> Any:
        """Return whether a key has a value; `in` does the same if nothing is awaited."""
        return self._transport.run(self._request_bool("has", name=key))

    def __contains__(self, key: object) -> bool:
        is_present = self.has(key) if isinstance(key, str) else False
        if not isinstance(is_present, bool):
            is_present.close()
            raise RametError("`in` cannot be awaited: use `await state.has(key)`")
        return is_present

    def keys(self, prefix: str = "", *, recursive: bool = True) -> Any:
        """Return the keys with this prefix, in order, with those of agents below unless `recursive` is False."""
        return self._transport.run(self._read("keys", list[str], name=prefix, recursive=recursive))

    def namespaces(self, *, recursive: bool = False) -> Any:
        """Return the names of the namespaces below, such as those of agents that this one created."""
        return self._transport.run(self._read("namespaces", list[str], recursive=recursive))

    def discard(self) -> Any:
        """Discard the changes since the last commit."""
        return self._transport.run(self._request("discard"))

    # ---- commits

    def commit(self, message: str = "", *, on_conflict: str = "retry", resolve: Resolve | None = None) -> Any:
        """Write all changes durably, as one commit, and return it.

        Without changes, return the newest commit: no empty commit is made. If another run changed the same keys:
        `resolve(key, base, ours, theirs)` decides (MISSING means no value); without it MergeConflict is raised and
        nothing is written. With on_conflict="abandon" any other commit raises Conflict, and the changes are dropped.
        """
        return self._transport.run(
            self._request_until_resolved("commit", resolve, message=message, on_conflict=on_conflict)
        )

    def checkout(self, commit: StateCommit | str | None = None) -> Any:
        """Check out an older commit of this state, to read it; without `commit` the newest.

        Raises UnsavedChanges.
        """
        name = commit.id if isinstance(commit, StateCommit) else commit or ""
        return self._transport.run(self._read("checkout", StateCommit | None, name=name))

    def history(self, limit: int = 100) -> Any:
        """Return the commits that changed this namespace, newest first."""
        return self._transport.run(self._read("history", list[StateCommit], limit=limit))

    # ---- branches of delegates

    def branches(self) -> Any:
        """Return the newest commit of each branch of a child of this agent, by the id of the child's run."""
        return self._transport.run(self._read("branches", dict[str, str]))

    def merge(self, branch: Any, *, resolve: Resolve | None = None, message: str = "") -> Any:
        """Merge the commits of a child's branch, given by its run's id or by the child.

        A commit that is already merged is not merged twice. `resolve` is that of `commit`. Raises MergeConflict or
        Unknown.
        """
        return self._transport.run(self._request_until_resolved("merge", resolve, name=_id(branch), message=message))

    def drop(self, branch: Any) -> Any:
        """Remove a child's branch; return False if there was none."""
        return self._transport.run(self._request_bool("drop", name=_id(branch)))

    # ---- inside

    async def _get(self, key: str, default: Any) -> Any:
        reply, body = await self._transport.ask(b"", do="get", name=key)
        return msgspec.json.decode(body) if reply.found else default

    async def _request_bool(self, operation: str, **fields: Any) -> bool:
        return (await self._transport.ask(b"", do=operation, **fields))[0].found

    async def _request(self, operation: str, body: bytes = b"", **fields: Any) -> None:
        await self._transport.ask(body, do=operation, **fields)

    async def _read(self, operation: str, kind: Any, **fields: Any) -> Any:
        return msgspec.json.decode((await self._transport.ask(b"", do=operation, **fields))[1], type=kind)

    async def _request_until_resolved(self, operation: str, resolve: Resolve | None, **fields: Any) -> StateCommit:
        decisions: dict[str, Any] = {}
        for _ in range(_TRIES):
            reply, body = await self._transport.ask(
                msgspec.json.encode(decisions) if decisions else b"", do=operation, **fields
            )
            if not reply.is_open:
                return msgspec.json.decode(body, type=StateCommit)
            for each in (open_conflicts := msgspec.json.decode(body)):
                if resolve is not None:
                    decisions[each["key"]] = _resolve_conflict(each, resolve)
            if resolve is None:
                break
        keys = tuple(each["key"] for each in open_conflicts)
        raise MergeConflict("state", "its own", keys, expected=0, found=0)


def _resolve_conflict(conflict: Mapping[str, Any], resolve: Resolve) -> dict[str, Any]:
    sides = [conflict[side][0] if conflict[side] else MISSING for side in ("base", "ours", "theirs")]
    value = resolve(conflict["key"], *sides)
    if value is MISSING:
        return {"sides": conflict["sides"], "value": []}
    return {"sides": conflict["sides"], "value": [msgspec.json.decode(values.encode(value, conflict["key"]))]}


def _id(branch: Any) -> str:
    run_id = branch if isinstance(branch, str) else getattr(branch, "id", None)
    if not isinstance(run_id, str):
        raise InvalidValue("branch", branch, "the id of a child's run, or the child")
    return run_id


class ChannelState:
    """A `StateTransport` over the channel of a function, or of an agent's own code: each call waits for its answer."""

    async def ask(self, body: bytes, **fields: Any) -> tuple[StateReply, bytes]:
        answer = current_channel().ask(UseState, body, **fields)
        return answer.as_(StateReply), answer.body

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work: it never waits for an event loop."""
        return run_nowait(work)


class TreeState:
    """A `StateTransport` over the tree of the run: for a tool, or for a function that works in the host."""

    def __init__(self, context: ToolUseContext, tree: Tree) -> None:
        self._context, self._tree = context, tree

    async def ask(self, body: bytes, **fields: Any) -> tuple[StateReply, bytes]:
        return await self._tree.use_state(self._context, _request(fields), body)

    def run(self, work: Coroutine[Any, Any, T]) -> Any:
        """Return an awaitable in an event loop; in a thread return the result."""
        if asyncio._get_running_loop() is not None:
            return work
        loop = owner_loop.get()
        if loop is None:
            work.close()
            raise RametError("this thread has no event loop that leads to the host")
        return asyncio.run_coroutine_threadsafe(work, loop).result()


def _request(fields: Mapping[str, Any]) -> UseState:
    try:
        return msgspec.convert({"type": "use_state", "id": 0, **fields}, UseState)
    except msgspec.ValidationError as problem:
        raise InvalidValue("state", str(problem)[:200], "arguments of the types that are annotated") from None


def agent_state() -> AgentState:
    """Return the state of the agent whose code this is.

    Raises RametError if there is none.
    """
    call = current_call.get()
    tree = call.context.tree if call is not None else None
    if call is not None and tree is not None and not (isinstance(tree, ChannelTree) and tree.is_elsewhere):
        return AgentState(TreeState(call.context, tree))
    current_channel()
    return AgentState(ChannelState())
