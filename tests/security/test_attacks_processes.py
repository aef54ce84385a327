"""Attacks 21 to 39 of the list: other processes, and the parts of the kernel that lead out."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.security.attacks import files, network, processes
from tests.security.kit import REFUSED, Kernel, as_root, assert_refused, assert_works, canary, wait_until, worked

#: What the sandbox itself says no with; not "no such module", which the machine may say to anybody.
NO = ("EPERM", "EACCES")


def test_21_no_process_of_the_host_can_be_signalled(kernel: Kernel) -> None:
    """21: neither the kernel, nor a bystander of the same user, nor pid 1 is asked, slowed, limited or ended."""
    doomed = kernel.play("victim")
    assert_works(
        kernel.control(processes.signal_others, [doomed]), f"queue {doomed}", f"group {doomed}", f"end {doomed}"
    )
    wait_until(lambda: not kernel.play("is_alive", pid=doomed))

    pids = [kernel.play("victim"), kernel.play("own_pid")]
    assert_refused(kernel.attack(processes.signal_others, pids), "ESRCH", "EPERM", "EACCES")
    assert kernel.play("is_alive", pid=pids[0])


def test_21_a_sibling_cannot_be_signalled(kernel: Kernel) -> None:
    """21: the processes of another agent are out of reach, by the numbers that the host knows them by."""
    mark = f"sibling-of-{kernel.backend}-{kernel.user}"
    pids = kernel.start_never_ending("sibling", mark)

    tried = kernel.attack(processes.signal_others, pids)

    assert_refused(tried, "ESRCH", "EPERM", "EACCES")
    assert kernel.play("processes", mark=mark) == pids
    kernel.play("cancel", key="sibling")


def test_21_ending_everybody_ends_nobody_else(kernel: Kernel) -> None:
    """21: kill(-1) reaches no process outside."""
    pid = kernel.play("victim")

    kernel.run(processes.signal_everyone)

    assert kernel.play("is_alive", pid=pid)


def test_22_only_own_processes_are_listed(kernel: Kernel) -> None:
    """22: /proc shows the processes of this sandbox, or nothing."""
    pid = kernel.play("victim")
    assert pid in kernel.control(processes.list_processes)

    seen = kernel.attack(processes.list_processes)

    assert not {pid, kernel.play("own_pid")} & set(seen)
    assert len(seen) <= 4


def test_23_no_process_can_be_traced(kernel: Kernel) -> None:
    """23: ptrace, process_vm_readv and writev, pidfd_getfd and kcmp, on others and on one's own child."""
    pid = kernel.play("victim")
    control = as_root(processes.trace, 1)
    if control is not None:
        assert_works({name: said for name, said in control.items() if name.startswith("child")}, "child detach")

    tried = kernel.attack(processes.trace, pid)

    assert_refused({name: said for name, said in tried.items()}, "EPERM", "ESRCH", "EBADF", "ENOSYS")
    assert_refused({name: said for name, said in tried.items() if name.startswith(("child", "let"))}, "EPERM", "ENOSYS")


def test_24_nothing_is_learnt_about_other_processes(kernel: Kernel) -> None:
    """24: memory, environment, maps and links of processes of the host."""
    pids = [kernel.play("victim"), kernel.play("own_pid")]
    assert worked(kernel.control(processes.look_into, pids[:1])[f"{pids[0]} environ"])

    tried = kernel.attack(processes.look_into, pids)
    if not kernel.has_namespaces:  # Landlock does not stop stat: that a number is in use can be seen
        tried = {name: said for name, said in tried.items() if not name.endswith(" fd")}
    assert_refused(tried, "ENOENT", "EACCES", "EPERM", "ESRCH")


