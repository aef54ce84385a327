"""The runner of one check, with a new backend; remains on the host after the backend's close are a violation, too."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
from typing import NamedTuple

from ramet.testing.conformance.isolation.harness import (
    CANARY,
    Check,
    Ended,
    Refused,
    Violation,
    Workdir,
    eventually,
    holds,
)


async def run(check: Check, ground: Workdir) -> None:
    """Run a check. Raises Violation if the promise is not kept, NotHere if the check does not apply here."""
    os.environ[CANARY] = secrets.token_hex(16)
    before = _Left.now(ground)
    try:
        async with ground.open() as site:
            try:
                await check(site)
            except (Refused, Ended) as why:
                raise Violation(f"{check.__name__}: what a guest may do failed: {type(why).__name__} {why}") from why
            except TimeoutError as why:
                raise Violation(f"{check.__name__}: what must happen did not") from why
    finally:
        del os.environ[CANARY]
    with contextlib.suppress(Violation):
        await eventually(lambda: not _more(before, ground), "")
    left = _more(before, ground)
    holds(not left, f"a backend leaves nothing on its host when it is closed: {', '.join(left)}")


class _Left(NamedTuple):
    """The things that a backend might leave on its host."""

    descriptors: frozenset[str]
    children: frozenset[str]
    mounts: frozenset[str]

    @classmethod
    def now(cls, ground: Workdir) -> _Left:
        """Return the current state."""
        return cls(frozenset(_descriptors()), frozenset(_children()), frozenset(_mounts(ground)))


def _more(before: _Left, ground: Workdir) -> list[str]:
    return [each for was, have in zip(before, _Left.now(ground), strict=True) for each in have - was]


def _descriptors() -> list[str]:
    found = []
    for each in pathlib.Path("/proc/self/fd").iterdir():
        try:
            what = os.readlink(each)  # noqa: PTH115 - a name, not a path
        except OSError:
            continue  # the descriptor of this listing
        if not what.startswith(("/dev/", "/proc/")):  # libraries keep those open permanently
            found.append(f"descriptor of {what}")
    return found


def _children() -> list[str]:
    found = []
    for task in pathlib.Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # The thread has just ended.
            found += [f"process {pid}" for pid in task.read_text().split()]
    return found


def _mounts(ground: Workdir) -> list[str]:
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return [f"mount {line}" for line in lines if str(ground.scratch) in line]
