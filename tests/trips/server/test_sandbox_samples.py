"""Rows of runs have the usage of their sandboxes while the feed of changes is read."""

from __future__ import annotations

from contextlib import aclosing

import ramet
from ramet import Policy
from tests.support.serving import serving, short_folder
from tests.support.waiting import eventually


def work_and_wait() -> None:
    """Use processor time and memory, then only wait."""
    import time

    kept = b"x" * (40 << 20)
    while time.process_time() < 0.5:
        pass
    time.sleep(600 if kept else 0)


async def test_a_reader_of_changes_sees_memory_and_processor_time() -> None:
    """The row of an active run has them, in the feed and in its listing; without a reader nothing is measured."""
    with short_folder() as folder:
        async with serving(folder) as echo_server:
            server = echo_server.server
            handle = await server.runtime.spawn(work_and_wait, policy=Policy(memory_mb=256))
            async with ramet.connect(server.listen_address, server.operator) as client:
                row = await client.kernel.run(handle.id)
                assert row.sandbox is None or (row.sandbox.memory_mb, row.sandbox.cpu_s) == (None, None)

                async with aclosing(client.kernel.changes(interval_ms=50)) as changes:
                    sandbox = None
                    async for message in changes:
                        for each in message.runs:
                            sandbox = each.sandbox
                        if sandbox is not None and (sandbox.cpu_s or 0) >= 0.3 and (sandbox.memory_mb or 0) >= 40:
                            break
                    assert sandbox is not None
                    assert (sandbox.cpu_s or 0) < 60
                    assert (sandbox.memory_mb or 0) < 256
                    listed = (await client.kernel.run(handle.id)).sandbox
                    assert listed is not None
                    assert (listed.cpu_s or 0) >= 0.3

                assert server._parts is not None
                feed = server._parts.views.feed
                await eventually(lambda: feed.live is None)
                after = (await client.kernel.run(handle.id)).sandbox
                assert after is not None
                assert (after.memory_mb, after.cpu_s) == (None, None)
                await client.kernel.stop(handle.id)
