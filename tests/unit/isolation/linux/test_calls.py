"""Tests of system calls: each does its work, or raises an OSError that names it."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Callable

import pytest

from ramet.isolation.linux import calls
from tests.unit.isolation.linux.trying import try_each, try_one, users


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calls.unshare(1), "[Errno 22] unshare: Invalid argument"),
        (lambda: calls.setns(-1, 0), "[Errno 9] setns: Bad file descriptor"),
        (lambda: calls.mount("none", "/none", "tmpfs", data="size=1m"), "mount on /none: No such file or directory"),
        (lambda: calls.umount(pathlib.Path("/none")), "umount /none: No such file or directory"),
        (lambda: calls.pivot_root("/none", b"/none"), "pivot_root: "),
        (lambda: calls.prctl(-1), "[Errno 22] prctl -1: Invalid argument"),
        (lambda: calls.close_range(9, 8), "[Errno 22] close_range: Invalid argument"),
        (lambda: calls.sethostname("x" * 65), "] sethostname: "),
        (lambda: calls.syscall("none", 100_000), "[Errno 38] none: Function not implemented"),
    ],
)
def test_an_error_names_the_call(call: Callable[[], object], message: str) -> None:
    with pytest.raises(OSError) as problem:  # noqa: PT011 - the message is looked at below
        call()

    assert message in str(problem.value)
    assert problem.value.errno


@pytest.mark.parametrize("uid", users())
def test_namespaces_mounts_and_host_names(uid: int | None) -> None:
    """Calls in separate namespaces have no effect on the host."""
    before = socket.gethostname()
    attempts = {
        "(calls.sethostname('sandbox'), socket.gethostname())[1]": "sandbox",
        "(calls.mount('none', '/tmp', 'tmpfs', calls.MS_NODEV, 'size=1m'), os.listdir('/tmp'))[1]": [],
        "(calls.mount('/', '/tmp', None, calls.MS_BIND | calls.MS_REC), 'tmp' in os.listdir('/tmp'))[1]": True,
        "(calls.mount('none', '/tmp', 'tmpfs'), calls.umount('/tmp', calls.MNT_DETACH))[1] or 'done'": "done",
        "(calls.mount('none', '/tmp', 'tmpfs'), os.chdir('/tmp'), calls.pivot_root('.', '.'), os.listdir('/'))[3]": [],
        "(calls.unshare(calls.CLONE_NEWPID), os.fork() or os._exit(os.getpid() - 1), os.wait()[1])[2]": 0,
        "(fd := os.open('/proc/self/ns/uts', os.O_RDONLY)) and calls.setns(fd, 0) or 'done'": "done",
    }

    assert dict(zip(attempts, try_each(*attempts, uid=uid), strict=True)) == attempts
    assert socket.gethostname() == before


def test_a_range_of_descriptors_is_closed() -> None:
    some = "(os.dup2(0, 30), os.dup2(0, 31), os.dup2(0, 32), {}, os.fstat(30), os.fstat(32), os.fstat(31))"

    assert try_one(some.format("None")) == "done"
    assert try_one(some.format("calls.close_range(31, 31)")) == "EBADF"
    assert try_one(some.format("calls.close_range(10)")) == "EBADF"
    assert try_one("(os.dup2(0, 30), calls.close_range(10, 29), os.fstat(30))") == "done"


def test_a_process_dies_with_its_parent() -> None:
    """The parent ends while the process waits: the pipe of the process closes without a message."""
    word = "os.read(out, 9).decode()"

    assert try_one(word, behind=_ORPHAN_PROGRAM.format("calls.die_with_parent(signal.SIGKILL)")) == ""
    assert try_one(word, behind=_ORPHAN_PROGRAM.format("pass")) == "lives"


def test_privileges_are_not_gained_and_files_in_proc_are_hidden() -> None:
    expression = "[line.split()[1] for line in read('/proc/self/status').splitlines() if line.startswith('NoNewPrivs')]"

    assert try_one(expression) == ["0"]
    assert try_one(expression, behind="calls.set_no_new_privs()") == ["1"]
    dumpable = "calls.prctl(3)"
    assert try_one(dumpable, behind="calls.set_dumpable(False)") == 0
    assert try_one(dumpable, behind="calls.set_dumpable(False); calls.set_dumpable(True)") == 1


_ORPHAN_PROGRAM = """
ready, go = os.pipe()
out, into = os.pipe()
gate, closed = os.pipe()
if not (parent := os.fork()):
    if not os.fork():
        os.close(closed)
        {}
        os.write(go, b"x")
        os.read(gate, 1)
        os.write(into, b"lives")
        os._exit(0)
    os.read(ready, 1)
    os._exit(0)
os.close(into)
os.waitpid(parent, 0)
os.close(closed)
"""
