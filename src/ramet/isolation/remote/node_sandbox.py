"""The machine's side of one sandbox: its streams, its files, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path

from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, ProtocolError
from ramet.isolation.contract import Sandbox, SandboxSpec
from ramet.isolation.remote import file_sync
from ramet.isolation.remote.duplex import Duplex
from ramet.isolation.remote.file_sync import KnownFiles, PackResult
from ramet.isolation.remote.messages import (
    CHANNEL,
    FIRST_OF_KERNEL,
    FIRST_OF_MACHINE,
    STDERR,
    STDOUT,
    Connected,
    Ended,
    Start,
)
from ramet.isolation.remote.replay_log import ChannelLog
from ramet.isolation.remote.streams import Incoming, Outgoing, Post
from ramet.isolation.remote.transfer import IncomingDir, OutgoingDir
from ramet.isolation.zygote.backend import ZygoteBackend
from ramet.isolation.zygote.sandbox import ForkedSandbox

MAX_CONNECTIONS = 128  #: to the proxy, at the same time
MAX_BYTES, MAX_ENTRIES = 2**40, 10_000_000  #: the kernel limits its own data, so these limits are high
_PROXIES = ".proxies"
_SHORT = 100  #: bytes of a path that is the address of a socket
_BACKLOG = 64
_TICK_S = 0.02  #: longer than the clock resolution of any file system


class NodeSandbox:
    """The state of one sandbox number, from the first message about it until it is closed."""

    def __init__(self, number: int, post: Post, runs: Path) -> None:
        self.number, self.run = number, ""
        self.starting: asyncio.Task[None] | None = None
        self.proxies = runs / _PROXIES / str(number)
        self._post = post
        self._sandbox: ForkedSandbox | None = None
        self._spec: SandboxSpec | None = None
        self._known_files: KnownFiles = {}
        self._streams: dict[int, Incoming | Outgoing | Duplex | IncomingDir | OutgoingDir] = {}
        self._listener: socket.socket | None = None
        self._next_stream = FIRST_OF_MACHINE
        self._channel_log = ChannelLog()
        self._outputs: tuple[Outgoing | Duplex, ...] = ()  #: the sandbox's outputs on the current line
        self._unwritten = b""  #: data that arrived on the previous line, but the sandbox has not read
        self._end: Ended | None = None
        self._ending: asyncio.Task[None] | None = None
        self._fetching = asyncio.Lock()
        self._is_closed = False

    @property
    def sandbox(self) -> ForkedSandbox:
        """The started sandbox. Raises Gone if there is none."""
        if self._sandbox is None:
            raise Gone(f"sandbox {self.number} was not started")
        return self._sandbox

    @property
    def has_begun(self) -> bool:
        """Return whether the sandbox was started, and a kernel received `Started`."""
        return self._ending is not None

    @property
    def is_started_reported(self) -> bool:
        """Return whether the kernel on the current line knows the sandbox: started or adopted it."""
        return bool(self._outputs)

    def take(self, stream: int, data: bytes) -> None:
        """Take bytes of a stream; ignore bytes of a stream that has ended here."""
        stream_object = self._streams.get(stream)
        if isinstance(stream_object, Incoming | Duplex | IncomingDir):
            if stream == CHANNEL:
                self._channel_log.record_input(data)
            stream_object.take(data)

    def grant(self, stream: int, size: int) -> None:
        stream_object = self._streams.get(stream)
        if isinstance(stream_object, Outgoing | Duplex | OutgoingDir):
            stream_object.grant(size)

    def signal(self, number: int) -> None:
        if self._sandbox is not None:
            self._sandbox.signal(number)

    def receive(self, stream: int) -> IncomingDir:
        """Prepare to receive a folder in a stream."""
        self._check_new(stream)
        incoming = self._streams[stream] = IncomingDir(self.number, stream, self._post)
        return incoming

    async def put(self, stream: int, root: Path, incoming: IncomingDir) -> None:
        """Unpack a received folder at `root`."""
        try:
            await in_thread(lambda: root.parent.mkdir(parents=True, exist_ok=True), name="ramet-folder")
            await incoming.unpack(root, max_bytes=MAX_BYTES, max_entries=MAX_ENTRIES, whole=True, any_links=True)
        finally:
            self.drop(stream)

    def drop(self, stream: int) -> None:
        """Close a stream and discard the rest of its data."""
        stream_object = self._streams.pop(stream, None)
        if stream_object is not None:
            stream_object.close()

    async def start(self, backend: ZygoteBackend, message: Start) -> None:
        """Start the sandbox. Raises what `Backend.start` raises."""
        workspace = Path(message.workspace)
        self._known_files = await in_thread(lambda: _known_files(workspace), name="ramet-folder")
        self.run = message.run
        self._spec = SandboxSpec(
            run=message.run,
            grant=message.grant,
            workspace=workspace,
            cwd=None if message.cwd is None else Path(message.cwd),
            image=message.image,
            entry=message.entry,
            env=message.env,
            proxy=self._listen() if message.proxied else None,
            import_dir=None if message.import_dir is None else Path(message.import_dir),
        )
        self._sandbox = await backend.start(self._spec)

    def begin(self) -> None:
        """Send the sandbox's streams and its end to the kernel from now on."""
        self._listen_to(self.sandbox, b"")
        self._ending = asyncio.get_running_loop().create_task(self._wait_end(self.sandbox))

    def adopt(self) -> None:
        """Send streams and end to a kernel that did not start the sandbox.

        Raises Gone if that kernel cannot continue with it.
        """
        if self._ending is None or self._outputs or self._is_closed:
            raise Gone(f"sandbox {self.number} was not started, or its line has it")
        self._listen_to(self.sandbox, self._channel_log.encode_unanswered())
        if self._end is not None:
            self._post_end(self._end)

    def detach(self) -> None:
        """Detach from a line that has ended. Its open transfers are lost; the sandbox waits for the next line."""
        channel = self._streams.get(CHANNEL)
        if isinstance(channel, Duplex):
            self._unwritten = channel.unwritten
        for stream in list(self._streams):
            self.drop(stream)
        self._outputs, self._next_stream, self._known_files = (), FIRST_OF_MACHINE, {}

    def _listen_to(self, sandbox: Sandbox, replayed_bytes: bytes) -> None:
        number, post = self.number, self._post
        out, err = Outgoing(sandbox.stdout, number, STDOUT, post), Outgoing(sandbox.stderr, number, STDERR, post)
        channel = Duplex(number, CHANNEL, post, first=self._unwritten)
        self._outputs, self._unwritten = (out, err, channel), b""
        self._streams |= {STDOUT: out, STDERR: err, CHANNEL: channel}
        end = socket.socket(fileno=os.dup(sandbox.channel.fileno()))
        channel.attach(end, before=(out, err), first=replayed_bytes, on_data=self._channel_log.record_output)

    async def fetch(self, stream: int) -> PackResult:
        """Send the changes of the workspace; the result has the removed paths."""
        if self._spec is None:
            raise Gone(f"sandbox {self.number} was not started")
        self._check_new(stream)
        async with self._fetching:
            outgoing = self._streams[stream] = OutgoingDir(self.number, stream, self._post)
            try:
                pack_result = await outgoing.pack(self._spec.workspace, self._known_files, max_bytes=MAX_BYTES)
            finally:
                self.drop(stream)
            self._known_files = pack_result.known_files
            return pack_result

    async def close(self) -> None:
        """End the sandbox and release all its resources here, except files. Idempotent."""
        self._is_closed = True
        if self.starting is not None:
            self.starting.cancel()
            await asyncio.wait((self.starting,))
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.wait((self._ending,))
        for stream in list(self._streams):
            self.drop(stream)
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        if self._sandbox is not None:
            await self._sandbox.clean_up()

    async def _wait_end(self, sandbox: Sandbox) -> None:
        code, reason, detail, cpu_seconds, peak_mb = await sandbox.wait()
        self._end = Ended(
            number=self.number,
            code=code,
            reason=reason,
            detail=detail,
            cpu_seconds=cpu_seconds,
            peak_mb=peak_mb,
        )
        self._post_end(self._end)

    def _post_end(self, end: Ended) -> None:
        if not self.is_started_reported:
            return  # Sent after an adoption: a message about an unknown sandbox ends a kernel's line.
        for each in self._outputs:  # Its last output is sent before its end.
            each.drain()
        self._post(end, b"")

    def _check_new(self, stream: int) -> None:
        if stream < FIRST_OF_KERNEL or stream % 2 or stream in self._streams:
            raise ProtocolError(f"stream {stream} of {self.number} is not a new stream of a kernel")

    def _listen(self) -> Path:
        """Create a socket that replaces the socket of the host's proxy."""
        self.proxies.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.proxies / "proxy.sock"
        listener = self._listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        if len(os.fsencode(path)) <= _SHORT:
            listener.bind(str(path))
        else:
            folder = os.open(self.proxies, os.O_RDONLY | os.O_DIRECTORY)
            try:
                listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
        listener.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)
        return path

    def _accept(self) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            end, _ = self._listener.accept()
            if (
                not self.is_started_reported
                or sum(isinstance(each, Duplex) for each in self._streams.values()) > MAX_CONNECTIONS
            ):
                end.close()
                return
            stream, self._next_stream = self._next_stream, self._next_stream + 2
            self._post(Connected(number=self.number, stream=stream), b"")
            duplex = self._streams[stream] = Duplex(self.number, stream, self._post, on_done=lambda: self.drop(stream))
            duplex.attach(end)


def _known_files(workspace: Path) -> KnownFiles:
    """Return the state of a workspace before any process works there; create the workspace if it is missing."""
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = file_sync.scan(workspace)
    if known:
        time.sleep(_TICK_S)  # A file that changes from now on gets a different time.
    return known
