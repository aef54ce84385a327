"""The transfer of both directions of a socket over a line."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from ramet.core.errors import ProtocolError
from ramet.isolation.remote.messages import Data
from ramet.isolation.remote.streams import Incoming, Outgoing, Post


class Duplex:
    """A stream in each direction between a socket and a line.

    Data that arrives before `attach` is kept. The socket is closed when both directions have ended.
    """

    def __init__(
        self, number: int, stream: int, post: Post, *, first: bytes = b"", on_done: Callable[[], None] = lambda: None
    ) -> None:
        """Create the streams. `first` is written to the socket before other data: see `Incoming`."""
        self._number, self._stream, self._post, self._on_done = number, stream, post, on_done
        self._socket: socket.socket | None = None
        self._outgoing: Outgoing | None = None
        self._incoming = Incoming(number, stream, post, first=first, on_end=self._on_incoming_end)
        self._has_received_all = self._has_sent_all = self._is_closed = False

    def attach(
        self,
        end: socket.socket,
        *,
        before: tuple[Outgoing, ...] = (),
        first: bytes = b"",
        on_data: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Use the socket `end`, and own it from now on.

        `before`, `first` and `on_data` are parameters of `Outgoing`.
        """
        self._socket = end
        self._outgoing = Outgoing(
            end.fileno(),
            self._number,
            self._stream,
            self._post,
            before=before,
            first=first,
            on_data=on_data,
            on_end=self._on_outgoing_end,
        )
        self._incoming.attach(end.fileno())

    @property
    def unwritten(self) -> bytes:
        """The data that arrived, but was not written to the socket."""
        return self._incoming.unwritten

    def take(self, data: bytes) -> None:
        self._incoming.take(data)

    def grant(self, size: int) -> None:
        if self._outgoing is None:
            raise ProtocolError(f"stream {self._stream} of {self._number} is given credit before anything was sent")
        self._outgoing.grant(size)

    def drain(self) -> None:
        """Send all that can be sent now."""
        if self._outgoing is not None:
            self._outgoing.drain()

    def fail(self) -> None:
        """End both directions, because there will be no socket: the other side sees the end."""
        self._post(Data(number=self._number, stream=self._stream), b"")
        self._has_sent_all = True
        self._incoming.abandon()

    def stop_sending(self) -> None:
        """Stop sending: the other end no longer reads."""
        if self._outgoing is not None:
            self._outgoing.close()
        self._has_sent_all = True
        self._finish_if_done()

    def finish(self) -> None:
        """Write the data that has arrived, and send no more: the other end is gone."""
        self._incoming.end()
        self.stop_sending()

    def close(self) -> None:
        """Drop all data, and close the socket. Idempotent."""
        self._is_closed = True
        self._incoming.close()
        if self._outgoing is not None:
            self._outgoing.close()
        if self._socket is not None:
            self._socket.close()

    def _on_incoming_end(self) -> None:
        self._has_received_all = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        self._finish_if_done()

    def _on_outgoing_end(self) -> None:
        self._has_sent_all = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._has_received_all and self._has_sent_all and not self._is_closed:
            self.close()
            self._on_done()
