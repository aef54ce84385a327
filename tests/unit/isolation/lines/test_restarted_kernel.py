"""A kernel is killed again and again, with the journal that it had; its machine only notices pauses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from ramet.isolation.lines import invitation
from tests.support.waiting import eventually

#: Appends what it hears to a journal, and acknowledges what stands there. The machine's keys are in a file beside it.
KERNEL = """
import asyncio, os, pathlib, sys
import msgspec
from ramet.isolation.lines import certificates, invitation
from ramet.isolation.lines.keys import Kept
from ramet.isolation.lines.landing import PATH, Landing
from ramet.isolation.lines.resuming import Patience, ResumingLine
from ramet.wire.session import Session

async def run(folder, address):
    identity = certificates.make([address], folder)
    keys, journal = folder / "keys", folder / "journal"

    async def keep(kept):
        new = folder / "keys.new"
        new.write_bytes(msgspec.json.encode(kept))
        new.replace(keys)

    # A line that the kill cut off was not acknowledged.
    whole = journal.read_bytes().rpartition(b"\\n")[0].split() if journal.exists() else []
    journal.write_bytes(b"".join(line + b"\\n" for line in whole))
    session = Session.restored(acknowledged=len(whole)) if keys.exists() else Session()
    line = ResumingLine(session, withhold=True, patience=Patience(give_up_s=None))
    async with Landing(address, 7443, identity.context, keep=keep) as landing:
        if keys.exists():
            landing.restore(msgspec.json.decode(keys.read_bytes(), type=Kept), line)
        else:
            key = await landing.expect("uid", line, join_s=60)
            told = invitation.Invitation(url=f"wss://{address}:7443{PATH}", ca=identity.ca, key=key, pod="uid")
            (folder / "told").mkdir()
            for name, text in invitation.secret_data(told).items():
                (folder / "told" / name).write_text(text)
        with journal.open("ab") as written:
            while (frame := await line.receive()) is not None:
                written.write(frame.control + b"\\n")
                written.flush()
                line.acknowledge(line.given)

asyncio.run(run(pathlib.Path(sys.argv[1]), sys.argv[2]))
"""

MACHINE = """
import asyncio, pathlib, sys
from ramet.isolation.lines import invitation
from ramet.isolation.lines.dialling import Backoff, dialled
from ramet.wire.frames import Frame

async def run(folder):
    async with dialled(invitation.read(folder), backoff=Backoff(first_s=0.01, most_s=0.05)) as line:
        number = 0
        while True:
            number += 1
            await line.send(Frame(b"%d" % number, bytes(10_000)))
            await asyncio.sleep(0)

asyncio.run(run(pathlib.Path(sys.argv[1])))
"""


@contextlib.asynccontextmanager
async def started(program: str, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Until it is killed."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *args)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_journal_has_each_frame_once_whenever_its_kernel_was_killed(tmp_path: Path) -> None:
    """Three times; the machine is the same process with the same line, and its key of the beginning opens nothing."""
    address = ".".join(["127", *(str(1 + each % 250) for each in os.urandom(3))])  # nobody else's, whatever the port
    journal = tmp_path / "journal"

    def written() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    async with contextlib.AsyncExitStack() as stack:
        machine: asyncio.subprocess.Process | None = None
        for _ in range(3):
            before = written()
            async with started(KERNEL, str(tmp_path), address) as kernel:
                if machine is None:
                    told = tmp_path / "told"
                    await eventually((told / invitation.POD).exists)
                    machine = await stack.enter_async_context(started(MACHINE, str(told)))
                await eventually(lambda least=before + 100: written() > least)  # type: ignore[misc]
                assert kernel.returncode is None
        assert machine is not None
        assert machine.returncode is None

    lines = journal.read_bytes().rpartition(b"\n")[0].split()
    assert [int(line) for line in lines] == list(range(1, len(lines) + 1))
