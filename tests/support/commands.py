"""Commands of a test, run by `ramet.concurrency.processes` with a fake clock."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ramet.concurrency.clock import FakeClock
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import CommandResult, run


class ScriptResult(NamedTuple):
    """The end of a script, and its output."""

    ended: CommandResult
    stdout: bytes
    stderr: bytes


async def sh(script: str, **options: Any) -> ScriptResult:
    """Run a shell script; any option of `run` may be given by name."""
    defaults: dict[str, Any] = {
        "clock": FakeClock(),
        "timeout_s": 60,
        "cwd": "/",
        "env": {"PATH": os.environ["PATH"]},
        "stdout": Capture(head=1000),
        "stderr": Capture(head=1000),
        "grace_s": 0,
    }
    options = {**defaults, **options}
    ended = await run(["/bin/sh", "-c", script], **options)
    return ScriptResult(ended, options["stdout"].data(), options["stderr"].data() if options["stderr"] else b"")
