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
from ramet.wire.guest_protocol.answer_data import StateCommit, StateReply
from ramet.wire.guest_protocol.guest_to_host import UseState
from ramet.wire.values.json_object import decode_json
from ramet.wire.values.validators import check_parts

#: Bytes of one value, of all uncommitted values, and of all that a run commits in one process.
MAX_VALUE, MAX_UNSAVED, MAX_WRITTEN = 1024 * 1024, 16 * 1024 * 1024, 256 * 1024 * 1024
#: Uncommitted set or removed keys; commits of one run; characters of a message.
MAX_CHANGED, MAX_COMMITS, MAX_MESSAGE = 10_000, 10_000, 1_000
#: Names of one answer, and its bytes.
MAX_NAMES, MAX_ANSWER = 10_000, 16 * 1024 * 1024
MAX_HISTORY = 1_000
#: Requests of a run for commits that are not its own: each lookup is expensive.
MAX_FOREIGN_REQUESTS = 20

_Answer = tuple[StateReply, bytes]
_json = msgspec.json.Encoder(order="sorted").encode


class RunState:
    """The working copy of one run, over its own namespace, on its own branch."""

    def __init__(self, context: ToolUseContext, state: Namespaced, delegates: str) -> None:
        """Set `delegates`, the prefix of the branches that the run's children work on."""
        self.state = state
        self._context, self._delegates = context, delegates
        self._uncommitted_sizes: dict[str, int] = {}  #: bytes by key, of uncommitted changes
        self._committed_bytes = self._commit_count = 0
        self._foreign_requests = 0  #: requests for commits that are not its own
        self._cached_history: tuple[Commit | None, int, _Answer] | None = None  #: the newest history, cached
        self._turn = asyncio.Lock()
        self._recorded_commit = ""  #: the newest commit that is recorded for the run
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

    async def use(self, request: UseState, body: bytes) -> _Answer:
        """Execute a request. Raises InvalidValue, Conflict, UnsavedChanges, Unknown, Denied, OutputTooLarge."""
        async with self._turn:
            return await self._do[request.do](request, body)

    # ---- keys and values

    async def _get(self, request: UseState, _: bytes) -> _Answer:
        value = await self.state.read(request.name, MISSING)
        return _answer(None if value is MISSING else value, is_found=value is not MISSING)

    async def _has(self, request: UseState, _: bytes) -> _Answer:
        return _answer(None, is_found=await self.state.read(request.name, MISSING) is not MISSING)

    async def _keys(self, request: UseState, _: bytes) -> _Answer:
        return _names(await self.state.read_keys(checked_prefix(request.name), recursive=request.recursive))

    async def _namespaces(self, request: UseState, _: bytes) -> _Answer:
        await self.state.read_keys()
        return _names(self.state.namespaces(recursive=request.recursive))

    async def _set(self, request: UseState, body: bytes) -> _Answer:
        key = _writable(request.name)
        if len(body) > MAX_VALUE:
            raise InvalidValue(key, f"{len(body)} bytes", f"a value of at most {MAX_VALUE} bytes of JSON")
        self._check_room(key, len(body))
        self.state.set(key, _data(body, key))
        self._uncommitted_sizes[key] = len(body)
        return _answer(None)

    async def _remove(self, request: UseState, _: bytes) -> _Answer:
        key = _writable(request.name)
        self._check_room(key, 0)
        existed = await self.state.read(key, MISSING) is not MISSING and self.state.remove(key)
        if existed:
            self._uncommitted_sizes[key] = 0
        return _answer(None, is_found=existed)

    async def _discard(self, _request: UseState, _: bytes) -> _Answer:
        self.state.discard()
        self._uncommitted_sizes.clear()
        return _answer(None)

    def _check_room(self, key: str, size: int) -> None:
        others = sum(each for name, each in self._uncommitted_sizes.items() if name != key)
        if others + size > MAX_UNSAVED:
            raise InvalidValue(key, f"{size} bytes", f"changes of at most {MAX_UNSAVED} bytes; commit() some first")
        if len(self._uncommitted_sizes) >= MAX_CHANGED and key not in self._uncommitted_sizes:
            raise InvalidValue(key, "one more key", f"changes of at most {MAX_CHANGED} keys; commit() some first")

    # ---- commits

    async def _commit(self, request: UseState, body: bytes) -> _Answer:
        decisions = _Decisions(body, self._path_prefix)
        changed_keys, size = set(self._uncommitted_sizes), sum(self._uncommitted_sizes.values())
        if self._uncommitted_sizes:
            self._check_written(size)
        try:
            if request.on_conflict == "abandon":
                commit = await self.state.commit(_message(request), on_conflict="abandon")
            else:
                commit = await self.state.commit(_message(request), on_conflict="merge", resolve=decisions.resolve)
        except UnresolvedConflict:
            return decisions.undecided_reply()
        except Conflict as conflict:
            if request.on_conflict == "abandon" and not isinstance(conflict, MergeConflict):
                self._uncommitted_sizes.clear()
            raise
        self._committed_bytes += size
        for key in changed_keys:
            self._uncommitted_sizes.pop(key, None)
        return await self._record_commit(commit, len(changed_keys))

    async def _record_commit(self, commit: Commit, keys: int) -> _Answer:
        """Record a durable commit; also one that was written by a process that was killed before recording it."""
        if commit.author == self._context.run.id and commit.id != self._recorded_commit:
            self._recorded_commit = commit.id
            self._commit_count += 1
            self._context.emit(
                StateCommitted, state=self.state.name, branch=self.state.branch, commit=commit.id, keys=keys
            )
        return _answer(await self._view_commit(commit))

    async def _view_commit(self, commit: Commit) -> StateCommit:
        """Return a commit as the run sees it.

        A commit of another agent that changed nothing here has no message and no author.
        """
        if commit.author == self._context.run.id or await self.state.changed_here(commit):
            return _convert_commit(commit)
        return msgspec.structs.replace(_convert_commit(commit), message="", author="")

    def _check_written(self, size: int) -> None:
        if self._committed_bytes + size > MAX_WRITTEN or self._commit_count >= MAX_COMMITS:
            reason = f"a run commits at most {MAX_WRITTEN} bytes, and {MAX_COMMITS} times"
            raise Denied("commit", reason)

    async def _checkout(self, request: UseState, _: bytes) -> _Answer:
        commit = None
        if request.name:
            if self._foreign_requests >= MAX_FOREIGN_REQUESTS:
                raise Denied("checkout", f"{MAX_FOREIGN_REQUESTS} requested commits were not in the history of the run")
            commit = await self.state.before(request.name)
            if commit is None:
                self._foreign_requests += 1
                raise Unknown("commit", request.name[:64])
        head = await self.state.checkout(commit)
        self._uncommitted_sizes.clear()
        return _answer(await self._view_commit(head) if head is not None else None, is_found=head is not None)

    async def _history(self, request: UseState, _: bytes) -> _Answer:
        head, limit = self.state.head, min(request.limit, MAX_HISTORY)
        if self._cached_history is None or self._cached_history[:2] != (head, limit):
            commits = await self.state.own_history(limit)
            self._cached_history = head, limit, _answer([_convert_commit(each) for each in commits])
        return self._cached_history[2]

    # ---- branches of delegates

    async def _branches(self, _request: UseState, _: bytes) -> _Answer:
        heads = await self.state.branches(self._delegates)
        return _answer(self._own_branches(heads))

    def _own_branches(self, heads: Mapping[str, str]) -> dict[str, str]:
        """Return the branches of the run's own delegates, by their runs, out of branches with the delegates' prefix."""
        own = {each.removeprefix(self._delegates): head for each, head in heads.items()}
        return {run: head for run, head in own.items() if not set(run) & {"/", "+"}}

    async def _merge(self, request: UseState, body: bytes) -> _Answer:
        decisions = _Decisions(body, self._path_prefix)
        branch, old_head = self._branch(request), self.state.head
        heads = await self.state.branches(self._delegates)
        if branch not in heads:
            raise Unknown("branch", request.name, tuple(self._own_branches(heads)))
        self._check_written(0)
        message = _message(request) or f"merge the branch of {request.name}"
        try:
            commit = await self.state.merge(branch, resolve=decisions.resolve, message=message)
        except UnresolvedConflict:
            return decisions.undecided_reply()
        keys = len(await self.state.diff(old_head, commit)) if old_head is None or old_head.id != commit.id else 0
        return await self._record_commit(commit, keys)

    async def _drop(self, request: UseState, _: bytes) -> _Answer:
        delegate_state = await self.state.open_copy(self._branch(request))
        if delegate_state.head is None:
            return _answer(None, is_found=False)
        await delegate_state.delete()
        return _answer(None)

    def _branch(self, request: UseState) -> str:
        return f"{self._delegates}{checked_name('branch', request.name)}"

    @property
    def _path_prefix(self) -> str:
        return f"{self.state.path}/"


