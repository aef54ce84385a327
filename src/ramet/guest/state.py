"""An agent's own state, as its code has it: the same in a sandbox, in a tool, and in a function of the host.

Where an event loop runs that must not wait, in the host, each call gives an awaitable; elsewhere it gives its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from ramet.concurrency.threads import home
from ramet.core.errors import InvalidValue, MergeConflict, RametError
from ramet.guest.thread_channel import current_channel
from ramet.guest.tree import ChannelTree
from ramet.store.state import values
from ramet.store.state.sync import run_nowait
from ramet.store.state.values import MISSING
from ramet.tools.context import ToolUseContext, Tree, current_call
from ramet.wire.guest_protocol import StateCommit, StateReply, UseState

T = TypeVar("T")
#: Times that one commit or merge asks `resolve` anew, since somebody changed the same keys again.
_TRIES = 20

Resolve = Callable[[str, Any, Any, Any], Any]


class StateTransport(Protocol):
    """How code gets to its state."""

    async def ask(self, body: bytes, **fields: Any) -> tuple[StateReply, bytes]:
        """Ask the host."""

    def run(self, work: Coroutine[Any, Any, T]) -> Any:
        """What comes of it, or where nothing may wait an awaitable of that."""


class AgentState:
    """Values by key, in the agent's own namespace; what is set is seen by others once it is committed."""

    def __init__(self, way: StateTransport) -> None:
        self._way = way

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, made anew each time."""
        return self._way.run(self._get(key, default))

    def set(self, key: str, value: Any) -> Any:
        """Keep a copy of a value: JSON data, up to 1 MiB. Raises InvalidValue, which names the path inside it."""
        return self._way.run(self._done("set", values.encode(value, str(key)), name=key))

    def remove(self, key: str) -> Any:
        """Have no value; False if there was none."""
        return self._way.run(self._found("remove", name=key))

    def has(self, key: str) -> Any:
        """Whether there is a value; `in` is the same where nothing is awaited."""
        return self._way.run(self._found("has", name=key))

    def __contains__(self, key: object) -> bool:
        found = self.has(key) if isinstance(key, str) else False
        if not isinstance(found, bool):
            found.close()
            raise RametError("`in` cannot be awaited: use `await state.has(key)`")
        return found

    def keys(self, prefix: str = "", *, recursive: bool = True) -> Any:
        """Keys that begin like this, in order, those of agents below too unless `recursive` is False."""
        return self._way.run(self._read("keys", list[str], name=prefix, recursive=recursive))

    def namespaces(self, *, recursive: bool = False) -> Any:
        """The names of the namespaces below, such as those of agents that this one made."""
        return self._way.run(self._read("namespaces", list[str], recursive=recursive))

    def discard(self) -> Any:
        """Forget what was set and removed since the last commit."""
        return self._way.run(self._done("discard"))

    # ---- commits

    def commit(self, message: str = "", *, on_conflict: str = "retry", resolve: Resolve | None = None) -> Any:
        """Write all changes durably, as one; the commit. Without changes it is the newest one: none is made twice.

        If another run changed the same keys: `resolve(key, base, ours, theirs)` decides (MISSING is no value), or
        MergeConflict is raised and nothing written. With on_conflict="abandon" any other commit raises Conflict, and
        the changes are dropped.
        """
        return self._way.run(self._settled("commit", resolve, message=message, on_conflict=on_conflict))

    def checkout(self, commit: StateCommit | str | None = None) -> Any:
        """Stand on an older commit of this state, to read it; without one on the newest. Raises UnsavedChanges."""
        name = commit.id if isinstance(commit, StateCommit) else commit or ""
        return self._way.run(self._read("checkout", StateCommit | None, name=name))

    def history(self, limit: int = 100) -> Any:
        """The commits that changed something here, the newest first."""
        return self._way.run(self._read("history", list[StateCommit], limit=limit))

    # ---- branches of delegates

    def branches(self) -> Any:
        """The newest commits of branches that children of this agent work on, or did, by the ids of their runs."""
        return self._way.run(self._read("branches", dict[str, str]))

    def merge(self, branch: Any, *, resolve: Resolve | None = None, message: str = "") -> Any:
        """Take in what a child has committed to its branch: its run's id, or the child. Raises MergeConflict, Unknown.

        What is in already is not taken twice. `resolve` is that of `commit`.
        """
        return self._way.run(self._settled("merge", resolve, name=_id(branch), message=message))

    def drop(self, branch: Any) -> Any:
        """Remove such a branch; False if there was none."""
        return self._way.run(self._found("drop", name=_id(branch)))

    # ---- inside

    async def _get(self, key: str, default: Any) -> Any:
        stated, body = await self._way.ask(b"", do="get", name=key)
        return msgspec.json.decode(body) if stated.found else default

    async def _found(self, do: str, **fields: Any) -> bool:
        return (await self._way.ask(b"", do=do, **fields))[0].found

    async def _done(self, do: str, body: bytes = b"", **fields: Any) -> None:
        await self._way.ask(body, do=do, **fields)

    async def _read(self, do: str, kind: Any, **fields: Any) -> Any:
        return msgspec.json.decode((await self._way.ask(b"", do=do, **fields))[1], type=kind)

    async def _settled(self, do: str, resolve: Resolve | None, **fields: Any) -> StateCommit:
        decided: dict[str, Any] = {}
        for _ in range(_TRIES):
            stated, body = await self._way.ask(msgspec.json.encode(decided) if decided else b"", do=do, **fields)
            if not stated.is_open:
                return msgspec.json.decode(body, type=StateCommit)
            for each in (open_now := msgspec.json.decode(body)):
                if resolve is not None:
                    decided[each["key"]] = _decided(each, resolve)
            if resolve is None:
                break
        keys = tuple(each["key"] for each in open_now)
        raise MergeConflict("state", "its own", keys, expected=0, found=0)


def _decided(each: Mapping[str, Any], resolve: Resolve) -> dict[str, Any]:
    sides = [each[side][0] if each[side] else MISSING for side in ("base", "ours", "theirs")]
    value = resolve(each["key"], *sides)
    if value is MISSING:
        return {"sides": each["sides"], "value": []}
    return {"sides": each["sides"], "value": [msgspec.json.decode(values.encode(value, each["key"]))]}


def _id(branch: Any) -> str:
    found = branch if isinstance(branch, str) else getattr(branch, "id", None)
    if not isinstance(found, str):
        raise InvalidValue("branch", branch, "the id of a child's run, or the child")
    return found


class ChannelState:
    """By the channel of a function, or of code that an agent wrote: each call waits for its answer."""

    async def ask(self, body: bytes, **fields: Any) -> tuple[StateReply, bytes]:
        """Ask the host. Raises what it raised."""
        answer = current_channel().ask(UseState, body, **fields)
        return answer.as_(StateReply), answer.body

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of it: it never waits for an event loop."""
        return run_nowait(work)


