"""Attacks 21 to 39, 92 and 194 of the list: other processes, and parts of the kernel that lead out of a sandbox."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.security.attacks import files, network, processes
from tests.security.kit import REFUSED, Kernel, as_root, assert_refused, assert_works, canary, has_succeeded, wait_until

#: What the sandbox itself says no with; not "no such module", which the machine may say to anybody.
NO = ("EPERM", "EACCES")


def test_21_an_agent_cannot_signal_a_process_of_the_host(kernel: Kernel) -> None:
    """21: an agent cannot signal, slow, limit or end the kernel, or another process of the same user."""
    doomed = kernel.play("victim")
    assert_works(
        kernel.control(processes.signal_others, [doomed]), f"queue {doomed}", f"group {doomed}", f"end {doomed}"
    )
    wait_until(lambda: not kernel.play("is_alive", pid=doomed))

    pids = [kernel.play("victim"), kernel.play("own_pid")]
    assert_refused(kernel.attack(processes.signal_others, pids), "ESRCH", "EPERM", "EACCES")
    assert kernel.play("is_alive", pid=pids[0])


def test_21_an_agent_cannot_signal_a_sibling(kernel: Kernel) -> None:
    """21: an agent cannot signal the processes of another agent by the pids that the host sees."""
    mark = f"sibling-of-{kernel.backend}-{kernel.user}"
    pids = kernel.start_never_ending("sibling", mark)

    tried = kernel.attack(processes.signal_others, pids)

    assert_refused(tried, "ESRCH", "EPERM", "EACCES")
    assert kernel.play("processes", mark=mark) == pids
    kernel.play("cancel", key="sibling")


def test_21_kill_of_every_process_ends_none_outside(kernel: Kernel) -> None:
    """21: kill(-1) in a sandbox ends no process outside."""
    pid = kernel.play("victim")

    kernel.run(processes.signal_everyone)

    assert kernel.play("is_alive", pid=pid)


def test_22_an_agent_lists_only_its_own_processes(kernel: Kernel) -> None:
    """22: /proc shows the processes of the sandbox, or nothing."""
    pid = kernel.play("victim")
    assert pid in kernel.control(processes.list_processes)

    seen = kernel.attack(processes.list_processes)

    assert not {pid, kernel.play("own_pid")} & set(seen)
    assert len(seen) <= 4


def test_23_an_agent_can_trace_no_process(kernel: Kernel) -> None:
    """23: ptrace, process_vm_readv and writev, pidfd_getfd and kcmp are refused, even on the agent's own child."""
    pid = kernel.play("victim")
    control = as_root(processes.trace, 1)
    if control is not None:
        assert_works({name: outcome for name, outcome in control.items() if name.startswith("child")}, "child detach")

    tried = kernel.attack(processes.trace, pid)

    assert_refused({name: outcome for name, outcome in tried.items()}, "EPERM", "ESRCH", "EBADF", "ENOSYS")
    assert_refused(
        {name: outcome for name, outcome in tried.items() if name.startswith(("child", "let"))}, "EPERM", "ENOSYS"
    )


def test_24_an_agent_learns_nothing_about_processes_of_the_host(kernel: Kernel) -> None:
    """24: memory, environment, maps and links of the host's processes cannot be read."""
    pids = [kernel.play("victim"), kernel.play("own_pid")]
    assert has_succeeded(kernel.control(processes.look_into, pids[:1])[f"{pids[0]} environ"])

    tried = kernel.attack(processes.look_into, pids)
    if not kernel.has_namespaces:  # Landlock does not stop stat: that a number is in use can be seen
        tried = {name: outcome for name, outcome in tried.items() if not name.endswith(" fd")}
    assert_refused(tried, "ENOENT", "EACCES", "EPERM", "ESRCH")


def test_26_neg_7_no_command_line_or_environment_holds_a_secret(kernel: Kernel) -> None:
    """26, NEG-7: a secret is in no command line, environment or file of the host.

    The agent finds it in /run/secrets.
    """
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
    assert [location for location in found if not location.startswith(("/run/secrets/token", "memory"))] == []
    assert "/run/secrets/token" in found


def assert_no_secrets_there(kernel: Kernel, text: str) -> None:
    """Assert that a run with a secret fails by name, since a machine without namespaces has no private place for it."""
    result = kernel.run(processes.environment, secrets={"token": text})

    assert result["status"] == "failed"
    assert "secrets" in result["error"]["message"]
    assert text not in str(result)
    assert kernel.play("files_with", text=text) == []


def test_28_an_agent_cannot_make_a_namespace(kernel: Kernel) -> None:
    """28: unshare, clone and clone3 make no user, mount, pid, net or other namespace."""
    control = as_root(processes.new_namespaces)
    if control is not None:
        assert_works(control, "high bits")
    assert_refused(kernel.attack(processes.new_namespaces), "EPERM", "ENOSYS", "EINVAL")
    outcomes = kernel.attack(processes.new_namespaces)
    del outcomes["high bits"]
    assert_refused(outcomes, "EPERM", "ENOSYS")


