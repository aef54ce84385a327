"""Guests that send requests and do not read the replies do not grow the host's memory, and other runs are served."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

import ramet
from ramet.concurrency.clock import FakeClock
from ramet.sub_agent_client import spawn_sub_agent
from tests.security.attacks import flooding, spawning
from tests.security.kit import Kernel
from tests.support.waiting import eventually

#: What one guest that does not read may add to its host's memory.
BOUND_MB = 64.0
FLOODS = {"load_checkpoint": 4 << 20, "read_artifact": 4 << 20, "watch": 1 << 20}
#: Longer than any wait here; passed only by a run that hangs.
HANG_S = 180.0


@pytest.mark.parametrize("kind", FLOODS)
def test_unread_replies_do_not_grow_the_host(kernel: Kernel, kind: str) -> None:
    """A flood of small requests for large replies adds less than 64 MB, and another run is served meanwhile."""
    kernel.attack(spawning.one)  # The first run of a kernel imports what all share.
    before = kernel.play("reset_peak")

    flood = {"agent": "tests.security.attacks.flooding:flood", "args": [kind, FLOODS[kind], 400]}
    kernel.play("start", key=kind, **flood, policy={"allow_sub_agents": True})
    answered = kernel.attack(spawning.say, "another run")
    output = kernel.play("output_of", key=kind)
    grown = kernel.play("peak") - before
    kernel.play("cancel", key=kind)

    assert grown < BOUND_MB, f"{kind}: the host grew by {grown:.0f} MB"
    assert flooding.STUCK in output
    assert answered == "another run"


def test_a_guest_that_reads_late_gets_every_reply_in_order(kernel: Kernel) -> None:
    """Positive control: a guest that reads late gets each reply of a flood, whole and in order."""
    replies = kernel.attack(flooding.read_late, 1 << 20, 100)

    assert [number for number, _ in replies] == list(range(1_000, 1_100))
    assert {size for _, size in replies} == {(1 << 20) + 2}


@pytest.mark.parametrize("backend", ["local", "bwrap"])
async def test_a_guest_that_never_reads_fails_with_the_reason(tmp_path: pathlib.Path, backend: Any) -> None:
    """A run that does not read waiting replies for five minutes fails, and its error says why."""
    if backend == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    clock, first_output = FakeClock(), asyncio.Event()
    async with ramet.AgentRuntime(working_dir=tmp_path, backend=backend, clock=clock) as runtime:
        handle = await runtime.start_agent(
            agent=flooding.flood,
            args=("load_checkpoint", 1 << 20, 400),
            policy=ramet.Policy(timeout_seconds=100_000),
            on_stdout=lambda _: first_output.set(),
        )
        await asyncio.wait_for(first_output.wait(), HANG_S)
        for _ in range(20):
            await clock.advance(30)
        result = await asyncio.wait_for(handle.result(), HANG_S)

    assert result.status == "failed"
    assert result.error is not None
    assert "did not read" in result.error.message
    assert "300 s" in result.error.message


async def test_a_parent_that_waits_for_hours_is_not_ended(tmp_path: pathlib.Path) -> None:
    """A parent that waits for its child for hours, and has read each reply, keeps running."""
    clock = FakeClock()
    async with ramet.AgentRuntime(working_dir=tmp_path, backend="local", clock=clock) as runtime:
        policy = ramet.Policy(timeout_seconds=100_000, allow_sub_agents=True)
        handle = await runtime.start_agent(agent=wait_for_child, policy=policy)
        await eventually(lambda: len(runtime.get(handle.id).run.children) == 1)
        for _ in range(20):
            await clock.advance(360)
        answer = await handle.run_command(["echo", "it lives"])
        await handle.cancel("the test is over")
        result = await handle.result()

    assert b"it lives" in answer.stdout
    assert result.status == "cancelled"


def wait_for_child() -> None:
    """Wait for a child that takes its time."""
    spawn_sub_agent(spawning.stay, args=(1_000.0,))


_RECORD = """
import pathlib
from ramet.concurrency.clock import FakeClock
from ramet.core.events import Notice, StateChanged
from ramet.host.journal.recorder import Recorder
from tests.support.context import run_info

recorder = Recorder(FakeClock())
recorder.append(StateChanged(**run_info().stamp, state="first"))
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

before = peak()
for number in range(200):
    recorder.append(Notice(**run_info().stamp, text=str(number).ljust(1 << 20, "x")))
print((peak() - before) >> 10)
"""


def test_the_events_of_a_tree_do_not_grow_the_host() -> None:
    """200 MB of events that a guest recorded add less than 64 MB to the host's memory."""
    done = subprocess.run([sys.executable, "-c", _RECORD], capture_output=True, text=True, timeout=HANG_S, check=True)

    assert int(done.stdout) < BOUND_MB, f"the host grew by {int(done.stdout)} MB"
