"""The end of a program, as a text for the callers of its agent."""

from __future__ import annotations

import signal

from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.spawn.sandbox.process import sanitize_error

#: Used as the type of an error.
NOT_STARTED, EXITED, BROKEN = "NotStarted", "Exited", "ProtocolError"
_STDERR_CHARS = 500  #: characters of stderr


def end_error(result: Result, frame_error: BaseException | None, log: str) -> ErrorInfo:
    """Return why the program ended; `frame_error` is the error in its frames, `log` its stderr."""
    value = result.value
    if frame_error is not None:
        error = ErrorInfo(type=BROKEN, message=f"the output of the program is not valid frames: {frame_error}")
    elif result.status is not Status.COMPLETED:
        error = result.error or ErrorInfo(type=str(result.status), message="it ended without an error message")
    elif isinstance(value, int):
        status = f"exit status {value}" if value >= 0 else f"signal {_name(-value)}"
        error = ErrorInfo(type=EXITED, message=f"the program ended by itself: {status}")
    else:
        return sanitize_error(ErrorInfo(type=NOT_STARTED, message=str(value)))
    return sanitize_error(ErrorInfo(type=error.type, message=error.message + stderr_tail(log)))


def status_of(result: Result) -> str:
    """Return the status of the turn in which the program ended."""
    return str(Status.CRASHED if result.status is Status.COMPLETED else result.status)


def stderr_tail(log: str) -> str:
    """Return the end of the program's stderr, as the end of a sentence."""
    tail = log[-_STDERR_CHARS:].strip()
    return f"; end of its stderr: {tail}" if tail else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
