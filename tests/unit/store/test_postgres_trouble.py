"""Tests of the journal on a PostgreSQL server that crashes, is stopped, is cut off, or stays away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator

import psycopg
import pytest

from ramet.core.errors import StoreFailed, StoreInUse
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, own_postgres, postgres
from tests.support.postgres_stores import (
    all_entries,
    end_session,
    entry,
    open_store,
    per_writer,
    schema,
    session_of,
    store,
)
from tests.support.waiting import eventually

__all__ = ["own_postgres", "postgres", "schema", "store"]  # fixtures are used by their names


async def test_a_refused_statement_fails_the_store(postgres: Server, schema: str) -> None:
    """After a dropped table the store tries nothing again, and no caller waits forever."""
    store = await PostgresStore(postgres.dsn, schema=schema).open()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP TABLE "{schema}".events')

    with pytest.raises(StoreFailed, match="events"):
        await store.durable(store.append(entry(1)))
    with pytest.raises(StoreFailed):
        store.append(entry(2))
    with pytest.raises(StoreFailed):
        await store.close()


async def test_a_server_crash_under_load_loses_and_doubles_nothing(own_postgres: Server) -> None:
    """The store connects again, checks which commits are there, and continues."""
    acknowledged = 0
    is_enough = False

    async with open_store(PostgresStore(own_postgres.dsn)) as store:

        async def produce(run: str) -> int:
            nonlocal acknowledged
            seq = 0
            while not is_enough:
                seq += 1
                ticket = store.append(entry(seq, run=run))
                await store.put("count", run, b"%d" % seq, expected=seq - 1)
                assert store.committed >= ticket
                acknowledged += 1
            return seq

        producers = [asyncio.ensure_future(produce(f"r-{n}")) for n in range(10)]
        for _ in range(3):
            until = acknowledged + 100
            await eventually(lambda until=until: acknowledged >= until)  # type: ignore[misc]
            own_postgres.crash()
            own_postgres.begin()
            await eventually(own_postgres.is_ready)
        until = acknowledged + 100
        await eventually(lambda: acknowledged >= until)
        is_enough = True
        counts = await asyncio.gather(*producers)

        entries = per_writer(await all_entries(store))
        assert entries == {str(n): list(range(1, count + 1)) for n, count in enumerate(counts)}
        documents = await store.list("count")
        assert [(each.version, each.data) for each in documents] == [(count, b"%d" % count) for count in counts]


async def test_a_session_that_ends_during_a_commit_is_restored(
    postgres: Server, schema: str, store: PostgresStore
) -> None:
    """The server ends the session, or the line is cut while the old session lives, forty times at different moments."""
    parts = store._open
    assert parts is not None
    writer = parts._writer
    assert writer is not None
    for n in range(1, 41):
        ticket = store.append(entry(n, run=f"r-{n}"))
        waiting = asyncio.ensure_future(store.durable(ticket))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        if n % 2:
            line = writer._connection
            assert line is not None
            with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(line.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
        else:
            with psycopg.connect(postgres.dsn, autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(%s)", [writer.pid])
        await waiting

    assert [each.seq for each in await all_entries(store)] == list(range(1, 41))


class _Line:
    """Connection to a server that breaks on demand: the server gets the bytes, and its answer is lost."""

    def __init__(self, server: Server, *, shows_pid: bool = True, is_noticed: bool = True) -> None:
        self._server, self._shows_pid, self._is_noticed = server, shows_pid, is_noticed
        self._unnoticed: list[asyncio.StreamWriter] = []  #: what the server takes for sessions that live
        self.breaks_after: bytes | None = None  #: something in what is sent
        self.broken = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yield the DSN of the line."""
        listening = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._close_all, self._unnoticed)
            yield f"host=127.0.0.1 port={port} user=ramet dbname=postgres sslmode=disable gssencmode=disable"

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, back = await asyncio.open_unix_connection(self._server.socket)
        answering = asyncio.ensure_future(self._copy(upstream_reader, writer))
        try:
            while data := await reader.read(2**16):
                if self.breaks_after is not None and self.breaks_after in data:
                    self.breaks_after = None
                    self.broken += 1
                    answering.cancel()
                    await asyncio.wait({answering})
                    back.write(data)
                    await upstream_reader.read(2**16)
                    break
                back.write(data)
        finally:
            answering.cancel()
            if self.broken and not self._is_noticed:
                self._unnoticed.append(back)
                await self._close_all([writer])
            else:
                await self._close_all([writer, back])

    async def _close_all(self, lines: list[asyncio.StreamWriter]) -> None:
        for each in lines:
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            if not self._shows_pid:  # The message BackendKeyData, of twelve bytes.
                data = re.sub(rb"K\0\0\0\x0c....", b"K\0\0\0\x0c\x7f\0\0\x01", data, flags=re.DOTALL)
            writer.write(data)


