"""The file transfer of one sandbox on another machine: its files are sent there, changes of its workspace come back."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, OutputTooLarge, ProtocolError, SandboxFailed
from ramet.isolation import mounts
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.limits import disk
from ramet.isolation.remote import file_sync
from ramet.isolation.remote.file_sync import KnownFiles
from ramet.isolation.remote.messages import FIRST_OF_KERNEL, Fetch, Put
from ramet.isolation.remote.rpc import PendingRequests, convert_value
from ramet.isolation.remote.streams import Post
from ramet.isolation.remote.transfer import IncomingDir, OutgoingDir
from ramet.isolation.zygote.assignment_builder import absolute
from ramet.wire.error_codec import clean

_MIB = 1024 * 1024
_MAX_SENT = 256 * _MIB  #: bytes of all mounts, and of an import folder
_SLACK = 2  #: how much a workspace may hold temporarily, as a multiple of its limit
_log = logging.getLogger("ramet.remote")


class Staging:
    """The file transfer of one sandbox. The kernel's side opens a stream for each folder."""

    def __init__(self, number: int, spec: SandboxSpec, post: Post, questions: PendingRequests) -> None:
        self._number, self._spec, self._post, self._questions = number, spec, post, questions
        self._next_stream = FIRST_OF_KERNEL
        self._streams: dict[int, IncomingDir | OutgoingDir] = {}
        self._sent_import_dir: KnownFiles | None = None  #: as the machine has it
        #: The sandbox was another kernel's: the next `fetch` replaces the whole workspace here.
        self.is_foreign = False

    async def send_all(self, existing_mounts: Sequence[str] = ()) -> None:
        """Send the initial files of the sandbox: workspace, mounts, import folder.

        Mounts at paths of `existing_mounts` or below already exist there. Raises InvalidValue, OutputTooLarge for the
        workspace, SandboxFailed.
        """
        if not await in_thread(lambda: _is_empty(self._spec.workspace), name="ramet-folder"):
            await self._put(Path(absolute(self._spec.workspace)), max_bytes=self._max_staged_bytes)
        remaining = _MAX_SENT
        sources = mounts.sources_by_mount(map(absolute, self._spec.grant.readonly_mounts), self._spec.mount_roots)
        for mount, source in sources.items():
            path = Path(mount)
            if any(path.is_relative_to(each) for each in existing_mounts) or not os.path.lexists(source):  # noqa: ASYNC240
                continue  # The machine's image has it, or may have it.
            try:
                remaining -= await self._put(path, source=Path(source), max_bytes=remaining)
            except OutputTooLarge:
                accepted = f"at most {_MAX_SENT >> 20} MiB of all mounts: put what is larger into an image"
                raise InvalidValue("readonly_mounts", mount, accepted) from None
        try:
            await self.send_import_dir()
        except OutputTooLarge:
            accepted = f"at most {_MAX_SENT >> 20} MiB: put what is larger into an image"
            raise InvalidValue("import_dir", str(self._spec.import_dir), accepted) from None

    async def send_import_dir(self) -> None:
        """Send the sandbox's import folder, if it has one that differs from the machine's. Raises OutputTooLarge."""
        if self._spec.import_dir is None:
            return
        import_dir = Path(absolute(self._spec.import_dir))
        known_files = await in_thread(lambda: file_sync.scan(import_dir), name="ramet-folder")
        if known_files != self._sent_import_dir:
            await self._put(import_dir, max_bytes=_MAX_SENT)
            self._sent_import_dir = known_files

    async def fetch(self) -> None:
        """Fetch the changes of the workspace. Raises OutputTooLarge, SandboxFailed, OSError."""
        workspace, limit = Path(absolute(self._spec.workspace)), self._max_staged_bytes
        stream = self._new_stream()
        incoming = self._streams[stream] = IncomingDir(self._number, stream, self._post)
        request = asyncio.ensure_future(
            self._questions.ask(lambda ask: Fetch(ask=ask, number=self._number, stream=stream))
        )
        is_whole = self.is_foreign
        unpacking = asyncio.ensure_future(
            incoming.unpack(workspace, max_bytes=limit, max_entries=limit // disk.ENTRY_BYTES, whole=is_whole)
        )
        try:
            await asyncio.wait((request, unpacking), return_when=asyncio.FIRST_COMPLETED)
            if request.done() and request.exception() is not None:
                self._drop(stream)  # The unpacking thread sees the end.
                await request
            if unpacking.done() and unpacking.exception() is not None and incoming.has_received_all:
                await request  # The error of the machine, if it could not pack all: then the stream is cut.
            refused_paths = await unpacking
            answer, body = await request
            self.is_foreign = False
            await in_thread(lambda: file_sync.remove(workspace, body.split(b"\0")[:-1]), name="ramet-folder")
            used = await in_thread(lambda: disk.used_bytes(workspace, max_bytes=limit), name="ramet-folder")
            if used > limit:
                raise OutputTooLarge("bytes of a workspace", size=used, limit=limit)
            for name in (*refused_paths, *convert_value(answer.value, list[str])[: file_sync.MAX_TOLD]):
                _log.warning("run %s: a file stays on its machine: %s", self._spec.run, clean(name[:300]))
        except asyncio.CancelledError:
            self._drop(stream)
            raise
        finally:
            if (
                incoming.has_received_all
            ):  # Else the rest is counted and dropped, so that the machine can end the stream.
                self._drop(stream)
            request.cancel()
            await asyncio.gather(request, unpacking, return_exceptions=True)

    def take(self, stream: int, data: bytes) -> bool:
        """Take bytes of a stream; return False for a stream that was never opened here."""
        stream_object = self._streams.get(stream)
        if isinstance(stream_object, IncomingDir):
            stream_object.take(data)
        return FIRST_OF_KERNEL <= stream < self._next_stream

    def grant(self, stream: int, size: int) -> None:
        """Allow more bytes of a stream. Raises ProtocolError for too much credit, and for an incoming stream."""
        stream_object = self._streams.get(stream)
        if isinstance(stream_object, OutgoingDir):
            stream_object.grant(size)
        elif stream_object is not None:
            raise ProtocolError(f"stream {stream} of {self._number} does not go in that direction")

    def close(self) -> None:
        """End all transfers. Idempotent."""
        for stream in list(self._streams):
            self._drop(stream)

    async def _put(self, path: Path, *, source: Path | None = None, max_bytes: int) -> int:
        """Send a folder or file to its own path there; return the number of bytes. `source` is the source of a mount.

        Raises OutputTooLarge, SandboxFailed, and InvalidValue for a source that is a link or leads through one by now.
        """
        stream = self._new_stream()
        outgoing = self._streams[stream] = OutgoingDir(self._number, stream, self._post)
        request = asyncio.ensure_future(
            self._questions.ask(lambda ask: Put(ask=ask, number=self._number, stream=stream, root=str(path)))
        )
        packing = asyncio.ensure_future(
            outgoing.pack(source or path, None, max_bytes=max_bytes, is_source=source is not None)
        )
        try:
            await asyncio.wait((request, packing), return_when=asyncio.FIRST_COMPLETED)
            if request.done() and request.exception() is not None:
                # If packing failed, the stream is cut. The machine may refuse that before the failure is known here.
                self._drop(stream)
                await asyncio.wait((packing,))
                if not isinstance(packing.exception(), BrokenPipeError):  # Only because the stream was dropped.
                    await packing
                await request
            elif request.done() and request.result()[0].value is False:  # The machine's image has it.
                return 0
            pack_result = await packing
            await request
            return pack_result.size
        except OSError as error:
            if source is not None and error.errno == errno.ELOOP:
                raise mounts.refusal(str(path), error) from error
            raise SandboxFailed(f"{path} could not be sent: {error}") from error
        finally:
            self._drop(stream)
            for each in (request, packing):
                each.cancel()
            await asyncio.gather(request, packing, return_exceptions=True)

    @property
    def _max_staged_bytes(self) -> int:
        return _SLACK * self._spec.grant.workspace_size_mb * _MIB

    def _new_stream(self) -> int:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        return stream

    def _drop(self, stream: int) -> None:
        stream_object = self._streams.pop(stream, None)
        if stream_object is not None:
            stream_object.close()


def _is_empty(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return next(entries, None) is None
