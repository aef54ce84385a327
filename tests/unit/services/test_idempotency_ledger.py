"""Records of requests with an Idempotency-Key, on every store: who may do a request, and how long a record lasts."""

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
from ramet.services.idempotency.records import ANSWER, ANSWER_BYTES, REQUEST, Retention, StoredAnswer
from ramet.store.contract import Store
from ramet.store.memory import MemoryStore
from ramet.store.postgres import PostgresStore
from ramet.store.sqlite.store import SqliteStore
from tests.support import postgres

ONE = Sender("team_key", "POST /v1/agents", "one")


@pytest.fixture(scope="module", autouse=True)
def server_of_the_stores(request: pytest.FixtureRequest) -> None:
    """Start PostgreSQL if the tests use it."""
    postgres.start_if_used(request)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[Store]:
    store: Store
    match request.param:
        case "memory":
            store = MemoryStore()
        case "sqlite":
            store = SqliteStore(tmp_path / "journal.db")
        case _:
            store = PostgresStore(postgres.running().dsn, schema=postgres.fresh_schema())
    await store.open()
    yield store
    await store.close()


async def claim_new(ledger: Ledger, sender: Sender = ONE, digest: str = "d") -> Attempt:
    """Begin a request that has no answer yet."""
    attempt = await ledger.claim(sender, "team-1", digest)
    assert isinstance(attempt, Attempt)
    return attempt


async def answer_request(ledger: Ledger, sender: Sender, body: bytes, digest: str = "d") -> None:
    """Do a request."""
    await ledger.answer(await claim_new(ledger, sender, digest), digest, 201, {"content-type": "x/y"}, body)


async def test_a_repeated_request_gets_the_first_answer(store: Store) -> None:
    """Another process gives the same answer; another digest is refused."""
    await answer_request(Ledger(store, FakeClock()), ONE, b"hello")
    for ledger in (Ledger(store, FakeClock()), Ledger(store, FakeClock())):
        answer = await ledger.claim(ONE, "team-1", "d")
        assert isinstance(answer, StoredAnswer)
        assert (answer.body, answer.record.status, answer.record.headers) == (b"hello", 201, {"content-type": "x/y"})
        with pytest.raises(KeyReused):
            await ledger.claim(ONE, "team-1", "other")
        assert await ledger.is_known(ONE)


async def test_requests_with_one_key_run_one_at_a_time(store: Store) -> None:
    """A second request is refused while the first is active; a dropped request leaves no record."""
    ledger = Ledger(store, FakeClock())
    first = await claim_new(ledger)
    with pytest.raises(RequestInProgress):
        await ledger.claim(ONE, "team-1", "d")
    with pytest.raises(KeyReused):
        await ledger.claim(ONE, "team-1", "other")
    await ledger.drop(first)
    assert not await ledger.is_known(ONE)
    assert not (await claim_new(ledger, digest="other")).is_repeated


async def test_a_second_release_ends_no_later_attempt(store: Store) -> None:
    """A finished attempt may be released again while the next one with the same key is active."""
    ledger = Ledger(store, FakeClock())
    first = await claim_new(ledger)
    await ledger.drop(first)
    second = await claim_new(ledger)
    ledger.release(first)
    with pytest.raises(RequestInProgress):
        await ledger.claim(ONE, "team-1", "d")
    await ledger.answer(second, "d", 204, {}, b"")
    assert isinstance(await ledger.claim(ONE, "team-1", "d"), StoredAnswer)


async def test_a_request_of_a_killed_process_is_resumed(store: Store) -> None:
    """The ids and keys are the same, and one process only resumes the request."""
    first = await claim_new(Ledger(store, FakeClock()))
    second_ledger = Ledger(store, FakeClock())
    second_claim = await claim_new(second_ledger)
    assert (second_claim.is_repeated, second_claim.turn_id) == (True, first.turn_id)
    assert second_claim.entropy(32) == first.entropy(32) != second_claim.entropy(31)[:31] + first.entropy(32)[31:]
    with pytest.raises(RequestInProgress):
        await second_ledger.claim(ONE, "team-1", "d")
    await second_ledger.answer(second_claim, "d", 204, {}, b"")
    assert isinstance(await Ledger(store, FakeClock()).claim(ONE, "team-1", "d"), StoredAnswer)


async def test_a_turn_is_known_after_a_kill(store: Store) -> None:
    """The record holds that the turn began, and its id."""
    ledger = Ledger(store, FakeClock())
    first = await claim_new(ledger)
    await ledger.begin_turn(first)
    second_claim = await claim_new(Ledger(store, FakeClock()))
    assert (second_claim.has_begun_turn, second_claim.turn_id) == (True, first.turn_id)


