"""Attacks 21 to 39: other processes, and calls of the kernel that give more rights."""

# The calls are made as the kernel takes them.
# ruff: noqa: PTH109, PTH113, PTH123, PTH208

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import platform
import pty
import resource
import signal
import subprocess
import time

from tests.security.attacks.trying import Tried, attempt, called, in_child, open_and_close, syscall

NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
    "time": 0x00000080,
}


def signal_others(pids: list[int]) -> Tried:
    """Signal, slow, pin, limit and end processes by pid."""
    tried: Tried = {}
    for pid in pids:
        tried[f"ask {pid}"] = attempt(os.kill, pid, 0)
        tried[f"slow {pid}"] = attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)
        tried[f"pin {pid}"] = attempt(os.sched_setaffinity, pid, {0})
        tried[f"limit {pid}"] = attempt(resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0))
        tried[f"pidfd {pid}"] = attempt(_signal_by_pidfd, pid)
        tried[f"queue {pid}"] = called("rt_sigqueueinfo", pid, signal.SIGTERM, ctypes.create_string_buffer(128))
        tried[f"thread {pid}"] = called("tgkill", pid, pid, signal.SIGTERM)
        tried[f"group {pid}"] = attempt(os.kill, -pid, signal.SIGTERM)
        tried[f"end {pid}"] = attempt(os.kill, pid, signal.SIGKILL)
    return tried


def signal_everyone() -> str:
    """Kill each process that can be reached, except this one."""
    return in_child(os.kill, -1, signal.SIGKILL)


def _signal_by_pidfd(pid: int) -> None:
    signal.pidfd_send_signal(os.pidfd_open(pid), 0)


def list_processes() -> list[int]:
    """Return the pids that are visible."""
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return []


def look_into(pids: list[int]) -> Tried:
    """Read and follow what /proc shows about other processes."""
    tried: Tried = {}
    for pid in pids:
        for name in ("environ", "cmdline", "maps", "mem", "auxv", "stack", "syscall", "io", "status"):
            tried[f"{pid} {name}"] = attempt(_first_bytes, f"/proc/{pid}/{name}")
        for name in ("root", "cwd", "exe", "fd"):
            tried[f"{pid} {name}"] = attempt(os.stat, f"/proc/{pid}/{name}")
    return tried


def _first_bytes(path: str) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return 1 if path.endswith("/mem") else len(os.read(fd, 64))
    finally:
        os.close(fd)


def trace(pid: int) -> Tried:
    """Attach to a process, read and write its memory, and take its descriptors: another's first, then a child's."""
    tried = _trace(pid)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        tried |= {f"child {name}": outcome for name, outcome in _trace(child).items()}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    tried["let parent trace"] = in_child(syscall, "ptrace", 0, 0, 0, 0)
    return tried


def _trace(pid: int) -> Tried:
    word = ctypes.create_string_buffer(8)
    iovec = (ctypes.c_size_t * 2)(ctypes.addressof(word), 8)
    tried = {
        "process_vm_readv": called("process_vm_readv", pid, iovec, 1, iovec, 1, 0),
        "process_vm_writev": called("process_vm_writev", pid, iovec, 1, iovec, 1, 0),
        "kcmp": called("kcmp", os.getpid(), pid, 0, 0, 0),
        "seize": called("ptrace", 0x4206, pid, 0, 0),
        "detach": called("ptrace", 17, pid, 0, 0),
    }
    fd = attempt(os.pidfd_open, pid)
    handle = int(fd.partition(": ")[2]) if fd.startswith("done") else -1
    tried["pidfd_getfd"] = called("pidfd_getfd", handle, 0, 0)
    if handle >= 0:
        os.close(handle)
    return tried


def new_namespaces() -> Tried:
    """Make namespaces, which is the first step of most ways out of a sandbox."""
    tried: Tried = {}
    for name, bit in NAMESPACES.items():
        tried[f"unshare {name}"] = in_child(syscall, "unshare", bit)
        if name != "time":  # its bit is part of the exit signal in the older call
            tried[f"clone {name}"] = in_child(_clone, bit)
        tried[f"clone3 {name}"] = in_child(_clone3, bit)
    tried["unshare user and mount"] = in_child(syscall, "unshare", 0x10000000 | 0x00020000)
    tried["high bits"] = in_child(syscall, "unshare", 0x10000000 | 1 << 40)
    return tried


def _clone(flags: int) -> None:
    _reap(syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0))


