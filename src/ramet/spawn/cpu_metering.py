"""Metering of the processor time that a coroutine takes on the event loop, step by step."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def meter_cpu(work: Coroutine[Any, Any, T], charge: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await `work`, and call `charge` with the processor seconds of each of its steps.

    The time of other tasks and threads while `work` waits is not charged.
    """
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        started_at = time.thread_time()
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            charge(time.thread_time() - started_at)
        try:
            step, value = work.send, (yield waits_for)
        except BaseException as error:  # A cancelled task, or the error of the awaited object: `work` decides.
            step, value = work.throw, error
