"""How the kernel talks to the program in a pod: over an attach stream, or as another `PodTransport` does."""

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
#: Before the first try to attach: no kubelet has mounted a pod's volumes by then, and no container runs.
_FIRST_S = 0.3
#: Between two tries: while a container starts, and once that has taken _QUICK_S.
_SOON_S, _LATER_S = 0.1, 0.25
_QUICK_S = 5.0
#: The same with many pods that start at once, for each of them: a try is a handshake and three programs' work, which
#: those who start would do without. Of one that runs the cluster tells, a second late.
_EACH_S = 0.05
_MAKING_S = 2.0  #: for a connection that is being made when it is not wanted any more
_WORDS = 2000  #: of standard error, so much is kept

_log = logging.getLogger("ramet.kubernetes")


class PodConnection(Protocol):
    """A pod's line, and what its program has said on standard error last."""

    @property
    def line(self) -> Line: ...
    @property
    def words(self) -> str: ...
    def runs(self) -> None:
        """Take note that the cluster says its container runs."""

    async def close(self) -> None:
        """Let go of it, without a word to the other end. Idempotent."""


class PodTransport(Protocol):
    """One way to pods."""

    @property
    def module(self) -> str:
        """Whose `main` is the pod's program; called with `arguments`, the folder of workspaces, those of mounts."""

    @property
    def arguments(self) -> Sequence[str]: ...
    @property
    def egress(self) -> Mapping[str, Any] | None:
        """Where pods must get to, as a rule of a NetworkPolicy; None: nowhere."""

    @property
    def outlives_s(self) -> float:
        """How long a pod waits for another kernel that comes `again`, when its own is gone; 0: none can."""

    def secret(self, pod: str) -> Mapping[str, str]:
        """Files of a Secret that a pod of this name is given, below `manifest.SECRET`; empty: none."""

    def open(self, api: Api, pod: str, uid: str) -> PodConnection:
        """A line to a pod that is there and has a place on a node; on a running event loop."""

    def again(self, api: Api, pod: str, uid: str) -> PodConnection:
        """A new line to a pod that another kernel had; where `outlives_s` is not 0."""

    def forget(self, pod: str) -> None:
        """It has been deleted, or is another kernel's."""


class Attach:
    """Over the attach stream, through the API server: for kernels that pods cannot reach."""

    module = "ramet.isolation.kubernetes.entrypoint.attached"
    egress: Mapping[str, Any] | None = None
    #: What a dead kernel has left half said in the stream, the next one could not tell from an answer to itself.
    outlives_s = 0.0

    def __init__(self, *, patience_s: float = 60.0) -> None:
        """After `patience_s` without a connection both ends give up."""
        self._patience_s = patience_s
        self._starting: set[Attached] = set()
        self.arguments = (f"{patience_s:g}",)

    def secret(self, pod: str) -> Mapping[str, str]:
        """None is needed: whoever may attach to a pod is its kernel."""
        return {}

    def open(self, api: Api, pod: str, uid: str) -> Attached:
        """See `PodTransport`."""
        return Attached(api, pod, self._patience_s, self._starting)

    def again(self, api: Api, pod: str, uid: str) -> Attached:
        """Raises Gone: a pod's program knows one kernel by the stream."""
        raise Gone(f"pod {pod} is reached through the attach stream, and ends with its kernel")

    def forget(self, pod: str) -> None:
        """Nothing is kept."""


class Attached:
    """A line over attach streams of one pod, one after the other."""

    def __init__(self, api: Api, pod: str, patience_s: float, starting: set[Attached]) -> None:
        """`starting` has all that were not attached to yet."""
        self._starting, self._running = starting, asyncio.Event()
        self._api, self._pod, self._patience_s = api, pod, patience_s
        self._line = ReconnectingLine(patience_s)
        self._connection = 0
        self._tail: deque[bytes] = deque(maxlen=8)
        self._is_settled = asyncio.Event()  #: no connection is being made at this moment
        self._is_settled.set()
        self._holding = asyncio.get_running_loop().create_task(self._hold())

    @property
    def line(self) -> Line:
        """See `PodConnection`."""
        return self._line

    @property
    def words(self) -> str:
        """See `PodConnection`."""
        return b"".join(self._tail).decode(errors="replace").strip()[-_WORDS:]

    def runs(self) -> None:
        """See `PodConnection`."""
        self._running.set()

    async def close(self) -> None:
        """See `PodConnection`."""
        self._line.fail("the pod was let go of")
        with contextlib.suppress(TimeoutError):  # Of one that is cut off in its TLS handshake, the client lets go late.
            async with asyncio.timeout(_MAKING_S):
                await self._is_settled.wait()
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    async def _hold(self) -> None:
        self._starting.add(self)
        try:
            await self._wait(_FIRST_S)
            await self._attach()
        finally:
            self._starting.discard(self)

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        since, began = loop.time(), 0.0
        while not self._line.has_ended:
            try:
                self._is_settled.clear()
                async with self._api.attach(self._pod) as stream:
                    self._is_settled.set()
                    since = began = loop.time()
                    self._starting.discard(self)
                    await self._carry(stream)
            except (RametError, TimeoutError) as problem:
                _log.debug("pod %s: %s", self._pod, problem)
                if isinstance(problem, Forbidden) and not self._line.heard_at:
                    return self._line.lost(str(problem))
                # What was allowed may be again: an API server that has just begun knows nobody's rights.
                if self._line.heard_at and loop.time() > self._line.heard_at + self._patience_s:
                    return self._line.lost(f"no connection to the pod for {self._patience_s:g} s: {problem}")
            finally:
                self._is_settled.set()
            is_early = since + _QUICK_S > loop.time() > began + _SOON_S
            await self._wait(max(_SOON_S if is_early else _LATER_S, _EACH_S * len(self._starting)))

    async def _wait(self, most_s: float) -> None:
        """Until then, or until its container is said to run."""
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

        await self._line.carry(come(), write)
