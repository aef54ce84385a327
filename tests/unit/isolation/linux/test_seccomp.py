"""Tests of the filter in the kernel: stopped calls work without it, and calls that an agent needs work with it."""

from __future__ import annotations

import os

import pytest

from ramet.isolation.linux import syscall_numbers
from tests.unit.isolation.linux.trying import KILLED, AttemptResult, try_each, try_one, users

GATE = "calls.set_no_new_privs(); seccomp.install(seccomp.program({}))"
STRICT_FILTER = GATE.format("inet=False, unix=False, unmapped=False")
STRICT_SETTINGS = "inet=False, unmapped=False, sessions=False"
IOCTL = "(os.login_tty(os.openpty()[1]), fcntl.ioctl(0, {}, b'\\0\\0\\0\\0'))"

#: What is tried → what the filter says. Without it each succeeds, or fails later and otherwise.
STOPPED_CALLS: dict[str, AttemptResult] = {
    "calls.unshare(calls.CLONE_NEWUSER)": "EPERM",
    "calls.unshare(calls.CLONE_NEWNET)": "EPERM",
    "calls.setns(os.open('/proc/self/ns/uts', os.O_RDONLY), 0)": "EPERM",
    "calls.syscall('clone3', 435, None, 0)": "ENOSYS",
    "(pid := clone(calls.CLONE_NEWUSER)) or os._exit(0), os.waitpid(pid, 0)": "EPERM",
    "clone(0x8000) or os._exit(0)": "EPERM",  # CLONE_PARENT
    "calls.mount('none', '/tmp', 'tmpfs')": "EPERM",
    "calls.umount('/proc', calls.MNT_DETACH)": "EPERM",
    "calls.pivot_root('/tmp', '/tmp')": "EPERM",
    "os.chroot('/tmp')": "EPERM",
    "calls.syscall('open_tree', 428, -100, b'/tmp', 1)": "EPERM",
    "calls.syscall('fsopen', 430, b'tmpfs', 0)": "EPERM",
    "calls.syscall('pidfd_getfd', 438, os.pidfd_open(os.getpid()), 1, 0)": "EPERM",
    "calls.sethostname('other')": "EPERM",
    "os.memfd_create('a')": "EPERM",
    "socket.socket(socket.AF_UNIX)": "EAFNOSUPPORT",
    "socket.socket(socket.AF_INET)": "EAFNOSUPPORT",
    "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)": "EAFNOSUPPORT",
    "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)": "EAFNOSUPPORT",
    "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)": "EAFNOSUPPORT",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)": "EAFNOSUPPORT",
    IOCTL.format("0x5412"): "EPERM",  # TIOCSTI
    IOCTL.format("0x5423"): "EPERM",  # TIOCSETD
    IOCTL.format("0x541C"): "EPERM",  # TIOCLINUX
    IOCTL.format("0x7_0000_5412"): "EPERM",  # the kernel reads the low half only
}

#: What Python, threads, subprocesses and asyncio need.
NEEDED_CALLS = (
    "run(['true'])",
    "threading.Thread(target=int).start()",
    "socket.socketpair()",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "asyncio.run(asyncio.sleep(0))",
    "fcntl.ioctl(os.openpty()[1], 0x5413, bytearray(8))",
    "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "os.nice(1)",
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "os.pidfd_open(os.getpid()) > 0",
    "os.waitpid(os.fork() or os._exit(0), 0) and 'done'",
    "os.waitpid(clone(0) or os._exit(0), 0) and 'done'",
    "mmap.mmap(-1, 4096)",
    "os.urandom(1)",
)


@pytest.mark.parametrize("uid", users())
def test_calls_that_the_filter_stops_work_without_it(uid: int | None) -> None:
    """Each attempt is made twice by one user with equal rights; only the filter differs."""
    free = dict(zip(STOPPED_CALLS, try_each(*STOPPED_CALLS, uid=uid), strict=True))
    results = dict(zip(STOPPED_CALLS, try_each(*STOPPED_CALLS, behind=STRICT_FILTER, uid=uid), strict=True))

    assert results == STOPPED_CALLS
    assert not [attempt for attempt, refusal in STOPPED_CALLS.items() if free[attempt] == refusal]