class _Decisions:
    """The decisions on keys that both sides changed, for the values that the keys had then."""

    def __init__(self, body: bytes, path_prefix: str) -> None:
        decisions = _data(body, "decisions") if body else {}
        if not isinstance(decisions, dict) or len(decisions) > MAX_NAMES or len(body) > MAX_UNSAVED:
            raise InvalidValue("decisions", f"{len(body)} bytes", "an object of keys, not too large")
        self._decisions: Mapping[str, Any] = decisions
        self._path_prefix = path_prefix
        self._open: list[dict[str, Any]] = []

    def resolve(self, key: str, base: Any, ours: Any, theirs: Any) -> Any:
        """Return the decided value. Raises UnresolvedConflict, and adds the key to the undecided ones."""
        if not key.startswith(self._path_prefix):
            raise Denied("merge", "the branch has changes of another agent's state")
        key = key.removeprefix(self._path_prefix)
        sides = [[] if each is MISSING else [each] for each in (base, ours, theirs)]
        digest = hashlib.sha256(_json(sides)).hexdigest()
        decision = self._decisions.get(key)
        if isinstance(decision, dict) and decision.get("sides") == digest and isinstance(decision.get("value"), list):
            return decision["value"][0] if decision["value"] else MISSING
        self._open.append({"key": key, "sides": digest, "base": sides[0], "ours": sides[1], "theirs": sides[2]})
        raise UnresolvedConflict

    def undecided_reply(self) -> _Answer:
        """Return the undecided keys."""
        return StateReply(found=False, is_open=True), _check_size(_json(self._open))