def test_26_no_secret_is_in_a_command_line(kernel: Kernel) -> None:
    """26, NEG-7: values of a policy are in no command line and no environment that the host can list."""
    secret, variable = canary(), canary()
    if not kernel.has_namespaces:
        assert_no_secrets_there(kernel, secret.text)
        return
    policy: dict[str, Any] = {"secrets": {"token": secret.text}, "env_vars": {"SETTING": variable.text}}
    kernel.play(
        "start",
        key="keeper",
        agent="tests.security.attacks.answers:write_and_wait",
        args=["words", 60],
        policy=policy,
    )

    seen = kernel.play("command_lines")
    left = kernel.play("files_with", text=secret.text)
    kernel.play("cancel", key="keeper")

    assert secret.text not in seen
    assert left == []
    assert kernel.play("files_with", text=secret.text) == []
    found = kernel.attack(processes.search_for, secret.first, secret.second, ["/run", "/tmp"], **policy)
    assert [place for place in found if not place.startswith(("/run/secrets/token", "memory"))] == []
    assert "/run/secrets/token" in found


def assert_no_secrets_there(kernel: Kernel, text: str) -> None:
    """Without namespaces there is no private place for a secret: refused by name, and not repeated anywhere."""
    result = kernel.run(processes.environment, secrets={"token": text})

    assert result["status"] == "failed"
    assert "secrets" in result["error"]["message"]
    assert text not in str(result)
    assert kernel.play("files_with", text=text) == []


def test_28_no_namespace_can_be_made(kernel: Kernel) -> None:
    """28: user, mount, pid, net and the other namespaces by unshare, by clone, by clone3."""
    control = as_root(processes.new_namespaces)
    if control is not None:
        assert_works(control, "high bits")
    assert_refused(kernel.attack(processes.new_namespaces), "EPERM", "ENOSYS", "EINVAL")
    said = kernel.attack(processes.new_namespaces)
    del said["high bits"]
    assert_refused(said, "EPERM", "ENOSYS")


def test_29_no_namespace_can_be_entered(kernel: Kernel) -> None:
    """29: setns to one's own, to a bystander's, to the kernel's, to no descriptor at all."""
    pids = [kernel.play("victim"), kernel.play("own_pid")]
    control = as_root(processes.enter_namespaces, [])
    if control is not None:
        assert control["no descriptor"] == "EBADF"
        assert_works(control, "no descriptor", "self user")

    tried = kernel.attack(processes.enter_namespaces, pids)

    assert tried["no descriptor"] == "EPERM"
    assert_refused(tried, "EPERM", "EACCES", "ENOENT", "ESRCH")


def test_30_no_setting_of_the_kernel_can_be_changed(kernel: Kernel) -> None:
    """30: core_pattern and other settings, cgroups, maps of users, the own standing with the oom killer."""
    control = as_root(processes.open_settings)
    if control is not None:
        assert worked(control["/proc/sys/kernel/core_pattern"])
        assert worked(control["/proc/sys/vm/overcommit_memory"])
    assert_refused(kernel.attack(processes.open_settings))


def test_30_the_kernels_memory_and_log_are_closed(kernel: Kernel) -> None:
    """30: kernel memory, its log, addresses."""
    control = as_root(processes.read_settings)
    if control is not None:
        assert worked(control["/proc/kmsg"])
    assert_refused(kernel.attack(processes.read_settings))


def test_31_dangerous_parts_of_the_kernel_are_closed(kernel: Kernel) -> None:
    """31: bpf, perf, userfaultfd, io_uring, kexec, reboot, modules, syslog, quota, time, swap."""
    control = as_root(processes.call_the_kernel)
    if control is not None:  # the machine would let root through, or has no such call at all
        assert [name for name, said in control.items() if said in NO] == []

    assert_refused(kernel.attack(processes.call_the_kernel), "EPERM", "ENOSYS")


def test_31_calls_by_another_abi_are_no_way_round(kernel: Kernel) -> None:
    """31: int 0x80 and x32, whose numbers mean other calls, end the process or are refused."""
    control = as_root(processes.call_by_another_abi)
    if control:
        assert worked(control["int 0x80"]) or control["int 0x80"].startswith("signal")

    tried = kernel.attack(processes.call_by_another_abi)

    assert {name for name, said in tried.items() if said not in ("signal 31", "EPERM", "ENOSYS", "signal 11")} == set()


