"""Adoption of a sandbox that outlived its kernel: its work continues, or it is terminated.

A request without an answer is sent again. Each request is identified by its sandbox and its number. Its effect is
recorded, and is not repeated. The same applies to each event of a conversation.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ramet.core.errors import RametError
from ramet.core.events import SandboxStarted
from ramet.core.replay.run_replay import RunReplay
from ramet.isolation.contract import Backend, Sandbox, SandboxSpec
from ramet.spawn.ports import Placement
from ramet.spawn.run import Run
from ramet.spawn.sandbox.process import end_sandbox, start_sandbox

_canonical_value = msgspec.json.Encoder(order="sorted").encode


class NotAdopted(Exception):
    """The content of that sandbox cannot be continued: the turn continues from its journal, in another sandbox."""


async def adopt_sandbox(run: Run, spec: SandboxSpec, backend: Backend, replay: RunReplay) -> Sandbox:
    """Return the running sandbox that an earlier kernel had started for this turn.

    Raises NotAdopted if the sandbox cannot be continued.
    """
    record = replay.sandbox
    if record is None or record.backend != backend.name:
        raise NotAdopted(f"its sandbox was of backend {record.backend if record is not None else ''!r}")
    try:
        sandbox = await start_sandbox(spec, backend.adopt(record.sandbox, spec))
    except RametError as error:
        raise NotAdopted(str(error)) from error
    why = ""
    if run.context.safety is not None:
        why = "only its kernel knew which calls the safety gate had allowed"
    elif replay.is_given_up:
        why = "it was given up when its run paused"
    elif replay.is_rewound:
        why = "its conversation is not recorded yet"
    if not why:
        return sandbox
    with suppress(RametError):
        await end_sandbox(sandbox)
    raise NotAdopted(why)


def terminate_orphan(run: Run, placement: Placement | None) -> asyncio.Future[None] | None:
    """Terminate the sandbox that an earlier kernel had started for the run and that is not continued.

    Return a future of its end; None if there is no such sandbox.
    """
    replay, run.sandbox.replay = run.sandbox.replay, None
    record = replay.sandbox if replay is not None else None
    if record is None or run.grant is None or run.sandbox.folder is None or placement is None:
        return None
    spec = SandboxSpec(run=run.info.id, grant=run.grant, workspace=run.sandbox.folder.workspace)
    end_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    placement.run_in_background(_adopt_and_end(record, spec, placement, end_future))
    return end_future


async def _adopt_and_end(
    record: SandboxStarted, spec: SandboxSpec, placement: Placement, end_future: asyncio.Future[None]
) -> None:
    try:
        with suppress(RametError):  # It has most likely ended.
            backend = await placement.backend(spec.grant)
            if backend.name == record.backend:
                await end_sandbox(await backend.adopt(record.sandbox, spec))
    finally:
        end_future.set_result(None)


async def describe_sandbox(sandbox: Sandbox, backend: Backend) -> dict[str, Any]:
    """Return the description by which another kernel finds the sandbox; empty if the sandbox ends with this kernel."""
    return dict(sandbox.describe()) if (await backend.probe()).remote else {}


def sandbox_id(description: Mapping[str, Any]) -> str:
    """Return the unique id of a sandbox, which identifies its requests; empty if it ends with its kernel."""
    return hashlib.sha256(_canonical_value(description)).hexdigest()[:16] if description else ""
