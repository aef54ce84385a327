"""One sandbox at work, whatever is done in it: started, heard out, left; and how its process is taken to have ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ramet.concurrency.deadline import run_shielded
from ramet.core.outcome import ErrorInfo, Status
from ramet.isolation.contract import KILL_GRACE_S, Exit, Sandbox
from ramet.isolation.workspace.output import OutputStream
from ramet.spawn.sandbox.channel import FinalMessage, GuestChannel

#: What a guest that has said its last word may take to leave, and one that has left to have been heard.
_LEAVE_S = 1.0


@dataclass
class RunningSandbox:
    """A sandbox at work, with what listens to it."""

    box: Sandbox
    door: GuestChannel
    streams: tuple[OutputStream, ...] = ()
    is_gone: bool = False  #: no process of it is left
    is_adopted: bool = False  #: it was at work before this kernel was
    described: dict[str, Any] = field(default_factory=dict)  #: where another kernel finds it, if one can


async def started(starting: Coroutine[Any, Any, Sandbox]) -> Sandbox:
    """Start or adopt a sandbox; a cancel in that moment leaves none behind."""
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await run_shielded(_unwanted(task))
        raise


async def ended(box: Sandbox) -> None:
    """End a sandbox that nobody wants to hear."""
    await box.kill(0)
    await box.clean_up()


async def _unwanted(starting: asyncio.Future[Sandbox]) -> None:
    with contextlib.suppress(Exception):
        await ended(await starting)


async def wait_result(inside: RunningSandbox) -> FinalMessage | None:
    """Its last word, or None if it ended without one. Raises ProtocolError."""
    exit_task = asyncio.ensure_future(inside.box.wait())
    over = asyncio.ensure_future(inside.door.over())
    try:
        await asyncio.wait((over, exit_task), return_when=asyncio.FIRST_COMPLETED)
        if not over.done():  # It has ended, and what it had said is on its way.
            await asyncio.wait((over,), timeout=_LEAVE_S)
        return over.result() if over.done() else None
    finally:
        for each in (over, exit_task):
            each.cancel()
        await asyncio.wait((over, exit_task))


async def terminate(box: Sandbox, finished: FinalMessage | None) -> Exit | None:
    """Let it end by itself for a moment, then end it.

    One that has said its result is killed at once, and not waited for: what it would still do counts for nothing, and
    taking its namespaces down costs the kernel more than the run itself.
    """
    if finished is not None and finished.done.ok:
        box.signal(signal.SIGKILL)
        return None
    try:
        return await asyncio.wait_for(box.wait(), _LEAVE_S)
    except TimeoutError:
        return await box.kill(0 if finished is not None else KILL_GRACE_S)


def sanitize_error(told: ErrorInfo) -> ErrorInfo:
    """An error as a guest told it, harmless on a terminal and in a log: bounded, and without control characters."""
    kind = "".join(each if each.isprintable() and not each.isspace() else "?" for each in told.type[:200])
    message = "".join(each if each.isprintable() or each in "\n\t" else "?" for each in told.message[:10_000])
    return ErrorInfo(type=kind or "Error", message=message)


class ExitOutcome(NamedTuple):
    """What a process is taken to have met that ended without its last word."""

    status: Status
    kind: str  #: in place of an error's type
    message: str


def classify_exit(gone: Exit) -> ExitOutcome:
    """In words, of a process that said nothing."""
    match gone.reason:
        case "oom":
            detail = gone.detail or "it used more memory than policy.memory_mb"
            return ExitOutcome(Status.OOM, "OutOfMemory", detail)
        case "cpu":
            return ExitOutcome(Status.FAILED, "ProcessorTimeUsedUp", gone.detail or "it used up its processor time")
        case "workspace":
            detail = gone.detail or "policy.workspace_size_mb is used up"
            return ExitOutcome(Status.FAILED, "WorkspaceFull", detail)
        case "lost":
            return ExitOutcome(Status.LOST, "SandboxLost", gone.detail or "the process that kept it ended")
    how = f"exit status {gone.code}" if gone.code >= 0 else f"signal {_signal_name(-gone.code)}"
    why = f" ({gone.detail})" if gone.detail else ""
    return ExitOutcome(Status.CRASHED, "Crashed", f"it ended without a result: {how}{why}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
