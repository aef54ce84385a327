"""Tests of the probe: it finds working mechanisms, detects missing and pretended ones, and names a remedy."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from ramet.core.policy.policy import Isolation
from ramet.isolation import probe
from ramet.isolation.linux import syscall_numbers
from ramet.isolation.linux.trials import cgroups
from ramet.isolation.probe import Finding
from tests.support.waiting import alive

SOURCES = pathlib.Path(probe.__file__).parents[2]
ALL_WORK = dict.fromkeys(probe.MECHANISMS, Finding(True))

CONTROLLERS = ("memory", "cpu", "pids")

#: Run with a filter of its own: what the kernel answers to some calls without doing them.
_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
given = json.loads(sys.argv[2])
from ramet.isolation.linux import calls, seccomp
if given["filter"]:
    calls.set_no_new_privs()
    seccomp.install(bytes.fromhex(given["filter"]))
from ramet.isolation import probe
print(json.dumps(probe.probe_machine(given["user"] and tuple(given["user"]))))
"""

#: Kind of namespace → the finding that it stands for.
KINDS = {
    "pid": "pid_namespaces",
    "mnt": "mount_namespaces",
    "net": "network_namespaces",
    "ipc": "ipc_namespaces",
    "uts": "uts_namespaces",
    "cgroup": "cgroup_namespaces",
}


def probe_in_process(
    *,
    answers: Mapping[int, int] | None = None,
    user: tuple[int, int] | None = None,
    path: str | None = None,
    before: Sequence[str] = (),
) -> dict[str, Finding]:
    """Return the findings of another process, in which these calls return these errnos and do nothing."""
    arguments = {"filter": _filter(answers).hex() if answers else "", "user": user}
    answer = subprocess.run(
        [*before, sys.executable, "-c", _PROGRAM, str(SOURCES), json.dumps(arguments)],
        env={**os.environ, **({} if path is None else {"PATH": path})},
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert not answer.returncode, answer.stderr.decode()
    return {name: Finding(*each) for name, each in json.loads(answer.stdout).items()}


def _filter(answers: Mapping[int, int]) -> bytes:
    code = [(0x20, 0, 0, 0)]
    for number, error in answers.items():
        code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x0005_0000 | error)]
    return b"".join(struct.pack("=HBBI", *each) for each in [*code, (0x06, 0, 0, 0x7FFF_0000)])


@pytest.fixture(scope="module")
def machine_findings() -> Mapping[str, Finding]:
    """Return the findings on this machine."""
    return probe.probe_machine()


def test_a_process_probes_the_machine_once(machine_findings: Mapping[str, Finding]) -> None:
    assert tuple(machine_findings) == probe.MECHANISMS
    assert probe.probe_machine() is machine_findings


def test_only_findings_that_do_not_work_have_a_remedy(machine_findings: Mapping[str, Finding]) -> None:
    assert [name for name, each in machine_findings.items() if each.works is bool(each.remedy)] == []


def test_trials_leave_no_control_groups_and_no_host_name() -> None:
    """Groups that were there before are of probes that were killed, and others may begin and end meanwhile."""
    groups_before = {each for name in CONTROLLERS for each in cgroups_beside(name)}
    probe_in_process()
    new_groups = {each for name in CONTROLLERS for each in cgroups_beside(name)} - groups_before
    ended = [each for each in new_groups if not alive(int(each.name.rpartition("-")[2]))]
    assert [each for each in ended if each.exists()] == []
    assert os.uname().nodename != "ramet-probe"


@pytest.mark.skipif("os.getuid() != 0", reason="only root can become somebody else")
def test_root_probes_as_an_ordinary_user(machine_findings: Mapping[str, Finding]) -> None:
    """Root has no limit on processes, which shows the user of the trial."""
    assert machine_findings["processes_per_namespace"].works
    assert not probe_in_process(user=(0, 0))["processes_per_namespace"].works


@pytest.mark.parametrize("kind", KINDS)
def test_an_exhausted_kind_of_namespace_is_found_missing(kind: str, machine_findings: Mapping[str, Finding]) -> None:
    """The trial runs as root of a namespace in which the limit is 0, as an administrator may set it."""
    without = probe_in_process(user=(0, 0), before=_with_sysctl(f"user/max_{kind}_namespaces"))
    needing = {KINDS[kind], "bwrap"} | ({"proc_mount"} if kind in ("pid", "mnt") else set())

    assert {name for name in KINDS.values() if not without[name].works} == needing & set(KINDS.values())
    assert not without["bwrap"].works
    assert "No space left" in without[KINDS[kind]].detail


