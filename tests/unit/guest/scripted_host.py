"""A host that a test scripts message by message, for one real guest process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from ramet.core.errors import RametError
from ramet.wire import frames
from ramet.wire.code.capsule import pack
from ramet.wire.error_codec import encode_error
from ramet.wire.frames import Frame, FrameReader
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.answer_data import SpawnReply
from ramet.wire.guest_protocol.guest_to_host import Done, GuestMessage, Watch
from ramet.wire.guest_protocol.host_to_guest import Answer, ChildEnded, HostMessage, StartFunction
from ramet.wire.values.values import decode, encode

#: What a test may take in all; one that waits in vain fails then.
BOUND_S = 180.0
S = TypeVar("S", bound=GuestMessage)


class Host:
    """The host's end of the channel of one guest."""

    def __init__(self, end: socket.socket, process: subprocess.Popen[str]) -> None:
        self._end, self.process = end, process
        self._reader, self._frames = FrameReader(), list[Frame]()

    def start(self, function: Callable[..., Any], *args: Any, **fields: Any) -> None:
        """Send the first message: call this function."""
        capsule = pack(function, args, {})
        first = {"run": "r1", "path": "main", "name": capsule.name, "capsule_tag": capsule.tag, **fields}
        self.tell(StartFunction(**first), capsule.data)

    def tell(self, message: HostMessage, body: bytes = b"") -> None:
        """Send a message."""
        for piece in frames.pack(message_codec.encode(message), body):
            self._end.sendall(piece)

    def hear(self) -> tuple[GuestMessage, bytes] | None:
        """Return the guest's next message, or None when the guest has closed."""
        while not self._frames:
            data = self._end.recv(1 << 16)
            if not data:
                return None
            self._frames += self._reader.feed(data)
        frame = self._frames.pop(0)
        return message_codec.from_guest(frame.control), frame.body

    def expect(self, kind: type[S]) -> tuple[S, bytes]:
        """Return the guest's next message, which must be of this kind."""
        message_received = self.hear()
        assert message_received is not None, "the guest has closed"
        message, body = message_received
        assert isinstance(message, kind), message
        return message, body

    def answer(self, number: int, data: msgspec.Struct | None = None, body: bytes = b"") -> None:
        """Answer a request."""
        raw = msgspec.Raw(b"null" if data is None else message_codec.encode(data))
        self.tell(Answer(id=number, data=raw), body)

    def refuse(self, number: int, error: RametError) -> None:
        """Answer a request with an error."""
        info, fields = encode_error(error)
        self.tell(Answer(id=number, error=info, fields=fields))

    def bear(self, number: int, run: str) -> None:
        """Answer a spawn."""
        self.answer(number, SpawnReply(run=run, path=f"main/{run}", name=run))

    def end_child(self, run: str, value: Any = None, **fields: Any) -> None:
        """Report that a child has ended."""
        json_size, body = encode(value)
        self.tell(
            ChildEnded(**{"run": run, "status": "completed", "exit_code": 0, "json_size": json_size, **fields}), body
        )

    def watched(self) -> str:
        """Return the child that the guest now waits for."""
        return self.expect(Watch)[0].run

    def expect_done(self) -> tuple[Done, bytes]:
        """Return the guest's last message, after which nothing may follow."""
        message = self.expect(Done)
        assert self.hear() is None, "something was said after the last word"
        return message

    def value(self, returns: Any = None) -> Any:
        """Return the value of the last message."""
        message, body = self.expect_done()
        assert message.ok, message
        return decode(body, message.json_size, returns=returns)

    def failure(self) -> Done:
        """Return the last message, which must report a failure."""
        message, body = self.expect_done()
        assert not message.ok
        assert body == b""
        return message

    def leave(self) -> None:
        """Close the channel, as a host that dies."""
        self._end.shutdown(socket.SHUT_RDWR)

    def ended(self) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr after the guest's end."""
        out, err = self.process.communicate(timeout=BOUND_S)
        return self.process.returncode, out, err


@contextlib.contextmanager
def guest() -> Iterator[Host]:
    """Start a guest that waits for its first message."""
    our_end, their_end = socket.socketpair()
    with our_end, their_end:
        our_end.settimeout(BOUND_S)
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "ramet.guest", str(their_end.fileno())],
            pass_fds=[their_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        their_end.close()
        try:
            yield Host(our_end, process)
        finally:
            process.kill()
            process.communicate()