def _clone3(flags: int) -> None:
    _reap(syscall("clone3", (ctypes.c_uint64 * 11)(flags, 0, 0, 0, signal.SIGCHLD), 88))


def _reap(child: int) -> None:
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def clone_beside() -> Tried:
    """Make a process whose parent is the caller's parent, by both calls and with other flags."""
    parent, vfork = 0x8000, 0x4000
    tried: Tried = {}
    for name, make in (("clone", _clone_only), ("clone3", _clone3_only)):
        tried[name] = _reap_here(in_child(make, parent))
    tried["clone high"] = _reap_here(in_child(_clone_only, parent | 1 << 32))
    tried["vfork"] = _reap_here(in_child(_clone_only, parent | vfork))
    return tried


def _clone_only(flags: int) -> int:
    if not (child := syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)):
        os._exit(0)
    return child


def _clone3_only(flags: int) -> int:
    if not (child := syscall("clone3", (ctypes.c_uint64 * 11)(flags, 0, 0, 0, 0), 88)):  # It takes no signal with it.
        os._exit(0)
    return child


def _reap_here(outcome: str) -> str:
    """Wait for a child that another process made."""
    if outcome.startswith("done: "):
        os.waitpid(int(outcome.removeprefix("done: ")), 0x4000_0000)  # __WALL: whatever signal it sends at its end.
    return outcome


def enter_namespaces(pids: list[int]) -> Tried:
    """Join this process's namespaces, those of others, and a descriptor that is no namespace."""
    tried = {"no descriptor": called("setns", -1, 0)}
    for pid in ("self", *pids):
        for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
            tried[f"{pid} {name}"] = in_child(_enter, f"/proc/{pid}/ns/{name}")
    for pid in pids:
        tried[f"pidfd {pid}"] = attempt(_enter_by_pidfd, pid)
    return tried


def _enter_by_pidfd(pid: int) -> None:
    syscall("setns", os.pidfd_open(pid), NAMESPACES["mount"])


def _enter(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        syscall("setns", fd, 0)
    finally:
        os.close(fd)


def open_settings() -> Tried:
    """Open settings of the kernel for writing, without a write, and lower this process's OOM score."""
    paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/sys/kernel/ns_last_pid",
        "/proc/sys/user/max_user_namespaces",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sysrq-trigger",
        "/proc/self/uid_map",
        "/proc/self/gid_map",
        "/proc/self/setgroups",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/ksm/run",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/pids/cgroup.procs",
        "/sys/fs/cgroup/unified/cgroup.procs",
        "/sys/fs/cgroup/memory/release_agent",
    ]
    tried = {path: attempt(open_and_close, path, os.O_WRONLY) for path in paths}
    tried["save me from oom"] = attempt(_spare_me)
    return tried


def _spare_me() -> None:
    pathlib.Path("/proc/self/oom_score_adj").write_text("-1000")


def read_settings() -> Tried:
    """Open files that only the host should read: kernel memory, addresses, and the kernel's log."""
    paths = [
        "/proc/kcore",
        "/dev/mem",
        "/dev/kmem",
        "/dev/port",
        "/proc/kmsg",
        "/dev/kmsg",
        "/proc/vmallocinfo",
        "/sys/kernel/debug/x",
    ]
    return {path: attempt(open_and_close, path, os.O_RDONLY) for path in paths}


def call_the_kernel() -> Tried:
    """Call each dangerous part of the kernel, with arguments that change nothing."""
    nothing = ctypes.create_string_buffer(256)
    words: dict[str, tuple[int | bytes | ctypes.Array[ctypes.c_char] | None, ...]] = {
        "bpf": (0, nothing, 128),
        "perf_event_open": (nothing, 0, -1, -1, 0),
        "userfaultfd": (0,),
        "io_uring_setup": (1, None),
        "io_uring_enter": (-1, 0, 0, 0, None, 0),
        "io_uring_register": (-1, 0, None, 0),
        "kexec_load": (0, 0, None, 0xFFFF),
        "kexec_file_load": (-1, -1, 0, None, 0xFFFF),
        "reboot": (1, 2, 3, None),
        "init_module": (None, 0, None),
        "finit_module": (-1, None, 0),
        "delete_module": (b"no_such_module", 0),
        "syslog": (10, None, 0),
        "quotactl": (0x80000100, None, 0, None),
        "settimeofday": (None, None),
        "acct": (b"/no/such/file",),
        "swapon": (b"/no/such/file", 0),
        "swapoff": (b"/no/such/file",),
        "sethostname": (b"x", -1),
        "setdomainname": (b"x", -1),
        "fanotify_init": (0xFFFF, 0),
        "personality": (0x0040000,),
        "memfd_secret": (0,),
        "iopl": (3,),
        "ioperm": (0x80, 1, 1),
        "quotactl_fd": (-1, 0x80000100, 0, None),
    }
    if platform.machine() != "x86_64":
        del words["iopl"], words["ioperm"]
    return {name: in_child(syscall, name, *given) for name, given in words.items()}


