"""Control groups and sockets of `ramet serve` after a stop and after a kill."""

from __future__ import annotations

import pathlib
import shutil
import signal

import pytest

import ramet
from ramet.core.policy.policy import Policy
from ramet.isolation.linux import procfs
from ramet.services.contract import SpawnedAgent
from tests.support.kernels import ENTRY_POINTS
from tests.support.serve_process import plugin, serve
from tests.support.turns import Reader
from tests.support.waiting import eventually

WAITS = {"function": "tests.support.slow_functions:waits_for"}
ASKED = b'{"messages": [{"role": "user", "content": "a_module_that_never_comes"}]}'
BOTH_SOCKETS = ["kernel.sock", "serve.sock"]


def groups_of(pid: int) -> list[pathlib.Path]:
    """Return the control groups of a process' sandboxes in all hierarchies, or none if the machine has none."""
    folders = set[pathlib.Path]()
    for mount in procfs.cgroup_mounts():
        for folder in map(mount.folder, procfs.own_cgroups().values()):
            for top in (folder / "ramet", folder.parent / "ramet") if folder is not None else ():
                folders |= {each for each in top.glob(f"*-{pid}-*/**") if each.is_dir()}
    return sorted(folders)


def sockets_in(folder: pathlib.Path) -> list[str]:
    """Return the names of the sockets anywhere in a folder."""
    return sorted(each.name for each in folder.rglob("*") if each.is_socket())


async def begin_a_turn(folder: pathlib.Path) -> SpawnedAgent:
    """Have an agent active in a sandbox of the server, with other sandboxes parked."""
    async with ramet.connect(folder / ".ramet" / "serve.sock") as client:
        team = await client.create_team({"agents": 1}, name="red")
        bob = await client.spawn_agent("red", "bob", "slow-function", WAITS, policy=Policy(), key=team.key)
        turn = Reader(client, bob, ASKED)
        await eventually(lambda: turn.text.endswith("\n"))
        await turn.leave()
        return bob


@pytest.mark.parametrize("backend", ["local", "bwrap"])
async def test_a_stopped_server_leaves_no_control_group_and_no_socket(folder: pathlib.Path, backend: str) -> None:
    """The control groups and sockets of an active agent and of parked sandboxes are removed."""
    if backend == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("this machine has no bwrap")
    plugin(folder, ENTRY_POINTS)
    async with serve(folder, "--backend", backend) as first:
        await begin_a_turn(folder)
        assert sockets_in(folder) == BOTH_SOCKETS

        assert await first.end(signal.SIGTERM) == (0, "")

        assert groups_of(first.process.pid) == []
        assert sockets_in(folder) == []


async def test_a_server_removes_leftovers_of_a_killed_one(folder: pathlib.Path) -> None:
    """The server removes control groups and proxy sockets at its start, before an agent needs a sandbox."""
    plugin(folder, ENTRY_POINTS)
    async with serve(folder, "--backend", "local") as first:
        pid = first.process.pid
        bob = await begin_a_turn(folder)
        async with ramet.connect(folder / ".ramet" / "serve.sock") as client:
            await client.kill_agent(bob.agent.id, key=bob.nonce)
        had_groups = bool(groups_of(pid))
        await first.end(signal.SIGKILL)
    assert bool(groups_of(pid)) == had_groups
    assert sockets_in(folder) == BOTH_SOCKETS

    async with serve(folder, "--backend", "local") as second:
        assert groups_of(pid) == []
        assert groups_of(second.process.pid) == []
        assert sockets_in(folder) == BOTH_SOCKETS
