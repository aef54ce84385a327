"""A sandbox that has outlived its kernel: gone on with in the middle of its work, or ended.

What is not answered on its channel comes again, and each request is known by its sandbox and its number: what it had
led to is on record, and is not done a second time. A function alone can be gone on with; a conversation goes on from
its journal, in a new sandbox.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ramet.core.errors import RametError
from ramet.core.events import Notice, SandboxStarted
from ramet.isolation.contract import Backend, Sandbox, SandboxSpec
from ramet.spawn.box import ended, started
from ramet.spawn.run import Run
from ramet.spawn.services import Placement

_canonical = msgspec.json.Encoder(order="sorted").encode


async def adopted(run: Run, spec: SandboxSpec, backend: Backend, left_in: SandboxStarted | None) -> Sandbox | None:
    """The sandbox that an earlier kernel had started for this turn, at work; None if there is none any more."""
    if left_in is None or left_in.backend != backend.name:
        return None
    try:
        box = await started(backend.adopt(left_in.sandbox, spec))
    except RametError as gone:
        run.context.emit(Notice, text=f"it begins anew, in another sandbox: {gone}")
        return None
    if run.capsule is not None and run.context.safety is None:  # Votes are counted by who asked for them.
        return box
    with suppress(RametError):
        await ended(box)
    return None


def dismiss(run: Run, placement: Placement | None) -> None:
    """Have the sandbox that an earlier kernel had started for it be ended: nobody goes on with it."""
    left_in, run.left_in = run.left_in, None
    if left_in is not None and run.grant is not None and run.folder is not None and placement is not None:
        spec = SandboxSpec(run=run.info.id, grant=run.grant, workspace=run.folder.workspace)
        placement.later(_dismissed(left_in, spec, placement))


async def _dismissed(left_in: SandboxStarted, spec: SandboxSpec, placement: Placement) -> None:
    with suppress(RametError):  # Gone, most likely.
        backend = await placement.backend(spec.grant)
        if backend.name == left_in.backend:
            await ended(await backend.adopt(left_in.sandbox, spec))


async def described(box: Sandbox, backend: Backend) -> dict[str, Any]:
    """Where another kernel finds it; nothing if it ends with this one."""
    return dict(box.describe()) if (await backend.probe()).remote else {}


def mark_of(description: Mapping[str, Any]) -> str:
    """What a sandbox's requests are known by, as no other's; empty for one that ends with its kernel."""
    return hashlib.sha256(_canonical(description)).hexdigest()[:16] if description else ""
