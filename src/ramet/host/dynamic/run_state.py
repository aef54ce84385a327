"""The state of one run for use by the run: bounded, and all its content is only data.

The requester may be hostile. It names keys, which only lead below its own place; commits, which must be in the history
of its own branch; and runs, whose branches must have begun at its own state.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from ramet.core.errors import Conflict, Denied, InvalidValue, MergeConflict, OutputTooLarge, Unknown
from ramet.core.events import StateCommitted
from ramet.core.ids import checked_name
from ramet.host.dynamic.registry import REGISTRY, REPLACED
from ramet.store.state.commits import Commit
from ramet.store.state.merging import UnresolvedConflict
from ramet.store.state.namespaced import Namespaced
from ramet.store.state.validation import checked_key, checked_prefix
from ramet.store.state.values import MISSING
from ramet.tools.context import ToolUseContext
from ramet.wire.guest_protocol import StateCommit, StateReply, UseState
from ramet.wire.values.json_object import paused_gc
from ramet.wire.values.validators import check_parts

#: Bytes of one value, of all uncommitted values, and of all that a run commits in one process.
MAX_VALUE, MAX_UNSAVED, MAX_WRITTEN = 1024 * 1024, 16 * 1024 * 1024, 256 * 1024 * 1024
#: Uncommitted set or removed keys; commits of one run; characters of a message.
MAX_CHANGED, MAX_COMMITS, MAX_MESSAGE = 10_000, 10_000, 1_000
#: Names of one answer, and its bytes.
MAX_NAMES, MAX_ANSWER = 10_000, 16 * 1024 * 1024
MAX_HISTORY = 1_000
#: Requests of a run for commits that are not its own: each lookup is expensive.
MAX_STRANGERS = 20

_Answer = tuple[StateReply, bytes]
_json = msgspec.json.Encoder(order="sorted").encode


class RunState:
    """The working copy of one run, over its own namespace, on its own branch."""

    def __init__(self, context: ToolUseContext, state: Namespaced, delegates: str) -> None:
        """Set `delegates`, the prefix of the branches that the run's children work on."""
        self.state = state
        self._context, self._delegates = context, delegates
        self._changed: dict[str, int] = {}  #: bytes by key, of uncommitted changes
        self._written = self._commits = 0
        self._strangers = 0  #: requests for commits that are not its own
        self._seen: tuple[Commit | None, int, _Answer] | None = None  #: the newest history, cached
        self._turn = asyncio.Lock()
        self._told = ""  #: the newest commit that is recorded for the run
        self._do: dict[str, Callable[[UseState, bytes], Coroutine[Any, Any, _Answer]]] = {
            "get": self._get,
            "has": self._has,
            "keys": self._keys,
            "namespaces": self._namespaces,
            "set": self._set,
            "remove": self._remove,
            "discard": self._discard,
            "commit": self._commit,
            "checkout": self._checkout,
            "history": self._history,
            "branches": self._branches,
            "merge": self._merge,
            "drop": self._drop,
        }

    async def use(self, asked: UseState, body: bytes) -> _Answer:
        """Execute a request. Raises InvalidValue, Conflict, UnsavedChanges, Unknown, Denied, OutputTooLarge."""
        async with self._turn:
            return await self._do[asked.do](asked, body)

    # ---- keys and values

    async def _get(self, asked: UseState, _: bytes) -> _Answer:
        value = await self.state.read(asked.name, MISSING)
        return _answer(None if value is MISSING else value, found=value is not MISSING)

    async def _has(self, asked: UseState, _: bytes) -> _Answer:
        return _answer(None, found=await self.state.read(asked.name, MISSING) is not MISSING)

    async def _keys(self, asked: UseState, _: bytes) -> _Answer:
        return _names(await self.state.read_keys(checked_prefix(asked.name), recursive=asked.recursive))

    async def _namespaces(self, asked: UseState, _: bytes) -> _Answer:
        await self.state.read_keys()
        return _names(self.state.namespaces(recursive=asked.recursive))

    async def _set(self, asked: UseState, body: bytes) -> _Answer:
        key = _writable(asked.name)
        if len(body) > MAX_VALUE:
            raise InvalidValue(key, f"{len(body)} bytes", f"a value of at most {MAX_VALUE} bytes of JSON")
        self._check_room(key, len(body))
        self.state.set(key, _data(body, key))
        self._changed[key] = len(body)
        return _answer(None)

    async def _remove(self, asked: UseState, _: bytes) -> _Answer:
        key = _writable(asked.name)
        self._check_room(key, 0)
        was_there = await self.state.read(key, MISSING) is not MISSING and self.state.remove(key)
        if was_there:
            self._changed[key] = 0
        return _answer(None, found=was_there)

    async def _discard(self, _asked: UseState, _: bytes) -> _Answer:
        self.state.discard()
        self._changed.clear()
        return _answer(None)

    def _check_room(self, key: str, size: int) -> None:
        others = sum(each for name, each in self._changed.items() if name != key)
        if others + size > MAX_UNSAVED:
            raise InvalidValue(key, f"{size} bytes", f"changes of at most {MAX_UNSAVED} bytes; commit() some first")
        if len(self._changed) >= MAX_CHANGED and key not in self._changed:
            raise InvalidValue(key, "one more key", f"changes of at most {MAX_CHANGED} keys; commit() some first")

    # ---- commits

    async def _commit(self, asked: UseState, body: bytes) -> _Answer:
        decided = _Decided(body, self._below)
        changed, size = set(self._changed), sum(self._changed.values())
        if self._changed:
            self._check_written(size)
        try:
            if asked.on_conflict == "abandon":
                commit = await self.state.commit(_message(asked), on_conflict="abandon")
            else:
                commit = await self.state.commit(_message(asked), on_conflict="merge", resolve=decided.resolve)
        except UnresolvedConflict:
            return decided.asked()
        except Conflict as conflict:
            if asked.on_conflict == "abandon" and not isinstance(conflict, MergeConflict):
                self._changed.clear()
            raise
        self._written += size
        for key in changed:
            self._changed.pop(key, None)
        return await self._committed(commit, len(changed))

    async def _committed(self, commit: Commit, keys: int) -> _Answer:
        """Record a durable commit; also one that was written by a process that was killed before recording it."""
        if commit.author == self._context.run.id and commit.id != self._told:
            self._told = commit.id
            self._commits += 1
            self._context.emit(
                StateCommitted, state=self.state.name, branch=self.state.branch, commit=commit.id, keys=keys
            )
        return _answer(await self._shown(commit))

    async def _shown(self, commit: Commit) -> StateCommit:
        """Return a commit as the run sees it.

        A commit of another agent that changed nothing here has no message and no author.
        """
        if commit.author == self._context.run.id or await self.state.changed_here(commit):
            return _shown(commit)
        return msgspec.structs.replace(_shown(commit), message="", author="")

    def _check_written(self, size: int) -> None:
        if self._written + size > MAX_WRITTEN or self._commits >= MAX_COMMITS:
            most = f"a run commits at most {MAX_WRITTEN} bytes, and {MAX_COMMITS} times"
            raise Denied("commit", most)

    async def _checkout(self, asked: UseState, _: bytes) -> _Answer:
        commit = None
        if asked.name:
            if self._strangers >= MAX_STRANGERS:
                raise Denied("checkout", f"{MAX_STRANGERS} requested commits were not in the history of the run")
            commit = await self.state.before(asked.name)
            if commit is None:
                self._strangers += 1
                raise Unknown("commit", asked.name[:64])
        found = await self.state.checkout(commit)
        self._changed.clear()
        return _answer(await self._shown(found) if found is not None else None, found=found is not None)

    async def _history(self, asked: UseState, _: bytes) -> _Answer:
        head, limit = self.state.head, min(asked.limit, MAX_HISTORY)
        if self._seen is None or self._seen[:2] != (head, limit):
            found = await self.state.own_history(limit)
            self._seen = head, limit, _answer([_shown(each) for each in found])
        return self._seen[2]

    # ---- branches of delegates

    async def _branches(self, _asked: UseState, _: bytes) -> _Answer:
        found = await self.state.branches(self._delegates)
        return _answer(self._own_branches(found))

    def _own_branches(self, found: Mapping[str, str]) -> dict[str, str]:
        """Return the branches of the run's own delegates, by their runs, out of branches with the delegates' prefix."""
        mine = {each.removeprefix(self._delegates): head for each, head in found.items()}
        return {run: head for run, head in mine.items() if not set(run) & {"/", "+"}}

    async def _merge(self, asked: UseState, body: bytes) -> _Answer:
        decided = _Decided(body, self._below)
        branch, before = self._branch(asked), self.state.head
        known = await self.state.branches(self._delegates)
        if branch not in known:
            raise Unknown("branch", asked.name, tuple(self._own_branches(known)))
        self._check_written(0)
        message = _message(asked) or f"merge the branch of {asked.name}"
        try:
            commit = await self.state.merge(branch, resolve=decided.resolve, message=message)
        except UnresolvedConflict:
            return decided.asked()
        keys = len(await self.state.diff(before, commit)) if before is None or before.id != commit.id else 0
        return await self._committed(commit, keys)

    async def _drop(self, asked: UseState, _: bytes) -> _Answer:
        other = await self.state.beside(self._branch(asked))
        if other.head is None:
            return _answer(None, found=False)
        await other.delete()
        return _answer(None)

    def _branch(self, asked: UseState) -> str:
        return f"{self._delegates}{checked_name('branch', asked.name)}"

    @property
    def _below(self) -> str:
        return f"{self.state.path}/"


