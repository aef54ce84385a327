"""A command in the sandbox of a live agent, under the same limits, bounded in time and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

from ramet.concurrency import pipes
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.pipes import Capture
from ramet.core.errors import Gone, SandboxFailed
from ramet.isolation import spawn_thread
from ramet.isolation.assignment import Assignment
from ramet.isolation.contract import Ran
from ramet.isolation.zygote.client import ZygoteClient
from ramet.isolation.zygote.process import ZygoteChild


async def run(
    zygote: ZygoteClient,
    agent: ZygoteChild,
    assignment: Assignment,
    argv: Sequence[str],
    *,
    timeout_s: float,
    max_bytes: int,
) -> Ran:
    """Run a command to its end. Raises Gone or TimeoutError.

    The started processes are ended then, except those that left the command's group.
    """
    if agent.exit_future.done():
        raise Gone("the sandbox has ended")
    out, err = Capture(head=max_bytes), Capture(head=max_bytes)
    with contextlib.ExitStack() as ours:
        with contextlib.ExitStack() as theirs:
            sinks = [
                pipes.reader_pipe(each, on_full=lambda: None, parent_fds=ours, child_fds=theirs) for each in (out, err)
            ]
            try:
                program = await zygote.run_program(agent, assignment, argv, sinks)
            except SandboxFailed:
                if agent.exit_future.done():
                    raise Gone("the sandbox has ended") from None
                raise
        try:
            if (cgroup := agent.cgroup) is not None:
                pid = program.pid
                await spawn_thread.call(lambda: cgroup.add(pid))
            with contextlib.suppress(BrokenPipeError):
                os.write(program.host_fds[0], b"1")
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(program.exit_future)
        finally:
            zygote.end(program)
            await run_shielded(asyncio.shield(program.exit_future))
            program.close()
    return Ran(program.exit_future.result().code, out.data(), err.data())
