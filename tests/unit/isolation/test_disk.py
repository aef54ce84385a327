"""Tests of disk usage: files of a run are found anywhere in its folder, also without a name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ramet.isolation.limits import disk
from ramet.isolation.limits.disk import ENTRY_BYTES, used_bytes
from ramet.isolation.linux import procfs
from tests.support.hostile import field, make_deep_folders

MIB = 1024 * 1024
MAX_BYTES = 1000 * MIB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_written_bytes_are_counted_and_holes_are_not(folder: Path) -> None:
    """A file with several names counts once."""
    assert used_bytes(folder, max_bytes=MAX_BYTES) == 0
    (folder / "a").mkdir()
    (folder / "a" / "file").write_bytes(os.urandom(2 * MIB))
    (folder / "a" / "other name").hardlink_to(folder / "a" / "file")
    with (folder / "hole").open("wb") as file:
        file.truncate(500 * MIB)

    assert 2 * MIB <= used_bytes(folder, max_bytes=MAX_BYTES) < 2.1 * MIB


def test_empty_files_count_with_a_fixed_size(folder: Path) -> None:
    """Millions of empty files would be unnoticed otherwise."""
    for number in range(100):
        (folder / str(number)).touch()

    assert used_bytes(folder, max_bytes=MAX_BYTES) == 100 * ENTRY_BYTES


def test_a_file_buried_deep_is_found() -> None:
    """A file below a thousand folders is counted."""
    with field() as path:
        make_deep_folders(path, depth=1000)
        before = used_bytes(path, max_bytes=MAX_BYTES)
        fd = os.open(path, os.O_RDONLY)
        for _ in range(1000):
            child_fd = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = child_fd
        with open(os.open("big", os.O_WRONLY | os.O_CREAT, dir_fd=fd), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(bytes(MIB))
        os.close(fd)

        assert used_bytes(path, max_bytes=MAX_BYTES) - before >= MIB


def test_counting_stops_at_the_limit_or_on_request(folder: Path) -> None:
    """The limit bounds the work, and not the number of files that a hostile run made."""
    for number in range(1000):
        (folder / str(number)).touch()
    looks = iter(range(10**6))

    assert used_bytes(folder, max_bytes=10 * ENTRY_BYTES) == 11 * ENTRY_BYTES
    assert used_bytes(folder, max_bytes=MAX_BYTES, stop=lambda: next(looks) >= 20) == 21 * ENTRY_BYTES


def test_a_missing_folder_is_an_error(folder: Path) -> None:
    """A missing folder is not counted as empty."""
    with pytest.raises(FileNotFoundError):
        used_bytes(folder / str(time.time()), max_bytes=MAX_BYTES)


LARGE = 24 * MIB
BEGIN = """
import ctypes, mmap, os, socket, sys, threading
def made():
    fd = os.open("gone", os.O_CREAT | os.O_RDWR)
    os.write(fd, bytes(24 << 20))
    os.unlink("gone")
    return fd
def say(text):
    print(text, flush=True)
    return sys.stdin.readline()
def without_first_thread(work):
    def follow():
        while open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
            os.sched_yield()
        work()
        os._exit(0)
    threading.Thread(target=follow).start()
    libc.pthread_exit(None)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def mapped(fd, size):
    found = libc.mmap(None, ctypes.c_size_t(size), 1, 1, fd, ctypes.c_long(0))
    os.close(fd)
    return found
"""
MAPPED = "mapped(made(), 4096); say('ready')"
FLIGHT = """
first, second = socket.socketpair()
fd = made(); socket.send_fds(first, [b"x"], [fd]); os.close(fd); say("ready")
_, [fd], _, _ = socket.recv_fds(second, 1, 1); say("received")
"""
THREAD = """
def hold():
    libc.unshare(0x400); fd = made(); say("ready")
threading.Thread(target=hold).start()
"""
PROGRAM = """
import shutil
with open(sys.executable, "rb") as source, open("program", "wb") as target:
    target.write(source.read()); target.write(bytes(24 << 20)); os.chmod("program", 0o700)
