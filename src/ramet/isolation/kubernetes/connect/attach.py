"""The transport between the kernel and the program in a pod: an attach stream, or another `PodTransport`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from ramet.core.errors import Gone, RametError
from ramet.isolation.kubernetes.api.attach import AttachStream
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Forbidden
from ramet.isolation.kubernetes.connect.attach_line import ReconnectingLine
from ramet.isolation.kubernetes.connect.packets import PacketReader, pack
from ramet.isolation.remote.line import Line

_STDOUT, _STDERR, _ERROR = 1, 2, 3
#: Delay before the first attempt to attach. No kubelet has mounted a pod's volumes before, and no container runs.
_FIRST_S = 0.3
#: Delay between two attempts: while a container starts, and after that has taken _QUICK_S.
_SOON_S, _LATER_S = 0.1, 0.25
_QUICK_S = 5.0
#: Minimum delay for each pod that starts at this time. An attempt costs a handshake and work in three programs, which
#: slows the start of the others. The cluster reports a running container about a second late.
_EACH_S = 0.05
_MAKING_S = 2.0  #: for a connection attempt that is under way when it is no longer wanted
_WORDS = 2000  #: the number of kept characters of standard error

_log = logging.getLogger("ramet.kubernetes")


class PodConnection(Protocol):
    """The line of a pod, and the last output of its program on standard error."""

    @property
    def line(self) -> Line: ...
    @property
    def last_output(self) -> str: ...
    def on_running(self) -> None:
        """Record that the cluster reports a running container."""

    async def close(self) -> None:
        """Close the connection without notice to the other end. Idempotent."""


class PodTransport(Protocol):
    """A way to connect to pods."""

    @property
    def module(self) -> str:
        """The module whose `main` is the pod's program.

        Its arguments are `arguments`, the folder of workspaces, and the folders of mounts.
        """

    @property
    def arguments(self) -> Sequence[str]: ...
    @property
    def egress(self) -> Mapping[str, Any] | None:
        """The address that pods must reach, as a rule of a NetworkPolicy; None: no address."""

    @property
    def outlives_s(self) -> float:
        """The time in seconds that a pod waits for another kernel after its own is gone; 0: none can adopt it.

        The other kernel connects by `reconnect`.
        """

    def secret(self, pod: str) -> Mapping[str, str]:
        """Return the files of the Secret of a pod of this name, below `manifest.SECRET`; empty: no Secret."""

    def open(self, api: Api, pod: str, uid: str) -> PodConnection:
        """Open a line to a pod that exists and has a node. Call on a running event loop."""

    def reconnect(self, api: Api, pod: str, uid: str) -> PodConnection:
        """Open a new line to a pod that another kernel had. Call only if `outlives_s` is not 0."""

    def forget(self, pod: str) -> None:
        """Forget a pod that was deleted, or that belongs to another kernel."""


class Attach:
    """The `PodTransport` by attach streams, through the API server: for kernels that pods cannot reach."""

    module = "ramet.isolation.kubernetes.entrypoint.attached"
    egress: Mapping[str, Any] | None = None
    #: The next kernel could not tell the rest of a dead kernel's message in the stream from an answer to itself.
    outlives_s = 0.0

    def __init__(self, *, patience_s: float = 60.0) -> None:
        """Configure the transport. Both ends give up after `patience_s` without a connection."""
        self._patience_s = patience_s
        self._starting: set[AttachConnection] = set()
        self.arguments = (f"{patience_s:g}",)

    def secret(self, pod: str) -> Mapping[str, str]:
        """Return no files: the right to attach to a pod identifies its kernel."""
        return {}

    def open(self, api: Api, pod: str, uid: str) -> AttachConnection:
        return AttachConnection(api, pod, self._patience_s, self._starting)

    def reconnect(self, api: Api, pod: str, uid: str) -> AttachConnection:
        """Raise Gone: a pod's program is bound to the kernel of its stream."""
        raise Gone(f"pod {pod} is reached through the attach stream, and ends with its kernel")

    def forget(self, pod: str) -> None:
        """Do nothing: no data is kept."""


class AttachConnection:
    """A `PodConnection` over successive attach streams of one pod."""

    def __init__(self, api: Api, pod: str, patience_s: float, starting: set[AttachConnection]) -> None:
        """Begin to attach. `starting` has all connections that have not attached yet."""
        self._starting, self._running = starting, asyncio.Event()
        self._api, self._pod, self._patience_s = api, pod, patience_s
        self.line = ReconnectingLine(patience_s)
        self._connection = 0
        self._tail: deque[bytes] = deque(maxlen=8)
        self._is_settled = asyncio.Event()  #: set while no connection attempt is under way
        self._is_settled.set()
        self._holding = asyncio.get_running_loop().create_task(self._hold())

    @property
    def last_output(self) -> str:
        return b"".join(self._tail).decode(errors="replace").strip()[-_WORDS:]

    def on_running(self) -> None:
        self._running.set()

    async def close(self) -> None:
        self.line.fail("the pod was released")
        with contextlib.suppress(TimeoutError):  # The client is slow to end a TLS handshake that was cut off.
            async with asyncio.timeout(_MAKING_S):
                await self._is_settled.wait()
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    async def _hold(self) -> None:
        self._starting.add(self)
        try:
            await self._wait(_FIRST_S)
            await self._attach()
        except Exception as error:  # A defect. Without an end of its line, the run would wait forever.
            _log.exception("pod %s: the attach stream has failed", self._pod)
            self.line.fail_line(f"the attach stream has failed: {type(error).__name__}: {error}")
        finally:
            self._starting.discard(self)

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        attempted_at, connected_at = loop.time(), 0.0
        while not self.line.has_ended:
            try:
                self._is_settled.clear()
                async with self._api.attach(self._pod) as stream:
                    self._is_settled.set()
                    attempted_at = connected_at = loop.time()
                    self._starting.discard(self)
                    await self._carry(stream)
            except (RametError, TimeoutError) as problem:
                _log.debug("pod %s: %s", self._pod, problem)
                if isinstance(problem, Forbidden) and not self.line.heard_at:
                    return self.line.fail_line(str(problem))
                # A later attempt may be allowed: an API server that has just started knows no rights.
                if self.line.heard_at and loop.time() > self.line.heard_at + self._patience_s:
                    return self.line.fail_line(f"no connection to the pod for {self._patience_s:g} s: {problem}")
            finally:
                self._is_settled.set()
            is_early = attempted_at + _QUICK_S > loop.time() > connected_at + _SOON_S
            await self._wait(max(_SOON_S if is_early else _LATER_S, _EACH_S * len(self._starting)))

    async def _wait(self, most_s: float) -> None:
        """Wait until `most_s` has passed, or the cluster reports a running container."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._running.wait()
        self._running.clear()

    async def _carry(self, stream: AttachStream) -> None:
        """Use one stream until it breaks. Raises Unreachable, TimeoutError."""
        self._connection += 1
        connection = self._connection

        async def write(packet: bytes) -> None:
            await stream.send(pack(connection, packet))

        async def come() -> AsyncIterator[bytes]:
            reader = PacketReader()
            while True:
                channel, data = await stream.receive()
                if channel == _STDERR:
                    self._tail.append(data[-_WORDS:])
                elif channel == _ERROR:
                    return
                elif channel == _STDOUT:
                    for packet in reader.feed(data):
                        if packet.connection == connection:
                            yield packet.data

        await self.line.carry(come(), write)
