"""The sockets that a server listens at: a Unix socket that only its user can open, or a TCP address.

A Unix socket belongs to the process that holds the lock beside it, and the lock ends with that process. So the socket
of a killed server is taken over at once, and only one of two servers that start together gets it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import secrets
import socket
import stat
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from ramet.core.errors import InvalidValue

MAX_PATH = 100  #: bytes; an address of a Unix socket is at most 107 long
_BACKLOG = 4096
_PEER = struct.Struct("3i")  #: pid, user and group of the process at the other end


@dataclass(frozen=True)
class Listener:
    """A listening socket. `address` is its address for clients; `close` removes everything that it created."""

    socket: socket.socket
    address: str
    close: Callable[[], None]


def unix_listener(path: pathlib.Path) -> Listener:
    """Listen at a path that only this user may connect to.

    Raises InvalidValue, and then leaves existing files unchanged.
    """
    path = path.absolute()
    if len(os.fsencode(path)) > MAX_PATH:
        raise InvalidValue("socket", str(path), f"a path of at most {MAX_PATH} bytes")
    lock = _lock(path)
    try:
        _check_free(path)
        listener = _bind(path)
    except BaseException:
        os.close(lock)
        raise
    inode = path.lstat().st_ino

    def close() -> None:
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_ino == inode:
                path.unlink()
        os.close(lock)

    return Listener(listener, str(path), close)


def tcp_listener(host: str, port: int) -> Listener:
    """Listen at an address of this machine; port 0 is any free port. Raises InvalidValue."""
    listen_address = f"{host}:{port}"
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:
        raise InvalidValue("listen", listen_address, f"an address of this machine ({problem})") from None
    family, kind, protocol, _, address = infos[0]
    # With this protocol asyncio recognizes TCP and sends at once: otherwise data after an answer's head waits 40 ms.
    listener = socket.socket(family, kind, protocol)
    try:
        # Reuse the address of an ended server in TIME_WAIT; the address of a running server is still refused.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as problem:
        listener.close()
        reason = (
            "an address that no other process listens at" if problem.errno == errno.EADDRINUSE else problem.strerror
        )
        raise InvalidValue("listen", listen_address, f"{reason}") from None
    name, number = listener.getsockname()[:2]
    url = f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
    return Listener(listener, url, listener.close)


def reachable_address(address: str) -> str:
    """Return the address for other kernels: this machine's own address if the server listens at all addresses."""
    parts = urlsplit(address)
    if parts.hostname not in ("0.0.0.0", "::"):
        return address
    try:
        host_address = socket.gethostbyname(socket.gethostname())
    except OSError:
        host_address = socket.gethostname()
    return f"http://{host_address}:{parts.port}"


def _lock(path: pathlib.Path) -> int:
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        raise InvalidValue("socket", str(path), f"a path in a folder that can be written to ({problem})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise _taken(path) from None
    return lock


def _check_free(path: pathlib.Path) -> None:
    """Check that nothing is at the path, or only the socket of a dead server. Raises InvalidValue."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidValue("socket", str(path), "a path where nothing is, or an old socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except OSError:  # its backlog is full, or it is another user's: it is alive
            pass
    raise _taken(path)


def listening_pid(path: pathlib.Path) -> int | None:
    """Return the id of the process that listens at a path; None if none does, or if that cannot be known."""
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        pid, _, _ = _PEER.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid) or None  # 0: a process of another container


def _taken(path: pathlib.Path) -> InvalidValue:
    pid = listening_pid(path)
    holder = "another process" if pid is None else f"process {pid}"
    return InvalidValue(
        "socket",
        str(path),
        f"a path where no other server listens: {holder} does; stop it, ask it, or serve another folder",
    )


def _bind(path: pathlib.Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Under another name first: no one can connect before its mode is set, and the old one is replaced atomically.
    temporary_path = path.with_name(f".{secrets.token_hex(2)}")
    try:
        listener.bind(str(temporary_path))
        try:
            temporary_path.chmod(0o600)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            temporary_path.rename(path)
        except BaseException:
            temporary_path.unlink(missing_ok=True)
            raise
    except BaseException as problem:
        listener.close()
        if isinstance(problem, OSError):
            raise InvalidValue("socket", str(path), f"a path in a folder that can be written to ({problem})") from None
        raise
    return listener
