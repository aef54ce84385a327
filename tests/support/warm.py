"""Programs that are forked from a process with their imports: a tenth of the processor time of a cold start.

Tests of trips, chaos, conformance and security start theirs so, unless their module is marked `cold`. Each program is a
child of the test's process, with its own arguments, folder, environment and descriptors, as if Python had been started
for it; only the imports are done. Options of the interpreter mean a cold start, and tests of their own show it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
#: What a program may be: its imports, and what is imported only once it works.
MODULES = (
    "cloudpickle",
    "langchain_core.tracers.langchain",
    "langchain_openai",
    "langsmith.run_helpers",
    "psycopg",
    "ramet.agent.composition.graph",
    "ramet.agent.composition.steps",
    "ramet.cli.operate.gc",
    "ramet.cli.operate.ps",
    "ramet.cli.main",
    "ramet.cli.operate.logs",
    "ramet.cli.commands.schedule",
    "ramet.cli.commands.serve",
    "ramet.cli.operate.control",
    "ramet.cli.operate.approvals",
    "ramet.cli.resumption",
    "ramet.cli.run",
    "ramet.host.runtime",
    "ramet.host.schedules.loop",
    "ramet.host.session",
    "ramet.models.scripted.model",
    "ramet.spawn.sandbox.executor",
    "ramet.store.postgres.store",
    "ramet.store.sqlite.store",
)
_NUMBER = struct.Struct("=i")
_INHERITED = (0, 1, 2)


class Warm:
    """The process that forks programs. It ends with this process, even by SIGKILL."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.warming", str(theirs.fileno()), *MODULES],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def close(self) -> None:
        """End the process."""
        self._orders.close()
        self._process.wait()

    def fork(self, order: dict[str, Any], fds: Sequence[int]) -> int:
        """Fork a program, a child of this process; return its pid. Its first descriptors are `fds`."""
        with self._lock:
            socket.send_fds(self._orders, [json.dumps(order).encode()], list(fds))
            data = self._orders.recv(_NUMBER.size)
        assert data, "the process that forks programs has died"
        pid: int = _NUMBER.unpack(data)[0]
        return pid


_shared: list[Warm] = []
_asked: list[bool] = []


def starts_warm() -> bool:
    """Return whether programs start warm now. A new session then has the terminal of its stdin."""
    return bool(_asked)


@contextlib.contextmanager
def warm_programs(config: pytest.Config) -> Iterator[None]:
    """Start Python programs warm in this context. One process forks those of all contexts."""
    if not _shared:
        _shared.append(Warm())
        config.add_cleanup(lambda: _shared.pop().close())
    cold = subprocess._fork_exec  # type: ignore[attr-defined]
    _asked.append(True)
    subprocess._fork_exec = _replace(cold, _shared[0].fork)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess._fork_exec = cold  # type: ignore[attr-defined]
        _asked.pop()


def _replace(cold: Callable[..., int], fork: Callable[[dict[str, Any], Sequence[int]], int]) -> Callable[..., int]:
    """Return a function in place of `subprocess._fork_exec`, which `cold` is."""

    def start(args: Sequence[Any], executables: Sequence[bytes], *rest: Any) -> int:
        close_fds, passed, cwd, env, stdin, _, _, stdout, _, stderr, _, errors = rest[:12]
        _, new_session, group, gid, gids, uid, umask, before_exec = rest[12:20]
        words = [os.fsdecode(each) for each in args]
        pairs = [os.fsdecode(each).partition("=") for each in env or ()]
        variables = dict(os.environ) if env is None else {name: value for name, _, value in pairs}
        is_plain = (close_fds, group, gid, gids, uid, umask, before_exec) == (True, -1, None, None, None, -1, None)
        is_ours = list(executables) == [os.fsencode(sys.executable)] and _is_program(words[1:])
        if not is_plain or not is_ours or _changes_interpreter(variables):
            return cold(args, executables, *rest)
        kept = [fd for fd in passed if fd != errors]
        streams = [number if fd == -1 else fd for number, fd in zip(_INHERITED, (stdin, stdout, stderr), strict=True)]
        order = {
            "words": words[1:],
            "cwd": os.fsdecode(cwd) if cwd is not None else str(pathlib.Path.cwd()),
            "env": variables,
            "numbers": [*_INHERITED, *kept],
            "new_session": bool(new_session),
        }
        return fork(order, [*streams, *kept])

    return start


def _is_program(words: Sequence[str]) -> bool:
    """Return whether these are the words of a file or a module of Python, without options."""
    return bool(words) and (not words[0].startswith("-") or (words[0] == "-m" and len(words) > 1))


def _changes_interpreter(variables: Mapping[str, str]) -> bool:
    """Return whether variables of the environment change how Python starts, apart from its path."""
    names = {name for name in (*variables, *os.environ) if name.startswith(("PYTHON", "LC_")) or name == "LANG"}
    return any(
        variables.get(name, "") != os.environ.get(name, "") for name in names - {"PYTHONPATH"} if name in variables
    )