async def test_a_commit_whose_acknowledgement_is_lost_is_not_repeated(postgres: Server, schema: str) -> None:
    """The store checks whether the batch is there: events are there once, and answers are those of the first try."""
    line = _Line(postgres)
    async with line.open() as dsn, open_store(PostgresStore(dsn, schema=schema)) as store:
        await store.durable(store.append(entry(1)))
        line.breaks_after = b"alone"
        await store.durable(store.append(entry(2, data=b"alone")))
        line.breaks_after = b"COMMIT"
        store.append(entry(3, run="r-2"))
        document = await store.put("kind", "key", b"", expected=0)
        await store.durable(store.append(entry(4)))

        assert line.broken == 2
        assert document.version == 1
        assert [each.seq for each in await all_entries(store)] == [1, 2, 3, 4]


async def test_a_session_that_the_server_still_holds_is_ended(postgres: Server, schema: str) -> None:
    """After a lost network the former session still holds the lock, and the store ends it."""
    line = _Line(postgres, is_noticed=False)
    async with line.open() as dsn, open_store(PostgresStore(dsn, schema=schema, patience_s=60.0)) as store:
        line.breaks_after = b"alone"
        await store.durable(store.append(entry(1, data=b"alone")))

        assert line.broken == 1
        assert [each.seq for each in await all_entries(store)] == [1]


async def test_a_pooler_is_refused(postgres: Server, schema: str) -> None:
    """A pooler names a pid that is not the server's; behind it a lock may end with any transaction."""
    async with _Line(postgres, shows_pid=False).open() as dsn:
        with pytest.raises(StoreFailed, match="pooler"):
            await PostgresStore(dsn, schema=schema).open()


async def test_a_stopped_server_acknowledges_nothing_until_it_continues(
    own_postgres: Server, store: PostgresStore
) -> None:
    """After SIGSTOP `append` does not wait and `durable` does; a store on another server is not affected."""
    async with open_store(PostgresStore(own_postgres.dsn)) as stopped_store:
        await stopped_store.durable(stopped_store.append(entry(1)))
        own_postgres.signal_all(signal.SIGSTOP)
        try:
            waiting = asyncio.ensure_future(stopped_store.durable(stopped_store.append(entry(2))))
            for n in range(1, 101):
                await store.durable(store.append(entry(n)))
                stopped_store.append(entry(2 + n))
            assert not waiting.done()
            assert stopped_store.committed == 1
        finally:
            own_postgres.signal_all(signal.SIGCONT)
        await waiting
        await stopped_store.durable(102)
        assert [each.seq for each in await all_entries(stopped_store)] == list(range(1, 103))


async def test_closing_does_not_wait_forever_for_a_stopped_server(own_postgres: Server) -> None:
    """After its patience the store fails every waiter and the caller, and leaves no thread."""
    store = await PostgresStore(f"{own_postgres.dsn} connect_timeout=2", patience_s=0.2).open()
    own_postgres.signal_all(signal.SIGSTOP)
    try:
        waiting = asyncio.ensure_future(store.durable(store.append(entry(1))))
        reading = asyncio.ensure_future(store.read())
        with pytest.raises(StoreFailed):
            await store.close()
        for each in (waiting, reading):
            with pytest.raises(StoreFailed):
                await each
        with pytest.raises(StoreFailed, match="closed"):
            store.append(entry(2))
    finally:
        own_postgres.signal_all(signal.SIGCONT)


