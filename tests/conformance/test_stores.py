"""Each store keeps every promise of the contract, and the suite notices a broken promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ramet.core.errors import StoreFailed
from ramet.store.sqlite.store import SqliteStore
from ramet.testing.conformance.store import harness
from ramet.testing.conformance.store.suite import CHECKS, Check, NotHere, StoreFixture, Violation, run
from tests.conformance import spoilt_stores
from tests.conformance.stores import STORES

BY_NAME = {check.__name__: check for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("store", STORES)
async def test_a_store_keeps_its_promises(store: str, check: Check, tmp_path: Path) -> None:
    try:
        await run(check, STORES[store](tmp_path))
    except NotHere as why:
        pytest.skip(str(why))


def test_the_suite_needs_no_test_framework() -> None:
    """The suite imports no pytest: another machine may have none."""
    result = subprocess.run(
        [sys.executable, "-c", "import sys, ramet.testing.conformance.store.suite; print('pytest' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout == "False\n"


@pytest.mark.parametrize(
    ("spoilt", "broken"),
    [
        ("Recounting", "tickets_count_from_one"),
        ("Forgetful", "events_are_read_in_append_order"),
        ("Forgetful", "many_large_events"),
        ("Narrow", "any_names"),
        ("Unbounded", "reading_in_pages"),
        ("Reusing", "cursors_are_never_used_twice"),
        ("Impatient", "durable_entries_are_read"),
        ("Impatient", "twenty_producers"),
        ("Impatient", "an_unknown_ticket_is_refused"),
        ("Undecided", "one_claim_wins"),
        ("Undecided", "a_write_over_another_version_conflicts"),
        ("Dawdling", "no_entry_precedes_a_document_whose_writing_began"),
        ("Wild", "documents_are_listed"),
        ("Piecemeal", "all_or_nothing"),
        ("Piecemeal", "one_atomic_write_wins"),
        ("Scattered", "all_or_nothing"),
        ("Trusting", "all_or_nothing"),
        ("Hurried", "an_atomic_write_stores_everything"),
        ("Padded", "many_blobs_are_read_at_once"),
        ("Textual", "any_bytes"),
        ("Deaf", "listeners_are_called_before_waiters"),
        ("Deaf", "an_entry_is_committed_without_a_waiter"),
        ("Endless", "a_wait_ends_with_its_store"),
        ("Immortal", "a_closed_store_refuses_every_use"),
        ("Shared", "two_kernels"),
        ("Sleepy", "a_concurrent_reader_is_woken"),
        ("Clinging", "a_tree_has_an_owner"),
        ("Mute", "an_open_kernel_is_alive"),
    ],
)
async def test_the_suite_notices_a_broken_promise(
    spoilt: str, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is broken in one way fails the check of that promise."""
    monkeypatch.setattr(harness, "PATIENCE_S", 0.5)

    with pytest.raises((Violation, StoreFailed)):
        await run(BY_NAME[broken], _broken_store(spoilt, tmp_path))


@pytest.mark.parametrize("check", CHECKS[:5], ids=lambda check: check.__name__)
async def test_the_base_of_the_broken_stores_is_whole(check: Check, tmp_path: Path) -> None:
    """Control: a store that passes every call on breaks nothing."""
    await run(check, _broken_store("Whole", tmp_path))


def _broken_store(name: str, folder: Path) -> StoreFixture:
    kind = getattr(spoilt_stores, name)
    if issubclass(kind, SqliteStore):
        path = folder / "journal.db"
        return StoreFixture(lambda: kind(path), lambda: kind(path, read_only=True))
    store = kind()
    return StoreFixture(lambda: store)
