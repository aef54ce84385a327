"""Tests of the journal on PostgreSQL with several kernels and readers, in this process and in killed ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from ramet.core.errors import StoreInUse
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, postgres
from tests.support.postgres_stores import all_entries, entry, open_store, per_writer, schema, store
from tests.support.waiting import eventually

__all__ = ["postgres", "schema", "store"]  # fixtures are used by their names


_PROGRAM = """
import asyncio, json, sys
from ramet.store.contract import Entry
from ramet.store.postgres import PostgresStore

dsn, schema, *arguments = sys.argv[1:]

def say(**what):
    print(json.dumps(what), flush=True)

"""

_WRITER = """
async def main():
    store = await PostgresStore(dsn, schema=schema, kernel=arguments[0]).open()
    async def produce(who):
        seq = 0
        while True:
            seq += 1
            await store.durable(store.append(Entry(f"t-{who}", f"r-{who}", seq, "noted", b'{}' )))
            say(who=who, seq=seq)
    await asyncio.gather(*(produce(f"{arguments[0]}-{n}") for n in range(5)))

asyncio.run(main())
"""

_FOLLOWER = """
async def main():
    store = await PostgresStore(dsn, schema=schema, read_only=True).open()
    say(ready=True)
    cursor = 0
    while True:
        await store.wait(cursor)
        for event in await store.read(cursor):
            cursor = event.cursor
            say(cursor=cursor, who=event.run[2:], seq=event.seq)

asyncio.run(main())
"""


class _Program:
    """Python process that prints lines of JSON, and is killed at the end."""

    def __init__(self, body: str, *arguments: str) -> None:
        script = textwrap.dedent(_PROGRAM + body)
        self.lines: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._rest = b""

    def printed(self) -> list[dict[str, Any]]:
        """Return every line that it printed until now."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._out.fileno(), 2**16):
                *complete_lines, self._rest = (self._rest + data).split(b"\n")
                self.lines += [json.loads(line) for line in complete_lines]
        return self.lines

    def kill(self) -> list[dict[str, Any]]:
        """Send SIGKILL, and return every printed line."""
        self._process.kill()
        self._process.wait()
        self.printed()
        self._out.close()
        return self.lines


@contextlib.contextmanager
def _program(body: str, *arguments: str) -> Iterator[_Program]:
    program = _Program(body, *arguments)
    try:
        yield program
    finally:
        if not program._out.closed:
            program.kill()


async def test_acknowledged_events_of_a_killed_writer_are_there_once(postgres: Server, schema: str) -> None:
    """After `kill -9` during appends each acknowledged event is there once, without a gap before it."""
    with _program(_WRITER, postgres.dsn, schema, "kernel") as writer:
        await eventually(lambda: len(writer.printed()) > 200)
        lines = writer.kill()

    async with open_store(PostgresStore(postgres.dsn, schema=schema, read_only=True)) as reader:
        entries = per_writer(await all_entries(reader))
    for writer_name, sequence in entries.items():
        assert sequence == list(range(1, len(sequence) + 1))
        assert len(sequence) >= max(line["seq"] for line in lines if line["who"] == writer_name)
    assert entries.keys() == {line["who"] for line in lines}


async def test_the_lock_of_a_killed_kernel_is_free_soon(postgres: Server, schema: str) -> None:
    """A kernel's session ends with its process, and the next kernel continues the journal."""
    with _program(_WRITER, postgres.dsn, schema, "kernel") as writer:
        await eventually(writer.printed)
        with pytest.raises(StoreInUse):
            await PostgresStore(postgres.dsn, schema=schema).open()
        writer.kill()

    store = PostgresStore(postgres.dsn, schema=schema)
    async with asyncio.timeout(180):
        while True:
            with contextlib.suppress(StoreInUse):
                await store.open()
                break
    await store.durable(store.append(entry(1)))
    await store.close()


