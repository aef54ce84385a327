"""Tests of the filter as a program: for each machine, call and argument its verdict equals the description's."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.isolation.linux import calls, seccomp, syscall_numbers

MACHINES = ("x86_64", "aarch64")
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP_TOKEN = AUDIT  # libseccomp names machines by the same values
KILL, ALLOW = "kill", "allow"
NAMESPACES = 0x7E02_0000

Verdict = str | int


class Call(NamedTuple):
    """System call as the kernel shows it."""

    number: int
    args: tuple[int, ...]
    audit: int

    @property
    def data(self) -> bytes:
        return struct.pack("<IIQ6Q", self.number, self.audit, 0, *self.args)


class FilterSettings(NamedTuple):
    """Settings from which a filter is made."""

    machine: str
    inet: bool
    unix: bool
    unmapped: bool
    sessions: bool
    queues: bool
    others: bool
    served: bool
    watches: bool
    kill: bool

    @property
    def program(self) -> bytes:
        return seccomp.program(**self._asdict())


def verdict(program: bytes, call: Call) -> Verdict:
    """Return the verdict of the program, as the kernel's interpreter would compute it: an errno or a word."""
    code, at, value = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        opcode, yes, no, k = code[at]
        at += 1
        match opcode:
            case 0x20:
                (value,) = struct.unpack_from("<I", call.data, k)
            case 0x54:
                value &= k
            case 0x15 | 0x25 | 0x35:
                at += yes if {0x15: value == k, 0x25: value > k, 0x35: value >= k}[opcode] else no
            case 0x06:
                return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(k, k & 0xFFFF if k >> 16 == 5 else "unknown")
            case _:
                raise AssertionError(f"an instruction that is not ours: {opcode:#x}")


def expected_verdict(settings: FilterSettings, call: Call) -> Verdict:
    """Return the verdict by the description of the design, without a program."""
    table = syscall_numbers.table_of(settings.machine)
    deny: Verdict = KILL if settings.kill else errno.EPERM
    low = [arg & 0xFFFF_FFFF for arg in call.args]
    if call.audit != AUDIT[settings.machine] or (table.has_x32 and call.number >= 0x4000_0000):
        return KILL
    if call.number > syscall_numbers.NEWEST:
        return errno.ENOSYS
    name = {number: name for name, number in table.number.items()}.get(call.number)
    match name:
        case "clone3":
            return errno.ENOSYS
        case "clone":
            is_refused = bool(low[0] & (NAMESPACES | 0x8000))
        case "ioctl":
            is_refused = low[1] in (0x5412, 0x541C, 0x541D, 0x5423)
        case "sched_setscheduler":
            is_refused = low[1] & ~0x4000_0000 not in (0, 3, 5) or (not settings.others and low[0] != 0)
        case "mknod" | "mknodat":
            is_refused = low[1 if name == "mknod" else 2] & 0xF000 in (0x2000, 0x6000)
        case "socket":
            is_served = low[1] & 0xF in (1, 2) and low[2] in (0, 6, 17)
            plain = is_served and (settings.served or (low[1] & 0xF == 1 and low[2] != 17))
            is_accepted = (low[0] == 1 and settings.unix) or (low[0] in (2, 10) and settings.inet and plain)
            return ALLOW if is_accepted else errno.EAFNOSUPPORT
        case "socketpair":
            is_accepted = low[0] == 1 and (settings.unix or low[1] & 0xF in (1, 5))
            return ALLOW if is_accepted else errno.EAFNOSUPPORT
        case "ioprio_set" | "setpriority":
            is_refused = not settings.others and (low[1] != 0 or low[0] == {"ioprio_set": 3, "setpriority": 2}[name])
        case "prlimit64" | "sched_setaffinity" | "sched_setparam":
            is_refused = not settings.others and low[0] != 0
        case "sendto" | "sendmmsg":
            is_refused = not settings.served and bool(low[3] & 0x2000_0000)
        case "sendmsg":
            is_refused = not settings.served and bool(low[2] & 0x2000_0000)
        case "listen":
            is_refused = not settings.served
        case "setsockopt" if low[1] == 1 and low[2] in (7, 8, 32, 33):
            return 0
        case "fcntl":
            is_refused = low[1] == 1031 and not settings.unmapped
        case "sendfile" | "splice" | "tee" if not settings.unmapped:
            return errno.EINVAL
        case "mmap" if not settings.unmapped:
            large = call.args[1] > 1 << 20 and low[3] & 0x21 == 0x21
            return errno.ENOMEM if large or low[3] & 0x40000 else ALLOW
        case "prctl" if low[0] == 4 and not settings.unmapped:
            return 0
        case "landlock_create_ruleset":
            return errno.ENOSYS
        case "inotify_init" | "inotify_init1" | "inotify_add_watch":
            return ALLOW if settings.watches else errno.ENOSYS
        case _:
            is_refused = (
                name in syscall_numbers.DENIED
                or (name in syscall_numbers.UNMAPPED and not settings.unmapped)
                or (name in syscall_numbers.SESSIONS and not settings.sessions)
                or (name in syscall_numbers.QUEUES and not settings.queues)
            )
    return deny if is_refused else ALLOW


