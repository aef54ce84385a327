"""Tests of a network between a machine and its kernel that is cut for a while, in namespaces of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.support.networks import KERNEL, Network, network
from tests.support.waiting import eventually

#: Both say "broken" whenever they notice that.
_WATCH = """
async def watch(line):
    was = False
    while True:
        if was and not line.is_connected:
            print("broken", flush=True)
        was = line.is_connected
        await asyncio.sleep(0.01)
"""

KERNEL_PROGRAM = (
    _WATCH
    + """
import asyncio, pathlib, sys
from ramet.isolation.transport import certificates, join_token as invitation
from ramet.isolation.transport.listener import PATH, PodListener
from ramet.isolation.transport.resuming import LineTimeouts, ResumingLine

async def run(address, folder, heartbeat, silent):
    patience = LineTimeouts(give_up_s=None, heartbeat_s=float(heartbeat), silent_s=float(silent))
    identity = certificates.make([address])
    line, heard = ResumingLine(patience=patience), 0
    async with PodListener(address, 7443, identity.context) as landing:
        key = landing.expect("uid", line, join_s=60)
        told = invitation.JoinToken(url=f"wss://{address}:7443{PATH}", ca=identity.ca, key=key, pod="uid")
        for name, text in invitation.secret_data(told).items():
            pathlib.Path(folder, name).write_text(text)
        print("ready", flush=True)
        watching = asyncio.create_task(watch(line))
        while (frame := await line.receive()) is not None:
            await line.send(frame)
            print("heard", int(frame.control), flush=True)

asyncio.run(run(*sys.argv[1:]))
"""
)

MACHINE_PROGRAM = (
    _WATCH
    + """
import asyncio, pathlib, sys
from ramet.isolation.transport import join_token as invitation
from ramet.isolation.transport.dialer import Backoff, open_dialer
from ramet.isolation.transport.resuming import LineTimeouts
from ramet.wire.frames import Frame

async def run(folder, heartbeat, silent):
    patience = LineTimeouts(give_up_s=120, heartbeat_s=float(heartbeat), silent_s=float(silent))
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def talk(line):
        number = 0
        while not over.is_set():
            number += 1
            await line.send(Frame(b"%d" % number, bytes(2_000)))
            await asyncio.sleep(0.01)
        return number

    async def hear(line):
        while (frame := await line.receive()) is not None:
            print("heard", int(frame.control), flush=True)

    async with open_dialer(invitation.read(pathlib.Path(folder)), patience=patience, backoff=Backoff(try_s=2)) as line:
        watching = asyncio.create_task(watch(line))
        hearing, talking = asyncio.create_task(hear(line)), asyncio.create_task(talk(line))
        await reader.read()
        over.set()
        print("sent", await talking, flush=True)
        await hearing

asyncio.run(run(*sys.argv[1:]))
"""
)

SHORT_TIMEOUTS = ("0.1", "0.5")  #: heartbeat, silence
DEFAULT_TIMEOUTS = ("5", "15")


class ProgramOutput:
    """Output of a program until now."""

    def __init__(self) -> None:
        self.is_ready = False
        self.received_numbers: list[int] = []
        self.break_count = 0
        self.last_sent = -1

    async def listen(self, process: asyncio.subprocess.Process) -> None:
        """Read the output until the program ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            match line.decode().split():
                case ["ready"]:
                    self.is_ready = True
                case ["broken"]:
                    self.break_count += 1
                case ["heard", number]:
                    self.received_numbers.append(int(number))
                case ["sent", number]:
                    self.last_sent = int(number)


@contextlib.asynccontextmanager
async def run_program(
    between: Network, host: str, program: str, *args: str
) -> AsyncIterator[tuple[ProgramOutput, Callable[[], None]]]:
    """Run a program on a host; yield its output and a function that ends it."""
    output, process = ProgramOutput(), await between.start(host, program, *args)
    listening = asyncio.ensure_future(output.listen(process))
    assert process.stdin is not None
    try:
        yield output, process.stdin.close
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.stdin.close()
        await listening
        await process.wait()


@pytest.mark.parametrize(
    ("mode", "cut_s", "patience"),
    [
        ("drop", None, SHORT_TIMEOUTS),
        ("unplug", None, SHORT_TIMEOUTS),
        pytest.param("drop", 1, DEFAULT_TIMEOUTS, marks=pytest.mark.chaos),
        pytest.param("drop", 10, DEFAULT_TIMEOUTS, marks=pytest.mark.chaos),
        pytest.param("drop", 60, DEFAULT_TIMEOUTS, marks=pytest.mark.chaos),
        pytest.param("unplug", 60, DEFAULT_TIMEOUTS, marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
async def test_no_frame_is_lost_or_repeated_over_a_cut_network(
    mode: Literal["drop", "unplug"], cut_s: float | None, patience: tuple[str, str], tmp_path: Path
) -> None:
    """Both ends send during the cut, which lasts for a time, or until both have noticed the silence."""
    with network() as between:
        disconnect = between.drop if mode == "drop" else between.unplug
        async with run_program(between, "kernel", KERNEL_PROGRAM, KERNEL, str(tmp_path), *patience) as (kernel, _):
            await eventually(lambda: kernel.is_ready)
            async with run_program(between, "machine", MACHINE_PROGRAM, str(tmp_path), *patience) as (machine, stop):
                await eventually(lambda: len(kernel.received_numbers) > 20)
                disconnect(True)
                if cut_s is None:
                    await eventually(lambda: kernel.break_count and machine.break_count)
                else:
                    await asyncio.sleep(cut_s)
                disconnect(False)
                before = len(kernel.received_numbers)
                await eventually(lambda: len(kernel.received_numbers) > before + 50)
                stop()
                await eventually(
                    lambda: machine.last_sent == len(kernel.received_numbers) == len(machine.received_numbers)
                )
    assert kernel.received_numbers == machine.received_numbers == list(range(1, machine.last_sent + 1))