async def test_a_follower_in_another_process_sees_all_events_of_two_kernels(postgres: Server, schema: str) -> None:
    """Two kernels write concurrently; a follower sees each one's events in order and without a gap by cursor."""
    async with open_store(PostgresStore(postgres.dsn, schema=schema)):
        pass
    with (
        _program(_FOLLOWER, postgres.dsn, schema) as follower,
        _program(_WRITER, postgres.dsn, schema, "one") as one,
        _program(_WRITER, postgres.dsn, schema, "two") as two,
    ):
        await eventually(lambda: min(len(one.printed()), len(two.printed())) > 300)
        one.kill()
        two.kill()
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            # A commit that the server had received may become visible after the death of its kernel.
            query = "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE ANY (%s)"
            names = [f"ramet {each} pid %" for each in ("one", "two")]
            await eventually(lambda: not connection.execute(query, [names]).fetchall())
        async with open_store(PostgresStore(postgres.dsn, schema=schema, read_only=True)) as reader:
            entries = await all_entries(reader)
            await eventually(lambda: len(follower.printed()) > len(entries))
        lines = follower.kill()[1:]

    assert [(line["cursor"], line["who"], line["seq"]) for line in lines] == [
        (event.cursor, event.run[2:], event.seq) for event in entries
    ]
    assert all(sequence == list(range(1, len(sequence) + 1)) for sequence in per_writer(entries).values())


async def test_waiting_ends_with_a_commit_of_another_kernel(
    postgres: Server, schema: str, store: PostgresStore
) -> None:
    """LISTEN and NOTIFY wake a waiter; own commits wake it, too; a timeout ends the wait."""
    async with open_store(PostgresStore(postgres.dsn, schema=schema, kernel="other")) as other:
        assert not await store.wait(0, timeout_s=0)
        for writer in (other, store):
            after = await store.head()
            waiting = asyncio.ensure_future(store.wait(after))
            await eventually(lambda: store._open is not None and store._open._listener.is_listening)
            assert not waiting.done()
            writer.append(entry(1, tree=writer.kernel))
            assert await waiting
        assert await store.wait(0, timeout_s=0)


async def test_no_event_is_seen_before_one_of_a_lower_cursor(
    postgres: Server, schema: str, store: PostgresStore
) -> None:
    """A slow transaction of one kernel delays others, so a reader never passes an event that commits later."""
    go_on = threading.Event()
    async with open_store(PostgresStore(postgres.dsn, schema=schema, kernel="slow")) as slow:
        first = slow.append(entry(1, tree="t-slow", run="r-slow"))
        waiting_change = asyncio.ensure_future(slow._change(lambda _: go_on.wait(180), 0))
        query = "SELECT 1 FROM pg_locks WHERE mode = 'RowExclusiveLock' AND relation = %s::regclass"
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            while connection.execute(query, [f'"{schema}".events']).fetchone() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        second = asyncio.ensure_future(store.durable(store.append(entry(1, run="r-fast"))))
        try:
            for _ in range(20):
                assert await store.read() == []
            assert not second.done()
        finally:
            go_on.set()
        await asyncio.gather(waiting_change, second, slow.durable(first))

        assert [each.run for each in await all_entries(store)] == ["r-slow", "r-fast"]


async def test_a_tree_that_another_kernel_forgot_may_be_written_again(
    postgres: Server, schema: str, store: PostgresStore
) -> None:
    """A kernel looks up the ids of a forgotten tree again."""
    async with open_store(PostgresStore(postgres.dsn, schema=schema, kernel="other")) as other:
        for n in range(1, 4):
            await store.durable(store.append(entry(n)))
            assert await other.forget("t-1") == 1
        await store.durable(store.append(entry(4)))

        assert [each[1:4] for each in await all_entries(other)] == [("t-1", "r-1", 4)]


async def test_waiting_continues_when_the_listening_session_is_lost(postgres: Server, schema: str) -> None:
    """The reader connects again, and gets the next event."""
    async with (
        open_store(PostgresStore(postgres.dsn, schema=schema, kernel="other")) as other,
        open_store(PostgresStore(postgres.dsn, schema=schema, read_only=True)) as reader,
    ):
        parts = reader._open
        assert parts is not None
        waiting = asyncio.ensure_future(reader.wait(0))
        await eventually(lambda: parts._listener.is_listening)
        lost_connection = parts._listener._connection
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'ramet reader%'"
            )
        await eventually(lambda: parts._listener.is_listening and parts._listener._connection is not lost_connection)
        assert not waiting.done()
        other.append(entry(1))

        assert await waiting
