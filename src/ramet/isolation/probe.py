"""The mechanisms of this machine that can confine a process, found by trials, and remedies for missing ones."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Literal, NamedTuple

from ramet.core.policy.policy import Isolation
from ramet.isolation import python_runtime
from ramet.isolation.contract import Probe

#: The user of the trials where root calls and names no user: the kernel's own "nobody".
NOBODY = (65534, 65534)
_TRIALS_S = 60  #: for all trials; they take a fifth of a second on a quiet machine

_PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ramet.isolation.linux.trials import all as trials
trials.main(*json.loads(sys.argv[2]))
"""

#: The kinds of namespaces.
NAMESPACES = (
    "user_namespaces",
    "pid_namespaces",
    "mount_namespaces",
    "network_namespaces",
    "ipc_namespaces",
    "uts_namespaces",
    "cgroup_namespaces",
)
_CGROUPS = ("cgroup_memory", "cgroup_cpu", "cgroup_pids")
_LANDLOCK = ("landlock", "landlock_tcp", "landlock_scopes")
#: All tried mechanisms, in the order in which they are reported.
MECHANISMS = (
    *NAMESPACES,
    "proc_mount",
    "read_only_root",
    "processes_per_namespace",
    "seccomp",
    *_LANDLOCK,
    "bwrap",
    *_CGROUPS,
)

#: Without any of these the level is not reached. Other missing mechanisms are compensated for, and reported.
_NEEDED: Mapping[str, tuple[Isolation, tuple[str, ...]]] = {
    # In its own namespaces a process reaches no files, sockets or processes that Landlock would keep it from.
    "bwrap": (Isolation.L2, (*NAMESPACES, "processes_per_namespace", "seccomp", "bwrap")),
    # Without namespaces only Landlock keeps it from files, abstract sockets and other processes. TCP is not among
    # these: the filter lets no socket be made.
    "local": (Isolation.L1, ("seccomp", "landlock", "landlock_scopes")),
}

#: Mechanisms that a backend replaces where they are missing: limits by rlimits and a watchdog, no /proc, one gate less.
#: Without a read-only root, a guest of `local` may change modes and times of files that its user owns.
_OF_USE: Mapping[str, tuple[str, ...]] = {
    "bwrap": ("proc_mount", *_LANDLOCK, *_CGROUPS),
    "local": ("read_only_root", *_CGROUPS),
}


class Finding(NamedTuple):
    """The result for one mechanism.

    `detail` is the observation, `remedy` the action of a person if it does not work.
    """

    works: bool
    detail: str = ""
    remedy: str = ""


def probe_machine(user: tuple[int, int] | None = None) -> Mapping[str, Finding]:
    """Try every mechanism as this user and group, once per process; takes a fifth of a second.

    Without `user`, the trials run as the caller, or as NOBODY if the caller is root. Cgroups are tried as the caller.
    Blocks: in an event loop, call this in a thread. Never raises for a mechanism that does not work.
    """
    if sys.platform != "linux":
        missing = Finding(False, f"{sys.platform} is not Linux", "Run ramet on Linux, or on a Linux virtual machine.")
        return dict.fromkeys(MECHANISMS, missing)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        remedy = "Restore the signal in this process: signal.signal(signal.SIGCHLD, signal.SIG_DFL)."
        return dict.fromkeys(MECHANISMS, Finding(False, "SIGCHLD is ignored: no end of a process is seen", remedy))
    if user is None and os.getuid() == 0:
        user = NOBODY
    return _findings_for(user)


@functools.cache
def _findings_for(user: tuple[int, int] | None) -> Mapping[str, Finding]:
    return findings(_run_trials(user))


def findings(trial_results: Mapping[str, tuple[bool, str]]) -> Mapping[str, Finding]:
    """Return the finding, with its remedy, of each mechanism that was tried."""
    return {name: _finding(name, *trial_results[name]) for name in MECHANISMS if name in trial_results}