def test_29_an_agent_cannot_enter_a_namespace(kernel: Kernel) -> None:
    """29: setns is refused for namespaces of the agent, of another process and of the kernel, and for no descriptor."""
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
        assert has_succeeded(control["/proc/sys/kernel/core_pattern"])
        assert has_succeeded(control["/proc/sys/vm/overcommit_memory"])
    assert_refused(kernel.attack(processes.open_settings))


def test_30_an_agent_cannot_read_kernel_memory_and_log(kernel: Kernel) -> None:
    """30: kernel memory, the kernel's log and addresses of its symbols cannot be read."""
    control = as_root(processes.read_settings)
    if control is not None:
        assert has_succeeded(control["/proc/kmsg"])
    assert_refused(kernel.attack(processes.read_settings))


def test_31_dangerous_calls_of_the_kernel_are_refused(kernel: Kernel) -> None:
    """31: bpf, perf, userfaultfd, io_uring, kexec, reboot, modules, syslog, quota, time and swap are refused."""
    control = as_root(processes.call_the_kernel)
    if control is not None:  # the machine would let root through, or has no such call at all
        assert [name for name, outcome in control.items() if outcome in NO] == []

    assert_refused(kernel.attack(processes.call_the_kernel), "EPERM", "ENOSYS")


def test_31_calls_by_another_abi_are_refused(kernel: Kernel) -> None:
    """31: int 0x80 and x32, whose numbers mean other calls, are refused or end the process."""
    control = as_root(processes.call_by_another_abi)
    if control:
        assert has_succeeded(control["int 0x80"]) or control["int 0x80"].startswith("signal")

    tried = kernel.attack(processes.call_by_another_abi)

    assert {
        name for name, outcome in tried.items() if outcome not in ("signal 31", "EPERM", "ENOSYS", "signal 11")
    } == set()


def test_31_an_agent_cannot_make_a_sibling_process(kernel: Kernel) -> None:
    """31: no call makes a process whose parent is the caller's parent. The count of processes would miss it."""
    assert_works(kernel.control(processes.clone_beside))

    assert_refused(kernel.attack(processes.clone_beside), "EPERM", "ENOSYS")


def test_32_an_agent_cannot_use_keyrings(kernel: Kernel) -> None:
    """32: add_key, request_key and keyctl are refused."""
    control = kernel.control(processes.use_keyrings)
    assert has_succeeded(control["add_key"])
    assert has_succeeded(control["join session"])

    assert_refused(kernel.attack(processes.use_keyrings), "EPERM", "ENOSYS")


def test_34_an_agent_cannot_raise_its_limits(kernel: Kernel) -> None:
    """34: hard limits, priority and the real-time class cannot be raised. The limit of core files is zero."""
    control = as_root(processes.raise_limits)
    if control is not None:
        assert has_succeeded(control["nice"])
        assert has_succeeded(control["real time"])

    tried = kernel.attack(processes.raise_limits)

    assert {"NPROC", "NOFILE", "CORE"} <= set(tried)
    assert_refused(tried, "EPERM", "EACCES", "ValueError")
    assert kernel.attack(processes.limits)["CORE"] == 0


def test_35_an_agent_cannot_change_its_user_or_capabilities(kernel: Kernel) -> None:
    """35: setuid, setgroups and capset are refused.

    Setuid programs run as the agent's user, and it has no capability.
    """
    control = as_root(processes.gain_rights)
    if control is not None:
        assert_works(control)
    tried = kernel.attack(processes.gain_rights)
    assert_refused(tried, "EPERM", "EINVAL")

    identity = kernel.attack(processes.identity)
    programs = [path for path in SETUID if Path(path).exists() and Path(path).stat().st_mode & stat.S_ISUID]
    ran = kernel.attack(processes.run_setuid_programs, programs)
    assert {outcome for outcome in ran.values() if has_succeeded(outcome)} <= {"done", f"done: {identity['uid']}"}

    status = kernel.attack(processes.status)
    if status:  # where /proc is closed, the attempts above must do
        sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"]
        sets += ["CapBnd"] if kernel.has_namespaces else []  # who has no capability cannot give up the right to one
        assert {name: int(status[name], 16) for name in sets} == dict.fromkeys(sets, 0)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


SETUID = ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd", "/usr/bin/chsh", "/usr/bin/newgrp")


def test_35_no_process_of_an_agent_is_root_on_the_host(kernel: Kernel) -> None:
    """30, 35: no process of an agent belongs to uid 0 of the host, also where root runs the kernel."""
    mark = f"nobody-{kernel.backend}-{kernel.user}"
    pids = kernel.start_never_ending("nobody", mark)

    owners = {kernel.play("owner", pid=pid) for pid in pids}
    kernel.play("cancel", key="nobody")

    assert len(owners) == 1
    assert 0 not in owners


def test_37_an_agent_cannot_type_into_terminals(kernel: Kernel) -> None:
    """37: TIOCSTI and TIOCLINUX are refused on stdio, also with high bits, and on a terminal that the agent opens."""
    control = as_root(processes.type_into_terminals)
    if control is not None:
        assert has_succeeded(control["TIOCSTI own"])

    tried = kernel.attack(processes.type_into_terminals)

    tried_tty, own = tried.pop("/dev/tty"), tried.pop("TIOCSTI own", "EPERM")
    assert_refused(tried, "EPERM")
    assert own == "EPERM"
    assert tried_tty in REFUSED


