"""A store on disk gives the same answers as one in memory, in any sequence of operations."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ramet.core.errors import Conflict, InvalidValue
from ramet.store.contract import DocumentWrite, Entry, Store
from ramet.store.memory import MemoryStore
from ramet.store.sqlite.store import SqliteStore

# Few names, so that they meet; some that a store might take for something else.
names = st.sampled_from(["a", "A", "a,b", "ä", "", "%", "a\U0010ffff", "\0", "\ud800"]) | st.text(max_size=3)
data = st.sampled_from([b"", b"{}", b"\0,\xff"]) | st.binary(max_size=40)
numbers = st.integers(0, 50)
versions = st.none() | st.integers(0, 3)


class Stores(RuleBasedStateMachine):
    """Stores in memory and on SQLite that take the same steps; their answers and refusals are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="ramet-stores-")
        self.stores: list[Store] = [MemoryStore(), SqliteStore(Path(self.folder.name) / "journal.db")]
        self.tickets: list[list[int]] = [[], []]
        self.blobs = ["0" * 64]

    @initialize()
    def begin(self) -> None:
        self.both(lambda store: store.open(), compare=False)
        for store, tickets in zip(self.stores, self.tickets, strict=True):
            store.on_commit(tickets.append)

    def both(self, do: Callable[[Store], Awaitable[object]], *, compare: bool = True) -> Any:
        answers = [self.runner.run(_answer(do, store)) for store in self.stores]
        assert not compare or answers[0] == answers[1]
        return answers[0]

    # --- what may happen ----------------------------------------------------------------------------------------------

    @rule(entries=st.lists(st.builds(Entry, names, names, numbers, names, data), max_size=5), waits=st.booleans())
    def append(self, entries: list[Entry], waits: bool) -> None:
        async def all_of_them(store: Store) -> list[object]:
            answers: list[object] = []
            for entry in entries:
                try:
                    answers.append(store.append(entry))
                except InvalidValue as refusal:
                    answers.append(str(refusal))
            if waits:
                await store.durable(max((each for each in answers if isinstance(each, int)), default=0))
            return answers

        self.both(all_of_them)

    @rule(tree=st.none() | names, run=st.none() | names, after=st.integers(-1, 60), limit=st.integers(-1, 20))
    def read(self, tree: str | None, run: str | None, after: int, limit: int) -> None:
        self.settle()
        self.both(lambda store: store.read(after, tree=tree, run=run, limit=limit))

    @rule(tree=names)
    def forget(self, tree: str) -> None:
        self.both(lambda store: store.forget(tree))

    @rule(after=st.integers(-1, 60))
    def wait(self, after: int) -> None:
        self.settle()
        self.both(lambda store: store.wait(after, timeout_s=0))

    @rule(kind=names, key=names, data=data, expected=versions)
    def put(self, kind: str, key: str, data: bytes, expected: int | None) -> None:
        self.both(lambda store: store.put(kind, key, data, expected=expected))

    @rule(kind=names, key=names, expected=versions)
    def delete(self, kind: str, key: str, expected: int | None) -> None:
        self.both(lambda store: store.delete(kind, key, expected=expected))

    @rule(kind=names, key=names)
    def get(self, kind: str, key: str) -> None:
        self.both(lambda store: store.get(kind, key))

    @rule(kind=names, prefix=names)
    def list(self, kind: str, prefix: str) -> None:
        self.both(lambda store: store.list(kind, prefix=prefix))

    @rule(data=data)
    def put_blob(self, data: bytes) -> None:
        self.blobs.append(self.both(lambda store: store.put_blob(data)))

    @rule(
        blobs=st.lists(data, max_size=3),
        documents=st.lists(st.builds(DocumentWrite, names, names, data, versions), max_size=3),
    )
    def put_together(self, blobs: Sequence[bytes], documents: Sequence[DocumentWrite]) -> None:
        self.both(lambda store: store.put_together(blobs, documents))
        self.both(lambda store: store.list_blobs())

    @rule(at=numbers)
    def delete_blob(self, at: int) -> None:
        self.both(lambda store: store.delete_blob(self.blobs[at % len(self.blobs)]))

    @rule()
    def reopen(self) -> None:
        self.both(lambda store: store.close())
        self.stores[1] = SqliteStore(Path(self.folder.name) / "journal.db")
        self.tickets[1].clear()
        self.tickets[0].clear()
        self.both(lambda store: store.open(), compare=False)
        self.stores[1].on_commit(self.tickets[1].append)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Commit what was appended."""
        self.both(lambda store: store.put("settled", "settled", b""))

    @invariant()
    def commits_are_announced_in_order(self) -> None:
        for tickets in self.tickets:
            assert tickets == sorted(set(tickets))

    def teardown(self) -> None:
        try:
            self.settle()
            for look in (
                lambda store: store.read(limit=10_000),
                lambda store: store.head(),
                lambda store: store.list("a"),
                lambda store: store.list_blobs(),
            ):
                self.both(look)
            in_memory, on_disk = self.tickets
            assert in_memory[-1:] == on_disk[-1:]
        finally:
            self.both(lambda store: store.close(), compare=False)
            self.runner.close()
            self.folder.cleanup()


async def _answer(do: Callable[[Store], Awaitable[object]], store: Store) -> object:
    try:
        return await do(store)
    except (Conflict, InvalidValue) as refusal:
        return str(refusal)


TestStores = Stores.TestCase
TestStores.settings = settings(settings.get_profile("ramet"), max_examples=25, stateful_step_count=30)
