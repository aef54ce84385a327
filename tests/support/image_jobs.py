"""Waiting for the jobs of a packaging service."""

from __future__ import annotations

import asyncio

from ramet.services.packaging.contract import Job
from ramet.services.packaging.service import PackagingService


async def wait_finished(service: PackagingService, id: str) -> Job:
    """Wait until a job is done or failed, at any kernel, and return it. Raises Unknown."""
    while (job := await service.job(id)).state in ("queued", "running"):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0.01)
    return job
