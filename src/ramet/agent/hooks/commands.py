"""Run hooks that are commands: the payload as JSON on stdin, the answer from exit status, stdout and stderr."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ramet.agent.hooks.answers import HookAnswer, HookError, from_command
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import environment, run

#: The variables that a command gets from our environment: enough to find programs, no keys.
PASSED_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "TMPDIR",
    "TZ",
)
_MAX_OUTPUT = 1 << 20


async def run_command(
    command: str,
    event: str,
    payload: dict[str, Any],
    *,
    cwd: pathlib.Path,
    project_dir: pathlib.Path,
    timeout_s: float,
    clock: Clock,
    abort: AbortController | None,
    environ: Mapping[str, str],
) -> HookAnswer:
    """Run a command and return its answer. No process that it started is left.

    Raises HookError if it gives no valid answer, TimeoutError, and Aborted.
    """
    env = environment(PASSED_VARIABLES, environ)
    env["CLAUDE_PROJECT_DIR"] = env["RAMET_PROJECT_DIR"] = os.fspath(project_dir)
    try:
        payload_json = json.dumps(payload, default=str, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise HookError(f"the payload is no JSON: {error}") from None
    stdout, stderr = Capture(head=_MAX_OUTPUT), Capture(head=_MAX_OUTPUT)
    try:
        result = await run(
            ["/bin/sh", "-c", command],
            clock=clock,
            timeout_s=timeout_s,
            cwd=cwd,
            env=env,
            stdin=payload_json,
            stdout=stdout,
            stderr=stderr,
            abort=abort,
            grace_s=0,
        )
    except OSError as error:
        raise HookError(f"it could not be started: {error}") from None
    if result.reason == "timeout":
        raise TimeoutError(f"not done within {timeout_s:g} s")
    if result.code == 0 and (stdout.omitted_bytes or stderr.omitted_bytes):
        raise HookError("it printed more than an answer may contain")
    return from_command(event, result.code, stdout.data(), stderr.data())
