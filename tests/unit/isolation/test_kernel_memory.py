"""Tests of kernel memory of real processes: sockets, sockets in flight, shared areas, and page tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from ramet.isolation.limits import kernel_memory
from ramet.isolation.linux import procfs

READY = "; print('ready', flush=True); sys.stdin.read()"
PAIRS = "import os, socket, sys; pairs = [socket.socketpair() for _ in range(10)]"
SHARED = PAIRS + "; child = os.fork(); child or (sys.stdin.read(), os._exit(0))"
IN_FLIGHT = (
    PAIRS
    + """
for pair in pairs[1:]:
    socket.send_fds(pairs[0][0], [b"x"], [end.fileno() for end in pair])
    [end.close() for end in pair]
0"""
)
SPARSE = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
start = libc.mmap(None, ctypes.c_size_t(4 << 30), 1, 0x4022, -1, ctypes.c_long(0))
libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(4 << 30), 15)
[ctypes.string_at(start + offset, 1) for offset in range(0, 4 << 30, 2 << 20)]"""

IN_A_THREAD = """
import ctypes, socket, sys, threading
def hold():
    ctypes.CDLL(None).unshare(0x400)
    pairs = [socket.socketpair() for _ in range(10)]
    held.set()
    sys.stdin.read()
held = threading.Event()
threading.Thread(target=hold).start(); held.wait()"""
AREAS = """
import ctypes, mmap, os, sys
areas = [mmap.mmap(-1, 65536) for _ in range(10)]
[area.write(b"x" * 65536) for area in areas]
[area.madvise(mmap.MADV_DONTNEED) for area in areas]
[mmap.mmap(-1, 65536, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(10)]
start = ctypes.addressof(ctypes.c_char.from_buffer(areas[0]))
assert ctypes.CDLL(None).prctl(0x53564D41, 0, ctypes.c_void_p(start), ctypes.c_size_t(65536), b"renamed") in (0, -1)
ctypes.CDLL(None).munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t(61440))"""

WITHOUT_FIRST_THREAD = (
    "; import ctypes, threading"
    "; threading.Thread(target=lambda: (print('ready', flush=True), sys.stdin.read(), os._exit(0))).start()"
    "; ctypes.CDLL(None).pthread_exit(None)"
)

Start = Callable[..., int]


