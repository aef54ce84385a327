"""Guests without a sandbox: processes that are forked from one with all imports, each with its end of a channel."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

_SERVER = """
import os, signal, socket, struct, sys

from ramet.guest.serve import serve
from ramet.wire.guest_protocol import message_codec

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
control = socket.socket(fileno=int(sys.argv[1]))


def exactly(channel, size):
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(size - len(parts))
        if not part:
            os._exit(0)
        parts += part
    return bytes(parts)


def guest(channel):
    head, body = struct.unpack("!II", exactly(channel, 8))
    start = message_codec.from_host(exactly(channel, head))
    serve(channel, start, exactly(channel, body))


while True:
    data, fds, _, _ = socket.recv_fds(control, 1, 1)
    if not data:
        break
    pid = os.fork()
    if not pid:
        status = 1
        try:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # as tools that start processes need it
            guest(socket.socket(fileno=fds[0]))
            status = 0
        finally:
            os._exit(status)
    os.close(fds[0])
    control.send(struct.pack("!I", pid))
"""


class Guest(NamedTuple):
    """A guest process, and the host's end of its channel."""

    channel: socket.socket
    pid: int

    def kill(self) -> None:
        """Kill the process, if it has not ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Guests:
    """The process from which guests are forked."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def launch(self) -> Guest:
        """Fork one more guest."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"x"], [theirs.fileno()])
            pid = int.from_bytes(self._control.recv(4), "big")
        ours.setblocking(False)
        return Guest(ours, pid)


@contextlib.contextmanager
def guests() -> Iterator[Guests]:
    """Start the process from which guests are forked, and end it."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            server = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=dict(os.environ)
            )
        try:
            yield Guests(ours)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            server.wait()
