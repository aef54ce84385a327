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
from ramet.isolation.contract import KILL_GRACE_S, Exit, Sandbox, SandboxSpec
from ramet.isolation.workspace.output import OutputStream
from ramet.spawn.sandbox.channel import FinalMessage, GuestChannel

#: Seconds that a guest has to exit after its last message, and that pass after its exit without a new message.
_EXIT_WAIT_S = 1.0
#: Seconds after its exit in which the messages of a guest are processed. Only its descendants can send so many.
_MAX_DRAIN_S = 60.0


@dataclass
class RunningSandbox:
    """A running sandbox, with its channel and its output streams."""

    sandbox: Sandbox
    channel: GuestChannel
    streams: tuple[OutputStream, ...] = ()
    has_exited: bool = False  #: no process of it is left
    is_adopted: bool = False  #: it was running before this kernel started
    adoption_data: dict[str, Any] = field(default_factory=dict)  #: how another kernel finds it, if one can


async def start_sandbox(spec: SandboxSpec, starting: Coroutine[Any, Any, Sandbox]) -> Sandbox:
    """Start or adopt a sandbox.

    A cancellation meanwhile leaves no sandbox behind.
    """
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        spec.abandoned.set()
        await run_shielded(_end_unwanted(task))
        raise


async def end_sandbox(sandbox: Sandbox) -> None:
    """End a sandbox whose result is not wanted."""
    await sandbox.kill(0)
    await sandbox.clean_up()


async def _end_unwanted(starting: asyncio.Future[Sandbox]) -> None:
    with contextlib.suppress(Exception):
        await end_sandbox(await starting)


async def wait_result(running: RunningSandbox) -> FinalMessage | None:
    """Wait for the last message of the guest; None if it ended without one.

    Raises ProtocolError if the guest broke the protocol.
    """
    exit_task = asyncio.ensure_future(running.sandbox.wait())
    end_future = asyncio.ensure_future(running.channel.wait_closed())
    try:
        await asyncio.wait((end_future, exit_task), return_when=asyncio.FIRST_COMPLETED)
        await _drain(running.channel, end_future)
        return end_future.result() if end_future.done() else None
    finally:
        for each in (end_future, exit_task):
            each.cancel()
        await asyncio.wait((end_future, exit_task))


async def _drain(channel: GuestChannel, end_future: asyncio.Future[FinalMessage | None]) -> None:
    """Wait for the last messages of a process that has exited.

    The host may be late to read them: it is busy, or lets others have their share of its time first.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _MAX_DRAIN_S
    received, is_waiting = -1, True
    while not end_future.done() and (is_waiting or channel.received_bytes != received) and loop.time() < deadline:
        received = channel.received_bytes
        await asyncio.wait((end_future,), timeout=_EXIT_WAIT_S)
        is_waiting = channel.is_throttled


async def terminate(sandbox: Sandbox, finished: FinalMessage | None) -> Exit | None:
    """Let the process exit by itself for a moment, then end it.

    A process that has sent a successful result is killed at once, and not waited for. Its further actions do not count,
    and removing its namespaces costs the kernel more time than the run itself.
    """
    if finished is not None and finished.done.ok:
        sandbox.signal(signal.SIGKILL)
        return None
    try:
        return await asyncio.wait_for(sandbox.wait(), _EXIT_WAIT_S)
    except TimeoutError:
        return await sandbox.kill(0 if finished is not None else KILL_GRACE_S)


def sanitize_error(error: ErrorInfo) -> ErrorInfo:
    """Return an error of a guest in a form that is safe for a terminal and a log.

    The texts are bounded, and contain no control characters.
    """
    kind = "".join(each if each.isprintable() and not each.isspace() else "?" for each in error.type[:200])
    message = "".join(each if each.isprintable() or each in "\n\t" else "?" for each in error.message[:10_000])
    return ErrorInfo(type=kind or "Error", message=message)


class ExitOutcome(NamedTuple):
    """The outcome assigned to a process that ended without a last message."""

    status: Status
    kind: str  #: used as the type of the error
    message: str


def classify_exit(process_exit: Exit) -> ExitOutcome:
    """Return the outcome of a process that ended without a last message."""
    match process_exit.reason:
        case "oom":
            detail = process_exit.detail or "it used more memory than policy.memory_mb"
            return ExitOutcome(Status.OOM, "OutOfMemory", detail)
        case "cpu":
            return ExitOutcome(
                Status.FAILED, "ProcessorTimeUsedUp", process_exit.detail or "it used up its processor time"
            )
        case "workspace":
            detail = process_exit.detail or "policy.workspace_size_mb is used up"
            return ExitOutcome(Status.FAILED, "WorkspaceFull", detail)
        case "lost":
            return ExitOutcome(Status.LOST, "SandboxLost", process_exit.detail or "the process that held it ended")
    description = (
        f"exit status {process_exit.code}" if process_exit.code >= 0 else f"signal {_signal_name(-process_exit.code)}"
    )
    why = f" ({process_exit.detail})" if process_exit.detail else ""
    return ExitOutcome(Status.CRASHED, "Crashed", f"it ended without a result: {description}{why}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
