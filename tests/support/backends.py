"""A backend of this machine, open for a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ramet.core.policy.policy import Isolation
from ramet.isolation.zygote.backend import ZygoteBackend
from ramet.testing.conformance.isolation.harness import BackendFixture, Workdir


@asynccontextmanager
async def open_backend_or_skip(backend: ZygoteBackend, scratch: Path) -> AsyncIterator[BackendFixture]:
    """Open a backend below a folder. Skip the test if this machine does not have the backend."""
    (scratch / "runs").mkdir(exist_ok=True)
    try:
        probe = await backend.probe()
        if probe.level is Isolation.L0:
            pytest.skip(f"this machine has no {backend.name}: {probe.remedy}")
        yield BackendFixture(Workdir("", scratch), backend, probe)
    finally:
        await backend.close()
