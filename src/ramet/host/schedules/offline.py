"""Schedules changed by a process that does not stay: nothing is fired here, whatever is due."""

from __future__ import annotations

import builtins
import pathlib
from typing import Any, Self

from ramet.core.errors import Conflict, StoreInUse
from ramet.disk.state_folder import JOURNAL, checked_state_folder
from ramet.host.control.socket import NoKernel, send_request
from ramet.host.scheduler.scheduler import AgentScheduler
from ramet.host.schedules.control import DropSchedule, PutSchedule
from ramet.host.schedules.table import ScheduleTable
from ramet.store.contract import Document
from ramet.store.sqlite.store import SqliteStore


class OfflineScheduler(AgentScheduler):
    """An `AgentScheduler` that only writes schedules: the next active scheduler on the same store executes them.

    While a kernel holds the working directory, this one reads the store itself and asks the kernel to write.
    """

    _kernel_documents: KernelDocuments | None = None
    _is_started = False

    async def start(self) -> Self:
        """Begin; idempotent. No tick fires until another scheduler is active. Raises StoreInUse, StoreFailed."""
        async with self._starting:
            if not self._is_started:
                self._runtime, self._own_runtime = self._find_runtime()
                await self._runtime.start()
                try:
                    self._table = await self._find_table()
                except BaseException:
                    await self._stop_own_runtime()
                    raise
                self._loop = self._create_loop(None)  # It never serves.
                self._is_started = True
        return self

    async def close(self) -> None:
        """Release the store; idempotent."""
        async with self._starting:
            if self._is_started:
                if self._kernel_documents is not None:
                    await self._kernel_documents.close()
                await self._stop_own_runtime()

    async def _find_table(self) -> ScheduleTable:
        try:
            return ScheduleTable(await self._find_store())
        except StoreInUse as error:
            folder = self._runtime.working_dir
            if folder is None or self._given_store is not None:
                raise
            self._kernel_documents = await KernelDocuments(folder, error).open()
            return ScheduleTable(self._kernel_documents)


class KernelDocuments:
    """The documents of a folder with a living kernel: read from the file, written through the control socket."""

    def __init__(self, working_dir: pathlib.Path, holder_error: StoreInUse) -> None:
        """Set `holder_error`, the error that names the holder; it is raised if the holder does not answer."""
        self._working_dir, self._holder_error = working_dir, holder_error
        self._read = SqliteStore(checked_state_folder(working_dir) / JOURNAL, read_only=True)

    async def open(self) -> Self:
        """Begin to read; idempotent."""
        await self._read.open()
        return self

    async def close(self) -> None:
        """End; idempotent."""
        await self._read.close()

    async def get(self, kind: str, key: str) -> Document | None:
        """Return the newest version, if there is one."""
        return await self._read.get(kind, key)

    async def list(self, kind: str, *, prefix: str = "") -> builtins.list[Document]:
        """Return all documents of a kind whose keys begin with `prefix`, in order of their keys."""
        return await self._read.list(kind, prefix=prefix)

    async def put(self, kind: str, key: str, data: bytes, *, expected: int | None = None) -> Document:
        """Have the kernel write a schedule. Raises Conflict; StoreInUse if the kernel does not answer; Refused."""
        reply = await self._ask(PutSchedule(id=key, data=data, expected=expected or 0))
        if reply["version"] is None:
            raise Conflict(kind, key, expected=expected or 0, found=reply["found"])
        return Document(kind, key, reply["version"], data)

    async def delete(self, kind: str, key: str, *, expected: int | None = None) -> bool:
        """Have the kernel delete a schedule; return False if there was none. Raises Conflict, StoreInUse, Refused."""
        reply = await self._ask(DropSchedule(id=key, expected=expected))
        if reply["found"] is not None:
            raise Conflict(kind, key, expected=expected or 0, found=reply["found"])
        return bool(reply["was_there"])

    async def _ask(self, request: PutSchedule | DropSchedule) -> dict[str, Any]:
        try:
            return await send_request(self._working_dir, request)
        except NoKernel:
            raise self._holder_error from None