def call_by_another_abi() -> Tried:
    """Call the kernel by the numbers of 32-bit programs, which a filter for 64-bit ones reads wrongly."""
    if platform.machine() != "x86_64":
        return {}

    def int80() -> int:
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, getpid; int 0x80; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        return int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())

    def x32() -> int:
        number = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(0x40000000 | 39))
        if number == -1:
            raise OSError(ctypes.get_errno(), "x32")
        return int(number)

    return {"int 0x80": in_child(int80), "x32": in_child(x32)}


def use_keyrings() -> Tried:
    """Reach the keys that the kernel keeps for a session, a user and a process."""
    tried: Tried = {}
    for name, ring in (("thread", -1), ("process", -2), ("session", -3), ("user", -4), ("user session", -5)):
        tried[f"describe {name}"] = called("keyctl", 6, ring, None, 0)
        tried[f"search {name}"] = called("keyctl", 10, ring, b"user", b"ramet", 0)
    tried["join session"] = called("keyctl", 1, 0)
    tried["add_key"] = called("add_key", b"user", b"ramet-test", b"x", 1, -2)
    tried["request_key"] = called("request_key", b"user", b"ramet-test", None, -2)
    return tried


def raise_limits() -> Tried:
    """Raise hard limits, the priority, and the scheduling class."""
    tried: Tried = {}
    for name in ("NPROC", "NOFILE", "CORE", "FSIZE", "AS", "DATA", "MEMLOCK", "SIGPENDING", "MSGQUEUE"):
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:  # not in Python's table
            continue
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            tried[name] = attempt(resource.setrlimit, kind, (hard + 1, hard + 1))
    tried["nice"] = in_child(_silent_nice)
    tried["real time"] = in_child(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
    return tried


def _silent_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1)


def limits() -> dict[str, int]:
    """Return the hard limits of this process; -1 means no limit."""
    names = ("NPROC", "NOFILE", "CORE", "FSIZE", "DATA", "AS", "CPU")
    return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in names}


def status() -> dict[str, str]:
    """Return what the kernel says about this process: capabilities, no_new_privs, seccomp, uids."""
    try:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def gain_rights() -> Tried:
    """Change uid, gid and groups, and get a capability back."""
    network = (ctypes.c_uint32 * 6)(1 << 12, 1 << 12, 0, 0, 0, 0)  # CAP_NET_ADMIN, effective and permitted
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    other = 12345 if os.geteuid() == 0 else 0
    tried = {
        f"setuid {other}": in_child(os.setuid, other),
        f"setgid {other}": in_child(os.setgid, other),
        f"setresuid {other}": in_child(os.setresuid, other, other, other),
        "setgroups": in_child(os.setgroups, [0]),
        "initgroups": in_child(os.initgroups, "root", 0),
        "capset": in_child(syscall, "capset", head, network),
    }
    return tried


def run_setuid_programs(programs: list[str]) -> Tried:
    """Run programs that are setuid on the host, and return the uid of each."""
    tried: Tried = {}
    for program in programs:
        outcome = attempt(_uid_of, program)
        tried[program] = outcome
    return tried


def _uid_of(program: str) -> str:
    """Return the effective uid of a program, read while the program waits for its input."""
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lines = pathlib.Path(f"/proc/{child.pid}/status").read_text().splitlines()
        return next(line.split()[2] for line in lines if line.startswith("Uid:"))
    finally:
        child.kill()
        child.communicate()


def type_into_terminals() -> Tried:
    """Put characters into the terminals of stdio and an own one, also with high bits, and open /dev/tty."""
    tried: Tried = {}
    letter = ctypes.create_string_buffer(b"x", 1)
    for name, number in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
        for fd in (0, 1, 2):
            tried[f"{name} {fd}"] = called("ioctl", fd, number, letter)
            tried[f"{name} {fd} high"] = called("ioctl", fd, number | 1 << 32, letter)
    tried["/dev/tty"] = attempt(open_and_close, "/dev/tty", os.O_RDWR)
    try:
        leader, follower = pty.openpty()
    except OSError:
        return tried
    try:
        tried["TIOCSTI own"] = in_child(_type_into, follower)
    finally:
        os.close(leader)
        os.close(follower)
    return tried


