"""`run` with real processes: what goes in and comes out, its bounds, and that it leaves nothing.

That no process, descriptor or task is left is looked for after every test by conftest.py.
"""

from __future__ import annotations

import asyncio
import os
import pathlib

import pytest

from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import FakeClock
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import Ended, environment, run
from ramet.core.errors import Aborted
from tests.support.commands import sh
from tests.support.waiting import alive, eventually, pid_in


async def test_input_streams_status_and_environment_are_those_of_the_call() -> None:
    """Nothing of the host's environment comes along but the mark."""
    done = await sh('cat; env | grep -v "^PWD=\\|^_=\\|^RAMET_CALL=." >&2; exit 3', stdin=b"in", env={"A": "a"})

    assert done == (Ended("exit", 3), b"in", b"A=a\n")


async def test_without_a_second_capture_both_streams_are_one() -> None:
    """In the order written."""
    done = await sh("echo 1; echo 2 >&2; echo 3", stderr=None)

    assert done.stdout == b"1\n2\n3\n"


async def test_without_input_reading_ends_at_once() -> None:
    """There is no terminal to wait for."""
    assert (await sh("cat; exit 5")).ended.code == 5


async def test_input_may_be_a_file_that_is_open(tmp_path: pathlib.Path) -> None:
    """It is read from where it stands."""
    (tmp_path / "in").write_text("from a file")
    with (tmp_path / "in").open("rb") as file:
        assert (await sh("cat", stdin=file.fileno())).stdout == b"from a file"


async def test_a_process_that_reads_nothing_does_not_hold_up_its_caller() -> None:
    """More input than a pipe takes is dropped with the pipe, whether it is still running or already gone."""
    assert (await sh("exit 0", stdin=b"x" * 5_000_000)).ended.code == 0
    assert (await sh("exec <&-; echo closed", stdin=b"x" * 5_000_000)).stdout == b"closed\n"


async def test_much_goes_in_and_comes_out_again() -> None:
    """Neither side waits for the other: both pipes are served at once."""
    output = Capture(head=5_000_000)

    await sh("cat", stdin=b"0123456789" * 500_000, stdout=output)

    assert output.data() == b"0123456789" * 500_000


async def test_output_is_kept_up_to_the_bound_and_read_to_the_end() -> None:
    """A chatty process is neither blocked nor kept whole."""
    output = Capture(head=1000)

    done = await sh("head -c 3000000 /dev/zero; exit 4", stdout=output)

    assert (done.ended, len(done.stdout), output.omitted_bytes) == (Ended("exit", 4), 1000, 2_999_000)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_output_without_end_is_ended_when_it_is_enough(stream: str) -> None:
    """At once, whatever the grace."""
    done = await sh(
        f"trap '' TERM; yes >&{1 + (stream == 'stderr')}", grace_s=600, **{stream: Capture(head=4, stops=True)}
    )

    assert done.ended.why == "enough"
    assert getattr(done, stream) == b"y\ny\n"


@pytest.mark.parametrize("how", ["timeout", "abort", "cancel"])
async def test_a_process_that_is_cut_off_is_gone_with_its_children(how: str, tmp_path: pathlib.Path) -> None:
    """However that comes, neither the command nor what it started runs; a time limit leaves what was printed."""
    clock, abort, child = FakeClock(), AbortController(), pid_in(tmp_path / "pid")
    script = f"trap '' TERM; echo so far; sleep 1000 & echo $! > {tmp_path}/pid; wait; wait"
    running = asyncio.ensure_future(sh(script, clock=clock, timeout_s=5, abort=abort))
    await eventually(lambda: child() and clock.sleeping)
    if how == "timeout":
        await clock.advance(5)
        assert await running == (Ended("timeout", -9), b"so far\n", b"")
    elif how == "abort":
        abort.abort("stop")
        with pytest.raises(Aborted, match="stop"):
            await running
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert not alive(child())


async def test_what_is_stopped_already_is_not_started(tmp_path: pathlib.Path) -> None:
    """The check comes before the start."""
    abort = AbortController()
    abort.abort("stop")

    with pytest.raises(Aborted):
        await sh(f"touch {tmp_path}/started", abort=abort)

    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelling_while_the_process_starts_leaves_none(times: int) -> None:
    """There is no moment at which a started process has no owner, however often its caller is cancelled."""
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
    """SIGTERM comes first, and what the handler does is done."""
    clock = FakeClock()
    script = f"trap 'echo bye > {tmp_path}/left; exit 0' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.01; done"
    running = asyncio.ensure_future(sh(script, clock=clock, timeout_s=5, grace_s=30))
    await eventually(lambda: pid_in(tmp_path / "pid")() and clock.sleeping)
    await clock.advance(5)

    assert (await running).ended == Ended("timeout", 0)
    assert (tmp_path / "left").read_text() == "bye\n"


async def test_a_second_cancel_ends_the_grace(tmp_path: pathlib.Path) -> None:
    """Whoever cannot wait for SIGTERM to work cancels again: SIGKILL follows at once."""
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
async def test_what_cannot_be_started_is_an_error_of_the_start(argv: list[str]) -> None:
    """OSError, as from the system."""
    with pytest.raises(OSError, match=r"No such file|Permission|too long"):
        await run(argv, clock=FakeClock(), timeout_s=5, env={}, cwd="/", stdout=Capture(head=1))


async def test_a_system_without_descriptors_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was opened by then is closed."""
    real, left = os.pipe, [1, 1]

    def pipe() -> tuple[int, int]:
        if not left:
            raise OSError(24, "Too many open files")
        left.pop()
        return real()

    monkeypatch.setattr(os, "pipe", pipe)

    with pytest.raises(OSError, match="Too many"):
        await sh("exit 0", stdin=b"x")


def test_an_environment_holds_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, or by prefix; of ours if none is given."""
    given = {"HOME": "/h", "LC_ALL": "C", "LC_TIME": "C", "API_KEY": "k"}
    monkeypatch.setattr(os, "environ", given)

    assert environment() == {"HOME": "/h", "LC_ALL": "C", "LC_TIME": "C"}
    assert environment(["LC_ALL", "PATH"], given) == {"LC_ALL": "C"}
