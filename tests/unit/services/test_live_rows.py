"""The rows of runs when they can no longer be kept current: their readers are told."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime

import pytest

from ramet.core.errors import Bug
from ramet.host.control.run_queries import SandboxUsage
from ramet.services.operator import live_rows
from ramet.services.operator.live_rows import LiveRows
from ramet.store.memory import MemoryStore


class BrokenActivity:
    """The state of trees, which has a defect."""

    def is_here(self, root: str) -> bool:
        return False

    async def is_elsewhere(self, root: str) -> bool:
        return False

    def streaming(self) -> Mapping[str, datetime]:
        raise ZeroDivisionError("a defect")

    def agent_paths(self) -> Mapping[str, str]:
        return {}

    def samples(self) -> Mapping[str, SandboxUsage]:
        return {}

    async def measure(self) -> Collection[str]:
        return ()

    def clear_samples(self) -> None:
        """Do nothing."""


async def test_a_defect_is_the_error_of_every_reader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader that waits for the next change would otherwise wait forever."""
    monkeypatch.setattr(live_rows, "CHECK_S", 0.0)
    live = LiveRows(await MemoryStore().open(), BrokenActivity())
    live.start()
    try:
        async with asyncio.timeout(60):
            with pytest.raises(Bug, match="a defect"):
                await live.wait(live.version)
    finally:
        await live.stop()

    assert "the changes of runs can no longer be followed" in caplog.text
