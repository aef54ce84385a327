"""Tests of backends of one machine; the suite of all backends is `ramet.testing.conformance.isolation`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import Gone, InvalidValue, IsolationUnavailable, SandboxFailed
from ramet.core.policy.policy import Isolation
from ramet.isolation import python_runtime
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.limits import watchdog
from ramet.isolation.limits.cgroup import Cgroup
from ramet.isolation.linux import procfs
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote import assignment_builder
from ramet.isolation.zygote.backend import ZygoteBackend
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, Ended, is_locked, replace_grant
from tests.support.backends import open_backend_or_skip
from tests.support.users import own_user
from tests.support.waiting import alive, eventually, pid_in

USER = own_user()
KINDS = {"bwrap": BwrapBackend, "local": LocalBackend}


@pytest.fixture(params=["bwrap", "local"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackendFixture]:
    async with open_backend_or_skip(KINDS[request.param](tmp_path / "runs", parked_count=1), tmp_path) as site:
        yield site


@pytest.fixture
async def bwrap(tmp_path: Path) -> AsyncIterator[BackendFixture]:
    async with open_backend_or_skip(BwrapBackend(tmp_path / "runs", parked_count=1), tmp_path) as site:
        yield site


@pytest.fixture
async def site_without_namespaces(tmp_path: Path) -> AsyncIterator[BackendFixture]:
    """Open `local` as on a machine without namespaces."""
    async with open_backend_or_skip(
        LocalBackend(tmp_path / "runs", parked_count=1, namespaces=False), tmp_path
    ) as site:
        yield site


def backend_of(site: BackendFixture) -> ZygoteBackend:
    assert isinstance(site.backend, ZygoteBackend)
    return site.backend


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subpath", ["runs", "elsewhere", "runs/../elsewhere"])
async def test_a_workspace_that_is_not_below_the_folder_of_runs_is_refused(
    site: BackendFixture, tmp_path: Path, subpath: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(InvalidValue, match="workspace"):
        await site.backend.start(site.spec(workspace=tmp_path / subpath))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
async def test_a_workspace_behind_a_link_keeps_its_owner(site: BackendFixture, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (site.workdir.runs / "link").symlink_to(tmp_path / "mine")
    for name in ("link", "link/below"):
        (tmp_path / "mine" / "below").mkdir(exist_ok=True)
        with pytest.raises(SandboxFailed, match="workspace"):
            await site.backend.start(site.spec(workspace=site.workdir.runs / name))
    assert (tmp_path / "mine" / "below").stat().st_uid == (tmp_path / "mine").stat().st_uid == 0


@pytest.mark.parametrize("path", ["/", "/tmp", "/proc", "/proc/self", "/dev", "/run", "/no/such"])
async def test_a_mount_that_a_sandbox_cannot_show_is_refused(site: BackendFixture, path: str) -> None:
    with pytest.raises(InvalidValue, match="readonly_mounts"):
        await site.backend.start(site.spec(grant=replace_grant(GRANT, readonly_mounts=(path,))))


async def test_a_proxy_socket_outside_of_the_folder_of_runs_is_refused(site: BackendFixture, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="proxy"):
        await site.backend.start(site.spec(proxy=tmp_path / "proxy.sock"))


async def test_without_namespaces_ports_are_refused(site_without_namespaces: BackendFixture) -> None:
    """Without namespaces a port would be the host's, and open to everybody."""
    with pytest.raises(InvalidValue, match="bwrap") as refusal:
        await site_without_namespaces.backend.start(
            site_without_namespaces.spec(grant=replace_grant(GRANT, ports={"web": 8000}))
        )
    assert (refusal.value.field, refusal.value.value) == ("ports", {"web": 8000})


