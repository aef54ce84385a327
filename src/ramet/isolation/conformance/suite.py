"""The suite that every backend passes, a stranger's too: each check is one promise of `ramet.isolation.contract`.

    for check in CHECKS:
        await run(check, Ground("package.module:Backend", an_empty_folder))

What is named is called with `runs=`, the folder of all workspaces, in this process and in another that is killed. A
check raises Violation, with the promise that is not kept, or NotHere where it does not apply; no test framework is
needed. Everything happens with real processes: an unkept promise may harm the host, so run a stranger's in a container.
"""

from __future__ import annotations

from ramet.isolation.conformance import endings, life, limits, serving, talking, walls
from ramet.isolation.conformance.ground import Check, Ground, NotHere, Violation
from ramet.isolation.conformance.running import run

__all__ = ["CHECKS", "Check", "Ground", "NotHere", "Violation", "run"]

CHECKS: tuple[Check, ...] = (
    *life.CHECKS,
    *talking.CHECKS,
    *walls.CHECKS,
    *serving.CHECKS,
    *limits.CHECKS,
    *endings.CHECKS,
)
