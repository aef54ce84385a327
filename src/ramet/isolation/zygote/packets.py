"""Messages between the host and its forked processes: JSON in one packet each, with descriptors.

A long message is in a memfd.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

_MAX_PACKET = 32 * 1024  #: the maximum size of one packet; the kernel's own limit is above 200 KiB
_ANCILLARY = socket.CMSG_SPACE(16 * array.array("i").itemsize)
_IN_MEMFD = b"memfd"


class Packet(NamedTuple):
    """A message: its kind, its body, and the descriptors that came with it, which the receiver must close."""

    kind: str
    body: Any
    fds: tuple[int, ...] = ()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends that preserve message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, kind: str, body: object = None, fds: Sequence[int] = ()) -> None:
    """Send a message; the caller keeps its descriptors. Raises OSError, or BlockingIOError if there is no room."""
    data = json.dumps([kind, body]).encode()
    if len(data) <= _MAX_PACKET:
        _send(end, data, fds)
        return
    memfd = os.memfd_create("message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memfd), "wb") as file:
            file.write(data)
        _send(end, _IN_MEMFD, [*fds, memfd])
    finally:
        os.close(memfd)


def receive(end: socket.socket) -> Packet | None:
    """Return the next message, with its descriptors, or with none if there is no room for all; None at the end.

    Raises OSError, or BlockingIOError if there is none yet. Only for messages of the host, or of a zygote before it has
    run any foreign code.
    """
    # socket.recv_fds would pass no flags on: every program started later would inherit the received descriptors.
    data, ancillary, flags, _ = end.recvmsg(_MAX_PACKET, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    received_fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received_fds.frombytes(content[: len(content) - len(content) % received_fds.itemsize])
    fds = list(received_fds)
    if flags & socket.MSG_CTRUNC:
        while fds:
            os.close(fds.pop())
    if not data:
        return None
    if data == _IN_MEMFD:
        with os.fdopen(fds.pop(), "rb") as file:
            file.seek(0)
            data = file.read()
    name, body = json.loads(data)
    return Packet(name, body, tuple(fds))


def _send(end: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    if fds:
        socket.send_fds(end, [data], list(fds))
    else:
        end.send(data)
