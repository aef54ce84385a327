"""Attacks on a limit that pauses, as tools of a model in a sandbox, and as functions there."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any

from tests.security.attacks.answers import DEAF
from tests.security.attacks.channel import find, message


def leave_daemons(mark: str) -> str:
    """Leave programs that have sessions of their own and ignore what asks them to end."""
    script = DEAF + "while :; do sleep 1; done"
    for _ in range(3):
        subprocess.Popen(
            ["setsid", "sh", "-c", script, mark],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    if not (first := os.fork()):
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execvp("sh", ["sh", "-c", script, mark])  # noqa: S606, S607, RUF100 - it is the attack
    os.waitpid(first, 0)
    return "they are at work"


def idle(mark: str) -> str:
    """Do nothing, as the positive control."""
    return f"nothing left of {mark}"


def flood(number: int, run: str) -> str:
    """Ask the model many times at once, past the client that ramet ships, and wait for ever."""
    body = json.dumps({"messages": [{"type": "human", "content": "and now?"}], "tools": []}).encode()
    fd = find()
    os.set_blocking(fd, True)
    for at in range(number):
        step = {"type": "ask_model", "id": 1_000_000 + at, "step": f"{run}:{10_000 + at}", "aside": True}
        data = message(step, body)
        while data:
            data = data[os.write(fd, data) :]
    while True:
        time.sleep(60)


def raise_own_limit(run: str, folder: str) -> dict[str, str]:
    """Try to raise the limit of this run from inside; return what each attempt came to."""
    tried: dict[str, str] = {}
    for name in ("kernel.sock", "serve.sock"):
        tried[name] = _try_socket(pathlib.Path(folder) / ".ramet" / name, run)
    command = [sys.executable, "-m", "ramet", "raise", run, "--calls", "100", "--key", "mine", "--dir", folder]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        tried["command"] = f"code {ended.returncode}"
    tried.setdefault("command", "not started")
    try:
        with (pathlib.Path(folder) / ".ramet" / "journal.db").open("r+b") as journal:
            journal.read(1)
        tried["journal"] = "opened"
    except OSError as problem:
        tried["journal"] = type(problem).__name__
    return tried


def _try_socket(path: pathlib.Path, run: str) -> str:
    try:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10)
            control.connect(str(path))
            control.sendall(json.dumps({"verb": "raise", "run": run, "add": {"model_calls": 100}}).encode() + b"\n")
            return f"connected: {control.recv(200)!r}"
    except OSError as problem:
        return type(problem).__name__


def raise_in_process(run: str) -> dict[str, Any]:
    """Look for objects of the host that could raise a limit."""
    found: dict[str, Any] = {}
    try:
        from ramet.tools.context import require_current_call

        budget = require_current_call().context.budget
        from ramet.core.limits import Amount

        budget.raise_limits(Amount(model_calls=1_000))
        found["budget"] = "raised here"
    except Exception as problem:  # noqa: BLE001, RUF100 - whatever it is, it is reported
        found["budget"] = type(problem).__name__
    return found