class TreeState:
    """By the tree that the run is in: of a tool, or of a function that works in the host."""

    def __init__(self, context: ToolUseContext, tree: Tree) -> None:
        self._context, self._tree = context, tree

    async def ask(self, body: bytes, **fields: Any) -> tuple[StateReply, bytes]:
        """Ask the host. Raises what it raised."""
        return await self._tree.use_state(self._context, _request(fields), body)

    def run(self, work: Coroutine[Any, Any, T]) -> Any:
        """An awaitable in an event loop; in a thread what comes of it."""
        if asyncio._get_running_loop() is not None:
            return work
        loop = home.get()
        if loop is None:
            work.close()
            raise RametError("no event loop leads to the host from this thread")
        return asyncio.run_coroutine_threadsafe(work, loop).result()


def _request(fields: Mapping[str, Any]) -> UseState:
    try:
        return msgspec.convert({"type": "use_state", "id": 0, **fields}, UseState)
    except msgspec.ValidationError as problem:
        raise InvalidValue("state", str(problem)[:200], "arguments of the types that are annotated") from None


def agent_state() -> AgentState:
    """The state of the agent whose code this is. Raises RametError where there is none."""
    call = current_call.get()
    tree = call.context.tree if call is not None else None
    if call is not None and tree is not None and not (isinstance(tree, ChannelTree) and tree.is_elsewhere):
        return AgentState(TreeState(call.context, tree))
    current_channel()
    return AgentState(ChannelState())
