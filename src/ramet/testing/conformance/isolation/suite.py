"""The suite that every backend passes, including third-party ones.

Each check is one promise of `ramet.isolation.contract`.

    for check in CHECKS:
        await run(check, Workdir("package.module:Backend", an_empty_folder))

The named object is called with `runs=`, the folder of all workspaces, in this process and in another that is killed. A
check raises Violation, with the promise that is not kept, or NotHere where it does not apply; no test framework is
needed. All checks use real processes: an unkept promise may harm the host, so check a third-party backend in a
container.
"""

from __future__ import annotations

from ramet.testing.conformance.checks import NotHere, Violation
from ramet.testing.conformance.isolation import boundaries, closing, lifecycle, limits, ports, streams
from ramet.testing.conformance.isolation.harness import Check, Workdir
from ramet.testing.conformance.isolation.runner import run

__all__ = ["CHECKS", "Check", "NotHere", "Violation", "Workdir", "run"]

CHECKS: tuple[Check, ...] = (
    *lifecycle.CHECKS,
    *streams.CHECKS,
    *boundaries.CHECKS,
    *ports.CHECKS,
    *limits.CHECKS,
    *closing.CHECKS,
)