def test_31_no_process_is_made_beside_its_maker(kernel: Kernel) -> None:
    """31: a process whose parent is its maker's parent would be outside of what is counted; no call makes one."""
    assert_works(kernel.control(processes.clone_beside))

    assert_refused(kernel.attack(processes.clone_beside), "EPERM", "ENOSYS")


def test_32_keyrings_are_closed(kernel: Kernel) -> None:
    """32: add_key, request_key and keyctl; the keyring of the host's session cannot be described."""
    control = kernel.control(processes.use_keyrings)
    assert worked(control["add_key"])
    assert worked(control["join session"])

    assert_refused(kernel.attack(processes.use_keyrings), "EPERM", "ENOSYS")


def test_34_no_limit_can_be_raised(kernel: Kernel) -> None:
    """34: hard limits, priority and the real-time class; the limits that matter are there."""
    control = as_root(processes.raise_limits)
    if control is not None:
        assert worked(control["nice"])
        assert worked(control["real time"])

    tried = kernel.attack(processes.raise_limits)

    assert {"NPROC", "NOFILE", "CORE"} <= set(tried)
    assert_refused(tried, "EPERM", "EACCES", "ValueError")
    assert kernel.attack(processes.limits)["CORE"] == 0


def test_35_nobody_becomes_somebody_else(kernel: Kernel) -> None:
    """35: setuid, setgroups, capset; a setuid program runs as who started it; no capability, none to be had."""
    control = as_root(processes.gain_rights)
    if control is not None:
        assert_works(control)
    tried = kernel.attack(processes.gain_rights)
    assert_refused(tried, "EPERM", "EINVAL")

    who = kernel.attack(processes.identity)
    programs = [path for path in SETUID if Path(path).exists() and Path(path).stat().st_mode & stat.S_ISUID]
    ran = kernel.attack(processes.run_setuid_programs, programs)
    assert {said for said in ran.values() if worked(said)} <= {"done", f"done: {who['uid']}"}

    status = kernel.attack(processes.status)
    if status:  # where /proc is closed, the attempts above must do
        sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"]
        sets += ["CapBnd"] if kernel.has_namespaces else []  # who has no capability cannot give up the right to one
        assert {name: int(status[name], 16) for name in sets} == dict.fromkeys(sets, 0)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


SETUID = ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd", "/usr/bin/chsh", "/usr/bin/newgrp")


def test_35_an_agent_is_nobody_of_importance_on_the_host(kernel: Kernel) -> None:
    """30, 35: whoever runs the kernel, no process of an agent belongs to uid 0 of the host."""
    mark = f"nobody-{kernel.backend}-{kernel.user}"
    pids = kernel.start_never_ending("nobody", mark)

    owners = {kernel.play("owner", pid=pid) for pid in pids}
    kernel.play("cancel", key="nobody")

    assert len(owners) == 1
    assert 0 not in owners


def test_37_terminals_are_not_typed_into(kernel: Kernel) -> None:
    """37: TIOCSTI and TIOCLINUX are refused on whatever stdio is, high bits or not, and on a terminal of one's own."""
    control = as_root(processes.type_into_terminals)
    if control is not None:
        assert worked(control["TIOCSTI own"])

    tried = kernel.attack(processes.type_into_terminals)

    tried_tty, own = tried.pop("/dev/tty"), tried.pop("TIOCSTI own", "EPERM")
    assert_refused(tried, "EPERM")
    assert own == "EPERM"
    assert tried_tty in REFUSED


def test_38_a_crash_leaves_no_core(kernel: Kernel) -> None:
    """38: no core file, and no handler of the host is started."""
    control = as_root(processes.dump_core)
    if control is not None:
        assert control["dumped"]

    assert kernel.attack(processes.dump_core) == {"dumped": False, "limit": 0, "files": []}


def test_39_a_program_from_memory_is_confined_too(kernel: Kernel) -> None:
    """39: what runs from no file at all reads no more than its maker."""
    assert kernel.key.text in kernel.control(processes.run_from_memory, str(kernel.secret))["by execveat"]

    said = kernel.attack(processes.run_from_memory, str(kernel.secret))

    assert kernel.key.text not in str(said)


