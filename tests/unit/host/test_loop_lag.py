"""Lag of the event loop, sampled by the loop's own clock."""

from __future__ import annotations

import asyncio

from ramet.host.observability.loop_lag import LoopLag
from tests.support.waiting import eventually


class SlowLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps by `behind` seconds at each reading."""

    behind, jumped = 0.0, 0.0

    def time(self) -> float:
        """Return the real time plus the jumps."""
        self.jumped += self.behind
        return super().time() + self.jumped


def test_a_late_callback_is_counted_with_its_delay() -> None:
    """A loop that is blocked for 1.5 seconds gives no sample below one second."""

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


async def test_lag_is_sampled_from_start_to_stop() -> None:
    """Samples repeat and end with `stop`; both calls may be repeated."""
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