@pytest.mark.parametrize("uid", users())
def test_calls_that_programs_need_work_with_the_filter(uid: int | None) -> None:
    free = dict(zip(NEEDED_CALLS, try_each(*NEEDED_CALLS, uid=uid), strict=True))

    assert dict(zip(NEEDED_CALLS, try_each(*NEEDED_CALLS, behind=STRICT_FILTER, uid=uid), strict=True)) == free
    assert not {"EPERM", "ENOSYS", "EAFNOSUPPORT", KILLED} & set(map(str, free.values()))


def test_every_listed_call_is_stopped() -> None:
    """With `kill` such a call ends the process, so that no other refusal counts as the filter's."""
    table = syscall_numbers.table_of(os.uname().machine).number
    attempts = {
        name: f"calls.syscall('{name}', {table[name]}, -1, -1, -1, -1)"
        for name in [*syscall_numbers.DENIED, *syscall_numbers.UNMAPPED, *syscall_numbers.SESSIONS]
        if name in table
    }

    results = try_each(*attempts.values(), behind=GATE.format(STRICT_SETTINGS))
    killed_results = try_each(*attempts.values(), behind=GATE.format(f"{STRICT_SETTINGS}, kill=True"))

    assert dict(zip(attempts, results, strict=True)) == dict.fromkeys(attempts, "EPERM")
    assert dict(zip(attempts, killed_results, strict=True)) == dict.fromkeys(attempts, KILLED)
    assert (
        try_one("calls.syscall('getppid', 110 if os.uname().machine == 'x86_64' else 173) > 0", behind=STRICT_FILTER)
        is True
    )


def test_devices_cannot_be_made_and_pipes_can() -> None:
    """The filter kills, so its refusal differs from the kernel's own in a user namespace."""
    kinds = {"S_IFCHR": KILLED, "S_IFBLK": KILLED, "S_IFIFO": "done", "S_IFREG": "done"}
    attempts = [f"(os.mknod(p := '/tmp/ramet-' + str(os.getpid()), stat.{kind}), os.unlink(p))" for kind in kinds]

    assert try_each(*attempts, behind=GATE.format("inet=False, kill=True")) == list(kinds.values())


def test_calls_newer_than_the_filter_return_enosys() -> None:
    newest = f"calls.syscall('new', {syscall_numbers.NEWEST + 1}, 0)"

    assert try_one(newest, behind=STRICT_FILTER) == "ENOSYS"


@pytest.mark.skipif("os.uname().machine != 'x86_64'", reason="x32 and i386 are foreign to x86_64 only")
def test_a_foreign_abi_ends_the_process() -> None:
    """x32 shares the audit value of x86_64; i386 enters by int 0x80, as machine code."""
    x32 = "calls.syscall('getpid', 0x40000000 | 39)"
    code = bytes([0x53, 0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0x5B, 0xC3])  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    i386 = (
        "(page := mmap.mmap(-1, 4096, prot=7), "
        f"page.write({code!r}), "
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())[-1] > 0"
    )

    assert try_each(x32, i386, behind=STRICT_FILTER) == [KILLED, KILLED]
    assert try_one(x32) != KILLED
    if try_one(i386) != "SIGSEGV":  # a kernel without 32 bit
        assert try_one(i386) is True


def test_real_time_scheduling_is_refused_where_the_kernel_would_grant_it() -> None:
    fifo = "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"
    if try_one(fifo, staged=False) != "done":
        pytest.skip("this user may not schedule in real time anyway")

    assert try_one(fifo, behind=STRICT_FILTER, staged=False) == "EPERM"
    assert (
        try_one(fifo.replace("FIFO,", "FIFO | os.SCHED_RESET_ON_FORK,"), behind=STRICT_FILTER, staged=False) == "EPERM"
    )


