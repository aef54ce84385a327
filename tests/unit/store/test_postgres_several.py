"""Tests of several kernels on one schema: trees are claimed after a fall, kept after a return, and fenced after a
loss."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from ramet.core.errors import OwnedElsewhere, StoreFailed
from ramet.store.contract import KernelInfo
from ramet.store.postgres import PostgresStore, ownership, peer_monitor, reader
from ramet.store.postgres import schema as postgres_schema
from ramet.store.postgres.commit_queue import Batches
from ramet.store.postgres.dsn import Place
from ramet.store.postgres.peer_monitor import PeerKernel, PeerMonitor
from ramet.store.postgres.session_monitor import SessionMonitor
from ramet.store.postgres.writer import PostgresWriter
from tests.support.postgres import Server, own_postgres, postgres
from tests.support.postgres_stores import all_entries, end_session, entry, open_store, schema, session_of
from tests.support.waiting import eventually

__all__ = ["own_postgres", "postgres", "schema"]  # fixtures are used by their names


@contextlib.asynccontextmanager
async def _kernels(server: Server, schema: str, *names: str) -> AsyncIterator[list[PostgresStore]]:
    """Yield open stores of kernels with these names."""
    async with contextlib.AsyncExitStack() as stack:
        stores = [PostgresStore(server.dsn, schema=schema, kernel=name) for name in names]
        yield [await stack.enter_async_context(open_store(store)) for store in stores]


async def _owner(store: PostgresStore, tree: str) -> str:
    seat = await store.owner_of(tree)
    return seat.name if seat is not None else ""


async def test_a_batch_writes_only_events_of_trees_that_the_kernel_owns(postgres: Server, schema: str) -> None:
    """The kernel lost one of two trees while it was cut off; events of that tree are never written."""
    async with _kernels(postgres, schema, "one", "two") as (one, two):
        for tree in ("kept", "lost"):
            await one.durable(one.append(entry(1, tree=tree)))
        losses: list[OwnedElsewhere] = []
        order: list[str] = []
        one.on_tree_loss(losses.append)
        one.on_tree_loss(lambda _: order.append("loss"))
        one.on_commit(lambda _: order.append("commit"))
        with end_session(one, postgres):
            tickets = [one.append(entry(2, tree=tree)) for tree in ("lost", "kept", "lost")]
            late = asyncio.ensure_future(one.put("kind", "key", b"", tree="lost"))
            assert await two.claim(["lost"]) == ["lost"]
            await two.announce("http://two")

        await one.durable(tickets[1])
        for ticket in (tickets[0], tickets[2]):
            with pytest.raises(OwnedElsewhere) as refusal:
                await one.durable(ticket)
            assert (refusal.value.tree, refusal.value.kernel) == ("lost", "two")
        with pytest.raises(OwnedElsewhere):
            await late
        with pytest.raises(OwnedElsewhere):
            one.append(entry(3, tree="lost"))
        assert [each.tree for each in losses] == ["lost"]
        assert order == ["loss", "commit"], "whoever acts on commits knows by then"
        await two.durable(two.append(entry(2, tree="lost")))
        found_entries = [(each.tree, each.seq) for each in await all_entries(two)]
        assert found_entries == [("kept", 1), ("lost", 1), ("kept", 2), ("lost", 2)]
        assert await one.get("kind", "key") is None


async def test_every_commit_checks_for_lost_trees(postgres: Server, schema: str) -> None:
    """A kernel whose session never ended sees the loss by the count in its row."""
    async with _kernels(postgres, schema, "one", "two") as (one, two):
        for tree in ("kept", "lost"):
            await one.durable(one.append(entry(1, tree=tree)))
        with psycopg.connect(postgres.dsn) as connection:
            connection.execute(f"UPDATE \"{schema}\".trees SET kernel = 'two', epoch = 2 WHERE name = 'lost'")
            connection.execute(f"UPDATE \"{schema}\".kernels SET losses = losses + 1 WHERE name = 'one'")
        tickets = [one.append(entry(2, tree=tree)) for tree in ("lost", "kept")]

        await one.durable(tickets[1])
        with pytest.raises(OwnedElsewhere, match="'two'"):
            await one.durable(tickets[0])
        assert [(each.tree, each.seq) for each in await all_entries(two)] == [("kept", 1), ("lost", 1), ("kept", 2)]


async def test_a_lost_tree_is_not_owned_again_by_writing_to_it(postgres: Server, schema: str) -> None:
    """A released tree has no owner; a kernel owns it again only after a claim."""
    async with _kernels(postgres, schema, "one", "two") as (one, two):
        await one.durable(one.append(entry(1)))
        with end_session(one, postgres):
            assert await two.claim_orphaned() == ["t-1"]
            await two.release("t-1")
        with pytest.raises(OwnedElsewhere, match="released it"):
            await one.put("kind", "key", b"", tree="t-1")
        with pytest.raises(OwnedElsewhere):
            one.append(entry(2))
        assert await two.owner_of("t-1") is None

        assert await one.claim(["t-1"]) == ["t-1"]
        await one.durable(one.append(entry(2)))


async def test_an_idle_kernel_learns_that_its_tree_was_taken_over(postgres: Server, schema: str) -> None:
    """Without a write the kernel finds the loss when its session is back."""
    async with _kernels(postgres, schema, "one", "two") as (one, two):
        await one.durable(one.append(entry(1)))
        losses: list[OwnedElsewhere] = []
        one.on_tree_loss(losses.append)
        with end_session(one, postgres):
            assert await two.claim_orphaned() == ["t-1"]
            assert not losses
        await eventually(lambda: losses)

        assert (losses[0].tree, losses[0].kernel) == ("t-1", "two")


def _writer_of(store: PostgresStore) -> PostgresWriter:
    assert store._open is not None
    assert store._open._writer is not None
    return store._open._writer


def _batches_of(store: PostgresStore) -> Batches:
    assert store._open is not None
    return store._open.batches


def _claim_from_stopped_kernel(server: Server, schema: str, one: PostgresStore) -> None:
    """End the session of a stopped kernel, and have another one claim all its trees.

    The loop of `one` makes this call, so nothing else runs in it, as in a stopped process."""

    async def claim() -> None:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 60000)", [session_of(one)])
        async with open_store(PostgresStore(server.dsn, schema=schema, kernel="two")) as two:
            assert await two.claim(["t-1"]) == ["t-1"]

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, claim()).result()


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "asks later"])
async def test_a_kernel_learns_of_a_lost_tree_before_it_acts_on_an_intent(
    postgres: Server, schema: str, waits: bool
) -> None:
    """The kernel stops after its intent is recorded, and its tree is claimed; `durable` reports the loss.

    The intent is committed during the wait or before it."""
    async with _kernels(postgres, schema, "one") as [one]:
        calls: list[str] = []
        await one.durable(one.append(entry(1)))
        one.on_tree_loss(lambda loss: calls.append(loss.kernel))
        ticket = one.append(entry(2))
        if waits:
            stop = one.on_commit(lambda _: _claim_from_stopped_kernel(postgres, schema, one))
            await one.durable(ticket)
            stop()
        else:
            await one.durable(ticket)
            _claim_from_stopped_kernel(postgres, schema, one)
            await one.durable(ticket)

        assert calls == ["two"]


async def test_a_kernel_that_stood_still_checks_its_session_again(
    postgres: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept got no sign of an end, so an old answer of the server is checked again."""
    async with _kernels(postgres, schema, "one") as [one]:
        calls: list[str] = []
        ticket = one.append(entry(1))
        await one.durable(ticket)
        one.on_tree_loss(lambda loss: calls.append(loss.kernel))
        monkeypatch.setattr(SessionMonitor, "has_hung_up", lambda _: False)
        _claim_from_stopped_kernel(postgres, schema, one)
        monkeypatch.setattr("ramet.store.postgres.connection.SURE_S", 0.0)

        await one.durable(ticket)

        assert calls == ["two"]