asked = st.builds(FilterSettings, st.sampled_from(MACHINES), *[st.booleans()] * 9)
FLAGS = (calls.CLONE_NEWUSER, calls.CLONE_NEWPID, calls.CLONE_NEWNS | 17, 0x0001_0F00, 0x003D_0F00, 0xFFFF_FFFF)
SMALL = (
    0,
    1,
    2,
    3,
    5,
    6,
    7,
    8,
    10,
    17,
    32,
    33,
    40,
    1031,
    0x802,
    0x8_0001,
    0x2180,
    0x6180,
    0x8180,
    0x21,
    0x22,
    0x4_0022,
    0x10_0000,
    0x10_0001,
    0x2000_0000,
    0x4000_0000,
    0x4000_0001,
)
interesting = st.sampled_from([*SMALL, *FLAGS, 0x5412, 0x5413, 0x541C, 0x541D, 0x5423])
args = st.tuples(*[st.builds(lambda low, high: high << 32 | low, interesting, st.sampled_from([0, 1, 7]))] * 6)


@st.composite
def calls_of(draw: st.DrawFn, machine: str) -> Call:
    listed_numbers = st.sampled_from(sorted(syscall_numbers.table_of(machine).number.values()))
    number = draw(
        listed_numbers | st.integers(0, syscall_numbers.NEWEST + 2) | st.sampled_from([0x4000_0001, 0xFFFF_FFFF])
    )
    return Call(number, draw(args), draw(st.sampled_from([*AUDIT.values(), 0x4000_0003]) | st.just(AUDIT[machine])))


@given(st.data(), asked)
def test_the_program_gives_the_described_verdict(data: st.DataObject, asked: FilterSettings) -> None:
    call = data.draw(calls_of(asked.machine))

    assert verdict(asked.program, call) == expected_verdict(asked, call)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_call_gets_the_described_verdict(machine: str) -> None:
    """The test covers every listed call with zero arguments, not a random choice."""
    settings_off = FilterSettings(machine, *[False] * 9)

    for name, number in syscall_numbers.table_of(machine).number.items():
        call = Call(number, (0,) * 6, AUDIT[machine])
        assert (name, verdict(settings_off.program, call)) == (name, expected_verdict(settings_off, call))
    ends = [Call(number, (0,) * 6, AUDIT[machine]) for number in (syscall_numbers.NEWEST, syscall_numbers.NEWEST + 1)]
    assert [verdict(settings_off.program, call) for call in ends] == [ALLOW, errno.ENOSYS]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_machine(machine: str) -> None:
    """The reference is libseccomp, which has tables of its own."""
    names = dict(_libseccomp_numbers(machine))
    if not names:
        pytest.skip("libseccomp is not installed")

    assert len(names) > 60
    table = syscall_numbers.table_of(machine).number
    assert {name: table.get(name) for name in names} == names


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_with_uncounted_memory_are_refused(machine: str) -> None:
    """Contexts of asynchronous I/O belong to the whole machine, and rulesets of Landlock take kernel memory."""
    program = FilterSettings(machine, *[True] * 9)._replace(kill=False).program
    io_setup = {"x86_64": 206, "aarch64": 0}[machine]

    assert verdict(program, Call(io_setup, (1, 0, 0, 0, 0, 0), AUDIT[machine])) == errno.EPERM
    assert verdict(program, Call(444, (0, 0, 0, 0, 0, 0), AUDIT[machine])) == errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_the_size_of_a_socket_buffer_is_answered_with_success_and_not_set(machine: str) -> None:
    """The four socket options of buffer sizes succeed without effect; other options and levels pass."""
    number = {"x86_64": 54, "aarch64": 208}[machine]
    program = FilterSettings(machine, *[True] * 9)._replace(kill=False).program

    def option_verdict(level: int, option: int) -> Verdict:
        return verdict(program, Call(number, (3, level, option, 0, 4, 0), AUDIT[machine]))

    assert {option for option in range(80) if option_verdict(1, option) == 0} == {7, 8, 32, 33}
    assert {option_verdict(level, option) for level in (0, 6, 41) for option in (7, 8, 32, 33)} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_pipes_pin_pages_only_with_a_control_group(machine: str) -> None:
    """Without a group, splice, tee and sendfile report an unsupported file, and a pipe keeps its size."""
    numbers_of = {"x86_64": (275, 276, 40, 72), "aarch64": (76, 77, 71, 25)}[machine]
    calls_made = [Call(number, (3, 1031, 4096, 0, 0, 0), AUDIT[machine]) for number in numbers_of]
    free = FilterSettings(machine, *[True] * 9)._replace(kill=False)
    strict = free._replace(unmapped=False)

    assert [verdict(strict.program, call) for call in calls_made] == [errno.EINVAL] * 3 + [errno.EPERM]
    assert [verdict(free.program, call) for call in calls_made] == [ALLOW] * 4


