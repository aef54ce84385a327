"""Faults of the full length that a server survives, with the time constants of a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ramet.core.policy.policy import Grant
from ramet.testing.conformance.isolation.harness import BackendFixture, GuestSession, Workdir
from ramet.wire import frames
from tests.support.pods import Pods
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]  # the first test makes images
GRANT = Grant(memory_mb=64, tmpfs_size_mb=8, workspace_size_mb=8)
PATIENCE_S = 60.0  #: what a server's pods have


class Talk:
    """Numbers that are sent to a guest, which sends each of them back."""

    def __init__(self, visit: GuestSession) -> None:
        self._channel, self._told = visit.sandbox.channel, json.dumps({"do": "echo", "given": {}, "quiet": False})
        self.said = self.heard = 0
        self._over, self._is_last = asyncio.Event(), False
        self._talking = asyncio.ensure_future(asyncio.gather(self._say(), self._hear()))

    async def over(self) -> None:
        """Stop sending, and wait until every number has come back."""
        self._over.set()
        async with asyncio.timeout(180):
            await self._talking

    async def _say(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_last:
            self._is_last = self._over.is_set()
            number, self.said = self.said, self.said + 1
            for piece in frames.pack(self._told.encode(), _number(number)):
                await loop.sock_sendall(self._channel, piece)
            await asyncio.sleep(0.01)  # What is said in a minute should be as much as somebody says.

    async def _hear(self) -> None:
        loop, reader = asyncio.get_running_loop(), frames.FrameReader()
        while not (self._is_last and self.heard == self.said):
            for frame in reader.feed(await loop.sock_recv(self._channel, 1 << 18)):
                assert frame.body == _number(self.heard), "each once, and in order"
                self.heard += 1


def _number(number: int) -> bytes:
    return b"%08d" % number * 32


def _make_workdir(folder: Path) -> Workdir:
    ground = Workdir("", folder)
    ground.runs.mkdir(parents=True)
    return ground


async def _end_guest(visit: GuestSession) -> None:
    await visit.send("leave", code=7)
    assert (await visit.wait_ended()).code == 7


async def test_a_line_loses_nothing_in_faults_of_full_length(pods: Pods, scratch: Path) -> None:
    """Messages on a line arrive once and in order. The faults occur concurrently, each with its own pod."""

    async def a_silent_network(seconds: float) -> None:
        """Pass nothing on between a pod and its kernel, without an error on either side."""
        ground = _make_workdir(scratch / f"silent-{seconds}")
        async with pods.dialled(ground.runs, patience_s=PATIENCE_S) as (backend, network):
            async with BackendFixture(ground, backend, await backend.probe()).start_guest(grant=GRANT) as visit:
                talk = Talk(visit)
                await eventually(lambda: talk.heard > 10)
                network.hush()
                await asyncio.sleep(seconds)
                network.mend()
                before = talk.said
                await eventually(lambda: talk.heard > before + 10)
                await talk.over()
                await _end_guest(visit)

    async def an_api_that_is_away(seconds: float) -> None:
        """Hide the API from a kernel whose pods dial it: a run continues and ends, and its pod is deleted later."""
        ground = _make_workdir(scratch / "away")
        async with (
            pods.weather(scratch) as (weather, kubeconfig),
            pods.dialled(ground.runs, patience_s=PATIENCE_S, kubeconfig=kubeconfig) as (backend, _),
            BackendFixture(ground, backend, await backend.probe()).start_guest(grant=GRANT) as visit,
        ):
            weather.cut()
            talk = Talk(visit)
            await asyncio.sleep(seconds)
            await talk.over()
            await _end_guest(visit)
            assert weather.refused > 3, "it was asked for all the while"
            weather.mend()

    async with asyncio.TaskGroup() as group:
        for seconds in (1, 10, 60):
            group.create_task(a_silent_network(seconds))
        group.create_task(an_api_that_is_away(30))
    assert await pods.names() == []
