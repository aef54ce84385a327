"""What is on record of requests with an Idempotency-Key, on every store: who may do them, and for how long."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import InvalidValue
from ramet.services.errors import KeyReused, RequestInProgress
from ramet.services.idempotency.attempts import Attempt, Sender, checked_key
from ramet.services.idempotency.ledger import Ledger
from ramet.services.idempotency.records import ANSWER, ANSWER_BYTES, REQUEST, Answered
from ramet.services.idempotency.retention import Retention
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.postgres import PostgresStore
from ramet.store.sqlite.store import SqliteStore
from tests.support import postgres

ONE = Sender("team_key", "POST /v1/agents", "one")


@pytest.fixture(scope="module", autouse=True)
def server_of_the_stores(request: pytest.FixtureRequest) -> None:
    """PostgreSQL, if it is there."""
    postgres.start_if_used(request)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[Store]:
    found: Store
    match request.param:
        case "memory":
            found = MemoryStore()
        case "sqlite":
            found = SqliteStore(tmp_path / "journal.db")
        case _:
            found = PostgresStore(postgres.running().dsn, schema=postgres.fresh_schema())
    await found.open()
    yield found
    await found.close()


async def claimed(ledger: Ledger, sender: Sender = ONE, digest: str = "d") -> Attempt:
    """Begin a request that has no answer."""
    found = await ledger.claim(sender, "team-1", digest)
    assert isinstance(found, Attempt)
    return found


async def answered(ledger: Ledger, sender: Sender, body: bytes, digest: str = "d") -> None:
    """Do a request."""
    await ledger.answer(await claimed(ledger, sender, digest), digest, 201, {"content-type": "x/y"}, body)


async def test_the_first_answer_comes_again(store: Store) -> None:
    """From another process as well; with another digest it is refused."""
    await answered(Ledger(store, FakeClock()), ONE, b"hello")
    for ledger in (Ledger(store, FakeClock()), Ledger(store, FakeClock())):
        found = await ledger.claim(ONE, "team-1", "d")
        assert isinstance(found, Answered)
        assert (found.body, found.record.status, found.record.headers) == (b"hello", 201, {"content-type": "x/y"})
        with pytest.raises(KeyReused):
            await ledger.claim(ONE, "team-1", "other")
        assert await ledger.is_known(ONE)


async def test_one_at_a_time(store: Store) -> None:
    """The second is told so, until the first is over; one that was refused is as if it had never been."""
    ledger = Ledger(store, FakeClock())
    first = await claimed(ledger)
    with pytest.raises(RequestInProgress):
        await ledger.claim(ONE, "team-1", "d")
    with pytest.raises(KeyReused):
        await ledger.claim(ONE, "team-1", "other")
    await ledger.drop(first)
    assert not await ledger.is_known(ONE)
    assert not (await claimed(ledger, digest="other")).is_repeated


async def test_a_second_release_ends_no_later_attempt(store: Store) -> None:
    """An attempt that is over may be released again while the next one with the same key is at work."""
    ledger = Ledger(store, FakeClock())
    first = await claimed(ledger)
    await ledger.drop(first)
    second = await claimed(ledger)
    ledger.release(first)
    with pytest.raises(RequestInProgress):
        await ledger.claim(ONE, "team-1", "d")
    await ledger.answer(second, "d", 204, {}, b"")
    assert isinstance(await ledger.claim(ONE, "team-1", "d"), Answered)


async def test_what_a_killed_process_began_is_gone_on_with(store: Store) -> None:
    """With the same ids and keys, and by one process only."""
    first = await claimed(Ledger(store, FakeClock()))
    later = Ledger(store, FakeClock())
    again = await claimed(later)
    assert (again.is_repeated, again.turn_id) == (True, first.turn_id)
    assert again.entropy(32) == first.entropy(32) != again.entropy(31)[:31] + first.entropy(32)[31:]
    with pytest.raises(RequestInProgress):
        await later.claim(ONE, "team-1", "d")
    await later.answer(again, "d", 204, {}, b"")
    assert isinstance(await Ledger(store, FakeClock()).claim(ONE, "team-1", "d"), Answered)


async def test_a_turn_is_known_after_a_kill(store: Store) -> None:
    """That it was begun, and under which id."""
    ledger = Ledger(store, FakeClock())
    first = await claimed(ledger)
    await ledger.begin_turn(first)
    again = await claimed(Ledger(store, FakeClock()))
    assert (again.has_begun_turn, again.turn_id) == (True, first.turn_id)


async def test_the_secret_of_an_answer_is_not_on_record(store: Store) -> None:
    """What is derived from the sender's key is cut out of the kept answer, and put back for that sender."""
    ledger = Ledger(store, FakeClock())
    attempt = await claimed(ledger)
    secret = attempt.unredact(b"\0")
    await ledger.answer(attempt, "d", 201, {}, b'{"nonce": "agent_%s"}' % secret)
    kept = await store.get(ANSWER, ONE.place)
    assert kept is not None
    assert secret not in kept.data
    found = await ledger.claim(ONE, "team-1", "d")
    assert isinstance(found, Answered)
    assert found.body == b'{"nonce": "agent_%s"}' % secret