@pytest.mark.parametrize("machine", MACHINES)
def test_large_shared_areas_are_mapped_only_with_a_control_group(machine: str) -> None:
    """Small and private areas always work; a process stays dumpable although it asks not to be."""
    mmap, prctl = {"x86_64": (9, 157), "aarch64": (222, 167)}[machine]
    mib, shared, private, huge = 1 << 20, 0x21, 0x22, 0x40000
    areas = [(mib + 1, shared), (1 << 32, shared), (1, shared | huge), (mib, shared), (1 << 32, private), (1 << 32, 1)]
    calls_made = [Call(mmap, (0, size, 3, flags, 0, 0), AUDIT[machine]) for size, flags in areas]
    calls_made += [Call(prctl, (option, 0, 0, 0, 0, 0), AUDIT[machine]) for option in (4, 15)]
    free = FilterSettings(machine, *[True] * 9)._replace(kill=False)
    strict = free._replace(unmapped=False)

    assert [verdict(strict.program, call) for call in calls_made] == [*[errno.ENOMEM] * 3, *[ALLOW] * 3, 0, ALLOW]
    assert [verdict(free.program, call) for call in calls_made] == [ALLOW] * 8


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(OSError, match=r"riscv64.*known are x86_64, aarch64") as refusal:
        seccomp.program(inet=False, machine="riscv64")

    assert refusal.value.errno == errno.ENOTSUP


def _libseccomp_numbers(machine: str) -> Iterator[tuple[str, int | None]]:
    """Yield the numbers that libseccomp knows for our names, or None for a call that the machine lacks."""
    library = ctypes.util.find_library("seccomp")
    if library is None:
        return
    resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    for name in {*syscall_numbers.table_of("x86_64").number, *syscall_numbers.table_of("aarch64").number}:
        number = resolve(SECCOMP_TOKEN[machine], name.encode())
        if number != -1:  # a name that is younger than the library
            yield name, number if number >= 0 else None


#: Calls that give a file its mode, with the arguments before and after the mode.
MODE_CALLS: dict[str, tuple[tuple[int, ...], ...]] = {
    "chmod": ((1,),),
    "fchmod": ((3,),),
    "fchmodat": ((3, 1),),
    "fchmodat2": ((3, 1),),
    "creat": ((1,),),
    "mknod": ((1,),),
    "mknodat": ((3, 1),),
    "open": ((1, 0o101), (1, 0o2020_0001)),
    "openat": ((3, 1, 0o101), (3, 1, 0o2020_0001)),
}


@pytest.mark.parametrize("machine", MACHINES)
@given(st.integers(0, 0o7777), st.integers(0, 0xFFFF_FFFF))
def test_a_mode_with_setuid_or_setgid_is_refused_in_each_call(machine: str, mode: int, high: int) -> None:
    """The high half of an argument, which the kernel passes over, changes nothing."""
    program, number = seccomp.plain_modes_program(machine), syscall_numbers.table_of(machine).number
    wanted = errno.EPERM if mode & 0o6000 else ALLOW
    for name, beginnings in MODE_CALLS.items():
        for begin in beginnings if name in number else ():
            args = (*begin, high << 32 | mode, 0, 0, 0, 0, 0)[:6]
            assert verdict(program, Call(number[name], args, AUDIT[machine])) == wanted, name


@pytest.mark.parametrize("machine", MACHINES)
@given(st.integers(0, 0xFFFF_FFFF))
def test_a_file_that_exists_is_opened_whatever_its_third_argument_is(machine: str, rest: int) -> None:
    """Without O_CREAT and O_TMPFILE the mode is not read, and a register may hold anything."""
    program, number = seccomp.plain_modes_program(machine), syscall_numbers.table_of(machine).number

    for name, begin in (("open", (1, 0o2)), ("openat", (3, 1, 0o20_0002))):
        if name in number:
            assert verdict(program, Call(number[name], (*begin, rest, 0, 0, 0)[:6], AUDIT[machine])) == ALLOW
    assert verdict(program, Call(number["openat2"], (0,) * 6, AUDIT[machine])) == errno.ENOSYS
    assert verdict(program, Call(number["openat"] + 100, (rest,) * 6, AUDIT[machine])) == ALLOW
