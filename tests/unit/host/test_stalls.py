"""host/observability/stalls.py: A blocked event loop is dumped while it is blocked, and counted afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from ramet.core.errors import BusyError, InvalidValue
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
async def test_a_stall_is_dumped_while_c_code_keeps_the_interpreter(
    pipe: tuple[int, int], reader: subprocess.Popen[bytes], location: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The C call returns once another process has read its name in the dump: no Python code can have written it."""
    assert reader.stdout is not None
    is_read = False
    with caplog.at_level(logging.WARNING, "ramet.stalls"), StallWatch(after_s=0.2, dump_to=pipe[1]) as watch:
        while not is_read:
            before = watch.so_far.count
            stand_still = partial(stand_still_in_c, reader.stdout.fileno(), 2)
            is_read = stand_still() if location == "in the loop" else await asyncio.to_thread(stand_still)
            await eventually(lambda before=before: watch.so_far.count > before)  # type: ignore[misc]

    assert b"stand_still_in_c" in reader.stdout.read()
    assert watch.so_far.longest_s >= 0.2
    assert watch.so_far.seconds >= watch.so_far.longest_s
    assert "was blocked for" in caplog.text
    assert 'sync_tools="process"' in caplog.text


async def test_a_running_loop_is_no_stall(pipe: tuple[int, int]) -> None:
    """Beats of the loop postpone the dump; a waiting thread does not block the loop."""
    read_end, write = pipe
    may_end = threading.Event()
    with StallWatch(after_s=3_600, dump_to=write) as watch:
        waiting = asyncio.create_task(asyncio.to_thread(may_end.wait))
        await asyncio.sleep(0)
        watch._beat()
        watch._beat()
        may_end.set()
        await waiting

    assert watch.so_far == Stalls()
    assert select.select([read_end], [], [], 0)[0] == []


async def test_a_process_has_one_watch(pipe: tuple[int, int]) -> None:
    """A second watch is refused until the first has stopped; stopping twice has no effect."""
    _, write = pipe
    first, second = (StallWatch(after_s=3_600, dump_to=write) for _ in range(2))
    first.start().start()
    with pytest.raises(BusyError, match="one thread that dumps"):
        second.start()
    first.stop()
    first.stop()
    with second:
        first.stop()
        with pytest.raises(BusyError):
            first.start()


FORK = """
import asyncio, faulthandler, os, sys
from ramet.host.observability.stalls import StallWatch

async def watch_again():
    with StallWatch(after_s=3_600):
        await asyncio.sleep(0)

async def main():
    watch = StallWatch(after_s=3_600).start()
    if not (pid := os.fork()):
        if sys.argv[1] == "stops its watch":
            watch.stop()
        elif sys.argv[1] == "has a dump of its own":
            faulthandler.dump_traceback_later(3_600)
        elif sys.argv[1] == "watches":
            asyncio.run(watch_again())
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    watch._beat()
    watch.stop()

asyncio.run(main())
"""


@pytest.mark.parametrize("child", ["ends", "stops its watch", "has a dump of its own", "watches"])
def test_a_forked_child_of_a_watched_process_ends(child: str) -> None:
    """The dumping thread does not exist in the child, which must not wait for it; the parent stays watched."""
    process_result = subprocess.run(
        [sys.executable, "-c", FORK, child],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )
    assert process_result.stdout.splitlines()[-1:] == ["7"]
    assert "Timeout" not in process_result.stderr


def test_a_fork_leaves_the_parent_watched(pipe: tuple[int, int]) -> None:
    """A stall right after a fork is dumped."""
    read_end, write = pipe

    async def main() -> None:
        with StallWatch(after_s=0.05, dump_to=write):
            if not (pid := os.fork()):
                os._exit(0)
            os.waitpid(pid, 0)  # noqa: ASYNC222 - it has ended
            assert select.select([read_end], [], [])[0], "the loop stands still until there is a dump"

    asyncio.run(main())


@pytest.mark.parametrize("after_s", [0, -1, float("nan"), float("inf"), True, 86_401])
def test_the_time_limit_of_a_stall_must_be_positive(after_s: Any) -> None:
    """The error names the accepted values."""
    with pytest.raises(InvalidValue, match="after_s"):
        StallWatch(after_s=after_s)
