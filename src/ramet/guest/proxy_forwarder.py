"""The sandbox's end of the proxy: relays bytes between a loopback port and the host's socket, without reading them.

It makes no decision: a client that connects to the host's socket directly gets the same answers. It is one process with
one thread, and uses only the standard library. Descriptors and memory stay within the limits of a sandbox.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
from typing import NoReturn

HOST, PORT = "127.0.0.1", 3128
UNIX_PATH = "/run/ramet/proxy.sock"
MAX_CONNECTIONS = 64
#: Seconds between checks of the parent if the kernel offers no descriptor for it.
_LOOK_S = 1.0

_NO_PROXY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
#: Data that was read is sent, or copied out, before the next read.
_buffer = memoryview(bytearray(16 * 1024))


def listen(port: int = PORT, host: str = HOST) -> socket.socket:
    """Create a listener for `serve`, before the relay is forked, so that no client comes too early.

    Raises OSError.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def serve(listener: socket.socket, unix_path: str = UNIX_PATH, *, parent: int | None = None) -> NoReturn:
    """Relay until `parent` has ended, then exit the process.

    Descriptors other than 0 to 2 and `listener` are closed. `parent` need not be the process that forked this one; None
    means that it is.
    """
    code = 1
    try:
        listener_fd = listener.fileno()
        os.closerange(3, listener_fd)
        os.closerange(listener_fd + 1, os.sysconf("SC_OPEN_MAX"))
        _Relay(listener, unix_path).run(os.getppid() if parent is None else parent)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)  # A forked child must not run exit handlers of its parent.


class _Endpoint:
    """An end of a pair: the data still to be sent to it, and the progress of each direction."""

    __slots__ = ("drops_data", "events", "has_ended", "is_client", "is_end_forwarded", "peer", "pending", "sock")

    def __init__(self, sock: socket.socket, *, is_client: bool) -> None:
        self.sock, self.is_client = sock, is_client
        self.peer = self
        self.pending = b""
        self.events = 0  #: events that the selector watches
        self.has_ended = False  #: no more data comes from it
        self.is_end_forwarded = False  #: its peer's end was passed on to it
        self.drops_data = False  #: it accepts no more data; data for it is dropped


class _Relay:
    def __init__(self, listener: socket.socket, unix_path: str) -> None:
        self._listener, self._unix_path = listener, unix_path
        self._selector = selectors.DefaultSelector()
        self._count = 0

    def run(self, parent: int) -> None:
        watch = _watch(parent)
        if watch >= 0:
            self._selector.register(watch, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while watch >= 0 or _is_alive(parent):
            for key, events in self._selector.select(None if watch >= 0 else _LOOK_S):
                if key.fileobj == watch:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data.events:  # Otherwise it was closed in this round.
                    self._handle_ready(key.data, events)

    def _accept(self) -> None:
        try:
            client = self._listener.accept()[0]
        except OSError:
            return  # The client has left, or there is no descriptor: no answer is possible.
        server = None
        try:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.setblocking(False)
            server.connect(self._unix_path)  # Done at once; fails if the host's queue is full or it ended.
        except OSError:
            with contextlib.suppress(OSError):
                client.send(_NO_PROXY)
            client.close()
            if server is not None:
                server.close()
            return
        pair = _Endpoint(client, is_client=True), _Endpoint(server, is_client=False)
        pair[0].peer, pair[1].peer = pair[1], pair[0]
        self._count += 1
        if self._count == MAX_CONNECTIONS:
            self._selector.unregister(self._listener)
        self._watch_both(pair[0])

    def _handle_ready(self, end: _Endpoint, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                _send(end, end.pending)
            if events & selectors.EVENT_READ and not end.has_ended and not end.peer.pending:
                _receive(end)
            _shut_down_peer(end)
            _shut_down_peer(end.peer)
        except OSError:  # The client has left.
            return self._close(end)
        if end.has_ended and end.peer.has_ended and not end.pending and not end.peer.pending:
            return self._close(end)
        return self._watch_both(end)

    def _watch_both(self, end: _Endpoint) -> None:
        for each in (end, end.peer):
            events = 0 if each.has_ended or each.peer.pending else selectors.EVENT_READ
            if each.pending:
                events |= selectors.EVENT_WRITE
            if events == each.events:
                continue
            if not each.events:
                self._selector.register(each.sock, events, each)
            elif not events:
                self._selector.unregister(each.sock)
            else:
                self._selector.modify(each.sock, events, each)
            each.events = events

    def _close(self, end: _Endpoint) -> None:
        for each in (end, end.peer):
            if each.events:
                self._selector.unregister(each.sock)
                each.events = 0
            each.sock.close()
        if self._count == MAX_CONNECTIONS:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._count -= 1


def _watch(parent: int) -> int:
    """Return a descriptor that becomes readable when `parent` ends; -1 if the system or the process does not exist."""
    try:
        return os.pidfd_open(parent)
    except (AttributeError, OSError):
        return -1


def _is_alive(parent: int) -> bool:
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _receive(end: _Endpoint) -> None:
    try:
        size = end.sock.recv_into(_buffer)
    except BlockingIOError:
        return
    except OSError:
        if end.is_client:
            raise
        size = 0  # Data that the host sent before is still passed on.
    if size:
        _send(end.peer, _buffer[:size])
    else:
        end.has_ended = True


def _send(end: _Endpoint, data: bytes | memoryview) -> None:
    try:
        sent_bytes = len(data) if end.drops_data else end.sock.send(data)
    except BlockingIOError:
        sent_bytes = 0
    except OSError:
        if end.is_client:
            raise
        # The host accepts no more, but may have answered: closing now would take the answer from the client.
        sent_bytes, end.drops_data = len(data), True
    end.pending = bytes(data[sent_bytes:])


def _shut_down_peer(end: _Endpoint) -> None:
    peer = end.peer
    if end.has_ended and not peer.pending and not peer.is_end_forwarded:
        peer.is_end_forwarded = True
        try:
            peer.sock.shutdown(socket.SHUT_WR)
        except OSError:
            if peer.is_client:
                raise
