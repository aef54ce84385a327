"""Runs of a team in one pod: which runs share it, how the runs are separated, and how they end."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube import AsyncClient
from lightkube.resources.core_v1 import Namespace, Pod, ResourceQuota

from ramet.core.policy.policy import Grant, Isolation
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import labels, quotas
from ramet.isolation.kubernetes.placement import shared
from ramet.isolation.kubernetes.team_backend import TeamNamespaces
from ramet.isolation.remote import sandbox
from tests.support.cluster import Cluster
from tests.support.pod_runs import open_pod_backend
from tests.support.pods import TEAM, Pods, is_being_removed, pod_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]  # the first test makes images
GRANT = Grant(memory_mb=64, pids=32, tmpfs_size_mb=8, workspace_size_mb=8, reservation=TEAM)
SECRET = "the other run's own"
FILL = "dd if=/dev/zero of=/run/full bs=1M count=2000 2>/dev/null"  # Memory of the pod, and of no run.

#: Tries one thing after the other on each process that is named, and tells what it got: "" is success.
ATTACK = """
import ctypes, errno, json, os, signal, socket, sys
victims, paths = json.loads(sys.argv[1]), json.loads(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
said = {}

def tries(name, deed):
    try:
        deed()
        said[name] = ""
    except OSError as problem:
        said[name] = errno.errorcode[problem.errno]
    except ValueError:
        said[name] = "ValueError"

def call(name, *given):
    if getattr(libc, name)(*given) < 0:
        raise OSError(ctypes.get_errno(), name)

class IoVec(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]

def peek(pid):
    room = ctypes.create_string_buffer(8)
    mine, theirs = IoVec(ctypes.addressof(room), 8), IoVec(0x400000, 8)
    if libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) < 0:
        if ctypes.get_errno() != errno.EFAULT:  # Allowed, and nothing is there.
            raise OSError(ctypes.get_errno(), "process_vm_readv")

def trace(pid):
    call("ptrace", 16, pid, 0, 0)
    os.waitpid(pid, 0)
    call("ptrace", 17, pid, 0, 0)

def connect():
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect("\\0nobody-listens-there")
        except ConnectionRefusedError:
            pass