class _Decided:
    """The decisions on keys that both sides changed, for the values that the keys had then."""

    def __init__(self, body: bytes, below: str) -> None:
        said = _data(body, "decisions") if body else {}
        if not isinstance(said, dict) or len(said) > MAX_NAMES or len(body) > MAX_UNSAVED:
            raise InvalidValue("decisions", f"{len(body)} bytes", "an object of keys, not too large")
        self._said: Mapping[str, Any] = said
        self._below = below
        self._open: list[dict[str, Any]] = []

    def resolve(self, key: str, base: Any, ours: Any, theirs: Any) -> Any:
        """Return the decided value. Raises UnresolvedConflict, and adds the key to the undecided ones."""
        if not key.startswith(self._below):
            raise Denied("merge", "the branch has changes of another agent's state")
        key = key.removeprefix(self._below)
        sides = [[] if each is MISSING else [each] for each in (base, ours, theirs)]
        mark = hashlib.sha256(_json(sides)).hexdigest()
        said = self._said.get(key)
        if isinstance(said, dict) and said.get("sides") == mark and isinstance(said.get("value"), list):
            return said["value"][0] if said["value"] else MISSING
        self._open.append({"key": key, "sides": mark, "base": sides[0], "ours": sides[1], "theirs": sides[2]})
        raise UnresolvedConflict

    def asked(self) -> _Answer:
        """Return the undecided keys."""
        return StateReply(found=False, is_open=True), _bounded(_json(self._open))


