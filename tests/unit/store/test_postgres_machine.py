"""Tests of a kernel whose machine vanished: the only sign is that nothing arrives from it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ramet.isolation.linux import calls
from ramet.store.postgres import PostgresStore
from tests.support.postgres import Server, reason_absent
from tests.support.postgres_stores import open_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # it takes the ten seconds that are promised

_HERE, _THERE = "10.200.0.1", "10.200.0.2"
_KERNEL = """
import asyncio, sys
from ramet.store.postgres import PostgresStore

async def main():
    store = await PostgresStore(sys.argv[1], kernel="far").open()
    await store.claim(["t-1"])
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class _Machine:
    """Network namespace that a virtual cable connects to ours until the cable is cut."""

    def __init__(self, name: str) -> None:
        self._name, self._cable = name, f"{name}-0"

    def begin(self) -> None:
        """Create the namespace with an address. Raises OSError where that is not allowed."""
        self._ip("netns", "add", self._name)
        self._ip("link", "add", self._cable, "type", "veth", "peer", "name", "far", "netns", self._name)
        self._ip("addr", "add", f"{_HERE}/24", "dev", self._cable)
        self._ip("link", "set", self._cable, "up")
        for words in (("addr", "add", f"{_THERE}/24", "dev", "far"), ("link", "set", "far", "up")):
            self._ip("-n", self._name, *words)

    def run(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a Python process in the namespace."""
        argv = ["ip", "netns", "exec", self._name, sys.executable, "-c", code, *arguments]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def vanish(self) -> None:
        """Drop every packet to the namespace from now on."""
        self._ip("-n", self._name, "addr", "del", f"{_THERE}/24", "dev", "far")

    def end(self) -> None:
        """Remove the namespace and the cable."""
        for words in (("link", "del", self._cable), ("netns", "del", self._name)):
            with contextlib.suppress(OSError):
                self._ip(*words)

    def _ip(self, *words: str) -> None:
        process_result = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if process_result.returncode:
            raise OSError(f"ip {' '.join(words)}: {process_result.stderr.strip()}")


@contextlib.contextmanager
def _own_network() -> Iterator[None]:
    """Give this thread, and what it starts, a network namespace of its own. Raises OSError where that is not allowed.

    A browser that other tests have open breaks off what it loads whenever an address of its machine comes or goes.
    """
    former = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        calls.unshare(calls.CLONE_NEWNET)
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            calls.setns(former, calls.CLONE_NEWNET)
    finally:
        os.close(former)


@pytest.fixture
def machine() -> Iterator[_Machine]:
    """Yield another machine."""
    if reason := reason_absent():
        pytest.skip(reason)
    if os.geteuid() or shutil.which("ip") is None or not pathlib.Path("/proc/self/ns/net").exists():
        pytest.skip("it takes root, iproute2 and network namespaces")
    machine = _Machine(f"rm{os.getpid() % 100_000}")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_own_network())
            stack.callback(machine.end)
            machine.begin()
        except OSError as refusal:
            pytest.skip(f"no network namespace can be made here: {refusal}")
        yield machine


async def test_the_trees_of_a_vanished_machine_are_taken_over(machine: _Machine) -> None:
    """The kernel's process never ends visibly; the server drops its session and with it the lock."""
    server = Server(_HERE)
    try:
        process = machine.run(_KERNEL, f"host={_HERE} user=ramet dbname=postgres")
        try:
            async with open_store(PostgresStore(server.dsn, kernel="near")) as near:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                lines: list[str] = []
                near.on_kernels(lambda: lines.append("news"))
                machine.vanish()
                adopted_trees: list[str] = []
                while not adopted_trees:
                    await eventually(lambda: lines)
                    lines.clear()
                    adopted_trees += await near.claim_orphaned()

                assert adopted_trees == ["t-1"]
                assert process.poll() is None
        finally:
            process.kill()
            process.communicate()
    finally:
        server.stop()
