"""Tests of resource limits: each stops its resource, none is raised, and none needs a capability."""

from __future__ import annotations

import pytest

from tests.unit.isolation.linux.trying import AttemptResult, try_each, try_one, users

LIMITS = "[list(resource.getrlimit(each)) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]"
CORE = "list(resource.getrlimit(resource.RLIMIT_CORE))"
SPIN = "[signal.signal(signal.SIGXCPU, lambda *_: seen.append(1)), [each for each in iter(int, 1)]]"

#: What is tried → the limit, and what it says.
LIMITED_ATTEMPTS: dict[str, tuple[str, AttemptResult]] = {
    "[os.open('/', os.O_RDONLY) for _ in range(40)] and 'done'": ("nofile=32", "EMFILE"),
    "[threading.Thread(target=signal.pause, daemon=True).start() for _ in range(15)] and 'done'": (
        "nproc=10",
        "can't start new thread",
    ),
    "bytearray(200 << 20) and 'done'": ("data=100 << 20", "MemoryError"),
    "os.posix_fallocate(os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR), 0, 2 << 20)": ("fsize=1 << 20", "SIGXFSZ"),
    "calls.syscall('mlock', 149 if os.uname().machine == 'x86_64' else 228, buffer, 1 << 20)": ("memlock=0", "EPERM"),
}


@pytest.mark.parametrize("uid", users())
@pytest.mark.parametrize("attempt", LIMITED_ATTEMPTS)
def test_a_limit_stops_its_resource(attempt: str, uid: int | None) -> None:
    """The user is an ordinary one in a user namespace, where even the number of processes binds."""
    limit, refusal = LIMITED_ATTEMPTS[attempt]
    ready = "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); buffer = bytes(1 << 20); caps.drop_all(); "

    assert try_each(attempt, behind=ready, uid=uid) in (["done"], [0])
    if uid is None and limit.startswith("nproc") and users()[-1] is not None:
        return  # No such limit binds the root of the host, in whatever namespace.
    assert try_each(attempt, behind=f"{ready}rlimits.apply({limit})", uid=uid) == [refusal]


@pytest.mark.parametrize("uid", users())
def test_no_limit_is_raised_above_the_hard_limit(uid: int | None) -> None:
    """The hard limit also binds root, and the root of a namespace."""
    low = "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 60)); "

    assert try_one(LIMITS, behind=low + "rlimits.apply(nofile=10**6, core=None)", uid=uid) == [
        [60, 60],
        try_one(CORE, uid=uid),
    ]
    assert try_one(LIMITS, behind=low + "rlimits.apply(nofile=40)", uid=uid) == [[40, 40], [0, 0]]
    assert try_one(LIMITS, behind=low + "rlimits.apply()", uid=uid) == [[50, 60], [0, 0]]


@pytest.mark.parametrize("uid", users())
def test_a_lowered_limit_cannot_be_raised_again(uid: int | None) -> None:
    second_limit = "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))"

    with pytest.raises(AssertionError, match="not allowed to raise maximum limit"):
        try_one(second_limit, behind="rlimits.apply(nofile=40); caps.drop_all()", uid=uid)
    assert try_one(second_limit, behind="rlimits.apply(nofile=60); caps.drop_all()", uid=uid) == "done"


def test_the_limit_of_processor_time_ends_a_process() -> None:
    """SIGXCPU at the limit may be handled; SIGKILL follows after a further second of processor time."""
    assert try_one("[each for each in iter(int, 1)]", behind="rlimits.apply(cpu=1)") == "SIGXCPU"
    assert try_one(SPIN, behind="seen = []; rlimits.apply(cpu=1)") == "SIGKILL"
