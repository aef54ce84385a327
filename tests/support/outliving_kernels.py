"""Kernels of one folder whose sandboxes are on a machine that outlives them: the next kernel adopts the sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ramet.isolation.workspace.run_dirs import RunFolders
from tests.chaos.kernels import inheriting_orphans
from tests.support import postgres
from tests.support.kernels import Kernel, Kernels, kernels
from tests.support.outliving import OutlivingBackend
from tests.support.serving import short_folder


@asynccontextmanager
async def outliving_kernels() -> AsyncIterator[tuple[Kernels, OutlivingBackend]]:
    """Yield kernels, none at first, and their machine. All of them end with the block; `begin_outliving` starts one."""
    with short_folder() as folder, kernels(postgres.running(), folder) as all_kernels, inheriting_orphans():
        machine = OutlivingBackend(RunFolders(folder / "one").root)
        try:
            yield all_kernels, machine
        finally:
            for each in all_kernels.all:
                each.close()
            await machine.end()


def begin_outliving(all_kernels: Kernels) -> Kernel:
    """Start the first or the next kernel of that folder."""
    return all_kernels.begin("one", RAMET_BACKEND="outliving")