def _type_into(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)
    syscall("ioctl", terminal, 0x5412, ctypes.create_string_buffer(b"x", 1))


def dump_core() -> dict[str, object]:
    """Crash with a request for a core file."""
    child = os.fork()
    if child == 0:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        os.abort()
    _, code = os.waitpid(child, 0)
    return {
        "dumped": os.WCOREDUMP(code),
        "limit": resource.getrlimit(resource.RLIMIT_CORE)[1],
        "files": [name for name in os.listdir(".") if name.startswith("core")],
    }


def run_from_memory(secret: str) -> Tried:
    """Run a program without a file, and let it read a secret."""
    try:
        fd = os.memfd_create("program")
        os.write(fd, pathlib.Path("/usr/bin/cat").read_bytes())
    except OSError as problem:
        return {"made": type(problem).__name__}

    def run(path: str) -> str:
        done = subprocess.run([path, secret], capture_output=True, text=True, check=False, pass_fds=[fd])
        return f"{done.returncode} {done.stdout}"

    outcomes = {"made": "done", "by /proc": attempt(run, f"/proc/self/fd/{fd}")}
    outcomes["by execveat"] = in_child(_execute, fd, secret)
    return outcomes


def _execute(fd: int, argument: str) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        words = (ctypes.c_char_p * 3)(b"cat", argument.encode(), None)
        called("execveat", fd, b"", words, (ctypes.c_char_p * 1)(None), 0x1000)
        os._exit(127)
    os.close(writing)
    output = os.read(reading, 4096).decode(errors="replace")
    os.close(reading)
    return f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])} {output}"


def environment() -> dict[str, str]:
    """Return the variables of this process."""
    return dict(os.environ)


def identity() -> dict[str, object]:
    """Return this process's own view of its ids, host, folder, descriptors and namespaces."""
    return {
        "pid": os.getpid(),
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": os.getgroups(),
        "host": os.uname().nodename,
        "cwd": os.getcwd(),
        "fds": [fd for fd in range(256) if attempt(os.fstat, fd).startswith("done")],
        "namespaces": {
            name: attempt(os.readlink, f"/proc/self/ns/{name}")
            for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
        },
    }


def tell_identity_and_wait(seconds: float) -> None:
    """Print the value of `identity`, and wait."""
    print(json.dumps(identity()), flush=True)  # noqa: T201
    time.sleep(seconds)


def search_for(first: str, second: str, folders: list[str]) -> list[str]:
    """Return each variable, file and memory region that holds a secret.

    The secret comes in two halves, so that the search does not find itself.
    """
    head, tail = first.encode(), second.encode()
    found: list[str] = []

    def holds(data: bytes) -> bool:
        at = data.find(head)
        while at >= 0:
            if data[at + len(head) : at + len(head) + len(tail)] == tail:
                return True
            at = data.find(head, at + 1)
        return False

    found += [f"variable {key}" for key, value in os.environ.items() if holds(f"{key}={value}".encode())]
    for pid in list_processes():
        found += [path for path in (f"/proc/{pid}/environ", f"/proc/{pid}/cmdline") if holds(_content(path))]
    for top in folders:
        for folder, _, names in os.walk(top):
            found += [f"{folder}/{name}" for name in names if holds(_content(f"{folder}/{name}"))]
    found += [f"memory {region}" for region, data in _memory() if holds(data)]
    return found


def _content(path: str) -> bytes:
    try:
        if path.startswith("/proc/") or os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read(8 << 20)
    except OSError:
        pass
    return b""


def _memory() -> list[tuple[str, bytes]]:
    """Return the readable memory of this process; nothing where /proc is closed."""
    pieces: list[tuple[str, bytes]] = []
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
            for line in maps.read().splitlines():
                region, rights, *rest = line.split()
                if not rights.startswith("rw") or rest[-1].startswith("[v"):
                    continue
                start, end = (int(word, 16) for word in region.split("-"))
                memory.seek(start)
                pieces.append((region, memory.read(min(end - start, 64 << 20))))
    except OSError:
        pass
    return pieces
