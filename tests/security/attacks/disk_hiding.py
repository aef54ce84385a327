"""Files that are somewhere else whenever the watchdog looks at the workspace.

A guest learns from inotify that a folder was opened. Where inotify is refused, descriptors move all the time. Each
attack stops by itself.
"""

# The calls are made as the kernel takes them.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import threading
import time

from tests.security.attacks.trying import name_of

_IN_OPEN = 0x20
_MIB = 1 << 20
_PART_MB = 4  #: size of one file
_DECOYS = 1500  #: files in each of two folders, so that listing one lasts longer than a move
_DECOY_DESCRIPTORS = 150  #: likewise for descriptors, of which a process may have 256
_DECOY_PROCESSES = 8  #: each with as many
_LISTED_S = {"number": 0.001, "process": 0.005}  #: after which descriptors of the first process were listed
_OVER_S = 0.3  #: after which a look is over
_ENTRIES = 4000  #: of one folder: far fewer than the limit allows, and they make it large
_NAME = "n" * 240


def move_folder(bound_mb: int, seconds: float) -> dict[str, object]:
    """Fill a folder that moves out of the folder that is being counted."""
    for folder in "ab":
        os.mkdir(folder)
        for number in range(_DECOYS):
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
    os.mkdir("a/moved")
    inside = os.open("a/moved", os.O_RDONLY)
    opened = _watch("a", "b")

    def dodge() -> None:
        index = 0
        while opened >= 0 and (events := os.read(opened, 4096)):
            at = 0
            while at < len(events):
                watch, _, _, length = struct.unpack_from("iIII", events, at)
                at += 16 + length
                if watch == index + 1 and not length:  # It was the folder itself, and no file in it.
                    os.rename(f"{'ab'[index]}/moved", f"{'ab'[1 - index]}/moved")
                    index = 1 - index

    threading.Thread(target=dodge, daemon=True).start()
    return _fill(bound_mb, seconds, inside)


def move_descriptors(bound_mb: int, seconds: float, change: str) -> dict[str, object]:
    """Hold removed files by descriptors that change their number or process during the count."""
    mine, other = socket.socketpair()
    opened = _watch(".")
    decoys = [os.open("/dev/null", os.O_RDONLY) for _ in range(_DECOY_DESCRIPTORS)]
    children = []
    for number in range(_DECOY_PROCESSES + 1 if change == "process" else 0):  # The watchdog comes to the holder last.
        if not (child := os.fork()):
            _hold(other) if number == _DECOY_PROCESSES else signal.pause()
        children.append(child)
    held, stopped = list[int](), "bound"
    try:
        for _ in range(bound_mb // _PART_MB):
            held.append(_removed_file())
    except OSError as problem:
        stopped = name_of(problem)
    number, end = len(held), time.monotonic() + seconds
    if children:
        _send(mine, held)
    while _is_opened(opened, end):
        time.sleep(_LISTED_S[change])
        if children:
            mine.send(b"x")
            held = _receive(mine)
            time.sleep(_OVER_S)
            _send(mine, held)
        else:
            held, before = [os.dup(fd) for fd in held], held
            _close(before)
        if opened >= 0:
            os.read(opened, 1 << 16)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        held = []  # The last of them had these.
    _close([*held, *decoys, *([opened] if opened >= 0 else [])])
    return {"held_mb": number * _PART_MB, "stopped": stopped}


def keep_folders(bound_mb: int, seconds: float, position: str) -> dict[str, object]:
    """Keep removed folders that were large, each by a descriptor of it or of a removed folder in it."""
    held, held_bytes, stopped = list[int](), 0, "bound"
    try:
        os.close(os.open("one", os.O_CREAT | os.O_WRONLY))
        while held_bytes < bound_mb * _MIB and len(held) < 500:
            os.mkdir("large")
            large = os.open("large", os.O_RDONLY)
            for number in range(_ENTRIES):
                os.link("one", f"{_NAME}{number}", dst_dir_fd=large)
            held_bytes += os.fstat(large).st_blocks * 512
            for number in range(_ENTRIES):
                os.unlink(f"{_NAME}{number}", dir_fd=large)
            if position == "below":
                os.mkdir("large/below")
                held.append(os.open("large/below", os.O_RDONLY))
                os.rmdir("large/below")
                os.close(large)
            else:
                held.append(large)
            os.rmdir("large")
    except OSError as problem:
        stopped = name_of(problem)
    time.sleep(seconds)
    _close(held)
    return {"held_mb": held_bytes // _MIB, "stopped": stopped}


def _watch(*folders: str) -> int:
    """Return a descriptor that becomes readable when one of the folders, or a file in it, is opened; -1 if refused."""
    libc = ctypes.CDLL(None)
    fd: int = libc.inotify_init()
    for folder in folders:
        libc.inotify_add_watch(fd, folder.encode(), _IN_OPEN)
    return fd


def _is_opened(watcher: int, end: float) -> bool:
    """Wait until the folders are opened, or return at once without inotify. Return False at the end of the time."""
    left = max(0.0, end - time.monotonic())
    return left > 0 if watcher < 0 else bool(select.select([watcher], [], [], left)[0])


def _fill(bound_mb: int, seconds: float, folder: int) -> dict[str, object]:
    written, stopped = 0, "bound"
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for number in range(bound_mb // _PART_MB):
            fd = os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=folder)
            os.write(fd, bytes(_PART_MB * _MIB))
            os.close(fd)
            written += _PART_MB
    except OSError as problem:
        stopped = name_of(problem)
    time.sleep(seconds)
    for name in os.listdir(folder):
        os.unlink(name, dir_fd=folder)
    return {"held_mb": written, "stopped": stopped}


def _removed_file() -> int:
    fd = os.open("removed", os.O_CREAT | os.O_RDWR)
    os.unlink("removed")
    os.write(fd, bytes(_PART_MB * _MIB))
    return fd


def _hold(sock: socket.socket) -> None:
    """Hold descriptors that arrive, and return them on request, for ever."""
    while True:
        held = _receive(sock)
        sock.recv(1)
        _send(sock, held)


def _send(sock: socket.socket, fds: list[int]) -> None:
    socket.send_fds(sock, [b"x"], fds)
    _close(fds)


def _receive(sock: socket.socket) -> list[int]:
    return socket.recv_fds(sock, 1, 250)[1]


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
