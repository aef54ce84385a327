"""Control groups and sockets of `ramet serve` after its end: by a signal that it obeys, and by one that it cannot."""

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
    """The control groups that the sandboxes of a process have, in all hierarchies; none where there can be none."""
    found = set[pathlib.Path]()
    for mount in procfs.cgroup_mounts():
        for folder in map(mount.folder, procfs.own_cgroups().values()):
            for top in (folder / "ramet", folder.parent / "ramet") if folder is not None else ():
                found |= {each for each in top.glob(f"*-{pid}-*/**") if each.is_dir()}
    return sorted(found)


def sockets_in(folder: pathlib.Path) -> list[str]:
    """The names of the sockets anywhere in a folder."""
    return sorted(each.name for each in folder.rglob("*") if each.is_socket())


async def begin_a_turn(folder: pathlib.Path) -> SpawnedAgent:
    """Have an agent at work in a sandbox of the server in a folder, others parked beside it."""
    async with ramet.connect(folder / ".ramet" / "serve.sock") as client:
        team = await client.create_team({"agents": 1}, name="red")
        bob = await client.spawn_agent("red", "bob", "slow-function", WAITS, policy=Policy(), key=team.key)
        turn = Reader(client, bob, ASKED)
        await eventually(lambda: turn.text.endswith("\n"))
        await turn.leave()
        return bob


@pytest.mark.parametrize("backend", ["local", "bwrap"])
async def test_a_server_that_is_told_to_stop_leaves_no_control_group_and_no_socket(
    folder: pathlib.Path, backend: str
) -> None:
    """Neither of an agent at work nor of processes parked beside it."""
    if backend == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("this machine has no bwrap")
    plugin(folder, ENTRY_POINTS)
    async with serve(folder, "--backend", backend) as first:
        await begin_a_turn(folder)
        assert sockets_in(folder) == BOTH_SOCKETS

        assert await first.end(signal.SIGTERM) == (0, "")

        assert groups_of(first.process.pid) == []
        assert sockets_in(folder) == []


async def test_a_server_removes_what_a_killed_one_left(folder: pathlib.Path) -> None:
    """When it starts, not only when an agent needs a sandbox: control groups, and the sockets of proxies."""
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
