"""Attacks 72 to 89 on the guest's channel, by raw bytes: they bypass the client that ramet ships."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import struct
import time
from array import array
from typing import Any

from tests.security.attacks.trying import attempt

HEAD = struct.Struct("!II")


def find() -> int:
    """Return the descriptor of the channel: the Unix socket that was open at the start; -1 if there is none."""
    for fd in range(3, 256):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as found:
                    if found.family == socket.AF_UNIX and found.type == socket.SOCK_STREAM:
                        return fd
    return -1


def message(fields: dict[str, Any], body: bytes = b"") -> bytes:
    """Return one frame as the host expects it."""
    control = json.dumps(fields).encode()
    return HEAD.pack(len(control), len(body)) + control + body


def send_hex(data: str, seconds: float = 5.0) -> str:
    """Send bytes as they are, and return whether the host closed the channel, answered (and what), or did nothing."""
    fd = find()
    _write(fd, bytes.fromhex(data))
    return _reaction(fd, seconds)


def drip_hex(data: str, pause: float) -> None:
    """Send one byte at a time, then wait for ever."""
    fd = find()
    for byte in bytes.fromhex(data):
        _write(fd, bytes([byte]))
        time.sleep(pause)
    while True:
        time.sleep(60)


def send_hex_and_leave(data: str, code: int) -> None:
    """Send bytes as they are, then end this process at once."""
    _write(find(), bytes.fromhex(data))
    os._exit(code)


def ask(questions: list[dict[str, Any]], body: bytes = b"") -> list[Any]:
    """Send raw requests one after the other. Return the reply to each, or the error that ended the exchange."""
    fd = find()
    replies: list[Any] = []
    for question in questions:
        try:
            _write(fd, message(question, body))
            replies.append(_answer(fd, question["id"]))
        except (OSError, EOFError) as problem:
            replies.append(type(problem).__name__)
            break
    return replies


def ask_much(number: int, seconds: float, question: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send requests as fast as the host reads them. Return the numbers sent and answered, and the time."""
    fd = find()
    os.set_blocking(fd, False)
    template = question or {"type": "list_runs"}
    sent = answered = 0
    pending = b""
    received = bytearray()
    began = time.monotonic()
    closed = False
    while (
        time.monotonic() < began + seconds and not closed and not (sent == number and answered == sent and not pending)
    ):
        if not pending and sent < number:
            batch = min(64, number - sent)
            pending = b"".join(message({**template, "id": 1_000 + sent + at}) for at in range(batch))
            sent += batch
        readable, writable, _ = select.select([fd], [fd] if pending else [], [], 0.2)
        try:
            if writable:
                pending = pending[os.write(fd, pending) :]
            if readable:
                piece = os.read(fd, 1 << 16)
                closed = not piece
                received += piece
        except OSError:
            closed = True
        while len(received) >= HEAD.size:
            control, body = HEAD.unpack_from(received)
            if len(received) < HEAD.size + control + body:
                break
            del received[: HEAD.size + control + body]
            answered += 1
    return {"sent": sent, "answered": answered, "closed": closed, "seconds": time.monotonic() - began}


def ask_and_never_read(number: int, question: dict[str, Any]) -> str:
    """Send requests without reading the replies, so that the replies wait on the host."""
    fd = find()
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        for at in range(number):
            while not select.select([], [fd], [], 1.0)[1]:
                return f"the host stopped reading after {at}"
            os.write(fd, message({**question, "id": 1_000 + at}))
    return "the host took all"


def pass_descriptors(bound: int) -> dict[str, str]:
    """Send descriptors through the channel, and in circles through sockets that are closed on the way."""
    channel, null = find(), os.open("/dev/null", os.O_RDONLY)
    tried: dict[str, str] = {}
    if channel >= 0:
        with socket.socket(fileno=os.dup(channel)) as host:
            host.setblocking(False)
            tried["channel"] = attempt(_flood_descriptors, host, null, bound)
    with contextlib.ExitStack() as stack:
        tried["circles"] = attempt(_circles, stack, bound)
    os.close(null)
    return tried


def _flood_descriptors(host: socket.socket, fd: int, bound: int) -> None:
    fds = array("i", [fd] * 200)
    for _ in range(bound):  # an empty message carries descriptors as well as a full one
        host.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def _circles(stack: contextlib.ExitStack, bound: int) -> None:
    for _ in range(bound):
        one, other = socket.socketpair()
        with one, other:
            fds = array("i", [one.fileno(), other.fileno()])
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            other.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def lend_channel() -> str:
    """Write to the channel from a program that a child process executes, and return the exit code."""
    fd = find()
    child = os.fork()
    if child == 0:
        outcome = attempt(os.execv, "/bin/sh", ["sh", "-c", f"echo open >&{fd}"])
        os._exit(3 if outcome else 0)
    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [], 5)


def _reaction(fd: int, seconds: float) -> str:
    data = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                piece = os.read(fd, 1 << 16)
            except BlockingIOError:
                continue
            except OSError:
                return "closed"
            if not piece:
                return "closed"
            data += piece
        elif data:
            return f"answered {data[HEAD.size :].decode(errors='replace')}"
    return "left in peace"


def _answer(fd: int, number: int) -> Any:
    """Return the control part of the answer to a request. Other frames are skipped."""
    while True:
        control, body = HEAD.unpack(_exactly(fd, HEAD.size))
        answer = json.loads(_exactly(fd, control))
        rest = _exactly(fd, body)
        if answer.get("type") == "answer" and answer.get("id") == number:
            return {**answer, "body": rest.decode("latin-1")} if rest else answer


def _exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not select.select([fd], [], [], 10)[0]:
            raise EOFError
        try:
            piece = os.read(fd, size - len(data))
        except BlockingIOError:
            continue
        if not piece:
            raise EOFError
        data += piece
    return data