def test_38_a_crash_leaves_no_core_file(kernel: Kernel) -> None:
    """38: a crash leaves no core file, and the limit of core files is zero."""
    control = as_root(processes.dump_core)
    if control is not None:
        assert control["dumped"]

    assert kernel.attack(processes.dump_core) == {"dumped": False, "limit": 0, "files": []}


def test_39_a_program_from_memory_is_confined_too(kernel: Kernel) -> None:
    """39: a program without a file cannot read the host's secret either."""
    assert kernel.key.text in kernel.control(processes.run_from_memory, str(kernel.secret))["by execveat"]

    outcomes = kernel.attack(processes.run_from_memory, str(kernel.secret))

    assert kernel.key.text not in str(outcomes)


def test_92_an_agent_finds_no_keys_of_the_host(kernel: Kernel) -> None:
    """92: the provider keys in the host's environment are in no variable, file, process or memory of an agent."""
    searched = [kernel.key.first, kernel.key.second, [str(kernel.base), "/run", "/tmp", "/etc", "/dev/shm"]]
    # The whole of the host's /tmp holds what others left there, and may be a matter of minutes.
    assert "variable ANTHROPIC_API_KEY" in kernel.control(processes.search_for, *searched[:2], [str(kernel.base)])

    assert kernel.attack(processes.search_for, *searched) == []
    assert kernel.key.text not in str(kernel.attack(processes.environment))


def test_92_no_process_below_the_kernel_has_the_hosts_environment(kernel: Kernel) -> None:
    """92: ramet starts its launcher, zygote, parked and active agents without variables of the host."""
    mark = f"environment-{kernel.backend}-{kernel.user}"
    kernel.start_never_ending("environment", mark)

    seen = kernel.play("environments")
    kernel.play("cancel", key="environment")

    assert len(seen) >= 3
    assert [each for each in seen if kernel.key.text in each or "HOST_PLAIN" in each] == []


def test_194_an_agent_gets_only_variables_that_its_policy_names(kernel: Kernel) -> None:
    """194: an agent gets the variables that its policy forwards or sets, and no other variable of the host."""
    seen = kernel.attack(
        processes.environment, allowed_env_vars=["HOST_PLAIN", "NOT_SET_ANYWHERE"], env_vars={"MINE": "my words"}
    )

    assert (seen["HOST_PLAIN"], seen["MINE"]) == ("plain words of the host", "my words")
    assert not {"NOT_SET_ANYWHERE", "ANTHROPIC_API_KEY", "SOME_SERVICE_TOKEN", "SSH_AUTH_SOCK", "PYTHONPATH"} & set(
        seen
    )
    assert "HOST_PLAIN" not in kernel.attack(processes.environment)


def test_an_agent_inherits_only_its_streams_and_channel(kernel: Kernel) -> None:
    """51, NEG-10: an agent inherits no descriptor except stdin, stdout, stderr and its channel."""
    fds = kernel.attack(processes.identity)["fds"]

    assert set(fds) >= {0, 1, 2}
    assert len(fds) <= 4


def test_fresh_sandboxes_refuse_the_same_attacks(kernel: Kernel) -> None:
    """1, 18, 28, 31, 55: an agent that shares no zygote is refused as well, where the backend has fresh sandboxes."""
    if kernel.backend == "local" and not kernel.has_namespaces:
        pytest.skip("L1 offers no fresh sandbox")
    fresh: dict[str, Any] = {"isolation": "fresh"} if kernel.backend == "bwrap" else {}

    assert_refused(kernel.attack(files.read, [str(kernel.secret), "/etc/shadow"], **fresh))
    assert_refused(kernel.attack(files.change_mounts, **fresh), "EPERM", "ENOSYS", "EACCES")
    assert_refused(kernel.attack(processes.call_the_kernel, **fresh), "EPERM", "ENOSYS")
    assert_refused(kernel.attack(network.listen, **fresh), "EPERM", "EACCES", "EAFNOSUPPORT")
    assert kernel.attack(processes.search_for, kernel.key.first, kernel.key.second, ["/run", "/tmp"], **fresh) == []


def test_an_agent_has_namespaces_of_its_own(kernel: Kernel) -> None:
    """L2: each namespace of an agent differs from the host's and from another agent's."""
    if not kernel.has_namespaces:
        pytest.skip("L1 promises no namespaces")
    kernel.play("start", key="neighbour", agent="tests.security.attacks.processes:tell_identity_and_wait", args=[60])
    identities = [kernel.control(processes.identity), kernel.attack(processes.identity)]
    identities.append(json.loads(kernel.play("output_of", key="neighbour")))
    kernel.play("cancel", key="neighbour")

    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        seen = [each["namespaces"][name] for each in identities]
        assert len(set(seen)) == 3, (name, seen)
    assert identities[0]["host"] != identities[1]["host"]