@pytest.fixture
def start_process() -> Iterator[Start]:
    """Start a Python process that runs a script and waits, and return its pid."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(script: str, *before: str) -> int:
        command = [*before, sys.executable, "-ISc", script + READY]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline() == b"ready\n"
        return processes[-1].pid

    yield begin
    for each in processes:
        each.communicate()


def sockets(pid: int, *, in_own_network: bool = False) -> int:
    """Return the number of sockets that a process and its descendants hold."""
    tree = procfs.tree(pid)
    tables = sum(map(procfs.page_tables_mb, tree.values()))
    held_memory = kernel_memory.held_mb(tree, in_own_network=in_own_network) - tables
    return round(held_memory / kernel_memory.socket_mb())


def test_sockets_are_counted_by_their_descriptors(start_process: Start) -> None:
    """Ten pairs are twenty sockets; pipes and files do not count."""
    assert sockets(start_process("import sys")) == 0
    assert sockets(start_process(PAIRS)) == 20


def test_a_socket_of_two_processes_counts_once(start_process: Start) -> None:
    assert sockets(start_process(SHARED)) == 20


def test_sockets_of_a_thread_with_descriptors_of_its_own_are_counted(start_process: Start) -> None:
    """The process does not list these descriptors."""
    assert sockets(start_process(IN_A_THREAD)) == 20


def test_sockets_that_were_sent_and_not_received_are_counted(start_process: Start) -> None:
    """Nine pairs without descriptors wait in the queue of the tenth."""
    assert sockets(start_process(IN_FLIGHT)) == 20


@pytest.mark.skipif("os.geteuid() != 0", reason="only root makes a network namespace without a user namespace")
def test_every_socket_of_an_own_network_namespace_is_counted(start_process: Start) -> None:
    """Sockets in flight count, too."""
    assert sockets(start_process(IN_FLIGHT, "unshare", "--net"), in_own_network=True) == 20


@pytest.mark.skipif("os.geteuid() != 0", reason="only root makes a network namespace without a user namespace")
@pytest.mark.parametrize("others", ["none", "child"])
def test_sockets_in_an_own_network_count_after_the_first_thread_ended(start_process: Start, others: str) -> None:
    """Other threads and other processes are in the network namespace, too."""
    fork = "" if others == "none" else "; child = os.fork(); child or (sys.stdin.read(), os._exit(0))"
    script = PAIRS + fork + WITHOUT_FIRST_THREAD
    pid = start_process(script, "unshare", "--net")
    wait_until_first_thread_has_ended(pid)

    assert sockets(pid, in_own_network=True) == 20


def wait_until_first_thread_has_ended(pid: int) -> None:
    """Return once the first thread has ended."""
    while (about := procfs.stat(pid)) is not None and about.state != "Z":
        os.sched_yield()


def areas_mb(pid: int) -> float:
    """Return the charge for shared areas of a process and its descendants."""
    return kernel_memory.shared_mb(procfs.tree(pid).values())


def test_each_shared_area_is_charged_with_its_possible_size(start_process: Start) -> None:
    """Dropped, renamed and partly unmapped areas are charged; private ones are not."""
    assert areas_mb(start_process("import sys")) == 0
    assert areas_mb(start_process(AREAS)) == 10


def test_a_shared_area_of_two_processes_counts_once(start_process: Start) -> None:
    assert areas_mb(start_process(AREAS + "; child = os.fork(); child or (sys.stdin.read(), os._exit(0))")) == 10


def test_a_large_shared_area_is_charged_with_its_size(start_process: Start) -> None:
    """No system call filter limits the size here."""
    assert areas_mb(start_process("import mmap, sys; area = mmap.mmap(-1, 24 << 20)")) == 24


def test_shared_areas_of_a_process_whose_first_thread_has_ended_are_charged(start_process: Start) -> None:
    """The other threads of the process show the areas, also if it ended between the look at it and the count."""
    script = AREAS + (
        "; import threading; main = threading.main_thread()"
        "; threading.Thread(target=lambda: (print('ready', flush=True), sys.stdin.read(), os._exit(0))).start()"
        "; ctypes.CDLL(None).pthread_exit(None)"
    )

    pid = start_process(script)
    assert areas_mb(pid) == 10

    wait_until_first_thread_has_ended(pid)
    ended = procfs.stat(pid)
    assert ended is not None
    assert areas_mb(pid) == kernel_memory.shared_mb([ended._replace(state="S")]) == 10


def test_page_tables_are_counted(start_process: Start) -> None:
    """One page in each 2 MiB of 4 GiB takes 2048 tables of 4 KiB, and almost no resident memory."""
    pid = start_process(SPARSE)
    about = procfs.stat(pid)
    assert about is not None

    assert 8 <= procfs.page_tables_mb(about) < 10
    assert kernel_memory.held_mb({pid: about}, in_own_network=False) >= 8


def test_ended_processes_hold_no_memory() -> None:
    me = procfs.stat(os.getpid())
    assert me is not None
    missing = me._replace(pid=2**22 + 1)

    for in_own_network in (True, False):
        assert kernel_memory.held_mb({missing.pid: missing}, in_own_network=in_own_network) == 0


def test_descriptor_slots_are_at_least_the_open_descriptors() -> None:
    """The number of slots is visible for every process, and never below the number of descriptors."""
    me = procfs.stat(os.getpid())
    assert me is not None

    assert procfs.descriptor_slots(me) >= len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.skipif(
    "os.geteuid() != 0", reason="only root can become a user who may not list descriptors of ended ones"
)
def test_a_thread_that_has_ended_hides_no_descriptors() -> None:
    """An ordinary user may not list its descriptors; only those of the other threads are charged.

    A process that hides its descriptors is still charged with all that it may have.
    """
    script = """
import ctypes, os, socket, threading
from ramet.isolation.limits import kernel_memory
from ramet.isolation.linux import procfs
os.setuid(60700)
libc, ready, end = ctypes.CDLL(None), os.pipe(), os.pipe()
def begin(*, hides):
    if not (pid := os.fork()):
        libc.prctl(4, not hides); os.close(end[1])
        pairs = [socket.socketpair() for _ in range(10)]
        threading.Thread(target=lambda: (os.write(ready[1], b"x"), os.read(end[0], 1), os._exit(0))).start()
        libc.pthread_exit(None)
    os.read(ready[0], 1)
    while not procfs.stat(pid).is_headless: os.sched_yield()
    return pid
for hides in (False, True):
    tree = {pid: procfs.stat(pid) for pid in (begin(hides=hides),)}
    held = kernel_memory.held_mb(tree, in_own_network=False) - sum(map(procfs.page_tables_mb, tree.values()))
    print(round(held / kernel_memory.socket_mb()))
"""

    process_result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    visible, hidden = map(int, process_result.stdout.split())
    assert visible == 20
    assert hidden >= 64  # as many as the first table of a process has