async def test_a_server_that_stays_away_fails_the_store_permanently(own_postgres: Server) -> None:
    """After its patience the store fails every waiter, and accepts nothing."""
    store = await PostgresStore(own_postgres.dsn, patience_s=0.2).open()
    await store.durable(store.append(entry(1)))
    own_postgres.crash()

    waiting = [asyncio.ensure_future(store.durable(store.append(entry(n)))) for n in (2, 3)]
    changing = asyncio.ensure_future(store.put("kind", "key", b""))

    for each in (*waiting, changing):
        with pytest.raises(StoreFailed):
            await each
    with pytest.raises(StoreFailed):
        store.append(entry(4))
    with pytest.raises(StoreFailed):
        await store.read()
    assert store.committed == 1
    with pytest.raises(StoreFailed):
        await store.close()
    await store.close()


async def test_a_kernel_replaced_while_it_was_cut_off_writes_nothing(postgres: Server, schema: str) -> None:
    """Another kernel opened the store meanwhile; the first one finds a newer epoch, and fails."""
    store = await PostgresStore(postgres.dsn, schema=schema).open()
    with end_session(store, postgres):
        waiting = asyncio.ensure_future(store.durable(store.append(entry(1))))
        second = await PostgresStore(postgres.dsn, schema=schema).open()
    with pytest.raises(StoreFailed, match="another kernel"):
        await waiting
    await second.durable(second.append(entry(1, run="r-2")))
    assert [each.run for each in await all_entries(second)] == ["r-2"]
    await second.close()
    with pytest.raises(StoreFailed, match="another kernel"):
        await store.close()


async def test_a_batch_of_another_kernel_is_not_taken_for_our_own(postgres: Server, schema: str) -> None:
    """Another kernel wrote a batch with the same number meanwhile; our batch is lost and reported as lost."""
    store = await PostgresStore(postgres.dsn, schema=schema).open()
    await store.durable(store.append(entry(1)))
    with end_session(store, postgres):
        async with open_store(PostgresStore(postgres.dsn, schema=schema)) as second:
            await second.durable(second.append(entry(1, run="r-2")))

    with pytest.raises(StoreFailed, match="another kernel used the store"):
        await store.durable(store.append(entry(2)))
    with pytest.raises(StoreFailed):
        await store.close()


async def test_an_idle_kernel_whose_session_was_ended_takes_its_lock_back(
    postgres: Server, schema: str, store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle kernel notices the end of its session, and no other kernel gets the lock, three times in a row."""
    losses: list[StoreFailed] = []
    store.on_loss(losses.append)
    for _ in range(3):
        before = session_of(store)
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 60000)", [before])
        await eventually(lambda before=before: session_of(store) not in (0, before))  # type: ignore[misc]
        await eventually(lambda: caplog.messages[-1].endswith("both are restored"))

        with pytest.raises(StoreInUse):
            await PostgresStore(postgres.dsn, schema=schema).open()
    assert [message.partition(": ")[2][:25] for message in caplog.messages] == [
        "the session of this kerne",
        "the session and its lock ",
    ] * 3
    assert losses == []
    await store.durable(store.append(entry(1)))


async def test_an_idle_kernel_that_was_replaced_reports_its_loss(postgres: Server, schema: str) -> None:
    """`on_loss` listeners are called without a write, and the store accepts nothing after that."""
    losses: list[StoreFailed] = []
    store = await PostgresStore(postgres.dsn, schema=schema).open()
    store.on_loss(losses.append)
    unheard = store.on_loss(losses.append)
    unheard()
    with end_session(store, postgres):
        second = await PostgresStore(postgres.dsn, schema=schema).open()
    await eventually(lambda: losses)

    assert [type(each) for each in losses] == [StoreFailed]
    assert "another kernel" in losses[0].why
    with pytest.raises(StoreFailed, match="another kernel"):
        store.append(entry(1))
    with pytest.raises(StoreFailed, match="another kernel"):
        await store.read()
    with pytest.raises(StoreFailed):
        await store.close()
    await second.close()


async def test_an_idle_kernel_whose_server_stays_away_reports_its_loss(own_postgres: Server) -> None:
    """A kernel cannot know the owner of its trees after its patience."""
    losses: list[StoreFailed] = []
    store = await PostgresStore(own_postgres.dsn, patience_s=0.2).open()
    store.on_loss(losses.append)
    own_postgres.crash()
    await eventually(lambda: losses)

    assert "did not come back" in losses[0].why
    with pytest.raises(StoreFailed):
        await store.close()
