"""A Unix socket that one user may connect to, and accepting its connections without losing one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
import stat

_BACKLOG = 128  #: connections that wait to be accepted; more than the relay in a sandbox holds
SHORT_PATH = 100  #: bytes; a socket's address holds 107 on Linux, 103 on macOS
_SO_PASSRIGHTS = 83  #: Linux 6.16: whether descriptors may be sent along; Python's socket module has no name for it


def listen(path: pathlib.Path, owner: tuple[int, int] | None = None) -> socket.socket:
    """Listen at `path`, whose file only `owner` (user and group; None: the host's own) may open.

    A socket that a dead kernel left at `path` is replaced; any other file is not. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        try:
            # No peer sends file descriptors here. Accepted sockets inherit this option.
            listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        except OSError:
            pass  # An older kernel: descriptors are closed unseen when the bytes sent with them are read.
        _bind(listener, path)
        try:
            path.chmod(0o600)
            if owner is not None:
                os.chown(path, *owner)
            listener.listen(_BACKLOG)  # Before this no client can connect, whatever the file's mode was.
        except OSError:
            path.unlink()
            raise
    except BaseException:
        listener.close()
        raise
    return listener


async def accept(listener: socket.socket) -> socket.socket:
    """Return the next connection. Raises OSError if no descriptor is left."""
    # Not loop.sock_accept: a cancellation at the wrong moment would lose a socket.
    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()
        loop.add_reader(listener, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(listener)
        with contextlib.suppress(BlockingIOError):  # The client has disconnected meanwhile.
            return listener.accept()[0]


def _bind(listener: socket.socket, path: pathlib.Path) -> None:
    if len(os.fsencode(path)) <= SHORT_PATH:
        return listener.bind(str(path))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:  # A path of a run may be longer than the address of a socket.
        return listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