def test_92_keys_of_the_host_are_nowhere_inside(kernel: Kernel) -> None:
    """92: the provider keys in the host's environment are in no variable, file, process or memory of an agent."""
    searched = [kernel.key.first, kernel.key.second, [str(kernel.base), "/run", "/tmp", "/etc", "/dev/shm"]]
    # The whole of the host's /tmp holds what others left there, and may be a matter of minutes.
    assert "variable ANTHROPIC_API_KEY" in kernel.control(processes.search_for, *searched[:2], [str(kernel.base)])

    assert kernel.attack(processes.search_for, *searched) == []
    assert kernel.key.text not in str(kernel.attack(processes.environment))


def test_92_no_process_of_ours_beside_an_agent_carries_the_hosts_environment(kernel: Kernel) -> None:
    """92: launcher, zygote, parked and working agents are all started with nothing of it."""
    mark = f"environment-{kernel.backend}-{kernel.user}"
    kernel.start_never_ending("environment", mark)

    seen = kernel.play("environments")
    kernel.play("cancel", key="environment")

    assert len(seen) >= 3
    assert [each for each in seen if kernel.key.text in each or "HOST_PLAIN" in each] == []


def test_194_variables_of_the_host_come_by_name_only(kernel: Kernel) -> None:
    """194: what the policy names is forwarded, what it sets is set, and nothing else of the host's environment is."""
    seen = kernel.attack(
        processes.environment, allowed_env_vars=["HOST_PLAIN", "NOT_SET_ANYWHERE"], env_vars={"MINE": "my words"}
    )

    assert (seen["HOST_PLAIN"], seen["MINE"]) == ("plain words of the host", "my words")
    assert not {"NOT_SET_ANYWHERE", "ANTHROPIC_API_KEY", "SOME_SERVICE_TOKEN", "SSH_AUTH_SOCK", "PYTHONPATH"} & set(
        seen
    )
    assert "HOST_PLAIN" not in kernel.attack(processes.environment)


def test_only_the_channel_and_the_streams_are_inherited(kernel: Kernel) -> None:
    """51, NEG-10: no descriptor of the host comes along but stdio and the one channel."""
    fds = kernel.attack(processes.identity)["fds"]

    assert set(fds) >= {0, 1, 2}
    assert len(fds) <= 4


def test_fresh_sandboxes_are_as_tight(kernel: Kernel) -> None:
    """1, 18, 28, 31, 55: the gates are the same for an agent that shares no zygote, where there are such."""
    if kernel.backend == "local" and not kernel.has_namespaces:
        pytest.skip("L1 offers no fresh sandbox")
    fresh: dict[str, Any] = {"isolation": "fresh"} if kernel.backend == "bwrap" else {}

    assert_refused(kernel.attack(files.read, [str(kernel.secret), "/etc/shadow"], **fresh))
    assert_refused(kernel.attack(files.change_mounts, **fresh), "EPERM", "ENOSYS", "EACCES")
    assert_refused(kernel.attack(processes.call_the_kernel, **fresh), "EPERM", "ENOSYS")
    assert_refused(kernel.attack(network.listen, **fresh), "EPERM", "EACCES", "EAFNOSUPPORT")
    assert kernel.attack(processes.search_for, kernel.key.first, kernel.key.second, ["/run", "/tmp"], **fresh) == []


def test_namespaces_of_its_own(kernel: Kernel) -> None:
    """L2: every namespace differs from the host's, and from those of the next agent."""
    if not kernel.has_namespaces:
        pytest.skip("L1 promises no namespaces")
    kernel.play("start", key="neighbour", agent="tests.security.attacks.processes:tell_identity_and_wait", args=[60])
    told = [kernel.control(processes.identity), kernel.attack(processes.identity)]
    told.append(json.loads(kernel.play("said", key="neighbour")))
    kernel.play("cancel", key="neighbour")

    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        seen = [each["namespaces"][name] for each in told]
        assert len(set(seen)) == 3, (name, seen)
    assert told[0]["host"] != told[1]["host"]
