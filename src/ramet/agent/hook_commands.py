"""Hooks that are commands: the payload as JSON on stdin, the answer by exit status, stdout and stderr."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ramet.agent.hook_answers import HookBroken, Opinion, from_command
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.clock import Clock
from ramet.concurrency.processes import run_process

#: All that a command sees of our environment: enough to find programs, no keys.
PASSED = (
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
) -> Opinion:
    """Ask a command. Raises HookBroken if it cannot answer, TimeoutError or Aborted; it is gone with all it started."""
    env = {name: environ[name] for name in PASSED if name in environ}
    env["CLAUDE_PROJECT_DIR"] = env["RAMET_PROJECT_DIR"] = os.fspath(project_dir)
    try:
        question = json.dumps(payload, default=str, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise HookBroken(f"the payload is no JSON: {error}") from None
    try:
        ended = await run_process(
            ["/bin/sh", "-c", command],
            clock=clock,
            timeout_s=timeout_s,
            env=env,
            cwd=cwd,
            stdin=question,
            abort=abort,
        )
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise HookBroken(f"it could not be started: {error}") from None
    if ended.truncated and ended.code == 0:
        raise HookBroken("it printed more than fits an answer")
    return from_command(event, ended.code, ended.stdout, ended.stderr)