for pid in victims:
    for name in ("environ", "cmdline", "maps", "mem", "status", "stat", "fd", "cwd", "root", "task"):
        path = f"/proc/{pid}/{name}"
        tries(f"{name} of {pid}", lambda: os.close(os.open(path, os.O_RDONLY)))
    tries(f"a signal to {pid}", lambda: os.kill(pid, signal.SIGCONT))
    tries(f"the end of {pid}", lambda: os.kill(pid, 0))
    tries(f"a signal by pidfd to {pid}", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT))
    tries(f"memory of {pid}", lambda: peek(pid))
    tries(f"the priority of {pid}", lambda: os.setpriority(os.PRIO_PROCESS, pid, 5))
    tries(f"the processors of {pid}", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
    if pid != 1:
        tries(f"a trace of {pid}", lambda: trace(pid))
tries("a queue", lambda: call("msgget", 0, 0))
tries("semaphores", lambda: call("semget", 0, 1, 0))
tries("all processes", lambda: os.listdir("/proc"))
tries("a socket", connect)
for path in paths:
    tries(f"reading {path}", lambda: open(path).close())
    tries(f"changing {path}", lambda: open(path, "a").close())
    tries(f"replacing {path}", lambda: os.replace(path, path + ".gone"))
    tries(f"listing above {path}", lambda: os.listdir(os.path.dirname(path)))
    tries(f"listing above all of {path}", lambda: os.listdir(os.path.dirname(os.path.dirname(path))))
for path in ("/tmp", "/dev/shm", "/run", "/run/secrets"):
    tries(f"a file in {path}", lambda: open(f"{path}/found", "x").close())
print(json.dumps(said))
"""


async def in_pod(kube: AsyncClient, pod: str, *command: str) -> str:
    """Run a command in a pod without any confinement by ramet, and return its output."""
    result = await kube.exec(pod, command=list(command), stdout=True, stderr=True, decode="utf-8")
    return str(result.stdout or "")


async def processes(kube: AsyncClient, pod: str) -> Mapping[int, str]:
    """Return the command line of each process in a pod, except the process that looks."""
    look = "import os, pathlib; print({int(each.name): (each / 'cmdline').read_text() for each in "
    look += "pathlib.Path('/proc').iterdir() if each.name.isdigit() and int(each.name) != os.getpid()})"
    found: Mapping[int, str] = ast.literal_eval(await in_pod(kube, pod, "python3", "-I", "-c", look))
    return found


async def stop_zygotes(pods: Pods, pod: str) -> None:
    """Stop the zygotes of a pod, which notice the ends of runs."""
    async with pods.cluster.client(pods.namespace) as kube:
        zygotes = [str(pid) for pid, line in (await processes(kube, pod)).items() if "zygote" in line]
        await in_pod(kube, pod, "sh", "-c", f"kill -STOP {' '.join(zygotes)}")


async def test_a_run_shares_the_pod_of_its_team_or_has_its_own(pods: Pods, scratch: Path) -> None:
    """A run that needs more than the shared pod offers gets all of it in another pod; so does a run without a team."""
    other = Reservation(name="another", memory_mb=64)
    asks: list[dict[str, Any]] = [
        {"isolation": Isolation.L2},
        {"secrets": {"token": "x"}},
        {"reservation": None},
        {"reservation": other},
        {"memory_mb": 1025},
    ]
    async with (
        open_pod_backend(pods.backend(scratch / "runs", team=TEAM), scratch) as site,
        contextlib.AsyncExitStack() as stack,
    ):
        inside = [await stack.enter_async_context(site.start_guest(grant=GRANT)) for _ in range(2)]
        assert {each.sandbox.level for each in inside} == {Isolation.L1}
        assert len({pod_of(each.sandbox) for each in inside}) == 1
        assert len({(await each.ask("process_info"))["pid"] for each in inside}) == 2
        for fields in asks:
            grant = msgspec.structs.replace(GRANT, **fields)
            async with site.start_guest(grant=grant) as alone:
                assert (alone.sandbox.level, pod_of(alone.sandbox) == pod_of(inside[0].sandbox)) == (
                    Isolation.L2,
                    False,
                ), fields
        session = ["python3", "-c", "import subprocess; subprocess.run(['true'], start_new_session=True, check=True)"]
        async with site.start_guest(grant=GRANT, has_programs=True) as alone:
            assert pod_of(alone.sandbox) != pod_of(inside[0].sandbox)
            codes = [
                (await each.sandbox.run_command(session, timeout_s=30, max_bytes=100)).code
                for each in (alone, inside[0])
            ]
            assert codes == [0, 1]
        async with pods.cluster.client(pods.namespace) as kube:
            pod = await kube.get(Pod, pod_of(inside[0].sandbox))
        assert pod.metadata is not None
        assert (pod.metadata.labels or {})[labels.TEAM] == TEAM.name


async def test_two_runs_of_a_pod_cannot_reach_each_other_or_their_node_agent(pods: Pods, scratch: Path) -> None:
    """A run reaches no file, process, memory, signal or socket of the other. An unconfined process reaches them."""
    async with (
        open_pod_backend(pods.backend(scratch / "runs", team=TEAM), scratch) as site,
        site.start_guest(grant=GRANT, env={"TOKEN": SECRET}) as one,
        site.start_guest(grant=GRANT) as other,
        pods.cluster.client(pods.namespace) as kube,
    ):
        pod = pod_of(one.sandbox)
        assert pod == pod_of(other.sandbox)
        await one.ask("write", path="mine", text=SECRET)
        await one.ask("note", number=signal.SIGCONT)
        me, them = (await one.ask("process_info"))["pid"], (await other.ask("process_info"))["pid"]
        everybody = await processes(kube, pod)
        assert {1, me, them} <= everybody.keys()
        mine = str(one.spec.workspace / "mine")
        arguments = [json.dumps(sorted(everybody.keys() - {them})), json.dumps([mine])]

        script = other.spec.workspace / "attack.py"
        await other.ask("write", path=script.name, text=ATTACK)
        ran = await other.sandbox.run_command(
            ["python3", "-I", str(script), *arguments], timeout_s=60, max_bytes=100_000
        )
        assert ran.code == 0, ran.stderr
        errors: dict[str, str] = json.loads(ran.stdout)
        assert len(errors) > 30
        assert [name for name, error in errors.items() if not error] == []
        assert await one.ask("received_signals") == []
        assert await one.ask("read", path="mine") == SECRET
        assert SECRET not in str(await other.ask("environments"))

        free: dict[str, str] = json.loads(await in_pod(kube, pod, "python3", "-I", "-c", ATTACK, *arguments))
        reached = {name for name, error in free.items() if not error}
        assert {
            f"environ of {me}",
            f"mem of {me}",
            "a queue",
            f"a signal to {me}",
            f"reading {mine}",
            "a socket",
        } <= reached
        assert {"all processes", f"the priority of {me}", f"a trace of {me}", "a file in /tmp"} <= reached


async def test_a_run_that_exceeds_its_limits_ends_alone(pods: Pods, scratch: Path) -> None:
    """Processes and memory are counted for each run, and another run in the pod continues."""
    async with (
        open_pod_backend(pods.backend(scratch / "runs", team=TEAM), scratch) as site,
        site.start_guest(grant=GRANT) as other,
    ):
        few = msgspec.structs.replace(GRANT, pids=4)
        async with site.start_guest(grant=few) as one:
            await one.send("spin", seconds=60, processes=8)
            ended = await one.wait_ended()
            assert (ended.reason, "processes" in ended.detail) == ("signalled", True), ended
            assert pod_of(one.sandbox) == pod_of(other.sandbox)
        async with site.start_guest(grant=GRANT) as one:
            assert await one.failure_of("allocate", mb=400) == "MemoryError"
        assert await other.ask("fork_until", count=10) == 10


async def test_a_run_that_cannot_be_killed_ends_with_its_pod(
    pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run in the pod is lost at once, and the next run gets a new pod."""
    monkeypatch.setattr(shared._SharedLease, "silence_s", 0.5)
    async with open_pod_backend(pods.backend(scratch / "runs", team=TEAM), scratch) as site:
        async with site.start_guest(grant=GRANT) as one, site.start_guest(grant=GRANT) as other:
            await stop_zygotes(pods, pod_of(one.sandbox))
            waiting = asyncio.ensure_future(other.wait_ended())
            ended = await one.sandbox.kill(0)
            assert ended.reason == "lost"
            assert re.search(rf"did not end run {one.spec.run} .*was deleted", ended.detail)
            assert await waiting == ended
            assert pod_of(one.sandbox) not in await pods.names()
        async with site.start_guest(grant=GRANT) as again:
            assert (again.sandbox.level, pod_of(again.sandbox) == pod_of(one.sandbox)) == (Isolation.L1, False)


async def test_a_run_that_cannot_be_cleaned_up_costs_the_pod(
    pods: Pods, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel deletes the pod if the clean-up of a run gets no answer, so that the run does not stay there."""
    monkeypatch.setattr(sandbox, "_KILL_S", 0.5)
    monkeypatch.setattr(sandbox, "_FORGET_S", 0.5)
    async with open_pod_backend(pods.backend(scratch / "runs", team=TEAM), scratch) as site:
        async with site.start_guest(grant=GRANT) as one, site.start_guest(grant=GRANT) as other:
            await stop_zygotes(pods, pod_of(one.sandbox))
            waiting = asyncio.ensure_future(other.wait_ended())
            await one.sandbox.clean_up()
            ended = await waiting
            assert (ended.reason, f"did not end run {one.spec.run}" in ended.detail) == ("lost", True)
        await pods.wait_gone()


async def test_a_deleted_pod_ends_its_runs_and_the_next_run_gets_a_new_pod(pods: Pods, scratch: Path) -> None:
    """The reason quotes the cluster, and names the team."""
    async with open_pod_backend(pods.backend(scratch / "runs", team=TEAM), scratch) as site:
        async with site.start_guest(grant=GRANT) as one, site.start_guest(grant=GRANT) as other:
            waiting = [asyncio.ensure_future(each.wait_ended()) for each in (one, other)]
            async with pods.cluster.client(pods.namespace) as kube:
                await kube.delete(Pod, pod_of(one.sandbox), grace_period=0)
            for ended in await asyncio.gather(*waiting):
                assert ended.reason == "lost"
                assert re.search(rf"pod of team {TEAM.name}: pod .* was deleted, and not by this kernel", ended.detail)
            async with site.start_guest(grant=GRANT) as again:
                assert (again.sandbox.level, pod_of(again.sandbox) == pod_of(one.sandbox)) == (Isolation.L1, False)
    assert await pods.names() == []


@pytest.mark.parametrize("dials", [False, True], ids=["attached", "dialling"])
async def test_a_pod_out_of_memory_ends_its_runs_and_the_next_gets_a_new_pod(
    dials: bool, pods: Pods, scratch: Path
) -> None:
    """Each run learns that the pod of its team was out of memory. The next run works, and ends by itself."""
    small = Reservation(name="small", memory_mb=128, sandboxes=2)
    grant = msgspec.structs.replace(GRANT, reservation=small)
    async with contextlib.AsyncExitStack() as stack:
        (scratch / "runs").mkdir()
        if dials:
            backend, _ = await stack.enter_async_context(pods.dialled(scratch / "runs", team=small))
        else:
            backend = pods.backend(scratch / "runs", team=small)
        site = await stack.enter_async_context(open_pod_backend(backend, scratch))
        kube = await stack.enter_async_context(pods.cluster.client(pods.namespace))
        async with site.start_guest(grant=grant) as one, site.start_guest(grant=grant) as other:
            assert {each.sandbox.level for each in (one, other)} == {Isolation.L1}
            assert pod_of(one.sandbox) == pod_of(other.sandbox)
            filling = asyncio.ensure_future(in_pod(kube, pod_of(one.sandbox), "sh", "-c", FILL))
            for ended in await asyncio.gather(one.wait_ended(), other.wait_ended()):
                assert ended.reason == "oom", ended
                assert re.search(r"shared pod of team small: .*out of memory", ended.detail)
            await asyncio.gather(filling, return_exceptions=True)  # It ends with the container.
            async with site.start_guest(grant=grant) as again:
                assert (again.sandbox.level, pod_of(again.sandbox) == pod_of(one.sandbox)) == (Isolation.L1, False)
                assert await again.ask("process_info")
                await again.send("leave", code=7)
                assert (await again.wait_ended()).code == 7
    assert await pods.names() == []


async def test_runs_get_their_own_pods_if_the_pod_of_their_team_cannot_start(
    pods: Pods, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A team may reserve more than any node has: the kernel logs that once, and no run waits for it again."""
    large = Reservation(name="large", memory_mb=2.0**24)
    grant = msgspec.structs.replace(GRANT, reservation=large)
    async with open_pod_backend(pods.backend(scratch / "runs", team=large, unschedulable_s=0.2), scratch) as site:
        for _ in range(2):
            async with site.start_guest(grant=grant) as visit:
                assert visit.sandbox.level is Isolation.L2
    messages = [each.getMessage() for each in caplog.records if "has no shared pod" in each.getMessage()]
    assert (len(messages), "team large" in messages[0]) == (1, True)


async def test_a_teams_pod_starts_before_its_first_run_and_ends_with_the_team(
    cluster: Cluster, pods: Pods, scratch: Path
) -> None:
    """The pod is in the namespace of the team, and the quota there leaves room for pods of single runs."""
    team = Reservation(name=f"team-{pods.namespace[-12:]}", cpu_cores=1, memory_mb=256, sandboxes=2)
    space = quotas.name_of(team.name)
    backend = TeamNamespaces(
        scratch / "runs", namespace=pods.namespace, kubeconfig=pods.kubeconfig, image=pods.images, per="team"
    )
    async with cluster.client(space) as kube, open_pod_backend(backend, scratch) as site:
        try:
            await backend.reserve(team)

            async def made() -> list[Pod]:
                return [each async for each in kube.list(Pod)]

            async with asyncio.timeout(180):
                while not (there := await made()):  # noqa: ASYNC110 - it is the cluster's to say
                    await asyncio.sleep(0.05)
            [pod] = there
            assert pod.metadata is not None
            assert pod.spec is not None
            assert (pod.metadata.labels or {})[labels.TEAM] == team.name
            assert pod.spec.activeDeadlineSeconds is None
            quota = await kube.get(ResourceQuota, quotas.BOUNDS)
            assert quota.spec is not None
            assert (quota.spec.hard or {}).keys() == {"limits.cpu", "limits.memory"}

            grant = msgspec.structs.replace(GRANT, memory_mb=128, reservation=team)
            async with site.start_guest(grant=grant) as one:
                assert pod_of(one.sandbox) == pod.metadata.name
                apart = msgspec.structs.replace(grant, isolation=Isolation.L2)
                async with site.start_guest(grant=apart) as alone:  # The quota has room for it.
                    assert pod_of(alone.sandbox) != pod.metadata.name
            assert [each.metadata.name for each in await made() if each.metadata is not None] == [pod.metadata.name]
            await backend.disband(team.name)
            assert is_being_removed(await kube.get(Namespace, space))
            assert await made() == []
        finally:
            await backend.disband(team.name)