def test_disabled_user_namespaces_are_found_with_their_setting() -> None:
    without = probe_in_process(user=(0, 0), before=_with_sysctl("user/max_user_namespaces"))

    assert not any(without[name].works for name in ("user_namespaces", *KINDS.values(), "bwrap"))
    assert without["user_namespaces"].remedy == "Allow user namespaces: sysctl user.max_user_namespaces=15000."
    assert probe.level_of(without, "bwrap").level is Isolation.L0
    assert "sysctl user.max_user_namespaces" in probe.level_of(without, "bwrap").remedy


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("landlock_restrict_self", {"landlock", "landlock_tcp", "landlock_scopes"}),
        ("seccomp", {"seccomp"}),
        ("prlimit64", {"processes_per_namespace"}),
        ("mount", {"mount_namespaces", "proc_mount", "bwrap"}),
        ("sethostname", {"user_namespaces", "uts_namespaces", "bwrap"}),
    ],
)
def test_a_mechanism_that_only_pretends_to_work_is_detected(
    call: str, missing: set[str], machine_findings: Mapping[str, Finding]
) -> None:
    """The call succeeds and does nothing; each trial checks that a forbidden act fails."""
    pretended = probe_in_process(answers={_number(call): 0})
    differences = {name for name in probe.MECHANISMS if machine_findings[name].works and not pretended[name].works}

    assert differences - {"bwrap"} == missing - {"bwrap"} - {
        name for name in missing if not machine_findings[name].works
    }


def test_a_busy_machine_has_a_limit_of_processor_time(machine_findings: Mapping[str, Finding]) -> None:
    """The trial finds the limit although other processes have the processor while it runs."""
    if not machine_findings["cgroup_cpu"].works:
        pytest.skip(machine_findings["cgroup_cpu"].detail)
    program = (
        "import itertools, sys, time\nsys.path.insert(0, sys.argv[1])\n"
        "from ramet.isolation.linux.trials.cgroups import TRIALS\n"
        "seconds = itertools.count()\ntime.monotonic = lambda: float(next(seconds))\nprint(TRIALS['cgroup_cpu']())"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program, str(SOURCES)], capture_output=True, text=True, check=False
    )

    assert ran.stdout.startswith("version "), ran.stderr


@pytest.mark.parametrize(
    ("call", "missing", "remedy"),
    [
        ("landlock_create_ruleset", "landlock", "lsm="),
        ("seccomp", "seccomp", "CONFIG_SECCOMP_FILTER"),
        ("unshare", "user_namespaces", "docker run --security-opt"),
    ],
)
def test_a_forbidden_mechanism_is_found_missing_with_a_remedy(call: str, missing: str, remedy: str) -> None:
    without = probe_in_process(answers={_number(call): 1})

    assert not without[missing].works
    assert remedy in without[missing].remedy


def test_a_root_that_only_pretends_to_be_read_only_is_detected() -> None:
    """The call succeeds and does nothing; the mode of a file can still be changed."""
    pretended = probe_in_process(answers={_number("mount_setattr"): 0})

    assert not pretended["read_only_root"].works
    assert "changing the mode of a file" in pretended["read_only_root"].detail
    assert pretended["read_only_root"].remedy


def test_an_older_kernel_makes_the_root_read_only_mount_by_mount() -> None:
    """Each mount is remounted without `mount_setattr`."""
    older = probe_in_process(answers={_number("mount_setattr"): errno.ENOSYS})

    assert older["read_only_root"].works


def test_without_user_namespaces_local_says_that_the_root_is_not_read_only() -> None:
    """The level stays, and the missing mechanism has a remedy."""
    without = probe_in_process(user=(0, 0), before=_with_sysctl("user/max_user_namespaces"))
    offered_level = probe.level_of(without, "local")

    assert offered_level.level is Isolation.L1
    assert "read_only_root" in offered_level.missing
    assert "sysctl user.max_user_namespaces" in offered_level.remedy


