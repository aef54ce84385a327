"""host/observability/stalls.py: A blocked event loop is dumped by code that ends no process, and counted."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.host.observability.stalls import Stalls, StallWatch
from tests.support.stalling_agents import stand_still_in_c
from tests.support.waiting import eventually


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe for a dump."""
    read_end, write = os.pipe()
    yield read_end, write
    os.close(read_end)
    os.close(write)


@pytest.fixture
def reader(pipe: tuple[int, int]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends once it has read `stand_still_in_c` in a dump."""
    with subprocess.Popen(["grep", "-m1", "stand_still_in_c"], stdin=pipe[0], stdout=subprocess.PIPE) as reader:
        yield reader
        reader.kill()


@pytest.mark.parametrize("location", ["in the loop", "in a thread"])
async def test_a_stall_in_c_is_dumped_once_the_call_returns(
    pipe: tuple[int, int], reader: subprocess.Popen[bytes], location: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No Python code runs during the call; the dump that follows names the function that called it."""
    assert reader.stdout is not None
    is_read = False
    with caplog.at_level(logging.WARNING, "ramet.stalls"), StallWatch(after_s=0.2, dump_to=pipe[1]) as watch:
        while not is_read:
            before = watch.so_far.count
            stand_still = partial(stand_still_in_c, reader.stdout.fileno(), 1)
            is_read = stand_still() if location == "in the loop" else await asyncio.to_thread(stand_still)
            if not is_read:
                await eventually(lambda before=before: watch.so_far.count > before)  # type: ignore[misc]

    assert b"stand_still_in_c" in reader.stdout.read()
    assert watch.so_far.longest_s >= 0.2
    assert watch.so_far.seconds >= watch.so_far.longest_s
    assert "was blocked for" in caplog.text
    assert 'sync_tools="process"' in caplog.text


async def test_python_code_that_blocks_the_loop_is_dumped_meanwhile(tmp_path: Path) -> None:
    """The code goes on until there is a dump: file, line and function of each thread, its own the event loop's."""
    path, is_waiting, may_end = tmp_path / "dump", threading.Event(), threading.Event()

    def wait_for_the_end() -> None:
        is_waiting.set()
        may_end.wait()

    def compute_until_dumped() -> None:
        before, end = path.stat().st_size, time.monotonic() + 1
        while path.stat().st_size == before and time.monotonic() < end:  # On a slow machine the dump came before.
            sum(range(100))

    with path.open("ab") as file, StallWatch(after_s=0.05, dump_to=file.fileno()) as watch:
        waiting = asyncio.create_task(asyncio.to_thread(wait_for_the_end))
        await eventually(is_waiting.is_set)
        while "in compute_until_dumped" not in path.read_text():
            count = watch.so_far.count
            compute_until_dumped()
            await eventually(lambda count=count: watch.so_far.count > count)  # type: ignore[misc]
        may_end.set()
        await waiting
    dump = path.read_text()

    assert dump.startswith("The event loop has been blocked for ")
    stacks = [each for each in dump.split("\n\n") if each.startswith("Thread MainThread (the event loop)\n")]
    assert any(f'File "{__file__}", line ' in each and "in compute_until_dumped" in each for each in stacks)
    assert "in wait_for_the_end" in dump
    assert "ramet-stalls" not in dump


BUSY = """
import asyncio, json, logging, os, time
from ramet.host.observability.stalls import StallWatch

def call_deeply(depth):
    return depth and call_deeply(depth - 1)

def compute(until):
    while time.monotonic() < until:
        call_deeply(50)
        json.dumps({"numbers": [number for number in range(20)]})

async def main():
    logging.disable()
    until = time.monotonic() + 3
    with StallWatch(after_s=0.005, dump_to=os.open(os.devnull, os.O_WRONLY)) as watch:
        while time.monotonic() < until:
            compute(time.monotonic() + 0.01)
            await asyncio.sleep(0.0015)
    print(watch.so_far.count)

asyncio.run(main())
"""


def test_dumps_of_a_busy_thread_end_no_process() -> None:
    """Hundreds of dumps while Python code runs: the thread of faulthandler would end such a process with SIGSEGV."""
    process_result = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=100)
    assert (process_result.returncode, process_result.stderr) == (0, "")
    assert int(process_result.stdout) > 10


async def test_a_running_loop_is_no_stall(pipe: tuple[int, int]) -> None:
    """A waiting thread does not block the loop."""
    read_end, write = pipe
    may_end = threading.Event()
    with StallWatch(after_s=3_600, dump_to=write) as watch:
        waiting = asyncio.create_task(asyncio.to_thread(may_end.wait))
        await asyncio.sleep(0)
        may_end.set()
        await waiting

    assert watch.so_far == Stalls()
    assert select.select([read_end], [], [], 0)[0] == []


async def test_two_watches_of_a_process_and_each_stops_once(pipe: tuple[int, int]) -> None:
    """A stop of one leaves the other; starting and stopping twice have no effect."""
    first, second = (StallWatch(after_s=0.05, dump_to=pipe[1]) for _ in range(2))
    first.start().start()
    with second:
        first.stop()
        first.stop()
        select.select([], [], [], 0.1)
        await eventually(lambda: second.so_far.count > 0)

    assert first.so_far == Stalls()


async def test_a_reader_that_does_not_read_holds_up_neither_the_loop_nor_the_stop(pipe: tuple[int, int]) -> None:
    """The pipe is full: the dump waits, in its own thread, which ends once all of it is read."""
    read_end, write = pipe
    while select.select([], [write], [], 0)[1]:
        os.write(write, b"-" * 4096)
    with StallWatch(after_s=0.05, dump_to=write) as watch:
        while not watch.so_far.count:
            select.select([], [], [], 0.1)
            await asyncio.sleep(0)
    writers = [thread for thread in threading.enumerate() if thread.name == "ramet-stalls"]
    while any(writer.is_alive() for writer in writers):
        if select.select([read_end], [], [], 0.01)[0]:
            os.read(read_end, 1 << 16)


FORK = """
import asyncio, os, sys
from ramet.host.observability.stalls import StallWatch

async def main():
    watch = StallWatch(after_s=3_600).start()
    if not (pid := os.fork()):
        if sys.argv[1] == "stops its watch":
            watch.stop()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    watch.stop()

asyncio.run(main())
"""


@pytest.mark.parametrize("child", ["ends", "stops its watch"])
def test_a_forked_child_of_a_watched_process_ends(child: str) -> None:
    """The dumping thread does not exist in the child, which must not wait for it."""
    process_result = subprocess.run(
        [sys.executable, "-c", FORK, child],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )
    assert process_result.stdout.splitlines()[-1:] == ["7"]


@pytest.mark.parametrize("after_s", [0, -1, float("nan"), float("inf"), True, 86_401])
def test_the_time_limit_of_a_stall_must_be_positive(after_s: Any) -> None:
    """The error names the accepted values."""
    with pytest.raises(InvalidValue, match="after_s"):
        StallWatch(after_s=after_s)
