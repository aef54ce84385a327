"""Run checks at the same time, each in a thread, until all have ended or the time is over.

A check may hang in the kernel (a folder on a server that is gone), where nothing can interrupt it. So its thread is a
daemon: the process ends without it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ramet.cli.doctor.check_result import CheckResult
from ramet.cli.render.sanitize import one_line

Check = Callable[[], Sequence[CheckResult]]


class CheckReport(NamedTuple):
    """The results in the order of the checks; whether every check has ended."""

    results: tuple[CheckResult, ...]
    is_complete: bool


def run_checks(checks: Mapping[str, Check], *, timeout_s: float) -> CheckReport:
    """Run checks by name, and return what is known at the end of the time.

    A check that raises, or has not ended, has one result under its name.
    """
    answers: queue.SimpleQueue[tuple[str, Sequence[CheckResult]]] = queue.SimpleQueue()
    for name, check in checks.items():
        threading.Thread(
            target=lambda name=name, check=check: answers.put((name, _run(name, check))), name=name, daemon=True
        ).start()
    end, results = time.monotonic() + timeout_s, dict[str, Sequence[CheckResult]]()
    while len(results) < len(checks):
        try:
            name, result = answers.get(timeout=max(end - time.monotonic(), 0))
        except queue.Empty:
            break
        results[name] = result
    missing = _no_answer(timeout_s)
    ordered = [each for name in checks for each in results.get(name) or [missing(name)]]
    return CheckReport(tuple(ordered), len(results) == len(checks))


def _run(name: str, check: Check) -> Sequence[CheckResult]:
    try:
        return check()
    except Exception as error:  # A report that says so is worth more than none.
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        return [CheckResult(name=name, state="missing", meaning=f"the check failed: {reason}")]


def _no_answer(timeout_s: float) -> Callable[[str], CheckResult]:
    def result(name: str) -> CheckResult:
        return CheckResult(
            name=name,
            state="missing",
            meaning=f"no answer within {timeout_s:g} s",
            remedy="run ramet doctor again when this machine is less busy",
        )

    return result
