"""Attacks 41 to 54: using up resources of others. Each attack stops by itself at a given bound."""

# The calls are made as the kernel takes them.
# ruff: noqa: PTH102, PTH108, PTH123

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import resource
import signal
import socket
import sys
import threading
import time

from tests.security.attacks.trying import DONE, called, name_of, syscall


def fork_much(bound: int, seconds: float = 0.0) -> dict[str, object]:
    """Fork children that stay for a while, up to `bound`. Return how many lived at once and what stopped it."""
    reading, writing = os.pipe()
    children: list[int] = []
    stopped = "bound"
    try:
        while len(children) < bound:
            child = os.fork()
            if child == 0:
                os.close(writing)
                os.read(reading, 1)  # ends with its parent
                os._exit(0)
            children.append(child)
    except OSError as problem:
        stopped = type(problem).__name__
    time.sleep(seconds)
    os.close(writing)
    for child in children:
        os.waitpid(child, 0)
    os.close(reading)
    return {"lived": len(children), "stopped": stopped}


def fork_for_ever(seconds: float) -> None:
    """Fork as a bomb: each child forks too, and none ends before `seconds` have passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            os.fork()


def start_threads(bound: int, seconds: float = 0.0) -> dict[str, object]:
    """Start threads that stay for a while, up to `bound`. Return how many lived at once and what stopped it."""
    enough = threading.Event()
    threads: list[threading.Thread] = []
    stopped = "bound"
    try:
        while len(threads) < bound:
            thread = threading.Thread(target=enough.wait)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError) as problem:
        stopped = type(problem).__name__
    lived = len(threads)
    time.sleep(seconds)
    enough.set()
    for thread in threads:
        thread.join()
    return {"lived": lived, "stopped": stopped}


def fill(folder: str, bound_mb: int, seconds: float = 0.0) -> dict[str, object]:
    """Write files of 1 MiB into a folder, up to `bound_mb`, and keep them for a while. Return what stopped it."""
    written = 0
    stopped = "bound"
    block = b"\xa5" * (1 << 20)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for number in range(bound_mb):
            with open(f"{folder}/fill-{number}", "wb") as file:
                file.write(block)
            written += 1
    except OSError as problem:
        stopped = name_of(problem)
    time.sleep(seconds)
    for number in range(written + 1):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/fill-{number}")
    return {"written_mb": written, "stopped": stopped}


def fill_one_file(folder: str, bound_mb: int) -> dict[str, object]:
    """Write one large file, up to `bound_mb`. Return its size in MiB and what stopped it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    block, written, stopped = b"\xa5" * (1 << 20), 0, "bound"
    with open(f"{folder}/one", "wb", buffering=0) as file:
        try:
            while written < bound_mb:
                written += file.write(block) // len(block)
        except OSError as problem:
            stopped = name_of(problem)
    os.unlink(f"{folder}/one")
    return {"written_mb": written, "stopped": stopped}


def fill_without_names(folder: str, bound_mb: int, holder: str, seconds: float = 0.0) -> dict[str, object]:
    """Write files of 4 MiB, remove them, and hold them without a descriptor in any process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    held, ends, written, stopped = [], socket.socketpair(), 0, "bound"
    block, batch = b"\xa5" * (4 << 20), list[int]()
    try:
        while written < bound_mb:
            fd = os.open(f"{folder}/hidden", os.O_CREAT | os.O_RDWR)
            os.unlink(f"{folder}/hidden")
            batch.append(fd)
            written += os.write(fd, block) >> 20
            if holder == "mapping":
                held.append(_map_page(fd))
            elif len(batch) == 16:
                socket.send_fds(ends[0], [b"x"], batch)
            if holder == "mapping" or len(batch) == 16:
                while batch:
                    os.close(batch.pop())
    except OSError as problem:
        stopped = name_of(problem)
    time.sleep(seconds)
    return {"written_mb": written, "stopped": stopped}


def _map_page(fd: int) -> int:
    """Map one page of a file as C does, without a second descriptor."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    start: int = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0))
    return start


def fill_with_names(folder: str, bound: int) -> dict[str, object]:
    """Make empty files in a folder, up to `bound`. Return the number and what stopped it."""
    made, stopped = 0, "bound"
    try:
        os.mkdir(f"{folder}/names")
        for made in range(bound):
            os.close(os.open(f"{folder}/names/{made}", os.O_CREAT | os.O_WRONLY))
    except OSError as problem:
        stopped = name_of(problem)
    return {"made": made, "stopped": stopped}


def spin(processes: int, seconds: float) -> dict[str, float]:
    """Use every processor for a while. Return the processor seconds of the children, and the time that passed."""
    began = time.monotonic()
    children: list[int] = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            while time.monotonic() < began + seconds:
                pass
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"processor": used.ru_utime + used.ru_stime, "passed": time.monotonic() - began}


