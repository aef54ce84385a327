"""A line over two descriptors of a pod's program. Their other ends are the attached client, if there is one."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from threading import Thread

from ramet.concurrency.threads import in_thread
from ramet.core.errors import Gone, ProtocolError
from ramet.isolation.kubernetes.connect.attach_line import ReconnectingLine
from ramet.isolation.kubernetes.connect.packets import PacketReader, StdioPacket, pack
from ramet.isolation.kubernetes.pod_args import PodArgs
from ramet.isolation.remote.node_agent import serve

_READ = 1 << 16
_HELLO = 1  #: the first byte of a connection's first packet, as in `ramet.wire.resumable_stream`


async def run(stdin: int, stdout: int, patience_s: float, pod: PodArgs, warmup_thread: Thread) -> None:
    """Serve the line until the kernel ends the pod, once `warmup_thread` has ended.

    Raises Gone, with the reason, if the line ends before that.
    """
    wire = StandardStreams(stdin, stdout, patience_s)
    waiting = asyncio.ensure_future(wire.wait_ended())
    try:
        await in_thread(warmup_thread.join, name="ramet-probe")
        if not await serve(wire.line, pod.runs, pod.places, pod=not pod.is_shared):
            raise Gone(wire.line.end_reason)
    finally:
        await wire.line.close()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


class StandardStreams:
    """A line over two descriptors. A hello with a higher number than before begins a new connection."""

    def __init__(self, stdin: int, stdout: int, patience_s: float) -> None:
        self.line = ReconnectingLine(patience_s)
        self._stdin, self._stdout, self._patience_s = stdin, stdout, patience_s
        self._connection = 0
        #: One packet at a time: unread packets stay in the pipe, and so slow down the writer.
        self._packets: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._carrying: asyncio.Task[None] | None = None

    async def wait_ended(self) -> None:
        """Have the line carried until it has ended, or nothing has arrived for too long."""
        loop = asyncio.get_running_loop()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        reader = PacketReader()
        readable = asyncio.Event()
        loop.add_reader(self._stdin, readable.set)
        try:
            while not self.line.has_ended:
                async with asyncio.timeout(self._patience_s):
                    await readable.wait()
                readable.clear()
                try:
                    data = os.read(self._stdin, _READ)
                except BlockingIOError:
                    continue
                if not data:
                    return self.line.fail("standard input has ended")
                for packet in reader.feed(data):
                    await self._take_packet(packet)
        except TimeoutError:
            self.line.fail(f"no kernel connected for {self._patience_s:g} s")
        except (OSError, ProtocolError) as error:
            self.line.fail(f"standard input cannot be read: {error}")
        finally:
            loop.remove_reader(self._stdin)
            await self._drop()

    async def _take_packet(self, packet: StdioPacket) -> None:
        if packet.connection > self._connection and packet.data[0] == _HELLO:
            await self._drop()
            self._connection, self._packets = packet.connection, asyncio.Queue(1)
            self._carrying = asyncio.ensure_future(self._carry(packet.connection, self._packets))
        if packet.connection == self._connection and self._carrying is not None:
            # The carrying task takes every packet until it has ended. After that, packets are dropped.
            putting = asyncio.ensure_future(self._packets.put(packet.data))
            try:
                await asyncio.wait((putting, self._carrying), return_when=asyncio.FIRST_COMPLETED)
            finally:
                putting.cancel()

    async def _carry(self, connection: int, packets: asyncio.Queue[bytes]) -> None:
        async def come() -> AsyncIterator[bytes]:
            while True:
                yield await packets.get()

        async def write(packet: bytes) -> None:
            await self._write(pack(connection, packet))

        with contextlib.suppress(TimeoutError):  # The connection is silent; there may be a new one, or none.
            await self.line.carry(come(), write)

    async def _write(self, data: bytes) -> None:
        loop, remaining = asyncio.get_running_loop(), memoryview(data)
        while remaining:
            try:
                remaining = remaining[os.write(self._stdout, remaining) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(self._stdout, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(self._stdout)

    async def _drop(self) -> None:
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.gather(self._carrying, return_exceptions=True)
            self._carrying = None
