"""A host process that will be killed: its sandboxes end with it or not at all. Run by `closing`."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import signal
import sys

from msgspec import json

from ramet.core.policy.reservation import Reservation
from ramet.isolation.contract import SandboxSpec
from ramet.testing.conformance.isolation.harness import ENTRY, GRANT, Workdir, replace_grant


async def main(backend: str, scratch: str, *specs: str) -> None:
    """Start the sandboxes, print their pids, and wait for the end that comes from outside."""
    async with Workdir(backend, pathlib.Path(scratch)).open() as fixture, contextlib.AsyncExitStack() as stack:
        pids = []
        shared = Reservation(name="doomed", memory_mb=1024) if fixture.probe.bounded_resources else None
        grant = replace_grant(GRANT, reservation=shared)
        for each in specs:
            run, workspace = json.decode(each)
            spec = SandboxSpec(run=run, grant=grant, workspace=pathlib.Path(workspace), entry=ENTRY)
            guest = await stack.enter_async_context(fixture.start_guest(spec))
            await guest.ask("ignore", numbers=[signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
            await guest.ask("hide", hold="held", quiet=True)
            await guest.ask("hold", path="held")
            pids.append(guest.sandbox.pid)
        sys.stdout.write(f"{pids}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
