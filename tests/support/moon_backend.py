"""A backend of another package, found by an entry point: the local backend, under another name."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.isolation.contract import Probe, Sandbox, SandboxSpec
from ramet.isolation.local import LocalBackend


class MoonBackend:
    """A backend that does what the local backend does."""

    name = "moon"
    owner: tuple[int, int] | None = None

    def __init__(self, runs: pathlib.Path) -> None:
        self._local = LocalBackend(runs=runs)

    async def probe(self) -> Probe:
        return await self._local.probe()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return await self._local.start(spec)

    async def adopt(self, description: Mapping[str, Any], spec: SandboxSpec) -> Sandbox:
        return await self._local.adopt(description, spec)

    async def reap(self) -> Sequence[str]:
        return await self._local.reap()

    async def disband(self, name: str) -> None:
        await self._local.disband(name)

    async def close(self) -> None:
        await self._local.close()
