"""Schedules changed by a process that does not stay: nothing is fired here, whatever is due."""

from __future__ import annotations

import pathlib
from typing import Any

from ramet.core.errors import Conflict, StoreInUse
from ramet.disk.state_folder import JOURNAL, checked_state_folder
from ramet.host.control.schedules import DropSchedule, PutSchedule
from ramet.host.control.socket import NoKernel, send_request
from ramet.host.schedules.scheduler import AgentScheduler
from ramet.store.contract import Document, Store
from ramet.store.sqlite.store import SqliteStore


class OfflineScheduler(AgentScheduler):
    """An `AgentScheduler` that only writes schedules: the next active scheduler on the same store executes them.

    While a kernel holds the working directory, this one reads the store itself and asks the kernel to write.
    """

    _kernel_store: KernelStore | None = None

    def _serve(self) -> None:
        """Fire no tick: that is for the next active scheduler."""

    async def _end(self) -> None:
        if self._kernel_store is not None:
            await self._kernel_store.close()
        await super()._end()

    async def _find_store(self) -> Store:
        try:
            return await super()._find_store()
        except StoreInUse as error:
            folder = self._runtime.working_dir
            if folder is None or self._given_store is not None:
                raise
            self._kernel_store = await KernelStore(folder, error).open()
            return self._kernel_store


class KernelStore(SqliteStore):
    """The store of a folder with a living kernel: read from the file; schedules are written by the control socket."""

    def __init__(self, working_dir: pathlib.Path, holder_error: StoreInUse) -> None:
        """Set `holder_error`, the error that names the holder; it is raised if the holder does not answer."""
        super().__init__(checked_state_folder(working_dir) / JOURNAL, read_only=True)
        self._working_dir, self._holder_error = working_dir, holder_error

    async def put(
        self, kind: str, key: str, data: bytes, *, expected: int | None = None, tree: str | None = None
    ) -> Document:
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
