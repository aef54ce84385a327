"""The named ports of one run, for programs of this machine: one Unix socket each, and a loopback port on request.

The sockets are in a folder of the run's own that only the kernel's user may enter. Each connection to a socket is
joined with the port of that name on the loopback of the run's sandbox, and of no other: the host chooses the target,
not the guest. Data that one side is slow to take is not read from the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
import stat
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ramet.core.errors import Gone, InvalidValue, RametError, SandboxFailed, Unknown
from ramet.host.egress.connection import ProxyQuota
from ramet.host.egress.tunnel import End, Relay
from ramet.host.unix_listener import accept, listen
from ramet.isolation.contract import Sandbox

SOCKET_SUFFIX = ".sock"
_LONGEST_PATH = 107  #: bytes of a socket's address on Linux
_RETRY_S = 1.0  #: pause before accepting is tried again if no descriptor is left
#: Without keepalive, the loss of a client that had closed its sending side would not be noticed.
_KEEPALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 15,  #: seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 15,
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PortRefused(RametError, ConnectionError):
    """An error: a named port of a run accepts no connection now, for lack of a listener, or too many are open."""

    def __init__(self, port: str, reason: str) -> None:
        self.port, self.reason = port, reason
        super().__init__(f"port {port!r} accepts no connection: {reason}")


@dataclass(frozen=True, kw_only=True)
class PortLimits:
    """The host resources that connections to the ports of one run may use. Further connections wait, or are refused."""

    connections: int = 64  #: open at once through sockets, and as many through `RunPorts.connect`
    connect_s: float = 10.0  #: until the guest accepts a connection
    idle_s: float = 600.0  #: without a byte in either direction
    drain_s: float = 10.0  #: until the guest has taken the remaining data of a disconnected client


class RunPorts:
    """The ports of one sandbox, from `open` to `close`. Must be created on a running event loop."""

    def __init__(
        self,
        sandbox: Sandbox,
        ports: Mapping[str, int],
        folder: pathlib.Path,
        *,
        limits: PortLimits,
        quota: ProxyQuota,
        on_closed: Callable[[RunPorts], object] = bool,
    ) -> None:
        self._sandbox, self._ports, self._folder = sandbox, dict(ports), folder
        self._limits, self._quota, self._on_closed = limits, quota, on_closed
        self._free_slots = asyncio.Semaphore(limits.connections)
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._direct: set[StreamWriter] = set()
        self._opening_count = 0  #: connections that are being opened for `connect`
        self._loopback: dict[str, int] = {}
        self._is_closed = False

    @classmethod
    def open(
        cls,
        sandbox: Sandbox,
        ports: Mapping[str, int],
        folder: pathlib.Path,
        *,
        limits: PortLimits | None = None,
        quota: ProxyQuota,
        on_closed: Callable[[RunPorts], object] = bool,
    ) -> RunPorts:
        """Listen for every port in `folder`, which is created. Sockets that a dead kernel left there are replaced.

        Raises InvalidValue for a port whose socket path is occupied by another file, SandboxFailed.
        """
        opened = cls(sandbox, ports, folder, limits=limits or PortLimits(), quota=quota, on_closed=on_closed)
        try:
            with _opened_folder(folder, make=True) as descriptor:
                for name in ports:
                    opened._accept_at(_listen(descriptor, name, folder), name)
        except OSError as error:
            opened._drop()
            raise SandboxFailed(f"the sockets of its ports could not be created: {error.strerror}") from error
        except BaseException:
            opened._drop()
            raise
        return opened

    def path(self, name: str) -> pathlib.Path:
        """Return the Unix socket of a port.

        Raises Unknown, InvalidValue if its path is too long for a program to connect to, Gone.
        """
        self._check(name)
        path = self._folder / f"{name}{SOCKET_SUFFIX}"
        if (size := len(os.fsencode(path))) > _LONGEST_PATH:
            accept = f"a shorter path: that of a Unix socket may have {_LONGEST_PATH} bytes, and this one has {size}"
            raise InvalidValue("working_dir", str(path), f"{accept}. connect() and loopback_port() work with any path")
        return path

    async def connect(self, name: str) -> tuple[StreamReader, StreamWriter]:
        """Open a connection of this process to a port. Raises Unknown, PortRefused, Gone."""
        self._check(name)
        self._direct = {each for each in self._direct if not each.transport.is_closing()}
        if (count := len(self._direct) + self._opening_count) >= self._limits.connections:
            raise PortRefused(name, f"{count} connections of this program are open")
        self._opening_count += 1
        try:
            sock = await self._dial(name)
            try:
                reader, writer = await asyncio.open_connection(sock=sock)
            except BaseException:
                sock.close()
                raise
        finally:
            self._opening_count -= 1
        if self._is_closed:
            writer.transport.abort()
            raise Gone("the sandbox has ended")
        self._direct.add(writer)
        return reader, writer

    async def loopback_port(self, name: str) -> int:
        """Listen on the host's loopback, too, at a port that the machine chooses; return the same port from then on.

        Every user and program of this machine can connect to it. Raises Unknown, Gone, SandboxFailed.
        """
        self._check(name)
        if name not in self._loopback:
            try:
                listener = socket.create_server(("127.0.0.1", 0), backlog=self._limits.connections)
            except OSError as error:
                raise SandboxFailed(f"no loopback port is available: {error.strerror}") from error
            listener.setblocking(False)
            for option, value in _KEEPALIVE.items():  # Accepted sockets inherit these options.
                listener.setsockopt(*option, value)
            self._loopback[name] = int(listener.getsockname()[1])
            self._accept_at(listener, name)
        return self._loopback[name]

    def unlink(self) -> None:
        """Remove the sockets, so that no new client connects. Other files in their place stay."""
        with contextlib.suppress(OSError):
            with _opened_folder(self._folder) as descriptor:
                for name in self._ports:
                    if _is_socket(descriptor, name):
                        os.unlink(f"{name}{SOCKET_SUFFIX}", dir_fd=descriptor)
            self._folder.rmdir()

    async def close(self) -> None:
        """Cut every connection and remove the sockets. Idempotent."""
        tasks = self._drop()
        if tasks:
            await asyncio.wait(tasks)

    def _drop(self) -> set[asyncio.Task[None]]:
        """Stop listening, and cut open connections; return the tasks that have not ended yet."""
        if not self._is_closed:
            self._is_closed = True  # Once: another sandbox of the run may have its own sockets there later.
            self.unlink()
            self._on_closed(self)
        tasks = {*self._accepting, *self._connections}
        for task in tasks:
            task.cancel()
        for writer in self._direct:
            writer.transport.abort()
        self._direct.clear()
        return tasks

    def _check(self, name: str) -> None:
        if name not in self._ports:
            raise Unknown("port", name, tuple(self._ports))
        if self._is_closed:
            raise Gone("the sandbox has ended")

    def _accept_at(self, listener: socket.socket, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._accept(listener, name))
        self._accepting.add(task)
        task.add_done_callback(lambda _: listener.close())

    async def _accept(self, listener: socket.socket, name: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock = await accept(listener)
            except OSError:  # No descriptor is left, of the process or of the machine.
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                await self._free_slots.acquire()
            except BaseException:
                sock.close()
                raise
            self._quota.used_count += 1
            task = loop.create_task(self._serve(sock, name))
            self._connections.add(task)
            task.add_done_callback(lambda done, sock=sock: self._on_served(done, sock))  # type: ignore[misc]

    def _on_served(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._quota.used_count -= 1
        self._free_slots.release()
        self._connections.discard(task)
        sock.close()  # Still open only if the task was cancelled before it began.

    async def _serve(self, sock: socket.socket, name: str) -> None:
        if self._quota.used_count > self._quota.limit:
            return
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(End.on(sock))
            try:
                target_socket = await self._dial(name)
            except RametError:
                return  # The client's connection is closed, as for a port without a listener.
            server = await stack.enter_async_context(End.on(target_socket))
            await Relay(client, server, drain_s=self._limits.drain_s).run(idle_s=self._limits.idle_s)

    async def _dial(self, name: str) -> socket.socket:
        """Connect to a port in the sandbox. Raises PortRefused, Gone, SandboxFailed."""
        port = self._ports[name]
        try:
            async with asyncio.timeout(self._limits.connect_s):
                return await self._sandbox.dial(port)
        except TimeoutError:
            reason = f"the listener on port {port} accepted no connection within {self._limits.connect_s:g} s"
            raise PortRefused(name, reason) from None
        except OSError as error:
            raise PortRefused(name, f"nothing listens on 127.0.0.1:{port} ({error.strerror})") from error


@contextlib.contextmanager
def _opened_folder(folder: pathlib.Path, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder that only this user may enter; no link to it is followed. Raises OSError."""
    parent = os.open(folder.parent, _FOLDER)
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=parent)
        descriptor = os.open(folder.name, _FOLDER, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        if make:
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def _listen(folder: int, name: str, folder_path: pathlib.Path) -> socket.socket:
    file = f"{name}{SOCKET_SUFFIX}"
    if not _is_socket(folder, name):
        with contextlib.suppress(FileNotFoundError):
            os.stat(file, dir_fd=folder, follow_symlinks=False)
            raise InvalidValue(
                f"ports.{name}", str(folder_path / file), "a free path for its socket; remove the existing file"
            )
    return listen(pathlib.Path(f"/proc/self/fd/{folder}/{file}"))


def _is_socket(folder: int, name: str) -> bool:
    try:
        status = os.stat(f"{name}{SOCKET_SUFFIX}", dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode)
