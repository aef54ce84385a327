"""Attempts in a separate process, with or without a gate, and the result of each."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

SOURCES = pathlib.Path(__file__).parents[4] / "src"
ORDINARY = 60700  #: a user that owns nothing; whom root becomes in these tests

#: Each attempt is an expression, evaluated in a process of its own that has all capabilities, in namespaces of its own:
#: what a gate does not stop harms nobody.
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import asyncio, ctypes, errno, fcntl, json, mmap, os, resource, signal, socket, stat, subprocess, threading, traceback
from ramet.isolation.linux import calls, caps, landlock, rlimits, seccomp
from ramet.isolation.linux import namespaces as ids, syscall_numbers as numbers

request = json.loads(sys.argv[2])
if request["uid"] is not None:
    os.setgroups([])
    os.setresgid(*[request["uid"]] * 3)
    os.setresuid(*[request["uid"]] * 3)
    calls.set_dumpable(True)

def run(code):
    return subprocess.run(code, check=True, capture_output=True)

def read(path):
    with open(path) as file:
        return file.read()

def write(path, text="x"):
    with open(path, "w") as file:
        file.write(text)

def clone(flags):
    table = numbers.table_of(os.uname().machine)
    return calls.syscall("clone", table.number["clone"], flags | signal.SIGCHLD, 0, 0, 0, 0)

def stage():
    uid, gid = os.getuid(), os.getgid()
    others = calls.CLONE_NEWNS | calls.CLONE_NEWUTS | calls.CLONE_NEWIPC | calls.CLONE_NEWNET
    calls.unshare(calls.CLONE_NEWUSER | others)
    ids.map_ids(0, 0, uid, gid)
    calls.mount("none", "/", None, calls.MS_REC | calls.MS_PRIVATE)

def attempt(code, into):
    if request["staged"]:
        stage()
    exec(request["behind"], globals())
    try:
        value = eval(code, globals())
        said = value if isinstance(value, (str, int, bool, list)) else "done"
    except subprocess.CalledProcessError as error:
        said = f"exit {error.returncode}"
    except OSError as error:
        said = errno.errorcode[error.errno]
    except MemoryError:
        said = "MemoryError"
    except RuntimeError as error:
        said = str(error)
    os.write(into, json.dumps(said).encode())

for code in request["attempts"]:
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            attempt(code, into)
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(into)
    with open(out, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        print(json.dumps(signal.Signals(os.WTERMSIG(status)).name))
    elif status:
        sys.exit(f"{code}: see above")
    else:
        print(said.decode())
"""

AttemptResult = str | int | bool | list[object]


def try_each(*attempts: str, behind: str = "", uid: int | None = None, staged: bool = True) -> list[AttemptResult]:
    """Return the result of each attempt: its value, "done", a name of errno, or of the signal that ended it.

    `behind` runs before each attempt; `uid` is the user of the attempt; `staged=False` leaves out the namespaces."""
    request = {"attempts": attempts, "behind": behind, "uid": uid, "staged": staged}
    answer = subprocess.run(
        [sys.executable, "-I", "-B", "-c", _PROGRAM, str(SOURCES), json.dumps(request)],
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert not answer.returncode, answer.stderr.decode()
    return [json.loads(line) for line in answer.stdout.splitlines()]


def try_one(attempt: str, *, behind: str = "", uid: int | None = None, staged: bool = True) -> AttemptResult:
    """Return the result of one attempt."""
    return try_each(attempt, behind=behind, uid=uid, staged=staged)[0]


def users() -> Sequence[int | None]:
    """Return the users of attempts: the user of the tests, and an ordinary one if that is root."""
    return [None] if os.getuid() else [None, ORDINARY]


KILLED = signal.SIGSYS.name
