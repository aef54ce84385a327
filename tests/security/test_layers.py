"""Layers that another layer backs: each has its own test, since no attack succeeds when one layer is missing.

`make mutants` removes one after the other and expects a test of this file to fail.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from ramet.core.errors import ProtocolError
from ramet.isolation import spawn_thread
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.limits.cgroups import Cgroups
from ramet.isolation.linux import procfs
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote.backend import ZygoteBackend
from ramet.testing.conformance.isolation.harness import GRANT, BackendFixture, GuestSession, cgroups, replace_grant
from ramet.wire.values import values
from tests.support.backends import open_backend_or_skip

MIB = 1024 * 1024
LIMITED = replace_grant(GRANT, memory_mb=96, cpu_cores=0.5, pids=17)
#: What a limit of `LIMITED` is in a control group: the files of version 1 and 2, and what is in them.
GROUP_FILES = {
    "memory": {"memory.limit_in_bytes": str(96 * MIB), "memory.max": str(96 * MIB)},
    "cpu": {"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000"},
    "pids": {"pids.max": "17"},
}


def backend_of(kind: str, runs: pathlib.Path) -> ZygoteBackend:
    """Return a backend: bubblewrap, namespaces without bubblewrap, or neither ("bare")."""
    if kind == "bwrap":
        return BwrapBackend(runs, parked_count=1)
    return LocalBackend(runs, parked_count=1, namespaces=kind == "local")


@asynccontextmanager
async def start_sandbox(
    kind: str, folder: pathlib.Path, *, has_cgroups: bool = True
) -> AsyncIterator[tuple[BackendFixture, GuestSession]]:
    """Start a sandbox with limits, of a backend of its own."""
    async with open_backend_or_skip(backend_of(kind, folder / "runs"), folder) as site:
        if not has_cgroups:
            assert isinstance(site.backend, ZygoteBackend)
            site.backend._cgroups = None
        async with site.start_guest(grant=LIMITED) as visit:
            yield site, visit


class Mount(NamedTuple):
    """Mount, as a sandbox sees it."""

    folder: str
    flags: frozenset[str]
    filesystem: str


class Sandbox(NamedTuple):
    """State of an agent's process, as the kernel and the process itself see it."""

    status: Mapping[str, str]
    limits: Mapping[str, tuple[str, str]]  #: soft and hard, by the kernel's name
    groups: Mapping[str, str]  #: the files of its control groups
    mounts: tuple[Mount, ...]
    runs: str  #: the folder of all workspaces
    workspace: str
    listed: tuple[str, ...]  #: in the folder of all workspaces

    def mount(self, folder: str) -> Mount:
        """Return the uppermost mount at a folder."""
        return [each for each in self.mounts if each.folder == folder][-1]


_seen: dict[str, Sandbox] = {}


@pytest.fixture
async def sandbox(kind: str, tmp_path: pathlib.Path) -> Sandbox:
    """Return the state of an agent of this kind of backend, read once for all tests. Its host allows core files."""
    if kind not in _seen:
        with allow_core_files():
            async with start_sandbox(kind, tmp_path) as (site, visit):
                (site.workdir.runs / "neighbour").mkdir(mode=0o755)
                _seen[kind] = await read_sandbox(site, visit, has_mounts=kind != "bare")
    return _seen[kind]


