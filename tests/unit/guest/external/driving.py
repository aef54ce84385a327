"""Programs that tests of drivers run: what starts each, and what a prompt is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ramet.concurrency.clock import Clock
from ramet.guest.external.run_program import drive_program
from ramet.wire.external_program import PermissionMode, ProgramStart, Protocol
from tests.support.recording_host import RecordingHost

Step = dict[str, Any]
SUPPORT = Path(__file__).parents[3] / "support"


def sdk_start(*steps: Step, arguments: tuple[str, ...] = (), mode: PermissionMode = "ask") -> ProgramStart:
    """Return an agent that is written with the library of the protocol, and does these steps."""
    command = (sys.executable, str(SUPPORT / "sdk_agent.py"), *arguments)
    return ProgramStart(command=command, protocol="acp", prompt=json.dumps(steps), permission_mode=mode)


def raw_start(*steps: Step, prompt: str = "Hello.", mode: PermissionMode = "ask") -> ProgramStart:
    """Return a program that writes what it is told to write."""
    command = (sys.executable, "-I", str(SUPPORT / "raw_agent.py"), json.dumps(steps))
    return ProgramStart(command=command, protocol="acp", prompt=prompt, permission_mode=mode)


def python_start(code: str, *arguments: str, protocol: Protocol = "text", prompt: str = "Hello.") -> ProgramStart:
    """Return a program that is a piece of Python."""
    return ProgramStart(command=(sys.executable, "-I", "-c", code, *arguments), protocol=protocol, prompt=prompt)


async def drive(start: ProgramStart, host: RecordingHost, folder: Path, *, clock: Clock | None = None) -> str:
    """Run a program to its end."""
    return await drive_program(start, host, workspace=folder, values={}, clock=clock)
