"""The scheduler of `pytest -n 4`: whole shares of tests for each worker, the longest first.

It differs from the one of xdist that it extends when a worker dies. That one hands the dead worker's finished shares
out again: they have nothing to run, so a worker that is given one waits for ever, and with it the whole run. It also
repeats the test that killed the worker. This one fails that test, says by which signal the worker ended, and gives what
was not begun to the others. And where no test ends for a long time, it names those that are running, and ends the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it ships none

#: In a test's name: whose kernel it attacks, and which backend that kernel uses.
_ATTACKED = re.compile(r"\[(?:.*-)?(me|ordinary|bare)-(?:bwrap|local)\b")
#: Seconds that a test takes, by the beginning of its path, where it is not 0.5: the longest shares come first.
_SECONDS = {
    "tests/conformance/test_backends.py::test_a_backend_keeps_the_contract_for_an_ordinary_user": 60.0,
    "tests/unit/benchmarks/": 3.0,
    "tests/unit/isolation/": 0.2,
    "tests/unit/": 0.03,
}
#: A worker runs a test once it knows the next one, or that there is none.
_FEWEST_PENDING = 2
#: Seconds without the end of any test after which a run hangs. A test may take 400, and wait as long to be alone.
_SILENCE_S = 1_500.0


def share_of(test: str) -> str:
    """Return the share of a test: tests of one share run one after another in one process.

    A share is a file, or a folder whose tests affect one machine. Attacks by one user disturb each other, by what a
    user may have in all. Tests of some files take long and have nothing in common: each of those is a share of its own.
    """
    path = test.partition("::")[0]
    if path.startswith("tests/security/") and (attacked := _ATTACKED.search(test)):
        return f"attacks by {attacked[1]}"
    if path.startswith("tests/unit/isolation/"):
        return "tests/unit/isolation/"
    apart = ("tests/chaos/", "tests/conformance/test_backends", "tests/kubernetes/test_pods")
    return test if path.startswith(apart) else path


class WorkerScheduler(LoadScopeScheduling):  # type: ignore[misc]  # the base has no types
    """Shares of tests over workers, some of which may die."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self.workqueue: OrderedDict[str, dict[str, bool]] = _LongestFirst()
        self.crashes: dict[str, str] = {}  #: how a worker ended, by the test that it was running
        self._last_end = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Note the end of a test."""
        self._last_end = time.monotonic()
        super().mark_test_complete(node, item_index, duration)

    def remove_node(self, node: Any) -> str | None:
        """Give the tests of a dead worker to the others; return the one that it was running, which counts as run."""
        shares: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        crashed = _first_pending(shares)
        if crashed is None:
            return None
        self.crashes[crashed] = _end_of(node)
        shares[share_of(crashed)][crashed] = True
        self.workqueue.update({share: tests for share, tests in shares.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """Give a worker shares until it can go on, or tell it that there are no more."""
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= _FEWEST_PENDING:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def _watch(self) -> None:
        """Interrupt a run in which no test ends any more."""
        while (left_s := self._last_end + _SILENCE_S - time.monotonic()) > 0:
            time.sleep(left_s)
        running = [test for shares in list(self.assigned_work.values()) if (test := _first_pending(shares))]
        message = f"\nno test has ended for {_SILENCE_S:g} s; running, or waiting to be alone: {', '.join(running)}\n"
        sys.stderr.write(message)
        os.kill(os.getpid(), signal.SIGINT)


class _LongestFirst(OrderedDict[str, dict[str, bool]]):
    """Shares of tests, of which the longest is taken first: what is begun last then ends soon."""

    def popitem(self, last: bool = True) -> tuple[str, dict[str, bool]]:
        share = max(self, key=lambda share: _expected_s(self[share]))
        return share, self.pop(share)


def _expected_s(tests: Mapping[str, bool]) -> float:
    """Return how long the tests of a share take together, all of which are of one kind."""
    first = next(iter(tests))
    return len(tests) * next((seconds for start, seconds in _SECONDS.items() if first.startswith(start)), 0.5)


def _first_pending(shares: Mapping[str, Mapping[str, bool]]) -> str | None:
    return next((test for tests in shares.values() for test, is_done in tests.items() if not is_done), None)


def _end_of(node: Any) -> str:
    """Return how the process of a worker ended."""
    with contextlib.suppress(Exception):  # Names that execnet does not promise.
        status: int = node.gateway._io.popen.wait(timeout=10)
        return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
    return "unknown"
