"""Functions that serve: each listens on a port of its own loopback, prints "ready", and never returns."""

from __future__ import annotations

import pathlib
import socket
import struct
import sys
import threading
from typing import Any

ANSWERS_AFTER_S = 3.0  #: longer than it takes to see that a client has gone


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def _listener(port: int, backlog: int = 16) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=backlog)
    _say_ready()
    return listener


def greet(port: int, word: str) -> None:
    """Answer HTTP with a word and the path of the request."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Greeter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"{word} {self.path}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Greeter)
    _say_ready()
    server.serve_forever()


def greet_on_both(first: int, second: int) -> None:
    """Serve on two ports."""
    threading.Thread(target=greet, args=(first, "first"), daemon=True).start()
    greet(second, "second")


def fail_once_then_greet(port: int) -> None:
    """Serve at the second attempt only."""
    from ramet.sub_agent_client import load_checkpoint, save_checkpoint

    if load_checkpoint() is None:
        save_checkpoint("once")
        raise RuntimeError("not yet")
    greet(port, "again")


def echo(port: int) -> None:
    """Send back each byte that a client sends."""
    listener = _listener(port)

    def serve(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(65536):
                peer.sendall(data)

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def flood(port: int, size: int) -> None:
    """Send so many bytes to each client; files show when that began and when it was done."""
    listener = _listener(port)

    def serve(peer: socket.socket, number: int) -> None:
        block, remaining = bytes(65536), size
        while remaining > 0:
            remaining -= peer.send(block)
            if number >= 0:
                pathlib.Path(f"begun-{number}").touch()
                number = -1 - number
        pathlib.Path(f"done-{-1 - number}").touch()

    number = 0
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0], number), daemon=True).start()
        number += 1


def hang_up(port: int) -> None:
    """Reset every connection at once."""
    listener = _listener(port)
    while True:
        with listener.accept()[0] as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def keep_silent(port: int) -> None:
    """Accept every connection, and neither read nor write."""
    listener, connections = _listener(port), []
    while True:
        connections.append(listener.accept()[0])


def answer_at_the_end(port: int) -> None:
    """Read until the client stops sending, and answer a while later with the number of bytes."""
    listener = _listener(port)
    while True:
        with listener.accept()[0] as peer:
            size = 0
            while data := peer.recv(65536):
                size += len(data)
            threading.Event().wait(ANSWERS_AFTER_S)
            peer.sendall(f"{size} bytes".encode())


def setting(name: str) -> str:
    """Return a network setting of the sandbox."""
    return pathlib.Path("/proc/sys/net/ipv4", name).read_text().strip()


def take_nobody(port: int) -> None:
    """Listen with a full queue and accept no connection, so that further ones are not even refused."""
    listener = _listener(port, backlog=0)
    with socket.create_connection(listener.getsockname()):
        threading.Event().wait()


def idle() -> None:
    """Wait without listening."""
    _say_ready()
    threading.Event().wait()


def reach(unix: str, port: int) -> dict[str, str]:
    """Try to reach a socket of the host and a port of another run."""
    outcomes = {}
    for name, family, address in (
        ("unix", socket.AF_UNIX, unix),
        ("loopback", socket.AF_INET, ("127.0.0.1", port)),
    ):
        try:
            with socket.socket(family) as peer:
                peer.connect(address)
            outcomes[name] = "reached"
        except OSError as error:
            outcomes[name] = type(error).__name__
    return outcomes


def born_with(ports: dict[str, int]) -> str:
    """Spawn a child with these ports, and return its status or the refusal."""
    from ramet import Policy
    from ramet.sub_agent_client import spawn_sub_agent

    try:
        return str(spawn_sub_agent(agent=abs, policy=Policy(ports=ports, memory_mb=64), args=(-1,)).status)
    except Exception as refusal:
        return f"{type(refusal).__name__}: {refusal}"