async def test_an_answer_counts_from_its_question(
    postgres: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine slept between the server's answer and the moment at which the kernel read it."""
    now = [1000.0]
    for module in ("connection", "writer"):
        monkeypatch.setattr(f"ramet.store.postgres.{module}.seconds_with_suspends", lambda: now[0])
    monkeypatch.setattr(SessionMonitor, "has_hung_up", lambda _: False)
    async with _kernels(postgres, schema, "one") as [one]:
        calls: list[str] = []
        await one.durable(one.append(entry(1)))
        one.on_tree_loss(lambda loss: calls.append(loss.kernel))
        writer = _writer_of(one)
        write = writer._write

        def write_and_sleep(*batch: Any) -> None:
            write(*batch)
            monkeypatch.setattr(writer, "_write", write)
            _claim_from_stopped_kernel(postgres, schema, one)
            now[0] += 60

        monkeypatch.setattr(writer, "_write", write_and_sleep)

        await one.durable(one.append(entry(2)))

        assert calls == ["two"]


async def test_a_new_session_confirms_nothing_before_its_losses_are_reported(
    postgres: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer has a new session, and knows that a tree is lost; the event loop has not heard of either."""
    monkeypatch.setattr(SessionMonitor, "has_hung_up", lambda _: False)
    async with _kernels(postgres, schema, "one") as [one]:
        calls: list[str] = []
        ticket = one.append(entry(1))
        await one.durable(ticket)
        one.on_tree_loss(lambda loss: calls.append(loss.kernel))
        writer, is_written = _writer_of(one), threading.Event()
        commit = writer.commit

        def commit_and_report(batch: Any) -> None:
            commit(batch)
            is_written.set()

        monkeypatch.setattr(writer, "commit", commit_and_report)
        _claim_from_stopped_kernel(postgres, schema, one)
        one.append(entry(1, tree="t-2"))
        _batches_of(one)._send_next()
        assert is_written.wait(60)

        await one.durable(ticket)

        assert calls == ["two"]


async def test_a_kernel_without_its_session_is_listed_for_itself(postgres: Server, schema: str) -> None:
    """The kernel acts under its name and epoch once its session is back, even without trees."""
    async with _kernels(postgres, schema, "one", "two") as (one, two):
        [seat, _] = await one.kernels()
        with end_session(one, postgres):
            assert (await one.kernels())[0] == seat._replace(alive=False)
            assert [each.name for each in await two.kernels()] == ["two"]


async def test_a_kernel_that_returns_before_a_claim_keeps_its_trees(postgres: Server, schema: str) -> None:
    """Epoch and trees are unchanged; the lock is a new one, for which the other kernel waits."""
    async with _kernels(postgres, schema, "one", "two") as (one, two):
        await one.durable(one.append(entry(1)))
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 60000)", [session_of(one)])
        await one.durable(one.append(entry(2)))

        assert await two.claim_orphaned() == []
        assert await two.claim(["t-1"]) == []
        assert [each.seq for each in await all_entries(two)] == [1, 2]


async def test_every_living_kernel_learns_of_a_fallen_one_and_they_share_its_trees(
    postgres: Server, schema: str
) -> None:
    """Each of four kernels watches one other, and the fall of any of them is sent to all."""
    async with _kernels(postgres, schema, "a", "b", "c", "d") as stores:
        for fallen in stores[1:]:
            await _cut_off_and_share(postgres, fallen, [store for store in stores if store is not fallen])
            await fallen.put("kind", "back", b"")


async def test_a_fall_that_no_kernel_watched_is_reported_at_the_next_look(
    postgres: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watching kernel was interrupted at that moment, and reports the fall after its next look."""
    waits = PeerMonitor._block

    def interrupted(watch: PeerMonitor, lock: int | None, most_s: float) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(watch, "_tell_all", lambda: None)
            waits(watch, lock, most_s)

    monkeypatch.setattr(PeerMonitor, "_block", interrupted)
    async with _kernels(postgres, schema, "a", "b", "c", "d") as stores:
        await _cut_off_and_share(postgres, stores[3], stores[:3])


async def _cut_off_and_share(server: Server, fallen: PostgresStore, others: list[PostgresStore]) -> None:
    trees = sorted(f"{fallen.kernel}-{n}" for n in range(12))
    await fallen.claim(trees)
    taken_trees: list[str] = []

    async def adopt(store: PostgresStore) -> None:
        news = asyncio.Event()
        leave = store.on_kernels(news.set)
        while True:
            await news.wait()
            news.clear()
            while more := await store.claim_orphaned(2):
                taken_trees.extend(more)
                for tree in more:
                    await store.release(tree)
            if any(each.name == fallen.kernel and each.alive for each in await store.kernels()):
                continue
            leave()
            return

    adopting = asyncio.gather(*map(adopt, others))
    with end_session(fallen, server):
        await adopting
        assert sorted(taken_trees) == trees


async def test_a_kernel_that_cannot_read_gives_up_its_trees(postgres: Server, schema: str) -> None:
    """A kernel without a reading connection would get no news and answer no request."""
    one = PostgresStore(postgres.dsn, schema=schema, kernel="one", patience_s=0.2)
    async with _kernels(postgres, schema, "two") as (two,):
        await one.open()
        await one.durable(one.append(entry(1)))
        losses: list[StoreFailed] = []
        one.on_loss(losses.append)
        connect = one._place.connect

        def only_writers(application: str, **options: Any) -> Any:
            if "reader" in application:
                raise psycopg.OperationalError("sorry, too many clients already")
            return connect(application, **options)

        one._place.connect = only_writers  # type: ignore[method-assign]
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 60000)", [_reader_pid(one)])
        with pytest.raises(StoreFailed, match="too many clients"):
            await one.head()
        await eventually(lambda: losses)

        news = asyncio.Event()
        two.on_kernels(news.set)
        async with asyncio.timeout(180):
            while await two.claim_orphaned() != ["t-1"]:
                await news.wait()
                news.clear()
        with pytest.raises(StoreFailed):
            await one.close()


def _reader_pid(store: PostgresStore) -> int:
    assert store._open is not None
    assert store._open.reader._connection is not None
    return store._open.reader._connection.info.backend_pid


async def test_after_a_restart_of_the_server_every_kernel_keeps_its_trees(own_postgres: Server) -> None:
    """A restart releases every lock; the first kernel that returns gives the others time."""
    async with _kernels(own_postgres, "ramet", "one", "two") as (one, two):
        for store in (one, two):
            await store.durable(store.append(entry(1, tree=store.kernel)))
        losses: list[OwnedElsewhere] = []
        one.on_tree_loss(losses.append)
        with end_session(one, own_postgres):
            own_postgres.restart()
            await two.durable(two.append(entry(2, tree="two")))  # It is back, the other is not.
            assert await two.claim_orphaned() == []
            assert await two.claim(["one"]) == []
            assert [each.alive for each in await two.kernels()] == [True, True]
        await one.durable(one.append(entry(2, tree="one")))

        assert not losses
        assert [await _owner(two, tree) for tree in ("one", "two")] == ["one", "two"]


async def test_a_kernel_that_does_not_return_after_a_server_restart_is_taken_over(
    own_postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock shows its fall; the server's clock ends its time, and wakes the listening kernels."""
    for module in (ownership, reader):
        monkeypatch.setattr(module, "GRACE_S", 1.0)
    async with _kernels(own_postgres, "ramet", "one", "two") as (one, two):
        await one.durable(one.append(entry(1)))
        adopted_trees: list[str] = []
        news = asyncio.Event()
        two.on_kernels(news.set)
        with end_session(one, own_postgres):
            own_postgres.restart()
            async with asyncio.timeout(180):
                while not adopted_trees:
                    news.clear()
                    adopted_trees += await two.claim_orphaned()
                    if not adopted_trees:
                        await news.wait()

        assert adopted_trees == ["t-1"]


async def test_trees_of_an_older_journal_belong_to_the_first_claiming_kernel(postgres: Server, schema: str) -> None:
    """An older journal records no owners."""
    location = Place(postgres.dsn, schema)
    with contextlib.closing(location.connect("older", writes=True)) as connection:
        postgres_schema.migrate(connection, location, upto=1)
        connection.execute(f"INSERT INTO \"{schema}\".names (name) VALUES ('t-1'), ('r-1')")
        connection.execute(f"INSERT INTO \"{schema}\".events VALUES (1, 1, 1, 2, 'noted', '{{}}')")
        connection.execute(f'UPDATE "{schema}".journal SET cursor = 1')
        connection.execute(f"INSERT INTO \"{schema}\".kernels VALUES ('kernel', 3, 7)")
    async with _kernels(postgres, schema, "kernel", "other") as (one, two):
        assert [each[1:4] for each in await all_entries(one)] == [("t-1", "r-1", 1)]
        assert (await one.kernels())[0][:2] == ("kernel", 4)
        assert await one.claim(["t-1"]) == ["t-1"]
        assert await two.claim(["t-1"]) == []
        await one.durable(one.append(entry(2)))
        assert [each.seq for each in await all_entries(two)] == [1, 2]


async def test_a_fall_is_sent_although_the_wait_for_the_lock_is_interrupted(
    postgres: Server, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News at the same moment do not hide the fall from the only watching kernel."""
    watch = PeerMonitor(Place(postgres.dsn, schema), "one", look=_never, listen=_never, listener=lambda: None)
    connection = watch._connect()
    execute, cancels = connection.execute, [True, True, False, True]  # the wait, the look at the lock, the telling

    def interrupted(*arguments: Any) -> Any:
        is_setting = b"set_config" in (arguments[0] if isinstance(arguments[0], bytes) else arguments[0].encode())
        if not is_setting and cancels and cancels.pop(0):
            raise psycopg.errors.QueryCanceled
        return execute(*arguments)

    monkeypatch.setattr(connection, "execute", interrupted)
    with psycopg.connect(postgres.dsn, autocommit=True) as hears:
        hears.execute(sql.SQL("LISTEN {}").format(sql.Identifier(schema)))
        await asyncio.to_thread(watch._block, 4711, 0.0)
        [notification] = hears.notifies(timeout=180, stop_after=1)
    connection.close()

    assert (notification.payload, cancels) == ("kernels", [])


async def test_a_kernel_that_joined_and_fell_between_looks_is_reported_once(postgres: Server, schema: str) -> None:
    """The kernel that finds the fall must report it; falls of the first look were reported by others."""
    fallen = [
        PeerKernel(KernelInfo(name, 1, "", alive=False), lock, None, has_trees=True)
        for name, lock in (("before", 71), ("between", 72))
    ]
    looks = asyncio.Queue[list[PeerKernel]]()
    begun = asyncio.Semaphore(0)

    async def look() -> list[PeerKernel]:
        begun.release()
        return await looks.get()

    watch = PeerMonitor(Place(postgres.dsn, schema), "one", look=look, listen=_at_once, listener=lambda: None)
    payloads: list[str] = []
    with psycopg.connect(postgres.dsn, autocommit=True) as hears:
        hears.execute(sql.SQL("LISTEN {}").format(sql.Identifier(schema)))
        watch.start()
        try:
            await begun.acquire()
            for number, around in enumerate((fallen[:1], fallen, fallen), start=1):
                looks.put_nowait(around)
                watch.notify()
                await begun.acquire()  # It has told what there was to tell.
                hears.execute("SELECT pg_notify(%s, %s)", [schema, f"look {number}"])
                for each in hears.notifies(timeout=180):
                    payloads.append(each.payload)
                    if each.payload == f"look {number}":
                        break
        finally:
            await watch.stop()

    assert payloads == ["look 1", "kernels", "look 2", "look 3"]


async def test_kernels_are_watched_again_after_an_unexpected_error(
    postgres: Server, schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, no descriptor was left for a moment; without a watch, no tree of a lost kernel would be claimed."""
    monkeypatch.setattr(peer_monitor, "_LATER_S", 0.001)
    failures = [OSError(errno.EMFILE, "Too many open files")] * 2
    has_listened = asyncio.Event()

    async def listen() -> None:
        if failures:
            raise failures.pop()

    async def look() -> list[PeerKernel]:
        return []

    watch = PeerMonitor(Place(postgres.dsn, schema), "one", look=look, listen=listen, listener=has_listened.set)
    watch.start()
    try:
        async with asyncio.timeout(60):
            await has_listened.wait()
    finally:
        await watch.stop()

    assert [each.getMessage() for each in caplog.records] == ["the other kernels cannot be watched for now"]


async def test_a_failing_listener_for_lost_trees_stops_no_write(
    postgres: Server, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other listeners are called, and whoever waits for the commit gets it."""

    def fail(loss: OwnedElsewhere) -> None:
        raise ZeroDivisionError("a defect")

    async with _kernels(postgres, schema, "one", "two") as (one, two):
        for tree in ("kept", "lost"):
            await one.durable(one.append(entry(1, tree=tree)))
        losses: list[OwnedElsewhere] = []
        one.on_tree_loss(fail)
        one.on_tree_loss(losses.append)
        with end_session(one, postgres):
            ticket = one.append(entry(2, tree="kept"))
            assert await two.claim(["lost"]) == ["lost"]

        async with asyncio.timeout(60):
            await one.durable(ticket)

        assert [each.tree for each in losses] == ["lost"]
        assert "a listener of a store failed" in caplog.text


async def _at_once() -> None:
    return None


async def _never() -> Any:
    await asyncio.Event().wait()
