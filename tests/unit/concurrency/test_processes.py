"""Tests of `run` with real processes: input, output, limits, and that no process stays.

After every test `conftest.py` checks that no process, descriptor or task is left.
"""

from __future__ import annotations

import asyncio
import os
import pathlib

import pytest

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import FakeClock
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import CommandResult, environment, run
from ramet.core.errors import Aborted
from tests.support.commands import sh
from tests.support.waiting import alive, eventually, pid_in


async def test_input_streams_status_and_environment_are_those_of_the_call() -> None:
    """A process gets no variable of the host's environment except the mark."""
    result = await sh('cat; env | grep -v "^PWD=\\|^_=\\|^RAMET_CALL=." >&2; exit 3', stdin=b"in", env={"A": "a"})

    assert result == (CommandResult("exit", 3), b"in", b"A=a\n")


async def test_without_a_stderr_capture_both_streams_are_merged() -> None:
    """Merged streams keep the order of writing."""
    result = await sh("echo 1; echo 2 >&2; echo 3", stderr=None)

    assert result.stdout == b"1\n2\n3\n"


async def test_a_process_without_input_reads_end_of_file() -> None:
    """A process without input has no terminal to wait for."""
    assert (await sh("cat; exit 5")).ended.code == 5


async def test_input_may_be_an_open_file(tmp_path: pathlib.Path) -> None:
    """A process reads the file from its current position."""
    (tmp_path / "in").write_text("from a file")
    with (tmp_path / "in").open("rb") as file:
        assert (await sh("cat", stdin=file.fileno())).stdout == b"from a file"


async def test_a_process_that_reads_nothing_does_not_hold_up_its_caller() -> None:
    """Input that the process never reads is dropped, whether the process still runs or has ended."""
    assert (await sh("exit 0", stdin=b"x" * 5_000_000)).ended.code == 0
    assert (await sh("exec <&-; echo closed", stdin=b"x" * 5_000_000)).stdout == b"closed\n"


async def test_large_input_and_output_do_not_block_each_other() -> None:
    """`run` serves both pipes concurrently."""
    output = Capture(head=5_000_000)

    await sh("cat", stdin=b"0123456789" * 500_000, stdout=output)

    assert output.data() == b"0123456789" * 500_000


async def test_output_is_kept_up_to_the_bound_and_read_to_the_end() -> None:
    """A process with much output is not blocked, and its output is not kept whole."""
    output = Capture(head=1000)

    result = await sh("head -c 3000000 /dev/zero; exit 4", stdout=output)

    assert (result.ended, len(result.stdout), output.omitted_bytes) == (CommandResult("exit", 4), 1000, 2_999_000)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_endless_output_ends_the_process_once_the_capture_is_full(stream: str) -> None:
    """The process ends at once, without its grace."""
    result = await sh(
        f"trap '' TERM; yes >&{1 + (stream == 'stderr')}", grace_s=600, **{stream: Capture(head=4, stops=True)}
    )

    assert result.ended.reason == "enough"
    assert getattr(result, stream) == b"y\ny\n"


@pytest.mark.parametrize("mode", ["timeout", "abort", "cancel"])
async def test_timeout_abort_and_cancel_end_a_process_and_its_children(mode: str, tmp_path: pathlib.Path) -> None:
    """No process of the command stays; a timeout returns the output so far."""
    clock, abort, child = FakeClock(), AbortController(), pid_in(tmp_path / "pid")
    script = f"trap '' TERM; echo so far; sleep 1000 & echo $! > {tmp_path}/pid; wait; wait"
    running = asyncio.ensure_future(sh(script, clock=clock, timeout_s=5, abort=abort))
    await eventually(lambda: child() and clock.sleeping)
    if mode == "timeout":
        await clock.advance(5)
        assert await running == (CommandResult("timeout", -9), b"so far\n", b"")
    elif mode == "abort":
        abort.abort("stop")
        with pytest.raises(Aborted, match="stop"):
            await running
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert not alive(child())


async def test_an_aborted_command_is_not_started(tmp_path: pathlib.Path) -> None:
    """The check for an abort comes before the start."""
    abort = AbortController()
    abort.abort("stop")

    with pytest.raises(Aborted):
        await sh(f"touch {tmp_path}/started", abort=abort)

    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelling_while_the_process_starts_leaves_none(times: int) -> None:
    """A starting process always has an owner that ends it, also after repeated cancels."""
    for steps in range(12):
        running = asyncio.ensure_future(sh("sleep 1000 & sleep 1000"))
        for _ in range(steps):
            await asyncio.sleep(0)
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_grace_lets_a_process_clean_up(tmp_path: pathlib.Path) -> None:
    """SIGTERM comes first, and its handler runs to the end."""
    clock = FakeClock()
    script = f"trap 'echo bye > {tmp_path}/left; exit 0' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.01; done"
    running = asyncio.ensure_future(sh(script, clock=clock, timeout_s=5, grace_s=30))
    await eventually(lambda: pid_in(tmp_path / "pid")() and clock.sleeping)
    await clock.advance(5)

    assert (await running).ended == CommandResult("timeout", 0)
    assert (tmp_path / "left").read_text() == "bye\n"


async def test_a_second_cancel_ends_the_grace(tmp_path: pathlib.Path) -> None:
    """SIGKILL follows a second cancel at once."""
    command = pid_in(tmp_path / "pid")
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 1000; done"
    running = asyncio.ensure_future(sh(script, grace_s=600))
    await eventually(command)
    running.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert alive(command())

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(command())


@pytest.mark.parametrize("argv", [["/no/such/program"], ["/"], ["/bin/sh", "x" * 3_000_000]])
async def test_a_program_that_cannot_start_raises_os_error(argv: list[str]) -> None:
    """`run` raises the OSError of the system."""
    with pytest.raises(OSError, match=r"No such file|Permission|too long"):
        await run(argv, clock=FakeClock(), timeout_s=5, env={}, cwd="/", stdout=Capture(head=1))


async def test_a_start_without_free_descriptors_raises_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` closes the pipes that it opened before the failure."""
    real, failures = os.pipe, [1, 1]

    def pipe() -> tuple[int, int]:
        if not failures:
            raise OSError(24, "Too many open files")
        failures.pop()
        return real()

    monkeypatch.setattr(os, "pipe", pipe)

    with pytest.raises(OSError, match="Too many"):
        await sh("exit 0", stdin=b"x")


def test_environment_returns_allowed_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are allowed by name or prefix, and come from this process by default."""
    environ = {"HOME": "/h", "LC_ALL": "C", "LC_TIME": "C", "API_KEY": "k"}
    monkeypatch.setattr(os, "environ", environ)

    assert environment() == {"HOME": "/h", "LC_ALL": "C", "LC_TIME": "C"}
    assert environment(["LC_ALL", "PATH"], environ) == {"LC_ALL": "C"}