def level_of(findings_by_name: Mapping[str, Finding], backend: Literal["local", "bwrap"]) -> Probe:
    """Return the level that a backend reaches: its own, or L0 where a mechanism that it needs is missing.

    `missing` lists first the mechanisms that the level needs, then those that are compensated for; `remedy` names the
    remedy for each.
    """
    level, needs = _NEEDED[backend]
    mechanisms = [name for name in MECHANISMS if name in {*needs, *_OF_USE[backend]}]
    missing = sorted(
        (name for name in mechanisms if not findings_by_name[name].works), key=lambda name: name not in needs
    )
    return Probe(
        Isolation.L0 if missing and missing[0] in needs else level,
        {name: findings_by_name[name].works for name in mechanisms},
        tuple(missing),
        " ".join(dict.fromkeys(findings_by_name[name].remedy for name in missing)),
    )


def _run_trials(user: tuple[int, int] | None) -> Mapping[str, tuple[bool, str]]:
    source = pathlib.Path(__file__).resolve().parents[2]
    request = [*(user or (None, None)), shutil.which("bwrap")]
    try:
        answer = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                "-B",
                *python_runtime.bytecode(),
                "-c",
                _PROGRAM,
                str(source),
                json.dumps(request),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIALS_S,
            env={},
            check=True,
        )
        results: dict[str, tuple[bool, str]] = {
            name: (bool(each[0]), str(each[1])) for name, each in json.loads(answer.stdout).items()
        }
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return dict.fromkeys(MECHANISMS, (False, f"could not be tried: {error}"))
    return results


def _finding(name: str, works: bool, detail: str) -> Finding:
    return Finding(works, detail, "" if works else _remedy(name, detail))


def _remedy(name: str, detail: str) -> str:
    match name:
        case "bwrap" if detail == "not installed":
            return "Install bubblewrap: apt install bubblewrap (or dnf, apk, pacman)."
        case "bwrap" | "processes_per_namespace":
            return _no_user_namespaces() or _advise_for_container("creating user namespaces")
        case _ if name in NAMESPACES:
            return _no_user_namespaces() or _advise_for_container("creating namespaces")
        case "proc_mount":
            return _advise_for_container("mounting /proc (systempaths=unconfined, or procMount: Unmasked)")
        case "read_only_root":
            return _no_user_namespaces() or _advise_for_container(
                "making mounts read-only (mount_setattr, or a remount)"
            )
        case "seccomp":
            return "Run on Linux 4.14 or newer with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64."
        case "landlock":
            return (
                "Run on Linux 5.13 or newer with Landlock: CONFIG_SECURITY_LANDLOCK, and landlock in the list "
                "lsm= of the kernel's command line; see /sys/kernel/security/lsm."
            )
        case "landlock_tcp":
            return "Run on Linux 6.7 or newer, whose Landlock decides over TCP."
        case "landlock_scopes":
            return "Run on Linux 6.12 or newer, whose Landlock keeps signals and abstract sockets inside."
        case _:
            return (
                "Let this user make cgroups with the controllers memory, cpu and pids: run as root, or in a unit of "
                "systemd with Delegate=yes, or in a container with a writable /sys/fs/cgroup."
            )


def _no_user_namespaces() -> str:
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "Allow user namespaces: sysctl kernel.unprivileged_userns_clone=1."
    if _setting("user/max_user_namespaces") == "0":
        return "Allow user namespaces: sysctl user.max_user_namespaces=15000."
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts user namespaces here (Ubuntu since 23.10): give the program a profile with the rule "
            "userns, or sysctl kernel.apparmor_restrict_unprivileged_userns=0."
        )
    return ""


def _advise_for_container(operation: str) -> str:
    return (
        f"In a container, allow {operation}: its seccomp or AppArmor profile forbids it "
        "(docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or a profile of your own)."
    )


def _setting(name: str) -> str | None:
    try:
        return pathlib.Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None
