"""Kernel in a process of its own that plays scenes: one JSON object a line in, one out.

{"scene": "tests.security.scenes:run", "given": {…}}  →  {"value": …} or {"error": {"type": …, "message": …}}
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
from importlib import import_module
from typing import Any

import ramet
from tests.security.scenes import Host, plain

#: Longer than any line that is said.
LINE_BYTES = 256 << 20


def error_as_dict(problem: BaseException) -> dict[str, Any]:
    """Return an error as data: its type, its text, and its public attributes."""
    more = {key: plain(value) for key, value in vars(problem).items() if not key.startswith("_")}
    return {"type": type(problem).__name__, "message": str(problem)[:2000], **more}


async def play(host: Host, line: bytes) -> dict[str, Any]:
    """Play one scene, and return its value or its error."""
    asked = json.loads(line)
    module, _, name = asked["scene"].partition(":")
    try:
        return {"value": plain(await getattr(import_module(module), name)(host, **asked["given"]))}
    except Exception as problem:
        return {"error": error_as_dict(problem)}


async def serve(backend: Any, base: pathlib.Path, answers: int) -> None:
    """Play scenes until the input ends."""
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    work = base / "home" / "work"
    async with ramet.AgentRuntime(working_dir=work, backend=backend) as runtime, Host(runtime, base) as host:
        os.write(answers, b'{"value": "ready"}\n')
        while line := await reader.readline():
            reply = memoryview(json.dumps(await play(host, line)).encode() + b"\n")
            while reply:
                reply = reply[os.write(answers, reply) :]
    transport.close()


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)  # what anything prints goes to the log, not between the answers
    asyncio.run(serve(sys.argv[1], pathlib.Path(sys.argv[2]), out))
