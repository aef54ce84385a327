"""Throw-away processes, and operations that must be refused in them. The caller must have a single thread."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from ramet.isolation.linux import calls, namespaces

_TRIAL_S = 10  #: for one trial; each takes milliseconds, bubblewrap tens of them


class NotIsolated(Exception):
    """An operation that had to be refused was not."""


def run_trial(trial: Callable[[], str], user: tuple[int, int] | None) -> tuple[bool, str]:
    """Return whether the trial succeeds in a process of its own, as this user and group, and its message."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        status, message = 1, ""
        try:
            os.close(read_end)
            signal.signal(signal.SIGALRM, _too_long)
            signal.alarm(_TRIAL_S)
            os.setpgid(0, 0)
            if user is not None and user != (os.getuid(), os.getgid()):
                _become(*user)
            message, status = trial(), 0
        except NotIsolated as error:
            message = f"not refused: {error}"
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(OSError):
                os.write(write_end, message.encode(errors="replace")[:4096])
            os._exit(status)
    os.close(write_end)
    try:
        _, status = os.waitpid(pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    with os.fdopen(read_end, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    if os.WIFSIGNALED(status):
        message = f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return status == 0, message


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not over within {_TRIAL_S} s")


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    calls.set_dumpable(True)


def enter(flags: int = 0) -> None:
    """Become root of a new user namespace, with further new namespaces of its own."""
    uid, gid = os.getuid(), os.getgid()
    calls.unshare(calls.CLONE_NEWUSER | flags)
    namespaces.map_ids(0, 0, uid, gid)
    if flags & calls.CLONE_NEWNS:
        calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)


def check_refused(attempt: Callable[[], object], description: str, *numbers: int) -> None:
    """Raise NotKept unless the attempt fails with one of these errors."""
    try:
        attempt()
    except OSError as error:
        if error.errno in numbers:
            return
        raise NotIsolated(f"{description} fails in an unexpected way: {error}") from error
    raise NotIsolated(description)


def in_child(work: Callable[[], None]) -> None:
    """Call `work` in a new process, the first of a new pid namespace if one was requested.

    Raises NotKept with the message of that process.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        message = "no result was written"
        try:
            work()
            message = ""
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        finally:
            os.write(write_end, message.encode()[:4096])
            os._exit(0)
    os.close(write_end)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as pipe:
        message = pipe.read().decode()
    if message or status:
        raise NotIsolated(message or f"status {status}")
