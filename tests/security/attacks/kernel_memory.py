"""Memory of the kernel that no process is charged for. Each attack stops by itself at a given bound."""

# The calls are made as the kernel takes them.
# ruff: noqa: PTH108

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import threading
import time

from tests.security.attacks.trying import Tried, attempt, name_of, syscall

_MIB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LARGEST = 1 << 30
_SET_PIPE_SIZE = 1031
_SEM_SET = 32_000  #: semaphores of one set: about 2 MiB
_BATCH = 20  #: pairs of sockets that one message takes along

_libc = ctypes.CDLL(None, use_errno=True)


def fill_sockets(bound_mb: int, seconds: float = 0.0, processes: int = 1, ask: bool = True) -> dict[str, object]:
    """Fill pairs of sockets and keep them for a while; `ask` requests large buffers first. Return the size in MiB."""
    reading, writing = os.pipe()
    waiting, release = os.pipe()
    children: list[int] = []
    for _ in range(processes):
        if child := os.fork():
            children.append(child)
            continue
        os.close(release)
        held: list[socket.socket] = []
        filled = _fill(bound_mb * _MIB // processes, ask, held)
        os.write(writing, filled.to_bytes(8, "little"))
        os.read(waiting, 1)  # ends with its parent
        os._exit(0)
    total = sum(int.from_bytes(os.read(reading, 8), "little") for _ in range(processes))
    if total >= bound_mb * _MIB:  # An attack that was stopped early has nothing to be found.
        time.sleep(seconds)
    os.close(release)
    for child in children:
        os.waitpid(child, 0)
    return {"held_mb": total // _MIB}


def _fill(bound: int, ask: bool, held: list[socket.socket]) -> int:
    filled = 0
    with contextlib.suppress(OSError):
        while filled < bound:
            held += socket.socketpair()
            filled += sum(_fill_one(end, bound - filled, ask) for end in held[-2:])
    return filled


def _fill_one(end: socket.socket, bound: int, ask: bool) -> int:
    filled = 0
    end.setblocking(False)
    if ask:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
    with contextlib.suppress(BlockingIOError):
        while filled < bound:
            filled += end.send(b"x" * 65536)
    return filled


def fill_sockets_without_a_first_thread(bound_mb: int, seconds: float) -> None:
    """Fill sockets in a second thread, and end the first thread alone, so that the process looks ended."""

    def fill() -> None:
        fill_sockets(bound_mb, seconds, 8, False)
        os._exit(0)

    threading.Thread(target=fill).start()
    syscall("exit", 0)


def fill_beside(bound_mb: int, seconds: float) -> dict[str, object]:
    """Fill memory in a process that is no child of this one, and return the size in MiB."""
    reading, writing = os.pipe()
    try:
        child = syscall("clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)  # CLONE_PARENT
    except OSError as problem:
        return {"held_mb": 0, "stopped": name_of(problem)}
    if not child:
        held = bytearray(bound_mb * _MIB)
        held[::_PAGE] = b"x" * len(held[::_PAGE])
        os.write(writing, b"x")
        time.sleep(seconds)
        os._exit(0)
    os.close(writing)
    filled = len(os.read(reading, 1))
    os.read(reading, 1)  # It ends with the other process.
    return {"held_mb": bound_mb * filled}


def fill_sockets_in_flight(bound_mb: int, seconds: float = 0.0) -> dict[str, object]:
    """Hide full sockets in the queue of another socket, where no process has a descriptor of them."""
    filled, outer = 0, socket.socketpair()
    with contextlib.suppress(OSError):
        while filled < bound_mb * _MIB:
            ends = [end for _ in range(_BATCH) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
            filled += sum(map(_fill_packets, ends))
            socket.send_fds(outer[0], [b"x"], [end.fileno() for end in ends])
            for end in ends:
                end.close()
    if filled >= bound_mb * _MIB:
        time.sleep(seconds)
    return {"held_mb": filled // _MIB}


def fill_tcp(warm_up_mb: int) -> dict[str, float]:
    """Grow TCP buffers by much traffic over loopback, then fill them. Return the size in MiB."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    for end in (sender, receiver):
        end.setblocking(False)
    received = filled = 0
    while received < warm_up_mb * _MIB:
        filled += _send_all(sender)
        with contextlib.suppress(BlockingIOError):
            received += len(receiver.recv(1 << 16))
    while select.select([], [sender], [], 0.2)[1]:
        filled += _send_all(sender)
    return {"held_mb": (filled - received) / _MIB}


def _send_all(end: socket.socket) -> int:
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += end.send(b"x" * 65536)
    return filled


def _fill_packets(end: socket.socket) -> int:
    filled = 0
    end.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += end.send(b"x" * 200_000)
    end.setblocking(True)
    return filled


def fill_page_tables(bound_mb: int, seconds: float = 0.0) -> dict[str, object]:
    """Read one page in each 2 MiB of an empty area: each needs a page table, and no memory of the process."""
    read, private, anonymous, no_reserve, no_huge_page, step = 1, 2, 0x20, 0x4000, 15, 2 << 20
    size = bound_mb * 256 * step
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = _libc.mmap(None, size, read, private | anonymous | no_reserve, -1, 0)
    if start in (None, 2**64 - 1):
        return {"held_mb": 0}
    _libc.madvise(start, size, no_huge_page)
    for offset in range(0, size, step):
        ctypes.string_at(start + offset, 1)
    time.sleep(seconds)
    return {"held_mb": bound_mb}


def hide_shared_memory(bound_mb: int, seconds: float = 0.0) -> dict[str, object]:
    """Fill shared areas of 1 MiB and unmap each except its first page. The area keeps its memory."""
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    held = []
    for _ in range(bound_mb):
        held.append(start := _shared_area(_MIB, -1))
        ctypes.memset(start, 1, _MIB)
        _libc.munmap(start + _PAGE, _MIB - _PAGE)
    time.sleep(seconds)
    return {"held_mb": len(held)}


def map_shared_areas() -> Tried:
    """Map shared areas that are larger than their charge allows, in each possible way, and a small one."""
    zero, huge_page = open_or_error("/dev/zero"), 0x40000
    return {
        "large": attempt(_shared_area, 16 * _MIB, -1),
        "beyond 4 GiB": attempt(_shared_area, 1 << 32, -1),
        "device": zero if isinstance(zero, str) else attempt(_shared_area, 16 * _MIB, zero),
        "small": attempt(_shared_area, _MIB, -1),
        "huge page": attempt(_shared_area, _PAGE, -1, huge_page),
    }


def open_or_error(path: str) -> int | str:
    """Open a file to read and write, and return the descriptor or the name of the error."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError as problem:
        return name_of(problem)


def _shared_area(size: int, fd: int, more: int = 0) -> int:
    read_write, shared, anonymous = 3, 1, 0x20
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    start: int | None = _libc.mmap(None, size, read_write, shared | more | (anonymous if fd < 0 else 0), fd, 0)
    if start in (None, 2**64 - 1):
        raise OSError(ctypes.get_errno(), "mmap")
    assert start is not None
    return start


def make_queues() -> Tried:
    """Make a message queue, semaphores and shared memory of System V, which live outside of processes."""
    made = {"queue": _libc.msgget, "semaphores": _libc.semget, "memory": _libc.shmget}
    given = {"queue": (0, 0o600), "semaphores": (0, _SEM_SET, 0o600), "memory": (0, _MIB, 0o600)}
    return {name: attempt(_make, call, *given[name]) for name, call in made.items()}


def _make(call: object, *arguments: int) -> None:
    assert callable(call)
    number = call(*arguments)
    if number < 0:
        raise OSError(ctypes.get_errno(), "System V")
    for remove in (_libc.msgctl, _libc.shmctl):
        remove(number, 0, None)
    _libc.semctl(number, 0, 0, 0)


def pin_pages() -> Tried:
    """Make a pipe hold pages of a file that is removed. Each entry of a few bytes may pin a megabyte."""
    reading, writing = os.pipe()
    file = os.open("pinned", os.O_CREAT | os.O_RDWR)
    os.write(file, b"x" * _MIB)
    os.lseek(file, 0, os.SEEK_SET)
    tried = {
        "sendfile": attempt(os.sendfile, writing, file, 0, 100),
        "splice": attempt(os.splice, file, writing, 100),
        "large pipe": attempt(fcntl.fcntl, writing, _SET_PIPE_SIZE, _MIB),
    }
    os.unlink("pinned")
    os.close(file)
    return tried | {"tee": attempt(_tee, reading, os.pipe()[1])}


def _tee(source: int, target: int) -> None:
    if _libc.tee(source, target, 100, 0) < 0:
        raise OSError(ctypes.get_errno(), "tee")


def buffers() -> dict[str, str | int]:
    """Request larger buffers by each option. Return the growth of each buffer, or the error."""
    end, other = socket.socketpair()
    found: dict[str, str | int] = {}
    for name, number, look in (
        ("SO_SNDBUF", 7, 7),
        ("SO_RCVBUF", 8, 8),
        ("SO_SNDBUFFORCE", 32, 7),
        ("SO_RCVBUFFORCE", 33, 8),
    ):
        before = end.getsockopt(socket.SOL_SOCKET, look)
        try:
            end.setsockopt(socket.SOL_SOCKET, number, before)  # The kernel doubles it.
            found[name] = end.getsockopt(socket.SOL_SOCKET, look) - before
        except OSError as problem:
            found[name] = name_of(problem)
    end.close()
    other.close()
    return found
