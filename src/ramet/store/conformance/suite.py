"""The suite that every store passes, a stranger's too: each check is one promise of `ramet.store.contract`.

    for check in CHECKS:
        await run(check, Place(lambda: MyStore(address), lambda: MyStore(address, read_only=True)))

A place is empty when its check begins. A check raises Violation, with the promise that is not kept, or NotHere where
it does not apply; no test framework is needed.
"""

from __future__ import annotations

import asyncio

from ramet.store.conformance import documents, following, journal, kernels, life, together
from ramet.store.conformance import ground as _ground
from ramet.store.conformance.ground import Check, NotHere, Place, Violation

__all__ = ["CHECKS", "Check", "NotHere", "Place", "Violation", "run"]

CHECKS: tuple[Check, ...] = (
    *journal.CHECKS,
    *following.CHECKS,
    *documents.CHECKS,
    *together.CHECKS,
    *life.CHECKS,
    *kernels.CHECKS,
)


async def run(check: Check, place: Place) -> None:
    """Raises Violation if the promise is not kept, NotHere if it does not apply here."""
    try:
        async with asyncio.timeout(_ground.PATIENCE_S):
            await check(place)
    except TimeoutError as why:
        raise Violation(f"{check.__name__}: what must happen did not") from why