def test_without_bubblewrap_the_command_that_installs_it_is_named(tmp_path: pathlib.Path) -> None:
    without = probe_in_process(path=str(tmp_path))
    offered_level = probe.level_of({**ALL_WORK, "bwrap": without["bwrap"]}, "bwrap")

    assert without["bwrap"].detail == "not installed"
    assert offered_level.level is Isolation.L0
    assert offered_level.missing == ("bwrap",)
    assert "apt install bubblewrap" in offered_level.remedy


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_bubblewrap_that_confines_nothing_is_detected(machine_findings: Mapping[str, Finding]) -> None:
    """The program of that name only runs its arguments."""
    folder = pathlib.Path("/tmp", f"ramet-probe-{os.getpid()}")
    folder.mkdir()
    try:
        false = folder / "bwrap"
        false.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
        false.chmod(0o755)
        without = probe_in_process(path=f"{folder}:/usr/bin:/bin")
    finally:
        shutil.rmtree(folder)

    assert machine_findings["bwrap"].works
    assert not without["bwrap"].works
    assert without["bwrap"].detail.startswith("not refused: seen inside, of the host: files processes name")


@pytest.mark.parametrize(
    ("missing", "bwrap", "local"),
    [
        ((), Isolation.L2, Isolation.L1),
        (("seccomp",), Isolation.L0, Isolation.L0),
        (("landlock",), Isolation.L2, Isolation.L0),
        (("landlock_scopes",), Isolation.L2, Isolation.L0),
        (("landlock_tcp", "cgroup_memory", "proc_mount"), Isolation.L2, Isolation.L1),
        (("user_namespaces",), Isolation.L0, Isolation.L1),
        (("cgroup_namespaces",), Isolation.L0, Isolation.L1),
        (("bwrap",), Isolation.L0, Isolation.L1),
        (probe.MECHANISMS, Isolation.L0, Isolation.L0),
    ],
)
def test_a_level_needs_all_of_its_mechanisms(missing: Sequence[str], bwrap: Isolation, local: Isolation) -> None:
    findings = {**ALL_WORK, **{name: Finding(False, "", f"Mend {name}.") for name in missing}}
    levels: dict[Literal["bwrap", "local"], Isolation] = {"bwrap": bwrap, "local": local}

    for backend, level in levels.items():
        offered_level = probe.level_of(findings, backend)
        assert offered_level.level is level
        assert set(offered_level.missing) == set(missing) & offered_level.mechanisms.keys()
        assert all(offered_level.mechanisms[name] is (name not in missing) for name in offered_level.mechanisms)
        assert all(f"Mend {name}." in offered_level.remedy for name in offered_level.missing)


def test_mechanisms_that_prevent_a_level_are_named_first() -> None:
    findings = {**ALL_WORK, **dict.fromkeys(("cgroup_memory", "landlock", "bwrap"), Finding(False, "", "Mend it."))}

    assert probe.level_of(findings, "bwrap").missing[0] == "bwrap"
    assert probe.level_of(findings, "bwrap").remedy == "Mend it."


def test_a_trial_that_cannot_run_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/none")

    findings = probe.probe_machine((os.getuid() + 1, os.getgid()))

    assert not any(each.works for each in findings.values())
    assert "/none" in findings["seccomp"].detail


def test_a_process_that_ignores_the_ends_of_its_children_gets_that_remedy() -> None:
    """SIGCHLD may be ignored since before the process began; once that is over, the machine is probed."""
    program = """
import signal
from ramet.isolation import probe
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
ignored = probe.probe_machine()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print([each.works for each in ignored.values()].count(True), probe.level_of(ignored, "bwrap").remedy)
print(probe.probe_machine()["seccomp"].works)
"""
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert run.stdout.splitlines() == [
        "0 Restore the signal in this process: signal.signal(signal.SIGCHLD, signal.SIG_DFL).",
        str(probe.probe_machine()["seccomp"].works),
    ]


def test_another_system_gets_the_remedy_to_use_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    findings = probe.probe_machine((os.getuid() + 2, os.getgid()))

    assert probe.level_of(findings, "local").level is Isolation.L0
    assert probe.level_of(findings, "local").remedy == "Run ramet on Linux, or on a Linux virtual machine."


def cgroups_beside(controller: str) -> list[pathlib.Path]:
    """Return the control groups of trials next to or below this process's own group of the controller."""
    try:
        folder = cgroups.place(controller).folder
    except OSError:
        return []
    return [*folder.glob("ramet-probe-*"), *folder.parent.glob("ramet-probe-*")]


def _with_sysctl(name: str) -> list[str]:
    """Return a command that runs another one as root of a user namespace in which this setting is 0."""
    return ["unshare", "-Urm", "sh", "-c", f'echo 0 > /proc/sys/{name} && exec "$@"', "sh"]


def _number(call: str) -> int:
    x86 = os.uname().machine == "x86_64"
    others = {"landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446), "prlimit64": (302, 261)}
    if call in others:
        return others[call][0 if x86 else 1]
    return syscall_numbers.table_of(os.uname().machine).number[call]