async def read_sandbox(site: BackendFixture, visit: GuestSession, *, has_mounts: bool) -> Sandbox:
    """Read the state that the tests of this file check."""
    process = pathlib.Path(f"/proc/{visit.sandbox.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    limits = {}
    for line in (process / "limits").read_text().splitlines()[1:]:
        soft, hard = line[26:].split()[:2]
        limits[line[:26].strip()] = (soft, hard)
    groups = {}
    for folder in cgroups(visit.sandbox.pid):
        for name in [name for files in GROUP_FILES.values() for name in files]:
            with contextlib.suppress(OSError):
                groups[name] = (folder / name).read_text().strip()
    mounts = []
    for line in (await visit.ask("read", path="/proc/self/mountinfo")).splitlines() if has_mounts else ():
        words = line.split()
        mounts.append(Mount(words[4], frozenset(words[5].split(",")), words[words.index("-") + 1]))
    listed = await visit.ask("listing", path=str(site.workdir.runs)) if has_mounts else []
    workspace = str(visit.spec.workspace)
    return Sandbox(status, limits, groups, tuple(mounts), str(site.workdir.runs), workspace, tuple(listed))


@contextlib.contextmanager
def allow_core_files() -> Iterator[None]:
    """Give new processes a limit of core files above zero."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        pytest.skip("this machine allows no core files at all")
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


every_kind = pytest.mark.parametrize("kind", ["bwrap", "local", "bare"])
with_mounts = pytest.mark.parametrize("kind", ["bwrap", "local"])


# ---- the process


@every_kind
def test_a_program_that_an_agent_starts_gains_no_rights(sandbox: Sandbox) -> None:
    """An agent's process has no_new_privs set, also where it can reach no program that gains rights."""
    assert sandbox.status["NoNewPrivs"] == "1"


@every_kind
def test_core_files_are_forbidden_where_the_host_allows_them(sandbox: Sandbox) -> None:
    """The soft and the hard limit of core files are zero, although the host's are not."""
    assert sandbox.limits["Max core file size"] == ("0", "0")


@every_kind
def test_private_memory_of_a_process_is_limited(sandbox: Sandbox) -> None:
    """RLIMIT_DATA is `memory_mb` plus room for stacks of threads and for the interpreter."""
    soft, hard = sandbox.limits["Max data size"]

    assert soft == hard != "unlimited"
    assert int(hard) < (LIMITED.memory_mb + 8 * LIMITED.pids + 512) * MIB


@pytest.mark.parametrize("kind", ["local", "bare"])
async def test_memory_without_a_process_is_refused_where_uncounted(kind: str, tmp_path: pathlib.Path) -> None:
    """A sandbox without control groups refuses memfd, whose memory no limit of a process covers."""
    async with start_sandbox(kind, tmp_path, has_cgroups=False) as (_, visit):
        assert await visit.failure_of("share", kind="descriptor", mb=1) == "EPERM"


# ---- control groups


def can_be_limited(controller: str) -> bool:
    """Return whether this process may make a control group with a limit. Groups of version 1 are made by hand."""
    own = procfs.own_cgroups()
    for mount in procfs.cgroup_mounts():
        if mount.version == 1 and controller in mount.controllers and controller in own:
            folder = mount.folder(own[controller])
            trial = None if folder is None else folder / f"test-{secrets.token_hex(4)}"
            try:
                if trial is not None:
                    trial.mkdir()
                    trial.rmdir()
                    return True
            except OSError:
                return False
    groups = Cgroups.open(f"test-{secrets.token_hex(4)}")
    if groups is None:
        return False
    groups.close()
    return controller in groups.controllers


@pytest.mark.parametrize("controller", GROUP_FILES)
@every_kind
def test_a_run_is_in_a_control_group_with_its_limit(sandbox: Sandbox, controller: str) -> None:
    """Control groups limit memory, processor time and processes of a run, where this machine allows it."""
    if not can_be_limited(controller):
        pytest.skip(f"no control group of {controller} can be made here")

    found = {name: sandbox.groups[name] for name in GROUP_FILES[controller] if name in sandbox.groups}

    assert found
    assert found.items() <= GROUP_FILES[controller].items()


# ---- mounts


@with_mounts
def test_a_workspace_is_mounted_nosuid_and_nodev(sandbox: Sandbox) -> None:
    """Setuid programs and devices in a workspace have no effect."""
    assert {"nosuid", "nodev"} <= sandbox.mount(sandbox.workspace).flags


@with_mounts
def test_an_agent_cannot_write_to_the_folder_of_workspaces(sandbox: Sandbox) -> None:
    """The mount of the folder of workspaces is read-only, and the mount of the own workspace is not."""
    assert "ro" in sandbox.mount(sandbox.runs).flags
    assert "rw" in sandbox.mount(sandbox.workspace).flags


@with_mounts
def test_an_agent_sees_no_workspace_of_another_run(sandbox: Sandbox) -> None:
    """An empty folder covers the folder of workspaces, with the agent's own workspace in it."""
    assert sandbox.mount(sandbox.runs).filesystem == "tmpfs"
    assert sandbox.listed == (pathlib.Path(sandbox.workspace).name,)


# ---- the start, and what is said


async def test_the_program_that_starts_sandboxes_gets_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher, as well as the programs that it starts, gets no variable of the host."""
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "a secret of the host")
    source, sink = os.pipe()
    try:
        process = await spawn_thread.start(["/usr/bin/env"], stderr=2, pass_fds=())
        assert process.wait() == 0
        process = await spawn_thread.start(["/bin/sh", "-c", "/usr/bin/env >&2"], stderr=sink, pass_fds=())
        assert process.wait() == 0
        os.close(sink)
        output = os.read(source, 65536).decode()
    finally:
        os.close(source)
    assert "a secret of the host" not in output
    assert {line.partition("=")[0] for line in output.splitlines()} <= {"PWD", "SHLVL", "_", "OLDPWD"}


@pytest.mark.parametrize("size", [-1, 0, 2, 2**40])
def test_a_value_with_a_false_size_is_refused(size: int) -> None:
    """A value whose announced size is not its real size is refused before anything of it is read."""
    with pytest.raises(ProtocolError, match=f"announces {size} bytes of JSON in a body of 1"):
        values.decode(b"7", size)