def _answer(value: Any, *, is_found: bool = True) -> _Answer:
    return StateReply(found=is_found), _check_size(_json(value))


def _names(names: list[str]) -> _Answer:
    if len(names) > MAX_NAMES:
        raise OutputTooLarge("names of one answer", size=len(names), limit=MAX_NAMES)
    return _answer(names)


def _check_size(body: bytes) -> bytes:
    if len(body) > MAX_ANSWER:
        raise OutputTooLarge("an answer", size=len(body), limit=MAX_ANSWER)
    return body


def _data(body: bytes, name: str) -> Any:
    check_parts(body, len(body), name)
    try:
        return decode_json(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidValue(name, f"{len(body)} bytes", f"JSON: {str(problem)[:200]}") from None


def _writable(name: str) -> str:
    """Return a key that may be written.

    Raises InvalidValue, and Denied for registries: recipes are created, not set.
    """
    key = checked_key(name)
    if not {REGISTRY, REPLACED}.isdisjoint(key.split("/")):
        raise Denied(f"writing {REGISTRY}", "only the creation of an agent changes a registry")
    return key


def _message(request: UseState) -> str:
    if len(request.message) > MAX_MESSAGE:
        raise InvalidValue("message", request.message, f"text of at most {MAX_MESSAGE} characters")
    return request.message


def _convert_commit(commit: Commit) -> StateCommit:
    return StateCommit(id=commit.id, parents=commit.parents, at=commit.at, message=commit.message, author=commit.author)
