"""A run whose process is frozen, in `ramet ps`, `tree` and `show`."""

from __future__ import annotations

import json
import re

import pytest

from ramet.core.events import SandboxFrozen
from tests.support.waiting import eventually
from tests.trips.cli.test_cli_served import ServedFolder, folder, served_folder
from tests.trips.kits.pausing import pausing
from tests.trips.limits.test_frozen_processes import POLICY, count

__all__ = ["folder", "served_folder"]

SHOWN = re.compile(r"paused \(frozen, \d+ MB\)")


@pytest.mark.parametrize("source", ["folder", "socket"])
async def test_a_frozen_run_is_shown_with_the_memory_that_it_holds(served_folder: ServedFolder, source: str) -> None:
    """Each listing says so, and the row as JSON has the number."""
    runtime = served_folder.server.runtime
    handle = await runtime.spawn(count, policy=POLICY, limits=pausing(agents=0))
    events = runtime.trees[handle.id].recorder.recent_events
    await eventually(lambda: any(isinstance(each, SandboxFrozen) for each in events))
    await handle.run.context.wait_persisted()

    rows = [json.loads(line) for line in (await served_folder.on(source, "ps", "--json")).out.splitlines()]
    listed = await served_folder.on(source, "ps")
    drawn = await served_folder.on(source, "tree", handle.id)
    shown = await served_folder.on(source, "show", handle.id)

    [row] = [each for each in rows if each["id"] == handle.id]
    assert row["frozen_mb"] > 0
    assert all(SHOWN.search(each.out) for each in (listed, drawn, shown)), (listed.out, drawn.out, shown.out)
    await handle.cancel()