def test_without_bubblewrap_the_error_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib, sys\n"
        "from ramet.core.errors import IsolationUnavailable\n"
        "from ramet.core.policy.policy import Grant\n"
        "from ramet.isolation.bwrap import BwrapBackend\n"
        "from ramet.isolation.contract import SandboxSpec\n"
        "async def main():\n"
        "    runs = pathlib.Path(sys.argv[1])\n"
        "    backend = BwrapBackend(runs)\n"
        "    try:\n"
        "        await backend.start(SandboxSpec(run='r', grant=Grant(), workspace=runs / 'r'))\n"
        "    except IsolationUnavailable as error:\n"
        "        print(error.missing, error.remedy)\n"
        "    await backend.close()\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={"PATH": "/nonexistent", "PYTHONPATH": os.pathsep.join(python_runtime.find().path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert "bwrap" in ran.stdout
    assert "apt install bubblewrap" in ran.stdout
    assert list(tmp_path.iterdir()) == []


async def test_without_namespaces_the_probe_says_that_the_root_is_not_read_only(
    site_without_namespaces: BackendFixture,
) -> None:
    """The level is that of `local`, and the missing mechanism has a remedy."""
    assert site_without_namespaces.probe.level is Isolation.L1
    assert site_without_namespaces.probe.mechanisms["read_only_root"] is False
    assert "read_only_root" in site_without_namespaces.probe.missing
    assert "namespaces" in site_without_namespaces.probe.remedy


# ---- who it is ------------------------------------------------------------------------------------------------------


async def test_an_agent_has_its_own_user_environment_and_working_folder(site: BackendFixture) -> None:
    async with site.start_guest(env={"MINE": "1", "HOME": "/elsewhere"}) as guest:
        identity = await guest.ask("process_info")
        assert (identity["pid"], identity["uid"], identity["cwd"]) == (2, 65534, str(guest.spec.workspace))
        assert identity["env"]["MINE"] == "1"
        assert identity["env"]["HOME"] == "/elsewhere", "what was said stands"
        assert identity["env"]["TMPDIR"] == "/tmp"
        if (owner := site.backend.owner) is not None:
            assert uid_of(guest.sandbox.pid) == owner[0] != 0


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


async def test_an_orphan_in_a_sandbox_is_reaped(site: BackendFixture) -> None:
    """An unreaped orphan would count as a process of the agent forever."""
    async with site.start_guest() as guest:
        for _ in range(2 * GRANT.pids):
            ran = await guest.sandbox.run_command(["/bin/sh", "-c", "true & exit 0"], timeout_s=60, max_bytes=100)
            assert ran.code == 0, ran
        await eventually(lambda: not zombies(guest.sandbox.pid))


def zombies(pid: int) -> list[int]:
    """Return the zombies in the pid namespace of a process."""
    pids = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if each.joinpath("ns/pid").readlink() == Path(f"/proc/{pid}/ns/pid").readlink():
                stat = procfs.stat(int(each.name))
                pids += [stat.pid] if stat is not None and not stat.is_alive else []
    return pids


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is itself")
def test_each_folder_has_an_owner_of_its_own_that_never_changes(tmp_path: Path) -> None:
    owners = {BwrapBackend(tmp_path / str(at)).owner for at in range(20)}
    assert len(owners) > 15
    assert all(owner is not None and 60578 <= owner[0] <= 61183 for owner in owners)
    assert BwrapBackend(tmp_path / "0").owner == BwrapBackend(tmp_path / "0").owner


async def test_a_workspace_below_private_folders_of_the_host_is_reachable(site: BackendFixture) -> None:
    """The innermost folder that `ramet.isolation.workspace.run_dirs` makes is the agent's, and no other."""
    folder = site.workdir.runs / "run-1"
    (folder / "workspace").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "host").write_text("the host's")
    (folder / "host").chmod(0o600)
    async with site.start_guest(workspace=folder / "workspace") as guest:
        await guest.ask("write", path="file", text="text")
        assert await guest.failure_of("read", path=str(folder / "host")) in {"EACCES", "ENOENT"}
        assert await guest.failure_of("make", path=str(folder)) in {"EACCES", "EROFS"}
    assert folder.stat().st_uid == os.geteuid()
    assert folder.stat().st_mode & 0o066 == 0, "others do not read it"