def test_inet_opens_tcp_and_udp_and_nothing_else() -> None:
    attempts = {
        "socket.socket(socket.AF_INET)": "done",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)": "done",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)": "done",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)": "EAFNOSUPPORT",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)": "EAFNOSUPPORT",  # MPTCP
        "socket.socket(socket.AF_UNIX)": "EAFNOSUPPORT",
        "socket.socket(socket.AF_VSOCK)": "EAFNOSUPPORT",
    }

    results = try_each(*attempts, behind=GATE.format("inet=True, unix=False"))

    assert dict(zip(attempts, results, strict=True)) == attempts


def test_a_process_without_sessions_cannot_leave_its_group() -> None:
    leave = ("os.setsid()", "os.setpgid(0, 0)")

    assert try_each(*leave, behind=GATE.format("inet=False")) == ["done", "done"]
    assert try_each(*leave, behind=GATE.format("inet=False, sessions=False")) == ["EPERM", "EPERM"]


def test_a_process_without_watches_has_no_inotify() -> None:
    """The calls return ENOSYS, as on a kernel without inotify, so programs know what to do."""
    table = syscall_numbers.table_of(os.uname().machine).number
    watch = [
        f"calls.syscall('{name}', {table[name]}, -1, -1, 0) and 'done'"
        for name in syscall_numbers.WATCHES
        if name in table
    ]

    assert "ENOSYS" not in try_each(*watch, behind=GATE.format("inet=False"))
    assert set(try_each(*watch, behind=GATE.format("inet=False, watches=False"))) == {"ENOSYS"}


def test_a_process_without_queues_makes_no_system_v_queue() -> None:
    table = syscall_numbers.table_of(os.uname().machine).number
    make = [f"calls.syscall('{name}', {table[name]}, 0, -1, 0)" for name in ("msgget", "semget")]

    results = try_each(*make, behind=GATE.format("inet=False, queues=False"))

    assert results == ["EPERM", "EPERM"]
    assert try_each(make[1], behind=GATE.format("inet=False")) == ["EINVAL"]  # It was asked for less than none.


def test_unix_sockets_and_unmapped_memory_are_separate_settings() -> None:
    attempts = ("socket.socket(socket.AF_UNIX)", "os.memfd_create('a') > 0", "socket.socket(socket.AF_INET)")

    assert try_each(*attempts, behind=GATE.format("inet=False")) == ["done", True, "EAFNOSUPPORT"]
    assert try_each(*attempts, behind=GATE.format("inet=False, unix=False")) == ["EAFNOSUPPORT", True, "EAFNOSUPPORT"]
    assert try_each(*attempts, behind=GATE.format("inet=False, unmapped=False")) == ["done", "EPERM", "EAFNOSUPPORT"]


def test_the_filter_holds_for_other_threads_and_programs() -> None:
    program = "run([sys.executable, '-I', '-S', '-c', 'import socket; socket.socket()'])"

    assert try_each(program, "watch.said()", behind=_WATCHER) == ["done", "done"]
    assert try_each(program, "watch.said()", behind=_WATCHER + STRICT_FILTER) == ["exit 1", "EPERM"]


def test_an_ordinary_user_cannot_install_a_filter_without_no_new_privs() -> None:
    plain = "seccomp.install(seccomp.program(inet=False))"
    nobody = users()[-1]

    assert try_one(plain, uid=nobody, staged=False) == "EACCES"
    assert try_one(plain, behind="calls.set_no_new_privs()", uid=nobody, staged=False) == "done"


_WATCHER = """
class Watch:
    def __init__(self):
        self._go, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._work, daemon=True).start()
    def _work(self):
        self._go.wait()
        try:
            calls.sethostname("thread")
            self._what = "done"
        except OSError as error:
            self._what = errno.errorcode[error.errno]
        self._over.set()
    def said(self):
        self._go.set()
        self._over.wait()
        return self._what
watch = Watch()
"""
