"""A run that is stopped when its sandbox, which another kernel could go on with, has said its last word."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from ramet import AgentRuntime, Policy
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.remote.sandbox import RemoteSandbox
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.store.memory import MemoryStore
from tests.support.machines import MachineBackend
from tests.support.outliving import OutlivingSandbox
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another machine")


class SlowSandbox(OutlivingSandbox):
    """Its files are on their way for ever."""

    def __init__(self, inner: RemoteSandbox, described: Mapping[str, Any]) -> None:
        super().__init__(inner, described)
        self.is_asked, self.is_let_go = asyncio.Event(), asyncio.Event()

    async def sync(self) -> None:
        """Never done."""
        self.is_asked.set()
        await asyncio.Event().wait()

    async def clean_up(self) -> None:
        """As any."""
        await self._inner.clean_up()
        self.is_let_go.set()


class SlowBackend(MachineBackend):
    """Has one of these."""

    box: SlowSandbox

    async def start(self, spec: SandboxSpec) -> SlowSandbox:  # type: ignore[override]  # as good as one
        """There."""
        self.box = SlowSandbox(await super().start(spec), {"number": 1})
        return self.box


def answer() -> int:
    """What is there to be found out."""
    return 42


async def test_its_sandbox_is_let_go_of(tmp_path: pathlib.Path) -> None:
    """Though nothing is said of it but its end."""
    runs = RunFolders(tmp_path).root
    runs.mkdir(0o700, parents=True)
    backend = SlowBackend(runs)
    runtime = await AgentRuntime(tmp_path, store=MemoryStore(), backend=backend).__aenter__()
    handle = await runtime.spawn(answer, policy=Policy())
    await eventually(lambda: hasattr(backend, "box"))
    await backend.box.is_asked.wait()
    await handle.cancel("enough")
    await asyncio.wait_for(backend.box.is_let_go.wait(), 20)  # Or closing the runtime would wait for ever.
    await runtime.__aexit__(None, None, None)