def _answer(value: Any, *, found: bool = True) -> _Answer:
    return StateReply(found=found), _bounded(_json(value))


def _names(found: list[str]) -> _Answer:
    if len(found) > MAX_NAMES:
        raise OutputTooLarge("names of one answer", size=len(found), limit=MAX_NAMES)
    return _answer(found)


def _bounded(body: bytes) -> bytes:
    if len(body) > MAX_ANSWER:
        raise OutputTooLarge("an answer", size=len(body), limit=MAX_ANSWER)
    return body


def _data(body: bytes, what: str) -> Any:
    check_parts(body, len(body), what)
    try:
        with paused_gc(len(body)):
            return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue(what, f"{len(body)} bytes", f"JSON: {str(problem)[:200]}") from None


def _writable(name: str) -> str:
    """Return a key that may be written.

    Raises InvalidValue, and Denied for registries: recipes are created, not set.
    """
    key = checked_key(name)
    if not {REGISTRY, REPLACED}.isdisjoint(key.split("/")):
        raise Denied(f"writing {REGISTRY}", "only the creation of an agent changes a registry")
    return key


def _message(asked: UseState) -> str:
    if len(asked.message) > MAX_MESSAGE:
        raise InvalidValue("message", asked.message, f"text of at most {MAX_MESSAGE} characters")
    return asked.message


def _shown(commit: Commit) -> StateCommit:
    return StateCommit(id=commit.id, parents=commit.parents, at=commit.at, message=commit.message, author=commit.author)
