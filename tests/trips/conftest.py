"""A trip that hangs fails by itself, so that the others still run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

HANG_S = float(os.environ.get("RAMET_HANG_S", "120"))  # of real time; passed only by a test that fails


@pytest.fixture(autouse=True)
def nobody_hangs() -> Iterator[None]:
    """Fail a test that is still not done after a while."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
