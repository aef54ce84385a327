"""The transfer of folders over a line: threads pack and unpack them on pipes, which are connected to streams."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ramet.concurrency.threads import in_thread
from ramet.isolation.remote import file_sync
from ramet.isolation.remote.file_sync import KnownFiles, PackResult
from ramet.isolation.remote.streams import Incoming, Outgoing, Post

_BUFFER = 128 * 1024


class IncomingDir:
    """A folder to be received. Unpack it once, or refuse it; then close it."""

    def __init__(self, number: int, stream: int, post: Post) -> None:
        self._theirs, self._ours = os.pipe()
        self._incoming = Incoming(number, stream, post, on_end=self._close_ours)
        self._incoming.attach(self._ours)

    def take(self, data: bytes) -> None:
        self._incoming.take(data)

    async def unpack(
        self, place: Path, *, max_bytes: int, max_entries: int, whole: bool = False, any_links: bool = False
    ) -> tuple[str, ...]:
        fd, self._theirs = self._theirs, -1

        def work() -> tuple[str, ...]:
            with os.fdopen(fd, "rb", _BUFFER) as source:
                return file_sync.unpack(
                    source.read,
                    place,
                    max_bytes=max_bytes,
                    max_entries=max_entries,
                    whole=whole,
                    any_links=any_links,
                )

        return await in_thread(work, name="ramet-unpack")

    @property
    def has_received_all(self) -> bool:
        """Return whether the stream has ended."""
        return self._incoming.has_end

    def close(self) -> None:
        """Accept no more data; the unpacking thread sees the end. Idempotent."""
        self._incoming.close()
        self._close_ours()
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1

    def _close_ours(self) -> None:
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1


class OutgoingDir:
    """A folder to be sent. Pack it once; then close it."""

    def __init__(self, number: int, stream: int, post: Post) -> None:
        self._ours, self._theirs = os.pipe()
        self._completion: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outgoing = Outgoing(self._ours, number, stream, post, on_end=self._close_ours)

    def grant(self, size: int) -> None:
        self._outgoing.grant(size)

    async def pack(
        self, place: Path, known_files: KnownFiles | None, *, max_bytes: int, is_source: bool = False
    ) -> PackResult:
        """See `file_sync.pack`; all of it was sent when this returns."""
        fd, self._theirs = self._theirs, -1

        def work() -> PackResult:
            with os.fdopen(fd, "wb", _BUFFER) as sink:
                return file_sync.pack(place, sink.write, known_files, max_bytes=max_bytes, is_source=is_source)

        pack_result = await in_thread(work, name="ramet-pack")
        await self._completion
        return pack_result

    def close(self) -> None:
        """Stop sending; the packing thread gets an error. Idempotent."""
        self._outgoing.close()
        self._close_ours()
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1

    def _close_ours(self) -> None:
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1
            self._completion.set_result(None)
