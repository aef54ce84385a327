"""The guest that runs inside during checks of a backend: it executes requests, good and bad, and reports the results.

Requests are frames on its channel, whose control part is JSON: {"do": name, "given": {…}, "quiet": whether not to
answer}. Answers are {"value": …} or {"error": name of the errno or exception}. Uses only the standard library and
`ramet.wire.frames`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from ramet.testing.conformance.isolation import guest_load, guest_observe
from ramet.wire import frames

_signals: list[int] = []  #: received signals


class _Leave(Exception):
    """The request to end with an exit status."""

    def __init__(self, code: int) -> None:
        self.code = code


def main(channel: socket.socket) -> int:
    """Execute requests until the other end closes. Returns the requested exit status, otherwise 0."""
    channel.setblocking(True)
    reader = frames.FrameReader()
    try:
        while data := channel.recv(65536):
            for frame in reader.feed(data):
                request = json.loads(frame.control)
                body, answer = _handle(request["do"], request["given"], frame.body)
                if not request["quiet"]:
                    for piece in frames.pack(json.dumps(answer).encode(), body):
                        channel.sendall(piece)
    except _Leave as leave:
        return leave.code
    return 0


def _handle(name: str, arguments: Mapping[str, Any], body: bytes) -> tuple[bytes, dict[str, object]]:
    if name == "echo":
        return body, {"value": len(body)}
    try:
        return b"", {"value": HANDLERS[name](**arguments)}
    except OSError as error:
        return b"", {"error": errno.errorcode.get(error.errno or 0, "OSError")}
    except (MemoryError, subprocess.SubprocessError, RuntimeError, ValueError) as error:
        if name == "crash":
            raise
        return b"", {"error": type(error).__name__}


def leave(code: int) -> None:
    """Return from the entry point."""
    raise _Leave(code)


def crash() -> None:
    """End by an uncaught exception."""
    raise RuntimeError("a crash that was asked for")


def end_by(number: int) -> None:
    """End by a signal to this process."""
    signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), number)


def ignore(numbers: list[int]) -> None:
    """Ignore signals."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def note(number: int) -> None:
    """Record a signal, and continue."""
    signal.signal(number, lambda number, _: _signals.append(number))


def received_signals() -> list[int]:
    """Return the received signals."""
    return _signals


def leave_on(number: int, code: int) -> None:
    """End in order at a signal."""
    signal.signal(number, lambda *_: leave(code))


def hide(hold: str, quiet: bool, mb: int = 0) -> None:
    """Leave a process behind that ignores signals and holds a lock on a file, in its own session if possible.

    The process is a grandchild, with `mb` MiB of memory; with `quiet` it closes the standard streams, too.
    """
    ready, go = os.pipe()
    if not (pid := os.fork()):
        with contextlib.suppress(BaseException):
            with contextlib.suppress(PermissionError):
                os.setsid()
            if os.fork():
                os._exit(0)
            ignore([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
            _hold(hold)
            memory = b"x" * (mb << 20)
            if quiet:
                for fd in range(3):
                    os.close(fd)
            os.write(go, b"x")
            while memory is not None:
                signal.pause()
        os._exit(1)
    os.waitpid(pid, 0)
    os.close(go)
    with os.fdopen(ready, "rb") as pipe:
        if not pipe.read(1):
            raise RuntimeError("nobody is hidden")


def hold(path: str) -> None:
    """Hold a lock on a file for as long as this process lives."""
    _hold(path)


def _hold(path: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(fd, fcntl.LOCK_SH)


def _handlers_of(module: types.ModuleType) -> dict[str, Callable[..., object]]:
    """Return the public functions that a module defines, by name, except `main`."""
    functions = {name: each for name, each in vars(module).items() if isinstance(each, types.FunctionType)}
    return {
        name: each
        for name, each in functions.items()
        if each.__module__ == module.__name__ and name != "main" and not name.startswith("_")
    }


HANDLERS: Mapping[str, Callable[..., object]] = {
    **_handlers_of(sys.modules[__name__]),
    **_handlers_of(guest_observe),
    **_handlers_of(guest_load),
}
