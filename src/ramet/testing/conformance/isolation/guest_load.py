"""Requests of `guest` that use resources and reach others: memory, processes, processors, streams and sockets."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import socket
import subprocess
import threading
import time

_MB = 1024 * 1024
_held_until_end: list[object] = []  #: memory, sockets and files that are held until the end


def allocate(mb: int) -> None:
    """Allocate memory, touch it, and keep it."""
    _held_until_end.append(bytearray(b"x") * (mb * _MB))


def share(kind: str, mb: int) -> None:
    """Allocate shared memory, touch it, and keep it."""
    if kind == "descriptor":
        fd = os.memfd_create("conformance")
        block = b"x" * _MB
        for _ in range(mb):
            os.write(fd, block)
        _held_until_end.append(fd)
        return
    shared = mmap.mmap(-1, mb * _MB)
    for at in range(0, mb * _MB, 4096):
        shared[at] = 1
    _held_until_end.append(shared)


def allocate_in_children(count: int, mb: int, most: int) -> int:
    """Allocate memory in several processes concurrently; return how many of them live and have it.

    Waits up to 20 s while more than `most` live: a watchdog may look that late on a busy machine.
    """
    ready, go = os.pipe()
    pids: list[int] = []
    for index in range(count):
        if not (pid := os.fork()):
            with contextlib.suppress(BaseException):
                allocate(mb)
                os.write(go, bytes([index]))
                while True:
                    signal.pause()
            os._exit(1)
        pids.append(pid)
    os.set_blocking(ready, False)
    ready_children: set[int] = set()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(
        index not in ready_children and pid in _living(pids) for index, pid in enumerate(pids)
    ):
        with contextlib.suppress(BlockingIOError):
            ready_children.update(os.read(ready, count))
        time.sleep(0.01)
    deadline = time.monotonic() + 20
    while len(living := _living(pids)) > most and time.monotonic() < deadline:
        time.sleep(0.01)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    # Without processes that are still about to allocate.
    return len({pids[index] for index in ready_children}.intersection(living))


def _living(pids: list[int]) -> list[int]:
    """Return the processes that have not ended, without reaping ended ones."""
    return [pid for pid in pids if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None]


def fork_until(count: int) -> int:
    """Start processes until `count` live or no more may start; return how many lived."""
    pids: list[int] = []
    try:
        while len(pids) < count:
            if not (pid := os.fork()):
                with contextlib.suppress(BaseException):
                    signal.pause()
                os._exit(0)
            pids.append(pid)
    except OSError:
        pass
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(pids)


def start_threads_until(count: int) -> int:
    """Start threads until `count` live or no more may start; return how many lived."""
    finished = threading.Event()
    threads: list[threading.Thread] = []
    try:
        while len(threads) < count:
            thread = threading.Thread(target=finished.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError):
        pass
    finished.set()
    for thread in threads:
        thread.join()
    return len(threads)


def open_until(count: int) -> int:
    """Open descriptors until `count` are open or no more may be opened; return how many were open."""
    fds: list[int] = []
    try:
        while len(fds) < count:
            fds.append(os.dup(0))
    except OSError:
        pass
    for fd in fds:
        os.close(fd)
    return len(fds)


def spin(seconds: float, processes: int) -> float:
    """Work continuously in several processes; return the average number of processors used."""
    began = time.monotonic()
    pids: list[int] = []
    for _ in range(processes):
        if not (pid := os.fork()):
            while time.monotonic() < began + seconds:
                pass
            os._exit(0)
        pids.append(pid)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for pid in pids:
        os.waitpid(pid, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used / (time.monotonic() - began)


def say(stream: int, text: str, times: int) -> None:
    """Print, bypassing Python's buffers."""
    data = text.encode() * times
    while data:
        data = data[os.write(stream, data) :]


def say_by_program(text: str) -> None:
    """Print from another program."""
    subprocess.run(["/bin/sh", "-c", 'echo "$1"; echo "$1" >&2', "sh", text], check=True)


def reach_process(pid: int) -> None:
    """Test whether a process can be signalled, without doing so."""
    os.kill(pid, 0)


def connect_tcp(host: str, port: int) -> None:
    """Connect to a TCP address."""
    with socket.socket() as peer:
        peer.settimeout(5)
        peer.connect((host, port))


def connect_unix(path: str) -> None:
    """Connect to a Unix socket, by an abstract name if `path` begins with NUL."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(5)
        peer.connect(path)


def greet_at(port: int, word: str) -> None:
    """Listen on a port of the loopback, until the end, and send a word to each client."""
    server = socket.create_server(("127.0.0.1", port))

    def greet() -> None:
        while True:
            with contextlib.suppress(OSError), server.accept()[0] as peer:
                peer.sendall(word.encode())

    threading.Thread(target=greet, daemon=True).start()


def listen_tcp() -> int:
    """Listen on the loopback, until the end; return the port."""
    server = socket.create_server(("127.0.0.1", 0))
    _held_until_end.append(server)
    return int(server.getsockname()[1])


def listen_unix(path: str) -> None:
    """Listen on a Unix socket, until the end."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    _held_until_end.append(server)
