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

import contextlib
import os
import pathlib
import secrets
from typing import NamedTuple

from ramet.testing.conformance.checks import NotHere, Violation, expect
from ramet.testing.conformance.isolation import boundaries, closing, frozen_sandboxes, lifecycle, limits, ports, streams
from ramet.testing.conformance.isolation.harness import CANARY, Check, Ended, Refused, Workdir, eventually

__all__ = ["CHECKS", "Check", "NotHere", "Violation", "Workdir", "run"]

CHECKS: tuple[Check, ...] = (
    *lifecycle.CHECKS,
    *frozen_sandboxes.CHECKS,
    *streams.CHECKS,
    *boundaries.CHECKS,
    *ports.CHECKS,
    *limits.CHECKS,
    *closing.CHECKS,
)


async def run(check: Check, workdir: Workdir) -> None:
    """Run a check with a new backend; what remains on the host after the backend's close is a violation, too.

    Raises Violation if the promise is not kept, NotHere if the check does not apply here.
    """
    os.environ[CANARY] = secrets.token_hex(16)
    before = _HostState.now(workdir)
    try:
        async with workdir.open() as fixture:
            try:
                await check(fixture)
            except (Refused, Ended) as error:
                raise Violation(
                    f"{check.__name__}: a permitted request of a guest failed: {type(error).__name__} {error}"
                ) from error
            except TimeoutError as error:
                raise Violation(f"{check.__name__}: an expected event did not happen in time") from error
    finally:
        del os.environ[CANARY]
    with contextlib.suppress(Violation):
        await eventually(lambda: not _new_leftovers(before, workdir), "")
    leftovers = _new_leftovers(before, workdir)
    expect(not leftovers, f"a closed backend leaves nothing on its host: {', '.join(leftovers)}")


class _HostState(NamedTuple):
    """The things that a backend might leave on its host."""

    descriptors: frozenset[str]
    children: frozenset[str]
    mounts: frozenset[str]

    @classmethod
    def now(cls, workdir: Workdir) -> _HostState:
        """Return the current state."""
        return cls(frozenset(_descriptors()), frozenset(_children()), frozenset(_mounts(workdir)))


def _new_leftovers(first: _HostState, workdir: Workdir) -> list[str]:
    return [each for earlier, current in zip(first, _HostState.now(workdir), strict=True) for each in current - earlier]


def _descriptors() -> list[str]:
    open_descriptors = []
    for each in pathlib.Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(each)  # noqa: PTH115 - a name, not a path
        except OSError:
            continue  # the descriptor of this listing
        if not target.startswith(("/dev/", "/proc/")):  # libraries keep those open permanently
            open_descriptors.append(f"descriptor of {target}")
    return open_descriptors


def _children() -> list[str]:
    processes = []
    for task in pathlib.Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # The thread has just ended.
            processes += [f"process {pid}" for pid in task.read_text().split()]
    return processes


def _mounts(workdir: Workdir) -> list[str]:
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return [f"mount {line}" for line in lines if str(workdir.scratch) in line]