program = "import os, sys; os.unlink('program'); print('ready', flush=True); sys.stdin.readline()"
os.execv("program", [sys.executable, "-ISc", program])
"""
MAPPED_BY_A_THREAD = "mapped(made(), 4096); without_first_thread(lambda: say('ready'))"
THREAD_OF_A_PROGRAM = PROGRAM.replace('program = "import os, sys; ', f'program = {BEGIN!r} + "').replace(
    "print('ready', flush=True); sys.stdin.readline()", "without_first_thread(lambda: say('ready'))"
)

OPEN = "first = made(); second = os.dup(first); other = open('named', 'wb'); other.write(bytes(9 << 20)); say('ready')"
FOLDERS = """
os.makedirs("a/b/c"); os.chdir("a/b"); fd = os.open("c", os.O_RDONLY)
for folder in ("c", "../b", "../../a"): os.rmdir(folder)
say("ready")
"""
SPINNING = """
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
say("ready")
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """Yield a folder in memory."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start_process(memory_folder: Path) -> Iterator[Start]:
    """Start a process that works in that folder, and wait until it is ready."""
    processes: list[subprocess.Popen[str]] = []

    def begin(script: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-ISc", BEGIN + script]
        processes.append(
            subprocess.Popen(command, cwd=memory_folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline() == "ready\n"
        return processes[-1]

    yield begin
    for each in processes:
        each.communicate()


class Growth:
    """Growth of a file system that the test sets, without writes of other processes of the machine."""

    bytes = 0


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> Growth:
    """Replace the growth that every meter reads."""
    growth = Growth()
    monkeypatch.setattr(disk, "_filled_bytes", lambda _: growth.bytes)
    return growth


def measured_bytes(meter: disk.Meter) -> int:
    """Return the used bytes. No process moves files meanwhile, so an inexact measurement finds all, too."""
    measurement = meter.measure(max_bytes=MAX_BYTES)
    assert measurement.is_exact or measurement.is_bounded
    return measurement.bytes


class Tree(list[int]):
    """Pids of processes without children, in the form that a meter reads."""

    def __call__(self) -> dict[int, procfs.Stat]:
        return {pid: one for pid in self if (one := procfs.stat(pid)) is not None}


@pytest.mark.usefixtures("growth")
def test_a_removed_file_that_is_still_open_is_found(memory_folder: Path, start_process: Start) -> None:
    """A removed file with two descriptors counts once; a file with a name counts in its folder."""
    pids = Tree()
    meter = disk.Meter(memory_folder, pids)
    pids += [start_process(OPEN).pid, 2**22 + 1]

    assert LARGE + 9 * MIB <= measured_bytes(meter) < LARGE + 10 * MIB


@pytest.mark.usefixtures("growth")
def test_removed_folders_that_a_process_keeps_are_counted(memory_folder: Path, start_process: Start) -> None:
    """Folders held by a descriptor or as working directory count, with the removed folders above them."""
    pids = Tree()
    meter = disk.Meter(memory_folder, pids)
    pids.append(start_process(FOLDERS).pid)

    assert measured_bytes(meter) == 3 * ENTRY_BYTES


def test_a_running_process_is_stopped_for_an_exact_measurement(
    memory_folder: Path, start_process: Start, growth: Growth
) -> None:
    """The first measurement is exact; later ones only if the file system has grown by what the run may still use."""
    pids = Tree()
    meter = disk.Meter(memory_folder, pids)
    pids.append(start_process(SPINNING).pid)
    assert meter.measure(max_bytes=MAX_BYTES).is_exact
    assert {one.state for one in pids().values()} <= set("RS")

    assert meter.measure(max_bytes=MAX_BYTES) == disk.DiskUsage(0, is_exact=False, is_bounded=True)
    growth.bytes = 8 * MIB
    assert meter.measure(max_bytes=7 * MIB).is_exact


@pytest.mark.usefixtures("growth")
def test_every_tenth_measurement_is_exact(memory_folder: Path, start_process: Start) -> None:
    """The growth of a file system is no sign when other processes remove files."""
    pids = Tree()
    meter = disk.Meter(memory_folder, pids)
    pids.append(start_process(SPINNING).pid)

    are_exact = [meter.measure(max_bytes=MAX_BYTES).is_exact for _ in range(11)]

    assert are_exact == [True, *[False] * 9, True]


@pytest.mark.usefixtures("growth")
@pytest.mark.parametrize(
    "script",
    [MAPPED, THREAD, PROGRAM, MAPPED_BY_A_THREAD, THREAD_OF_A_PROGRAM],
    ids=["mapping", "thread", "program", "mapping, first thread ended", "program, first thread ended"],
)
def test_a_removed_file_without_a_visible_descriptor_is_counted(
    memory_folder: Path, start_process: Start, script: str
) -> None:
    """The file is mapped, open in a thread with its own descriptors, or running as a program."""
    pids = Tree()
    meter = disk.Meter(memory_folder, pids)
    pids.append(start_process(script).pid)

    assert LARGE <= measured_bytes(meter) < LARGE + 16 * MIB


def test_a_removed_file_in_a_sockets_queue_is_counted(
    memory_folder: Path, start_process: Start, growth: Growth
) -> None:
    """The invisible file is charged by the file system's growth, and by its size once it is received."""
    pids = Tree()
    meter = disk.Meter(memory_folder, pids)
    holder = start_process(FLIGHT)
    pids.append(holder.pid)
    growth.bytes = LARGE + MIB
    assert measured_bytes(meter) == LARGE + MIB

    assert holder.stdin is not None
    assert holder.stdout is not None
    print(file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "received\n"
    assert measured_bytes(meter) == LARGE


def test_growth_before_a_descriptor_was_sent_is_not_charged(
    memory_folder: Path, start_process: Start, growth: Growth
) -> None:
    """A run that sends a descriptor pays only for growth since the last measurement."""
    pids = Tree()
    meter = disk.Meter(memory_folder, pids)
    growth.bytes = LARGE
    holder = start_process("say('ready'); fd = os.open('/dev/null', 0); ends = socket.socketpair()\n" + SENT)
    pids.append(holder.pid)
    assert measured_bytes(meter) == 0
    assert holder.stdin is not None
    assert holder.stdout is not None
    print(file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "sent\n"
    growth.bytes += MIB
    assert measured_bytes(meter) == MIB


SENT = "socket.send_fds(ends[0], [b'x'], [fd]); say('sent')"


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can become a user who may not ask for a mapping's file")
def test_a_mapped_removed_file_of_unknown_size_is_charged_by_growth(memory_folder: Path) -> None:
    """An ordinary user's meter sees that such a file exists, and charges the growth of the file system."""
    script = "import sys; from pathlib import Path\nfrom ramet.isolation.limits import disk\n"
    script += "from ramet.isolation.linux import procfs\nos.setuid(60700)\n"
    script += f"os.chdir({str(memory_folder)!r}); libc.prctl(4, 1)\n"
    script += """
grown = 0
disk._filled_bytes = lambda _: grown
meter = disk.Meter(Path("."), lambda: {pid: procfs.stat(pid)})
end, ready = os.pipe(), os.pipe()
pid = os.fork()
if not pid:
    mapped(made(), 4096); libc.prctl(4, 1); os.write(ready[1], b"x"); os.close(end[1]); os.read(end[0], 1); os._exit(0)
os.read(ready[0], 1)
grown = 24 << 20
print(meter.measure(max_bytes=1 << 40).bytes)
"""

    process_result = subprocess.run([sys.executable, "-c", BEGIN + script], capture_output=True, text=True, check=True)

    assert int(process_result.stdout) == LARGE


@pytest.mark.skipif("os.geteuid() != 0", reason="only root can become a user who may not list the files of ended ones")
def test_processes_that_have_ended_are_not_charged_by_growth(memory_folder: Path) -> None:
    """An ordinary user may not list the files of a process that has ended, and it holds none.

    Its first thread may have ended alone: the files of the others are seen.
    """
    script = "import sys, threading; from pathlib import Path\nfrom ramet.isolation.limits import disk\n"
    script += "from ramet.isolation.linux import procfs\nos.setuid(60700)\n"
    script += f"os.chdir({str(memory_folder)!r}); libc.prctl(4, 1)\n"
    script += """
grown = 0
disk._filled_bytes = lambda _: grown
end, ready = os.pipe(), os.pipe()
pid = os.fork()
if not pid: os._exit(0)
other = os.fork()
if not other:
    libc.prctl(4, 1); os.close(end[1])
    file = made()
    threading.Thread(target=lambda: (os.write(ready[1], b"x"), os.read(end[0], 1), os._exit(0))).start()
    libc.pthread_exit(None)
os.read(ready[0], 1)
while procfs.stat(pid).state != "Z" or not procfs.stat(other).is_headless: pass
meter = disk.Meter(Path("."), lambda: {pid: procfs.stat(pid), other: procfs.stat(other)})
grown = 240 << 20
print(meter.measure(max_bytes=1 << 40).bytes)
"""

    process_result = subprocess.run([sys.executable, "-c", BEGIN + script], capture_output=True, text=True, check=True)

    assert int(process_result.stdout) == LARGE
