"""The suite that every store passes, including third-party ones: each check is one promise of `ramet.store.contract`.

    for check in CHECKS:
        await run(check, StoreFixture(lambda: MyStore(address), lambda: MyStore(address, read_only=True)))

The store is empty when its check begins. A check raises Violation, with the promise that is not kept, or NotHere
where it does not apply; no test framework is needed.
"""

from __future__ import annotations

import asyncio

from ramet.testing.conformance.checks import NotHere, Violation
from ramet.testing.conformance.store import atomicity, documents, harness, journal, kernels, lifecycle, notifications
from ramet.testing.conformance.store.harness import Check, StoreFixture

__all__ = ["CHECKS", "Check", "NotHere", "StoreFixture", "Violation", "run"]

CHECKS: tuple[Check, ...] = (
    *journal.CHECKS,
    *notifications.CHECKS,
    *documents.CHECKS,
    *atomicity.CHECKS,
    *lifecycle.CHECKS,
    *kernels.CHECKS,
)


async def run(check: Check, fixture: StoreFixture) -> None:
    """Run a check. Raises Violation if the promise is not kept, NotHere if the check does not apply here."""
    try:
        async with asyncio.timeout(harness.PATIENCE_S):
            await check(fixture)
    except TimeoutError as error:
        raise Violation(f"{check.__name__}: an expected event did not happen in time") from error
