"""Promises of a sandbox with its own pod, in addition to those of every backend. `reaching` attacks from inside."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pathlib
import signal
import socket
import sys

from ramet.core.errors import InvalidValue, SandboxFailed
from ramet.isolation.limits.container import limits
from ramet.isolation.linux import procfs, syscall_numbers
from ramet.testing.conformance.checks import NotHere, Violation, expect
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Check, replace_grant, time_limit
from tests.support import reaching

_SECRETS = pathlib.Path("/run/secrets")
_REFUSED = {"EACCES", "EPERM"}
#: What a container runtime's own filter, or the kernel, may refuse already.
_OTHERS_REFUSE = {
    "ioprio_set of a user",
    "kcmp",
    "move_pages",
    "pidfd_getfd",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
}


async def secrets_are_files_that_end_with_the_run(site: BackendFixture) -> None:
    """A secret is a read-only file in memory, for its user alone, in no environment, and gone before `wait` returns."""
    async with site.start_guest(grant=replace_grant(GRANT, secrets={"token": "s3cret"})) as visit:
        expect(await visit.ask("read", path="/run/secrets/token") == "s3cret", "a secret is read")
        expect("s3cret" not in json.dumps(await visit.ask("process_info")), "a secret is in no environment")
        for deed in (
            {"request": "write", "path": "/run/secrets/token", "text": "x"},
            {"request": "make", "path": "/run"},
        ):
            error_name = await visit.failure_of(**deed)
            expect(error_name in _REFUSED, f"what is in /run is not an agent's: {error_name or 'it was'}")
        modes = [path.stat().st_mode & 0o777 for path in (_SECRETS, _SECRETS / "token")]
        expect(modes == [0o700, 0o400], f"nobody else reads a secret: {modes}")
        ran = await visit.sandbox.run_command(["cat", "/run/secrets/token"], timeout_s=60, max_bytes=100)
        expect(ran.stdout == b"s3cret", f"a command reads it, too: {ran}")
        await visit.sandbox.kill(0)
        expect(not os.access(_SECRETS, os.F_OK), "secrets end with the run")
    async with site.start_guest() as visit:
        expect(
            await visit.failure_of("read", path="/run/secrets/token") in {"EACCES", "ENOENT"}, "the next one has none"
        )


async def a_pod_has_one_run_at_a_time(site: BackendFixture) -> None:
    """A second run is refused while the first is there, and finds no file of it afterwards."""
    async with site.start_guest() as visit:
        for folder in ("/tmp", "/dev/shm"):
            await visit.ask("write", path=f"{folder}/left", text="x")
        try:
            await site.backend.start(site.spec())
        except SandboxFailed as refusal:
            expect(visit.spec.run in str(refusal), f"who is refused is told who is there: {refusal}")
        else:
            raise Violation("a second run in a pod is refused")
        expect((await visit.ask("process_info"))["env"]["TMPDIR"] == "/tmp", "temporary files go to the pod's memory")
    async with site.start_guest() as visit:
        for folder in ("/tmp", "/dev/shm"):
            expect(await visit.ask("listing", path=folder) == [], f"{folder} is empty")


async def processes_are_counted_without_the_node_agent(site: BackendFixture) -> None:
    """A run never has more processes than granted, and one process less while a thread of the node agent works."""
    async with site.start_guest(grant=replace_grant(GRANT, pids=12)) as visit:
        for deed in ("fork_until", "start_threads_until"):
            started = await visit.ask(deed, count=40)
            expect(10 <= started <= 11, f"{deed}: {started} of 40 were started beside the first under a limit of 12")
        count = (
            "import os, time\nstarted = 0\ntry:\n while True:\n  if not os.fork(): time.sleep(600)\n  started += 1\n"
            "except OSError: print(started)"
        )
        ran = await visit.sandbox.run_command([sys.executable, "-c", count], timeout_s=60, max_bytes=100)
        expect(ran.stdout in (b"9\n", b"10\n"), f"a command starts 10 beside itself and the agent under 12: {ran}")


async def the_memory_of_an_orphan_counts(site: BackendFixture) -> None:
    """Memory of an orphan counts, wherever in the pod it is."""
    async with site.start_guest(grant=replace_grant(GRANT, memory_mb=96)) as visit:
        await visit.send("hide", hold="held", quiet=True, mb=192)
        async with time_limit():
            ended = await visit.sandbox.wait()
        expect(ended.reason == "oom", f"who has too much memory is ended, orphan or not: {ended}")
        expect(not await visit.is_locked("held"), "with all of it")


async def memory_of_the_container(site: BackendFixture) -> None:
    """A kill by the operating system for lack of memory is reported as `oom`, and does not hit the node agent."""
    most = limits().memory_mb
    if most is None:
        raise NotHere("nothing limits the memory of this container")
    async with site.start_guest(grant=replace_grant(GRANT, memory_mb=int(4 * most))) as visit:
        await visit.send("allocate", mb=int(2 * most))
        async with time_limit():
            ended = await visit.sandbox.wait()
        expect((ended.reason, ended.code) == ("oom", -signal.SIGKILL), f"the kernel's own kill is told as oom: {ended}")
    async with site.start_guest(grant=replace_grant(GRANT, memory_mb=int(4 * most))) as visit:
        visit.sandbox.signal(signal.SIGKILL)
        ended = await visit.wait_ended()
        expect(ended.reason == "signalled", f"ours is not, though there was one before: {ended}")


async def only_the_proxy_is_reached(site: BackendFixture) -> None:
    """A run reaches only the port of the proxy, by TCP: it cannot listen, or send elsewhere."""
    path = site.workdir.runs / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket() as other:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        grant = replace_grant(GRANT, allowed_endpoints=("example.org:443",))
        for _ in range(2):  # The second relay listens where the first did.
            async with site.start_guest(grant=grant, proxy=path) as visit:
                expect(
                    (await visit.ask("process_info"))["env"]["HTTPS_PROXY"] == "http://127.0.0.1:3128",
                    "a proxy is named",
                )
                await visit.ask("connect_tcp", host="127.0.0.1", port=3128)
                async with time_limit():
                    accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
                accepted.close()
                error_name = await visit.failure_of("connect_tcp", host="127.0.0.1", port=port)
                expect(error_name in _REFUSED, f"another port is not reached: {error_name or 'it was'}")
                tried = [sys.executable, "-c", _NETWORK, str(port)]
                free = (await _run_unconfined(*tried)).split()
                expect(free == [b"done"] * 5, f"a control: with nothing around it all of them succeed: {free}")
                ran = await visit.sandbox.run_command(tried, timeout_s=60, max_bytes=1000)
                shut = ran.stdout.decode().split()
                expect(
                    len(shut) == 5 and "done" not in shut, f"UDP, binding, listening, sending at once: {shut}, {ran}"
                )


async def ports_are_refused_by_name(site: BackendFixture) -> None:
    """Ports are refused: other processes of the pod would reach them, and the kernel is elsewhere."""
    try:
        async with site.start_guest(grant=replace_grant(GRANT, ports={"web": 8000})):
            raise Violation("ports that nobody could reach are not granted")
    except InvalidValue as refusal:
        expect((refusal.field, refusal.value) == ("ports", {"web": 8000}), f"they are named: {refusal}")


_NETWORK = """
import socket, sys
port = int(sys.argv[1])
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: s.sendto(b"x", ("127.0.0.1", 9))
def bind():
    with socket.socket() as s: s.bind(("127.0.0.1", 0))
