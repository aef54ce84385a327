"""Programs whose output is the reply."""

from __future__ import annotations

import codecs

from ramet.guest.external.process import ProgramProcess, status_text
from ramet.guest.external.program_host import ProgramHost
from ramet.guest.external.reports import Reply

_CHUNK_BYTES = 64 * 1024


async def drive_text(program: ProgramProcess, host: ProgramHost) -> str:
    """Return what a program writes until it ends. Raises TaskFailed if its exit status is not 0."""
    reply, decoder = Reply(host), codecs.getincrementaldecoder("utf-8")("replace")
    while data := await program.stdout.read(_CHUNK_BYTES):
        await reply.add(decoder.decode(data))
        await reply.flush()
    await reply.add(decoder.decode(b"", final=True))
    await reply.flush()
    if (code := await program.wait()) != 0:
        raise program.failure(f"the program ended with {status_text(code)}")
    return reply.text
