"""Tests of zygotes whose program has no descriptor left, or ignores the ends of its children: nobody waits forever."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from ramet.core.errors import SandboxFailed
from ramet.isolation.bwrap import BwrapBackend
from ramet.isolation.local import LocalBackend
from ramet.isolation.zygote import packets
from ramet.isolation.zygote.backend import ZygoteBackend
from ramet.testing.conformance.isolation.harness import BackendFixture
from tests.support.backends import open_backend_or_skip

#: Passed only by a waiter that gets no answer. The time for a start is half of it.
HANG_S = 60.0
KINDS: dict[str, Callable[[Path], ZygoteBackend]] = {
    "bwrap": lambda runs: BwrapBackend(runs, parked_count=0),
    "local": lambda runs: LocalBackend(runs, parked_count=0),
    "without namespaces": lambda runs: LocalBackend(runs, parked_count=0, namespaces=False),
}


@pytest.fixture(params=KINDS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackendFixture]:
    """Open a backend that forks each process when it is asked for."""
    async with open_backend_or_skip(KINDS[request.param](tmp_path / "runs"), tmp_path) as site:
        yield site


@contextlib.contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """Leave this process so many free descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    taken = list[int]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(used) + 1 + free, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def ignoring_children() -> Iterator[None]:
    """Have the system reap the children of this process."""
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, former)


def pid_of_zygote(site: BackendFixture) -> int:
    assert isinstance(site.backend, ZygoteBackend)
    (only,) = site.backend._pool._zygotes
    return only.pid


@pytest.mark.parametrize("trouble", ["no descriptor", "ignored children"])
async def test_the_agents_of_a_killed_zygote_end(site: BackendFixture, trouble: str) -> None:
    """Their waiters get "lost", and the backend can be closed."""
    async with site.start_guest() as guest:
        await guest.ask("process_info")
        pid, waiting = pid_of_zygote(site), asyncio.ensure_future(guest.sandbox.wait())
        with few_descriptors(0) if trouble == "no descriptor" else ignoring_children():
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(HANG_S):
                end = await waiting
        assert end.reason == "lost"
    async with asyncio.timeout(HANG_S):
        await site.backend.close()


@pytest.mark.parametrize("free", [0, 1])
async def test_a_start_fails_at_once_if_no_descriptor_is_left(
    site: BackendFixture, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forked process is ended, and the next start works."""
    async with site.start_guest() as first:
        await first.ask("process_info")
        receive = packets.receive

        def receive_with_few_descriptors(*arguments: object) -> object:
            monkeypatch.setattr(packets, "receive", receive)
            stack = contextlib.ExitStack()
            stack.enter_context(few_descriptors(free))
            asyncio.get_running_loop().call_soon(stack.close)
            return receive(*arguments)  # type: ignore[arg-type]  # handed on as they came

        monkeypatch.setattr(packets, "receive", receive_with_few_descriptors)
        with pytest.raises(SandboxFailed, match="no descriptor is left"):
            await site.backend.start(site.spec())
        async with site.start_guest() as next_one:
            assert await next_one.ask("process_info")
