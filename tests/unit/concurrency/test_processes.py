"""`run_process` with real processes: bounded, and nothing of the group is left."""

from __future__ import annotations

import asyncio
import os
import pathlib
from typing import Any

import pytest

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import FakeClock
from ramet.concurrency.processes import Finished, run_process
from ramet.core.errors import Aborted
from tests.support.waiting import alive, eventually, pid_in


async def sh(script: str, **options: Any) -> Finished:
    """Run a shell script; it never waits for a real clock."""
    defaults: dict[str, Any] = {"clock": FakeClock(), "timeout_s": 60, "env": {"PATH": os.environ["PATH"]}, "cwd": "/"}
    return await run_process(["/bin/sh", "-c", script], **{**defaults, **options})


async def test_input_streams_status_and_environment_are_those_of_the_call() -> None:
    """Nothing of the host's environment comes along."""
    ended = await sh('cat; echo "$A-$HOME" >&2; exit 3', stdin=b"in", env={"A": "a"})

    assert ended == Finished(3, b"in", b"a-\n", False)


async def test_a_process_that_reads_nothing_does_not_hold_up_its_caller() -> None:
    """More input than a pipe takes is dropped with the pipe."""
    assert (await sh("exit 0", stdin=b"x" * 5_000_000)).code == 0


async def test_output_is_kept_up_to_the_bound_and_read_to_the_end() -> None:
    """A chatty process is neither blocked nor kept whole."""
    ended = await sh("head -c 3000000 /dev/zero; exit 4", max_output=1000)

    assert (len(ended.stdout), ended.truncated, ended.code) == (1000, True, 4)


async def test_a_background_job_ends_with_the_command_that_started_it(tmp_path: pathlib.Path) -> None:
    """It is of the same group; holding the output open does not hold up the caller either."""
    ended = await sh("sleep 1000 & echo $!")

    assert not alive(int(ended.stdout))


@pytest.mark.parametrize("how", ["timeout", "abort", "cancel"])
async def test_a_process_that_is_cut_off_is_gone_with_its_children(how: str, tmp_path: pathlib.Path) -> None:
    """When the call raises, neither the command nor what it started runs."""
    clock, abort, child = FakeClock(), AbortController(), pid_in(tmp_path / "pid")
    script = f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/pid; wait; wait"
    running = asyncio.ensure_future(sh(script, clock=clock, timeout_s=5, abort=abort))
    await eventually(lambda: child() and clock.sleeping)
    if how == "timeout":
        await clock.advance(5)
    elif how == "abort":
        abort.abort("stop")
    else:
        running.cancel()

    with pytest.raises((TimeoutError, Aborted, asyncio.CancelledError)):
        await running
    assert not alive(child())


async def test_cancelling_while_the_process_starts_leaves_none(tmp_path: pathlib.Path) -> None:
    """There is no moment at which a started process has no owner."""
    for steps in range(12):
        running = asyncio.ensure_future(sh("sleep 1000"))
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running  # the leak check of conftest.py looks for processes


async def test_a_grace_lets_a_process_clean_up(tmp_path: pathlib.Path) -> None:
    """SIGTERM comes first, and what the handler does is done."""
    clock = FakeClock()
    script = f"trap 'echo bye > {tmp_path}/left; exit 0' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.01; done"
    running = asyncio.ensure_future(sh(script, clock=clock, timeout_s=5, grace_s=30))
    await eventually(lambda: pid_in(tmp_path / "pid")() and clock.sleeping)
    await clock.advance(5)

    with pytest.raises(TimeoutError):
        await running
    assert (tmp_path / "left").read_text() == "bye\n"


async def test_a_program_that_does_not_exist_is_an_error_of_the_start() -> None:
    """OSError, as from the system."""
    with pytest.raises(FileNotFoundError):
        await run_process(["/no/such/program"], clock=FakeClock(), timeout_s=5, env={}, cwd="/")