def spin_for_ever() -> None:
    """Loop for ever in two threads, and ignore each signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_spin, daemon=True).start()
    _spin()


def _spin() -> None:
    while True:
        pass


def open_files(bound: int) -> dict[str, object]:
    """Open descriptors, up to `bound`. Return the number and what stopped it."""
    fds: list[int] = []
    stopped = "bound"
    try:
        while len(fds) < bound:
            fds.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as problem:
        stopped = name_of(problem)
    opened = len(fds)
    for fd in fds:
        os.close(fd)
    return {"opened": opened, "stopped": stopped}


def flood_output(megabytes: int) -> int:
    """Print megabytes without pause on both streams, and return their number."""
    block = b"z" * (1 << 20)
    for number in range(megabytes):
        os.write(1 + number % 2, block)
    return megabytes


def print_lines(lines: int) -> str:
    """Print numbered lines, then a last line on each stream."""
    for number in range(lines):
        print(f"line {number}")  # noqa: T201
    print("last word", flush=True)  # noqa: T201
    print("last complaint", file=sys.stderr, flush=True)  # noqa: T201
    return "printed"


def hoard(bound: int, seconds: float) -> dict[str, int]:
    """Take timers, watches, pipes and queued signals, up to `bound` of each, and hold them. Return the numbers."""
    libc = ctypes.CDLL(None, use_errno=True)
    taken = {"timers": 0, "watches": 0, "instances": 0, "pipes": 0, "signals": 0}
    timer = ctypes.c_int()
    event = (ctypes.c_byte * 64)()
    ctypes.memmove(ctypes.addressof(event) + 12, (1).to_bytes(4, sys.byteorder), 4)  # SIGEV_NONE
    with contextlib.suppress(OSError):
        while taken["timers"] < bound:
            syscall(
                "timer_create", 1, event, ctypes.cast(ctypes.byref(timer), ctypes.POINTER(ctypes.c_char * 4)).contents
            )
            taken["timers"] += 1
    with contextlib.suppress(OSError):
        while taken["pipes"] < bound:
            os.pipe()
            taken["pipes"] += 1
    for fd in range(60, 40, -1):  # room for what follows
        with contextlib.suppress(OSError):
            os.close(fd)
    while taken["instances"] < 15 and (watcher := libc.inotify_init1(0)) >= 0:
        taken["instances"] += 1
        for number in range(max(1, bound // 150)):
            path = f"/tmp/watched-{number}"
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            if libc.inotify_add_watch(watcher, path.encode(), 2) < 0:
                break
            taken["watches"] += 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    info = ctypes.create_string_buffer(128)
    ctypes.memmove(info, signal.SIGRTMIN.to_bytes(4, sys.byteorder), 4)
    ctypes.memmove(ctypes.addressof(info) + 8, (-1).to_bytes(4, sys.byteorder, signed=True), 4)
    while taken["signals"] < bound and called("rt_sigqueueinfo", os.getpid(), int(signal.SIGRTMIN), info) == DONE:
        taken["signals"] += 1
    print(f"took {taken}", flush=True)  # noqa: T201
    time.sleep(seconds)
    return taken


def sleep_often(number: int) -> str:
    """Sleep many times for no time at all."""
    for _ in range(number):
        time.sleep(0)
    return DONE


def eat_memory(megabytes: int, seconds: float = 0.0) -> int:
    """Use memory, page by page, and keep it for a while. Return the size in MiB."""
    held = bytearray()
    for _ in range(megabytes):
        held += os.urandom(4096) * 256
    time.sleep(seconds)
    return len(held) >> 20


def eat_memory_in_children(processes: int, megabytes: int, seconds: float = 0.0) -> dict[str, int]:
    """Use memory in several processes at once, each below the limit. Return how many got it and what still lives."""
    reading, writing = os.pipe()
    ready_r, ready_w = os.pipe()
    children: list[int] = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            os.close(writing)
            held = os.urandom(1 << 20) * megabytes
            os.write(ready_w, b"." if held else b"")
            os.close(ready_w)
            os.read(reading, 1)
            os._exit(0)
        children.append(child)
    os.close(ready_w)
    held_by = 0
    while held_by < processes and os.read(ready_r, 1):
        held_by += 1
    if 3 * held_by > processes:  # Where most were ended on the way, nobody is left to be found.
        time.sleep(seconds)
    # One that was ended made room for the next: what counts is who has it at the same time.
    living = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
    os.close(writing)
    for child in living:
        os.waitpid(child, 0)
    return {"held_by": held_by, "megabytes": len(living) * megabytes}


def answer_at_the_limit(megabytes: int) -> bytes:
    """Return a value that fills the memory, so that sending it needs more."""
    return os.urandom(1 << 20) * megabytes


def leave_large_file(megabytes: int, name: str = "large.bin") -> str:
    """Leave a file of some size in the workspace, with real content, and a small one."""
    with open(name, "wb") as file:
        for _ in range(megabytes):
            file.write(b"\x5a" * (1 << 20))
    pathlib.Path("small.txt").write_text("small")
    return name


def leave_sparse_file(gigabytes: int) -> str:
    """Leave an empty file with a large size."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open("sparse.bin", "wb") as file:
        with contextlib.suppress(OSError):
            file.truncate(gigabytes << 30)
    return "sparse.bin"
