"""Tests of `CpuThrottle`: processes are stopped while they owe processor time, and no others are."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.isolation.limits import cpu_throttle as brake
from ramet.isolation.limits.cpu_throttle import CpuThrottle
from ramet.isolation.linux import procfs
from tests.support.waiting import eventually


@pytest.fixture
def shell() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a shell with a child that spins."""
    process = subprocess.Popen(["sh", "-c", "(while :; do :; done) & wait"], start_new_session=True)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


async def spinner(shell: subprocess.Popen[bytes]) -> int:
    """Return the pid of the spinning child, which may be the smaller one: pids start again from the beginning."""
    await eventually(lambda: len(procfs.tree(shell.pid)) == 2 and state(shell.pid) == "S")
    (pid,) = procfs.tree(shell.pid).keys() - {shell.pid}
    return pid


def state(pid: int) -> str:
    stat = procfs.stat(pid)
    assert stat is not None
    return stat.state


def apply(brake: CpuThrottle, now: float, *, used_s: float, busy: set[int] | None = None) -> None:
    """Apply the throttle after 0.2 s with this much used time."""
    brake.apply(now, elapsed_s=0.2, used_s=used_s, busy=busy or set())


async def test_a_process_that_owes_time_is_stopped_until_repaid(shell: subprocess.Popen[bytes]) -> None:
    """The idle root of the tree continues, so that it can receive messages."""
    pid, throttle = await spinner(shell), CpuThrottle(0.5, allowance_s=0.0, look=lambda: procfs.tree(shell.pid))

    apply(throttle, 0.2, used_s=0.2)

    await eventually(lambda: state(pid) == "T")
    await eventually(lambda: state(shell.pid) == "S")
    assert throttle.is_on
    assert throttle.until == pytest.approx(0.4)

    apply(throttle, 0.3, used_s=0.1)
    assert throttle.is_on
    apply(throttle, 0.5, used_s=0.0)

    await eventually(lambda: state(pid) == "R")
    assert not throttle.is_on


async def test_a_busy_root_of_a_tree_is_stopped_too(shell: subprocess.Popen[bytes]) -> None:
    """A tree of one process could not be throttled otherwise."""
    await spinner(shell)
    throttle = CpuThrottle(0.5, allowance_s=0.0, look=lambda: procfs.tree(shell.pid))

    apply(throttle, 0.2, used_s=0.2, busy={shell.pid})

    await eventually(lambda: state(shell.pid) == "T")
    throttle.release()
    await eventually(lambda: state(shell.pid) == "S")


async def test_a_process_that_stopped_itself_is_not_continued(shell: subprocess.Popen[bytes]) -> None:
    """The process may intend its stop."""
    pid, throttle = await spinner(shell), CpuThrottle(0.5, allowance_s=0.0, look=lambda: procfs.tree(shell.pid))
    os.kill(pid, signal.SIGSTOP)
    await eventually(lambda: state(pid) == "T")

    apply(throttle, 0.2, used_s=0.2)
    throttle.release()

    assert state(pid) == "T"


async def test_a_process_that_reuses_the_pid_is_not_signalled(shell: subprocess.Popen[bytes]) -> None:
    """A process with another start time is another process."""
    pid = await spinner(shell)
    start_time = procfs.start_time(pid)
    assert start_time is not None

    assert not brake._send(pid, start_time + 1, signal.SIGKILL)
    assert not brake._send(2**22 + 1, start_time, signal.SIGKILL)
    assert state(pid) == "R"
    assert brake._send(pid, start_time, signal.SIGSTOP)
    await eventually(lambda: state(pid) == "T")


def test_a_tree_within_its_share_is_not_stopped(shell: subprocess.Popen[bytes]) -> None:
    """Unused time may be used later, within the allowance; ticks are not exact."""
    throttle = CpuThrottle(0.5, allowance_s=0.2, look=lambda: procfs.tree(shell.pid))
    for number, used_s in enumerate((0.1, 0.1, 0.2, 0.12, 0.08, 0.0, 0.2, 0.1)):
        apply(throttle, number * 0.2, used_s=used_s)
        assert not throttle.is_on


async def test_a_long_idle_time_does_not_allow_a_long_burst(shell: subprocess.Popen[bytes]) -> None:
    """Unused time is forgotten, except for the allowance."""
    await spinner(shell)
    throttle = CpuThrottle(0.5, allowance_s=0.2, look=lambda: procfs.tree(shell.pid))
    for number in range(50):
        apply(throttle, number * 0.2, used_s=0.0)

    apply(throttle, 10.0, used_s=0.4)

    assert throttle.is_on
    assert throttle.until == pytest.approx(10.4)


@given(cores=st.floats(0.05, 4), share=st.floats(0, 8))
def test_no_second_exceeds_the_granted_processor_time(cores: float, share: float) -> None:
    """A simulated tree uses what it can unless it is stopped, and is checked every 50 ms."""
    throttle, used_seconds = CpuThrottle(cores, allowance_s=0.2, look=dict), [0.0]
    # No signals on paper; nobody has pid 2**22 + 1.
    throttle._pause.stop = lambda *, busy=None: throttle._pause._stopped_processes.update({2**22 + 1: 0})  # type: ignore[method-assign]
    for look in range(1, 200):
        step = 0.0 if throttle.is_on else 0.05 * share
        used_seconds.append(used_seconds[-1] + step)
        throttle.apply(look * 0.05, elapsed_s=0.05, used_s=step, busy=set())

    # The allowance, the slack, and one interval before it is noticed.
    max_used = cores * (1 + 0.2 + brake._SLACK_S) + 0.05 * share + 1e-9
    assert all(used_seconds[at] - used_seconds[max(0, at - 20)] <= max_used for at in range(len(used_seconds)))
    assert used_seconds[-1] >= min(share, cores) * 199 * 0.05 - 0.05 * share - cores
