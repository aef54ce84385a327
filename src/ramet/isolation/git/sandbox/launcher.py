"""Start git in a sandbox: the one program that the host executes for an untrusted repository.

Standard input is a `Request`. There are three processes: the launcher, which waits; the first process of the sandbox,
which is confined and waits; and git.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from ramet.isolation.git.sandbox import confinement, includes, options
from ramet.isolation.git.sandbox.request import UNCONFINED, Command, Request, Setting, mark_line
from ramet.isolation.linux import calls

_MAX_LIST = 1 << 22
_PIPE = 1 << 16  #: the capacity of a pipe in bytes
_READY = b"."


def main() -> NoReturn:
    """Run the commands of the request, and exit with their status; with UNCONFINED if they could not be confined."""
    request = Request.receive(0)
    calls.die_with_parent(signal.SIGKILL)
    if os.getppid() != request.parent:
        os._exit(UNCONFINED)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Git gets the signal as well, and removes its lock files.
    reason = ""
    for attempt in confinement.attempts():
        reason = _try(attempt, request)
    sys.stderr.write(reason)
    sys.stderr.flush()
    os._exit(UNCONFINED)


def _try(attempt: Callable[[Request], None], request: Request) -> str:
    """Confine a child with one method, and exit with its status; return the reason if it could not be confined."""
    answer, end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(answer)
        _in_child(attempt, request, end)
    os.close(end)
    response = b""
    while chunk := os.read(answer, 4096):
        response += chunk
    os.close(answer)
    if response == _READY:
        _exit_like(pid)
    os.waitpid(pid, 0)
    return response.decode(errors="replace") or "it ended"


def _in_child(attempt: Callable[[Request], None], request: Request, end: int) -> NoReturn:
    try:
        calls.die_with_parent(signal.SIGKILL)
        attempt(request)
        has_namespaces = confinement.is_apart(attempt)
        if has_namespaces and (pid := os.fork()):
            os.close(end)
            _exit_like(pid)
        if has_namespaces:
            calls.die_with_parent(signal.SIGKILL)
            confinement.enter_root(request)
        confinement.seal(request, is_apart=has_namespaces)
        calls.die_with_parent(signal.SIGKILL)  # A change of uid resets it.
        os.chdir(request.cwd)
    except OSError as error:
        os.write(end, str(error).encode()[:2000])
        os._exit(UNCONFINED)
    os.write(end, _READY)
    os.close(end)
    _run(request)


def _run(request: Request) -> NoReturn:
    """Run the commands with settings that keep programs of the repository from running."""
    env = {**os.environ, **options.UNTRUSTED_ENV}
    listing = [request.program, *includes.COMMAND]
    try:
        own_settings = includes.included_settings(lambda settings: _output(listing, env, settings))
        env |= options.as_environment(options.overrides(own_settings, request.user))
    except ValueError as error:
        sys.stderr.write(f"fatal: {error}")
        sys.stderr.flush()
        os._exit(1)
    for command in request.commands:
        status = _wait(_spawn(request.program, command, env))
        if status:
            os._exit(_as_exit(status))
        os.write(1, mark_line(request.mark).encode())
    os._exit(0)


def _spawn(program: str, command: Command, env: dict[str, str]) -> int:
    """Start a command. An input that is no file is short: it fits into a pipe."""
    read_end, write_end = os.pipe()
    os.write(write_end, command.stdin.encode(errors="surrogateescape")[:_PIPE])
    os.close(write_end)
    actions: list[tuple[object, ...]] = [(os.POSIX_SPAWN_DUP2, read_end, 0)]
    if command.stdin_file:
        actions.append((os.POSIX_SPAWN_OPEN, 0, command.stdin_file, os.O_RDONLY | os.O_NOFOLLOW, 0))
    if command.stdout_file:
        actions.append((os.POSIX_SPAWN_OPEN, 1, command.stdout_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
    pid = os.posix_spawn(program, [program, *command.args], env, file_actions=actions)
    os.close(read_end)
    return pid


def _output(argv: list[str], env: dict[str, str], settings: Iterable[Setting]) -> str:
    """Return the output of a command with further settings. If it fails, this process exits with its status."""
    read_end, write_end = os.pipe()
    output_env = {**env, **options.as_environment([*options.FIXED, *settings])}
    actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, write_end, 1)]
    pid = os.posix_spawn(argv[0], argv, output_env, file_actions=actions)
    os.close(write_end)
    data = b""
    while (chunk := os.read(read_end, 1 << 16)) and len(data) <= _MAX_LIST:
        data += chunk
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    if status or len(data) > _MAX_LIST:
        os._exit(_as_exit(status) or 1)
    return data.decode(errors="surrogateescape")


def _exit_like(pid: int) -> NoReturn:
    os._exit(_as_exit(_wait(pid)))


def _wait(pid: int) -> int:
    """Wait for a child; orphans are reaped meanwhile."""
    while True:
        ended_pid, status = os.wait()
        if ended_pid == pid:
            return status


def _as_exit(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
