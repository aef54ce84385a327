"""The lifecycle of one sandbox process: start, wait for its last message, termination, and the meaning of its exit."""

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

#: Seconds that a guest has to exit after its last message, and that its last messages have to arrive after its exit.
_EXIT_WAIT_S = 1.0


@dataclass
class RunningSandbox:
    """A running sandbox, with its channel and its output streams."""

    box: Sandbox
    door: GuestChannel
    streams: tuple[OutputStream, ...] = ()
    is_gone: bool = False  #: no process of it is left
    is_adopted: bool = False  #: it was running before this kernel started
    described: dict[str, Any] = field(default_factory=dict)  #: how another kernel finds it, if one can


async def started(starting: Coroutine[Any, Any, Sandbox]) -> Sandbox:
    """Start or adopt a sandbox.

    A cancellation meanwhile leaves no sandbox behind.
    """
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await run_shielded(_end_unwanted(task))
        raise


async def ended(box: Sandbox) -> None:
    """End a sandbox whose result is not wanted."""
    await box.kill(0)
    await box.clean_up()


async def _end_unwanted(starting: asyncio.Future[Sandbox]) -> None:
    with contextlib.suppress(Exception):
        await ended(await starting)


async def wait_result(inside: RunningSandbox) -> FinalMessage | None:
    """Wait for the last message of the guest; None if it ended without one.

    Raises ProtocolError if the guest broke the protocol.
    """
    exit_task = asyncio.ensure_future(inside.box.wait())
    end_future = asyncio.ensure_future(inside.door.over())
    try:
        await asyncio.wait((end_future, exit_task), return_when=asyncio.FIRST_COMPLETED)
        if not end_future.done():  # It has ended, and its last messages are still arriving.
            await asyncio.wait((end_future,), timeout=_EXIT_WAIT_S)
        return end_future.result() if end_future.done() else None
    finally:
        for each in (end_future, exit_task):
            each.cancel()
        await asyncio.wait((end_future, exit_task))


async def terminate(box: Sandbox, finished: FinalMessage | None) -> Exit | None:
    """Let the process exit by itself for a moment, then end it.

    A process that has sent a successful result is killed at once, and not waited for. Its further actions do not count,
    and removing its namespaces costs the kernel more time than the run itself.
    """
    if finished is not None and finished.done.ok:
        box.signal(signal.SIGKILL)
        return None
    try:
        return await asyncio.wait_for(box.wait(), _EXIT_WAIT_S)
    except TimeoutError:
        return await box.kill(0 if finished is not None else KILL_GRACE_S)


def sanitize_error(told: ErrorInfo) -> ErrorInfo:
    """Return an error of a guest in a form that is safe for a terminal and a log.

    The texts are bounded, and contain no control characters.
    """
    kind = "".join(each if each.isprintable() and not each.isspace() else "?" for each in told.type[:200])
    message = "".join(each if each.isprintable() or each in "\n\t" else "?" for each in told.message[:10_000])
    return ErrorInfo(type=kind or "Error", message=message)


class ExitOutcome(NamedTuple):
    """The outcome assigned to a process that ended without a last message."""

    status: Status
    kind: str  #: used as the type of the error
    message: str


def classify_exit(gone: Exit) -> ExitOutcome:
    """Return the outcome of a process that ended without a last message."""
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
            return ExitOutcome(Status.LOST, "SandboxLost", gone.detail or "the process that held it ended")
    description = f"exit status {gone.code}" if gone.code >= 0 else f"signal {_signal_name(-gone.code)}"
    why = f" ({gone.detail})" if gone.detail else ""
    return ExitOutcome(Status.CRASHED, "Crashed", f"it ended without a result: {description}{why}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