async def test_an_environment_and_secrets_may_be_large(site: BackendFixture) -> None:
    env = {f"V{at}": "x" * 10_000 for at in range(60)}
    secrets = {name: name * 700_000 for name in ("a", "b", "c")}
    async with site.start_guest(env=env, grant=replace_grant(GRANT, secrets=secrets)) as guest:
        assert len((await guest.ask("process_info"))["env"]["V59"]) == 10_000
        for name, value in secrets.items():
            assert await guest.ask("read", path=f"/run/secrets/{name}") == value


async def test_a_control_group_that_refuses_a_limit_is_removed(
    bwrap: BackendFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start fails, and the next start works."""
    backend = backend_of(bwrap)
    groups = backend._cgroups
    if groups is None:
        pytest.skip("this machine gives us no control groups")
    tops = [top / groups._kernel for top in groups._roots.values()]

    def fail(*_: object, **__: object) -> None:
        raise SandboxFailed("control group: Interrupted system call")

    with monkeypatch.context() as patched:
        patched.setattr(Cgroup, "limit", fail)
        with pytest.raises(SandboxFailed, match="Interrupted"):
            await bwrap.backend.start(bwrap.spec())
    await eventually(lambda: not any(each.is_dir() for top in tops for each in top.iterdir()))
    async with bwrap.start_guest() as guest:
        assert await guest.ask("process_info")


# ---- limits that are the process's own ------------------------------------------------------------------------------


async def test_a_process_above_the_limit_of_processor_time_is_ended(
    site: BackendFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment_builder, "CPU_SLACK_S", 0)
    async with site.start_guest(grant=replace_grant(GRANT, timeout_seconds=0.5)) as guest:
        spin = [sys.executable, "-c", "while True: pass"]
        assert (await guest.sandbox.run_command(spin, timeout_s=100, max_bytes=100)).code == -signal.SIGXCPU
        await guest.send("end_by", number=signal.SIGXCPU)
        end = await guest.wait_ended()
        assert (end.reason, end.code) == ("cpu", -signal.SIGXCPU)


async def test_use_near_a_limit_is_reported(site: BackendFixture) -> None:
    reports: list[tuple[str, str]] = []
    backend_of(site).on_threshold = lambda run, resource, value, limit: reports.append((run, resource))
    async with site.start_guest(grant=replace_grant(GRANT, memory_mb=128)) as guest:
        await guest.ask("allocate", mb=110)
        await eventually(lambda: (guest.spec.run, "memory") in reports)


# ---- fresh ----------------------------------------------------------------------------------------------------------


async def test_fresh_agents_share_no_zygote_and_a_spare_one_is_started(bwrap: BackendFixture) -> None:
    fresh = backend_of(bwrap)._dedicated_zygotes

    def keepers() -> set[Any]:
        return {each for each in fresh._zygotes if not each.has_exited}

    grant = replace_grant(GRANT, isolation=Isolation.FRESH)
    async with bwrap.start_guest(grant=grant) as one:
        assert one.sandbox.level is Isolation.FRESH
        first = keepers()
        await eventually(lambda: len(keepers()) == 2)
        async with bwrap.start_guest(grant=grant) as other:
            assert await other.ask("process_info")
            assert await one.ask("process_info")
            assert parent(one.sandbox.pid) != parent(other.sandbox.pid)
    (exited,) = first
    await eventually(lambda: exited.has_exited)


async def test_without_namespaces_a_fresh_agent_is_refused(site_without_namespaces: BackendFixture) -> None:
    with pytest.raises(IsolationUnavailable):
        await site_without_namespaces.backend.start(
            site_without_namespaces.spec(grant=replace_grant(GRANT, isolation=Isolation.FRESH))
        )


def parent(pid: int) -> int:
    stat = procfs.stat(pid)
    assert stat is not None
    return stat.parent


# ---- the way out ----------------------------------------------------------------------------------------------------


async def test_the_proxy_port_inside_leads_to_the_socket_outside(site: BackendFixture) -> None:
    spec = site.spec()
    path = site.workdir.runs / "proxy.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        listener.listen()
        listener.setblocking(False)
        if site.backend.owner is not None:
            os.chown(path, *site.backend.owner)
        grant = replace_grant(GRANT, allowed_endpoints=("example.org:443",))
        async with site.start_guest(site.spec(grant=grant, proxy=path, workspace=spec.workspace)) as guest:
            env = (await guest.ask("process_info"))["env"]
            assert env["HTTPS_PROXY"] == env["https_proxy"] == env["ALL_PROXY"] == "http://127.0.0.1:3128"
            await guest.ask("connect_tcp", host="127.0.0.1", port=3128)
            async with asyncio.timeout(180):
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            connection.close()
            assert await guest.failure_of("connect_tcp", host="127.0.0.1", port=9) == "ECONNREFUSED", (
                "nobody else is there"
            )
            assert await guest.failure_of("connect_tcp", host="192.0.2.1", port=443) == "ENETUNREACH"


# ---- commands -------------------------------------------------------------------------------------------------------


async def test_a_command_is_confined_like_its_agent(site: BackendFixture) -> None:
    async with site.start_guest(env={"MINE": "1"}) as guest:
        script = (
            "id -u; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; "
            "echo $MINE $HOME; ulimit -n; cat /etc/shadow"
        )
        ran = await guest.sandbox.run_command(["/bin/sh", "-c", script], timeout_s=60, max_bytes=10_000)
        assert ran.stdout.decode().split() == [
            *("65534", "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"),
            *("1", str(guest.spec.workspace), "256"),
        ]
        assert b"shadow" in ran.stderr


async def test_a_missing_command_ends_with_code_127(site: BackendFixture) -> None:
    async with site.start_guest() as guest:
        ran = await guest.sandbox.run_command(["no-such-program"], timeout_s=60, max_bytes=100)
        assert (ran.code, ran.stderr) == (127, b"no-such-program: No such file or directory\n")


async def test_a_command_ends_with_its_agent(site: BackendFixture) -> None:
    async with site.start_guest() as guest:
        script = "echo $$ > pid; exec sleep 3600"
        running = asyncio.ensure_future(
            guest.sandbox.run_command(["/bin/sh", "-c", script], timeout_s=3600, max_bytes=100)
        )
        await eventually(pid_in(guest.spec.workspace / "pid"))
        await guest.sandbox.kill(0)
        assert (await running).code == -signal.SIGKILL
        with pytest.raises(Gone):
            await guest.sandbox.run_command(["true"], timeout_s=1, max_bytes=1)


async def test_a_cancelled_command_is_ended(site: BackendFixture) -> None:
    async with site.start_guest() as guest:
        script = "touch held; flock -s held sleep 3600"
        running = asyncio.ensure_future(
            guest.sandbox.run_command(["/bin/sh", "-c", script], timeout_s=3600, max_bytes=100)
        )
        await eventually(lambda: (guest.spec.workspace / "held").exists() and is_locked(guest.spec.workspace / "held"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await eventually(lambda: not is_locked(guest.spec.workspace / "held"))
        assert await guest.ask("process_info")


# ---- without namespaces ---------------------------------------------------------------------------------------------


async def test_without_namespaces_no_process_leaves_the_process_group(site_without_namespaces: BackendFixture) -> None:
    for method in ("leave", "kill"):
        async with site_without_namespaces.start_guest() as guest:
            ran = await guest.sandbox.run_command(["setsid", "--fork", "--wait", "true"], timeout_s=60, max_bytes=1000)
            assert b"not permitted" in ran.stderr
            await guest.ask("hide", hold="held", quiet=True)
            assert await guest.ask("fork_until", count=3) == 3
            await guest.send("spin", seconds=3600, processes=2)
            await eventually(lambda: len(procfs.tree(guest.sandbox.pid)) >= 3)
            family = set(procfs.tree(guest.sandbox.pid))
            if method == "leave":
                guest.sandbox.signal(signal.SIGTERM)
            else:
                await guest.sandbox.kill(0)
            assert (await guest.wait_ended()).code < 0
            assert not any(map(alive, family))
            assert not await guest.is_locked("held")


@pytest.mark.parametrize("cause", ["oom", "pids"])
async def test_without_namespaces_an_orphan_is_still_watched(
    site_without_namespaces: BackendFixture, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """An orphan becomes a child of the zygote, which has other children, too."""
    monkeypatch.setattr(watchdog, "_HELPER_PROCESSES", 0)
    monkeypatch.setattr(backend_of(site_without_namespaces), "_cgroups", None)  # Which would not need to look.
    limit: dict[str, Any] = {"memory_mb": 96} if cause == "oom" else {"pids": 2}
    async with (
        site_without_namespaces.start_guest() as other,
        site_without_namespaces.start_guest(grant=replace_grant(GRANT, **limit)) as guest,
    ):
        for at in range(2):
            await guest.send("hide", hold=f"held-{at}", quiet=True, mb=192 if cause == "oom" else 0)
        end = await guest.wait_ended()
        assert (end.reason, cause in end.detail or "memory" in end.detail) == (
            "oom" if cause == "oom" else "signalled",
            True,
        )
        assert await other.ask("process_info"), "who is another's child is let be"


async def test_without_namespaces_secrets_and_endpoints_are_refused(site_without_namespaces: BackendFixture) -> None:
    for field, value in (("secrets", {"token": "x"}), ("allowed_endpoints", ("example.org:443",))):
        with pytest.raises(InvalidValue, match=field):
            await site_without_namespaces.backend.start(
                site_without_namespaces.spec(grant=replace_grant(GRANT, **{field: value}))
            )


async def test_without_namespaces_temporary_files_go_to_the_workspace(site_without_namespaces: BackendFixture) -> None:
    async with site_without_namespaces.start_guest() as guest:
        assert (await guest.ask("process_info"))["env"]["TMPDIR"] == str(guest.spec.workspace)
        for folder in ("/tmp", "/dev/shm"):
            assert await guest.failure_of("make", path=folder) == "EACCES"


async def test_without_namespaces_a_killed_zygote_leaves_no_process(site_without_namespaces: BackendFixture) -> None:
    async with site_without_namespaces.start_guest() as guest:
        await guest.ask("hold", path="held")
        os.kill(parent(guest.sandbox.pid), signal.SIGKILL)
        assert (await guest.wait_ended()).reason == "lost"
        assert not await guest.is_locked("held")
        with pytest.raises(Ended):
            await guest.ask("process_info")


# ---- as somebody else -----------------------------------------------------------------------------------------------

ORDINARY = """
import asyncio, json, os, pathlib, sys
sys.path[:0] = json.loads(sys.argv[1])[:1]
sys.path += json.loads(sys.argv[1])[1:]
from ramet.isolation.zygote.launcher import drop_privileges
user, folders, scratch, module, name = json.loads(sys.argv[2])
drop_privileges(user, user, folders)
from ramet.isolation.linux import calls
calls.set_dumpable(True)
os.environ.pop("PYTHONPATH", None)
from ramet.testing.conformance.isolation.harness import Workdir
async def main():
    async with Workdir(f"{module}:{name}", pathlib.Path(scratch)).open() as site:
        assert site.backend.owner is None
        async with site.start_guest() as visit:
            await visit.ask("write", path="file", text="text")
            ran = await visit.sandbox.run_command(["cat", "file"], timeout_s=60, max_bytes=100)
            uid = (await visit.ask("process_info"))["uid"]
            print(json.dumps([site.probe.level, uid, ran.stdout.decode(), os.getuid()]))
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else; the other tests show the same")
@pytest.mark.parametrize("kind", [BwrapBackend, LocalBackend])
def test_an_ordinary_user_gets_the_same_level(tmp_path: Path, kind: type[ZygoteBackend]) -> None:
    import json

    runtime = python_runtime.find()
    scratch = tmp_path / "theirs"
    (scratch / "runs").mkdir(parents=True)
    for each in (scratch, scratch / "runs"):
        os.chown(each, USER, USER)
    arguments = [USER, [*runtime.folders, str(scratch)], str(scratch), kind.__module__, kind.__name__]
    ran = subprocess.run(
        [sys.executable, "-I", "-c", ORDINARY, json.dumps(runtime.path), json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    level = "L2" if kind is BwrapBackend else "L1"
    assert json.loads(ran.stdout) == [level, 65534, "text", USER]
