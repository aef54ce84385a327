"""Floods of requests on the guest's channel whose replies are much larger than the requests, and are not read."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import sys
import time
from typing import Any

from tests.security.attacks.channel import HEAD, _answer, _exactly, _write, find, message

STUCK = "the host has stopped reading"


def leave_file(size: int) -> None:
    """Leave one large file, as a child."""
    pathlib.Path("large.bin").write_bytes(bytes(size))


def return_text(size: int) -> str:
    """Return a large value, as a child."""
    return "x" * size


def flood(kind: str, size: int, number: int) -> None:
    """Send `number` requests of a kind without reading replies, print whether the host read them, and wait for ever."""
    fd = find()
    question = _prepare(fd, kind, size)
    os.set_blocking(fd, False)
    sys.stdout.write(_send_flood(fd, question, number))
    sys.stdout.flush()
    while True:
        time.sleep(60)


def read_late(size: int, number: int) -> list[list[int]]:
    """Send requests until the host stops reading, then read each reply. Return the id and size of each."""
    fd = find()
    question = _prepare(fd, "load_checkpoint", size)
    os.set_blocking(fd, False)
    rest = _pending(fd, question, number)
    os.set_blocking(fd, True)
    replies: list[list[int]] = []
    while len(replies) < number:
        if rest and select.select([], [fd], [], 0)[1]:
            os.set_blocking(fd, False)
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(fd, rest) :]
        control, body = HEAD.unpack(_exactly(fd, HEAD.size))
        header = _exactly(fd, control)
        replies.append([int(header.split(b'"id":')[1].split(b",")[0].rstrip(b"}")), len(_exactly(fd, body))])
    return replies


def _send_flood(fd: int, question: dict[str, Any], number: int) -> str:
    return STUCK if _pending(fd, question, number) else "the host has taken all requests"


def _pending(fd: int, question: dict[str, Any], number: int) -> bytes:
    """Write as much of the requests as the host reads. Return the rest."""
    numbered = question["type"] != "watch"
    rest = b"".join(_padded_message({**question, "id": 1_000 + at} if numbered else question) for at in range(number))
    while rest and select.select([], [fd], [], 2.0)[1]:
        with contextlib.suppress(BlockingIOError):
            rest = rest[os.write(fd, rest) :]
    return rest


def _padded_message(fields: dict[str, Any]) -> bytes:
    """Return a message of 4 KiB: a flood of them does not fit into the buffers of a socket."""
    control = json.dumps(fields).encode().ljust(4096)
    return HEAD.pack(len(control), 0) + control


def _prepare(fd: int, kind: str, size: int) -> dict[str, Any]:
    """Make the file or value that a flood requests, and return the request."""
    if kind == "load_checkpoint":
        from ramet.wire.values import values

        json_size, body = values.encode("x" * size)
        _write(fd, message({"type": "save_checkpoint", "id": 1, "json_size": json_size}, body))
        assert _answer(fd, 1).get("error") is None
        return {"type": "load_checkpoint"}
    child = _child(fd, leave_file if kind == "read_artifact" else return_text, size)
    if kind == "read_artifact":
        question = {"type": "read_artifact", "run": child, "name": "large.bin"}
        _write(fd, message({**question, "id": 2}))
        assert _answer(fd, 2).get("error") is None
        return question
    _write(fd, message({"type": "watch", "run": child}))
    control, body_size = HEAD.unpack(_exactly(fd, HEAD.size))
    assert b'"status":"completed"' in _exactly(fd, control)
    assert len(_exactly(fd, body_size)) >= size
    return {"type": "watch", "run": child}


def _child(fd: int, function: Any, size: int) -> str:
    from ramet.wire.code import capsule

    packed = capsule.pack(function, (size,), {})
    asked = {"type": "spawn", "id": 1, "function": packed.name, "capsule_tag": packed.tag, "heavy": packed.is_heavy}
    _write(fd, message(asked, packed.data))
    return str(_answer(fd, 1)["data"]["run"])