async def test_the_secret_of_an_answer_is_not_persisted(store: Store) -> None:
    """A value derived from the sender's key is removed from the kept answer and restored for that sender."""
    ledger = Ledger(store, FakeClock())
    attempt = await claim_new(ledger)
    secret = attempt.unredact(b"\0")
    await ledger.answer(attempt, "d", 201, {}, b'{"nonce": "agent_%s"}' % secret)
    document = await store.get(ANSWER, ONE.place)
    assert document is not None
    assert secret not in document.data
    answer = await ledger.claim(ONE, "team-1", "d")
    assert isinstance(answer, StoredAnswer)
    assert answer.body == b'{"nonce": "agent_%s"}' % secret


async def test_after_a_day_a_key_stands_for_a_new_request(store: Store) -> None:
    """The new request has other ids; old records are removed by a later request."""
    clock = FakeClock()
    ledger = Ledger(store, clock)
    await answer_request(ledger, ONE, b"old")
    await clock.advance(timedelta(hours=24).total_seconds() - 1)
    assert isinstance(await ledger.claim(ONE, "team-1", "d"), StoredAnswer)
    await clock.advance(1)
    assert not (await claim_new(ledger, digest="other")).is_repeated
    await answer_request(ledger, Sender("k", "r", "two"), b"new")
    await clock.advance(timedelta(hours=24).total_seconds())
    await answer_request(ledger, Sender("k", "r", "three"), b"newest")
    assert [each.key for each in await store.list(REQUEST)] == [Sender("k", "r", "three").place]
    assert len(await store.list(ANSWER)) == 1


async def test_a_team_has_a_bounded_share_of_the_records(store: Store) -> None:
    """The newest requests of the team stay, by count and by bytes; other teams are not affected."""
    clock = FakeClock()
    retention = Retention(store, clock, most_records=3, most_bytes=100, sweep_records=1)
    ledger = Ledger(store, clock, retention=retention)
    other = await ledger.claim(Sender("other", "r", "1"), "team-2", "d")
    assert isinstance(other, Attempt)
    await ledger.answer(other, "d", 200, {}, b"x")
    senders = [Sender("k", "r", str(number)) for number in range(5)]
    for each in senders:
        await clock.advance(1)
        await answer_request(ledger, each, b"x")
    await retention.sweep()
    assert [await ledger.is_known(each) for each in senders] == [False, False, True, True, True]
    await clock.advance(1)
    await answer_request(ledger, Sender("k", "r", "large"), b"x" * 99)
    await retention.sweep()
    assert [await ledger.is_known(each) for each in senders] == [False, False, False, False, True]
    assert await ledger.is_known(Sender("other", "r", "1"))


async def test_records_with_future_times_do_not_keep_their_share(store: Store) -> None:
    """Such records count as old once the clock is set back, and are removed a day later."""
    ahead = Ledger(store, FakeClock(start=datetime(2036, 1, 1, tzinfo=UTC)))
    early = [Sender("k", "r", f"early-{number}") for number in range(3)]
    for each in early:
        await answer_request(ahead, each, b"x")
    clock = FakeClock()
    retention = Retention(store, clock, most_records=3, sweep_records=1)
    ledger = Ledger(store, clock, retention=retention)
    await retention.sweep()
    late = [Sender("k", "r", f"late-{number}") for number in range(3)]
    for each in late:
        await clock.advance(1)
        await answer_request(ledger, each, b"x")
    await retention.sweep()
    assert [await ledger.is_known(each) for each in (*early, *late)] == [False] * 3 + [True] * 3
    await clock.advance(timedelta(hours=24).total_seconds())
    await retention.sweep()
    assert await store.list(REQUEST) == []


async def test_a_large_answer_is_not_kept_but_its_request_is_known(store: Store) -> None:
    """The request is not done again."""
    ledger = Ledger(store, FakeClock())
    await answer_request(ledger, ONE, b"x" * (ANSWER_BYTES + 1))
    answer = await ledger.claim(ONE, "team-1", "d")
    assert isinstance(answer, StoredAnswer)
    assert answer.body is None
    assert await store.list(ANSWER) == []


@pytest.mark.parametrize("stores", ["postgres"])
async def test_a_request_of_another_live_kernel_is_in_progress(stores: str) -> None:
    """The second kernel refuses the request, and resumes it once the first kernel is gone."""
    schema = postgres.fresh_schema()

    def make(name: str) -> PostgresStore:
        return PostgresStore(postgres.running().dsn, schema=schema, kernel=name)

    async with AsyncExitStack() as stack:
        one, two = make("one"), make("two")
        for each in (one, two):
            await each.open()
            stack.push_async_callback(each.close)
        first = await claim_new(Ledger(one, FakeClock()))
        with pytest.raises(RequestInProgress):
            await Ledger(two, FakeClock()).claim(ONE, "team-1", "d")
        await one.close()
        second_claim = await claim_new(Ledger(two, FakeClock()))
        assert (second_claim.is_repeated, second_claim.turn_id) == (True, first.turn_id)


@pytest.mark.parametrize("value", ["", "k" * 256, "ä", "a\n", "\x7f"])
def test_invalid_keys_are_refused(value: str) -> None:
    """The error names the header."""
    with pytest.raises(InvalidValue, match="Idempotency-Key"):
        checked_key(value)
    assert checked_key("k" * 255) == "k" * 255
