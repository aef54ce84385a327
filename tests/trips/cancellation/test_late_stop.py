"""A cancel of a run whose sandbox is remote and is still copying its files after the function returned."""

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
    """A sandbox whose files are copied forever."""

    def __init__(self, inner: RemoteSandbox, described: Mapping[str, Any]) -> None:
        super().__init__(inner, described)
        self.is_asked, self.is_let_go = asyncio.Event(), asyncio.Event()

    async def sync(self) -> None:
        """Wait forever."""
        self.is_asked.set()
        await asyncio.Event().wait()

    async def clean_up(self) -> None:
        """Clean up as the inner sandbox does, and note that it was released."""
        await self._inner.clean_up()
        self.is_let_go.set()


class SlowBackend(MachineBackend):
    """A backend that starts a SlowSandbox."""

    sandbox: SlowSandbox

    async def start(self, spec: SandboxSpec) -> SlowSandbox:  # type: ignore[override]  # as good as one
        """Start a SlowSandbox and keep it as `sandbox`."""
        self.sandbox = SlowSandbox(await super().start(spec), {"number": 1})
        return self.sandbox


def answer() -> int:
    """Return 42."""
    return 42


async def test_a_cancel_during_the_copy_of_files_releases_the_sandbox(tmp_path: pathlib.Path) -> None:
    """The sandbox is cleaned up, so that the runtime can close."""
    runs = RunFolders(tmp_path).root
    runs.mkdir(0o700, parents=True)
    backend = SlowBackend(runs)
    runtime = await AgentRuntime(tmp_path, store=MemoryStore(), backend=backend).__aenter__()
    handle = await runtime.spawn(answer, policy=Policy())
    await eventually(lambda: hasattr(backend, "sandbox"))
    await backend.sandbox.is_asked.wait()
    await handle.cancel("enough")
    await asyncio.wait_for(backend.sandbox.is_let_go.wait(), 120)  # Or closing the runtime would wait for ever.
    await runtime.__aexit__(None, None, None)