async def test_after_a_day_it_is_another_request(store: Store) -> None:
    """With other ids; what is on record goes when there is a look at it."""
    clock = FakeClock()
    ledger = Ledger(store, clock)
    await answered(ledger, ONE, b"old")
    await clock.advance(timedelta(hours=24).total_seconds() - 1)
    assert isinstance(await ledger.claim(ONE, "team-1", "d"), Answered)
    await clock.advance(1)
    assert not (await claimed(ledger, digest="other")).is_repeated
    await answered(ledger, Sender("k", "r", "two"), b"new")
    await clock.advance(timedelta(hours=24).total_seconds())
    await answered(ledger, Sender("k", "r", "three"), b"newest")
    assert [each.key for each in await store.list(REQUEST)] == [Sender("k", "r", "three").place]
    assert len(await store.list(ANSWER)) == 1


async def test_a_team_has_a_share(store: Store) -> None:
    """Of its requests the newest stay, in count and in bytes; those of other teams are no matter."""
    clock = FakeClock()
    retention = Retention(store, clock, most_records=3, most_bytes=100, sweep_records=1)
    ledger = Ledger(store, clock, retention=retention)
    other = await ledger.claim(Sender("other", "r", "1"), "team-2", "d")
    assert isinstance(other, Attempt)
    await ledger.answer(other, "d", 200, {}, b"x")
    senders = [Sender("k", "r", str(number)) for number in range(5)]
    for each in senders:
        await clock.advance(1)
        await answered(ledger, each, b"x")
    await retention.sweep()
    assert [await ledger.is_known(each) for each in senders] == [False, False, True, True, True]
    await clock.advance(1)
    await answered(ledger, Sender("k", "r", "large"), b"x" * 99)
    await retention.sweep()
    assert [await ledger.is_known(each) for each in senders] == [False, False, False, False, True]
    assert await ledger.is_known(Sender("other", "r", "1"))


async def test_records_of_a_clock_that_was_ahead_take_no_share_for_good(store: Store) -> None:
    """They count as made when the clock was set back: older than what comes after, and gone a day later."""
    ahead = Ledger(store, FakeClock(start=datetime(2036, 1, 1, tzinfo=UTC)))
    early = [Sender("k", "r", f"early-{number}") for number in range(3)]
    for each in early:
        await answered(ahead, each, b"x")
    clock = FakeClock()
    retention = Retention(store, clock, most_records=3, sweep_records=1)
    ledger = Ledger(store, clock, retention=retention)
    await retention.sweep()
    late = [Sender("k", "r", f"late-{number}") for number in range(3)]
    for each in late:
        await clock.advance(1)
        await answered(ledger, each, b"x")
    await retention.sweep()
    assert [await ledger.is_known(each) for each in (*early, *late)] == [False] * 3 + [True] * 3
    await clock.advance(timedelta(hours=24).total_seconds())
    await retention.sweep()
    assert await store.list(REQUEST) == []


async def test_a_large_answer_is_only_remembered(store: Store) -> None:
    """That there was one; the request is not done again."""
    ledger = Ledger(store, FakeClock())
    await answered(ledger, ONE, b"x" * (ANSWER_BYTES + 1))
    found = await ledger.claim(ONE, "team-1", "d")
    assert isinstance(found, Answered)
    assert found.body is None
    assert await store.list(ANSWER) == []


@pytest.mark.parametrize("stores", ["postgres"])
async def test_another_kernel_that_lives_is_doing_it(stores: str) -> None:
    """Of two kernels of a store the second waits for the first, and goes on once that is gone."""
    schema = postgres.fresh_schema()

    def make(name: str) -> PostgresStore:
        return PostgresStore(postgres.running().dsn, schema=schema, kernel=name)

    async with AsyncExitStack() as stack:
        one, two = make("one"), make("two")
        for each in (one, two):
            await each.open()
            stack.push_async_callback(each.close)
        first = await claimed(Ledger(one, FakeClock()))
        with pytest.raises(RequestInProgress):
            await Ledger(two, FakeClock()).claim(ONE, "team-1", "d")
        await one.close()
        again = await claimed(Ledger(two, FakeClock()))
        assert (again.is_repeated, again.turn_id) == (True, first.turn_id)


@pytest.mark.parametrize("given", ["", "k" * 256, "ä", "a\n", "\x7f"])
def test_keys_that_are_none(given: str) -> None:
    """Refused by the name of the header."""
    with pytest.raises(InvalidValue, match="Idempotency-Key"):
        checked_key(given)
    assert checked_key("k" * 255) == "k" * 255
