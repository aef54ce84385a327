"""Commits, which refer to a tree and to earlier commits, and walks through their history."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ramet.store.state import nodes
from ramet.store.state.blob_cache import MissingBlob, Steps
from ramet.store.state.diff import differences
from ramet.store.state.values import Missing

_encode = msgspec.json.Encoder(order="sorted").encode


class Commit(Struct, frozen=True, kw_only=True):
    """A past version of a state; `id` is the SHA-256 of all other fields."""

    state: str
    parents: tuple[str, ...]  #: none for the first commit, two for a merge
    height: int  #: one more than the highest parent's
    root: str  #: of the tree of its keys; "" if empty
    at: datetime
    message: str
    author: str  #: id of the run that created it, if any
    id: str = ""  #: not part of the stored data


class Change(NamedTuple):
    """A difference between two commits; MISSING stands for no value."""

    key: str
    entry: str | None  #: the name, if the key is a directory
    before: object | Missing
    after: object | Missing


def finalize(commit: Commit) -> tuple[Commit, bytes]:
    """Return a commit with its id, and the blob that stores it."""
    fields = msgspec.structs.asdict(commit)
    del fields["id"]
    data = _encode(fields)
    return msgspec.structs.replace(commit, id=nodes.name_of(data)), data


def load(id: str) -> Steps[Commit]:
    (commit,) = yield MissingBlob([id], read)
    loaded: Commit = commit
    return loaded


def history(head: Commit | None, limit: int) -> Steps[list[Commit]]:
    """Return a commit and its ancestors over all parents; no commit comes before its descendants."""
    commits: list[Commit] = []
    queue = _CommitQueue(head)
    while len(commits) < limit and (commit := queue.take()) is not None:
        commits.append(commit)
        if len(commits) < limit:
            for each in (yield MissingBlob(commit.parents, read)):
                queue.add(each)
    return commits


def find(head: Commit | None, matches: Callable[[Commit], bool], most: int = sys.maxsize) -> Steps[Commit | None]:
    """Return the first commit of `history` that matches, among the `most` newest; None if there is none."""
    queue = _CommitQueue(head)
    for _ in range(most):
        commit = queue.take()
        if commit is None or matches(commit):
            return commit
        for each in (yield MissingBlob(commit.parents, read)):
            queue.add(each)
    return None


def history_below(head: Commit | None, limit: int, prefix: str, most: int) -> Steps[list[Commit]]:
    """Return those of the `most` newest commits that changed a key with this prefix; a merge counts as a change."""
    matches: list[Commit] = []
    for commit in (yield from history(head, most)):
        if len(matches) == limit:
            break
        previous = ""
        if commit.parents:
            previous = (yield from load(commit.parents[0])).root
        if any(key.startswith(prefix) for key in (yield from differences(previous, commit.root))):
            matches.append(commit)
    return matches


def merge_base(ours: Commit, theirs: Commit) -> Steps[Commit | None]:
    """Return the newest commit in the history of both; None if the histories have nothing in common."""
    # In order of decreasing height: when a commit is examined, all its descendants have been.
    sides_by_id = {ours.id: {"ours"}}
    sides_by_id.setdefault(theirs.id, set()).add("theirs")
    queue = _CommitQueue(ours, theirs)
    while (commit := queue.take()) is not None:
        if len(sides_by_id[commit.id]) == 2:
            return commit
        for each in (yield MissingBlob(commit.parents, read)):
            sides_by_id.setdefault(each.id, set()).update(sides_by_id[commit.id])
            queue.add(each)
    return None


class _CommitQueue:
    """A queue of commits to examine, each once, the highest first."""

    def __init__(self, *commits: Commit | None) -> None:
        self._heap: list[tuple[int, str]] = []
        self._commits: dict[str, Commit] = {}
        for each in commits:
            if each is not None:
                self.add(each)

    def add(self, commit: Commit) -> None:
        if commit.id not in self._commits:
            self._commits[commit.id] = commit
            heapq.heappush(self._heap, (-commit.height, commit.id))

    def take(self) -> Commit | None:
        return self._commits[heapq.heappop(self._heap)[1]] if self._heap else None


def read(data: bytes) -> Commit:
    """Return a commit from the blob that stores it."""
    return msgspec.structs.replace(msgspec.json.decode(data, type=Commit), id=nodes.name_of(data))