def listen():
    with socket.socket() as s: s.listen()
def fast(send):
    with socket.socket() as s: send(s)
tries = [udp, bind, listen, lambda: fast(lambda s: s.sendto(b"x", 0x20000000, ("127.0.0.1", port))),
         lambda: fast(lambda s: s.sendmsg([b"x"], [], 0x20000000, ("127.0.0.1", port)))]
for each in tries:
    try:
        each()
        print("done")
    except OSError as error:
        print(error.errno)
"""


async def the_node_agent_is_out_of_reach(site: BackendFixture) -> None:
    """The node agent has the same user: a run cannot read, signal, trace, limit or schedule it by its pid."""
    machine = os.uname().machine
    number = {**syscall_numbers.table_of(machine).number, "rt_sigqueueinfo": 129 if machine == "x86_64" else 138}
    program = [sys.executable, "-c", inspect.getsource(reaching)]
    async with site.start_guest() as visit:
        agent = procfs.stat(visit.sandbox.pid)
        assert agent is not None
        for name, pid in (("the keeper", os.getpid()), ("the zygote", agent.parent)):
            argv = [*program, str(pid), json.dumps(number)]
            ran = await visit.sandbox.run_command(argv, timeout_s=60, max_bytes=10_000)
            report = json.loads(ran.stdout or b"{}")
            reached = {attempt for attempt, why in report.items() if why not in _REFUSED}
            expect(report and not reached, f"{name} is reached by {reached}: {ran}")
    sleeping = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        tried = json.loads(await _run_unconfined(*program, str(sleeping.pid), json.dumps(number)))
        refused = {attempt for attempt, why in tried.items() if why}
        expect(refused <= _OTHERS_REFUSE, f"a control: with nothing but the pod around it they succeed, not {refused}")
    finally:
        sleeping.kill()
        await sleeping.wait()


async def _run_unconfined(*argv: str) -> bytes:
    """Return what a program prints that only the pod confines."""
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out


async def a_run_writes_only_its_own_files(site: BackendFixture) -> None:
    """A run writes its workspace and its files in memory, and nothing of its image, volumes, kernel or node agent."""
    keepers = [str(site.workdir.scratch), str(site.workdir.runs), str(pathlib.Path(__file__).parents[2]), sys.prefix]
    async with site.start_guest() as visit:
        for folder in (".", "/tmp", "/dev/shm"):
            await visit.ask("make", path=folder)
        for folder in ("/", "/etc", "/usr", "/var/tmp", "/run", "/dev", "/proc/self", "/proc/sys", "/sys", *keepers):
            error_name = await visit.failure_of("make", path=folder)
            expect(
                error_name in {*_REFUSED, "EROFS", "ENOENT"},
                f"nothing can be made in {folder}: {error_name or 'it was'}",
            )


CHECKS: tuple[Check, ...] = (
    a_run_writes_only_its_own_files,
    secrets_are_files_that_end_with_the_run,
    a_pod_has_one_run_at_a_time,
    processes_are_counted_without_the_node_agent,
    the_memory_of_an_orphan_counts,
    memory_of_the_container,
    only_the_proxy_is_reached,
    ports_are_refused_by_name,
    the_node_agent_is_out_of_reach,
)
