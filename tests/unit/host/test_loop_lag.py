"""Lag of the event loop: sampled while it runs, by the loop's own clock."""

from __future__ import annotations

import asyncio

from ramet.host.observability.loop_lag import LoopLag
from tests.support.waiting import eventually


class SlowLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps by `behind` seconds each time that it is asked."""

    behind, jumped = 0.0, 0.0

    def time(self) -> float:
        """The real time and the jumps."""
        self.jumped += self.behind
        return super().time() + self.jumped


def test_what_comes_late_is_counted_with_how_late_it_came() -> None:
    """Of a loop that is held up for more than a second between two looks at its clock, no sample is below that."""

    async def sample() -> LoopLag:
        lag = LoopLag(period_s=0.001)
        lag.start()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SlowLoop)
        loop.behind = 1.5
        await eventually(lambda: lag.seconds.count)
        lag.stop()
        return lag

    with asyncio.Runner(loop_factory=SlowLoop) as runner:
        lag = runner.run(sample())

    assert dict(lag.seconds.cumulative())[1.0] == 0
    assert lag.seconds.sum >= 1.5


async def test_it_samples_from_start_to_stop() -> None:
    """Again and again, and not once it is stopped; both may be said twice."""
    lag = LoopLag(period_s=0.001)
    for _ in range(2):
        lag.start()
    await eventually(lambda: lag.seconds.count >= 3)
    for _ in range(2):
        lag.stop()
    count = lag.seconds.count
    for _ in range(20):
        await asyncio.sleep(0.001)

    assert lag.seconds.count == count
