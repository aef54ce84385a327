"""Tests of attaching to starting pods: rarely while many start, and at once when the cluster reports one as running."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest

from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Forbidden, NotYet
from ramet.isolation.kubernetes.connect import attach as reach
from tests.support.waiting import eventually

_LONG_S = 3600.0


class StartingApi:
    """Fake `Api` in which no container runs yet."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.tries, self._problem = Counter[str](), problem or NotYet("no container")

    @contextlib.asynccontextmanager
    async def attach(self, name: str) -> AsyncIterator[None]:
        self.tries[name] += 1
        if self.tries:
            raise self._problem
        yield


async def test_attaching_to_a_starting_pod_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_FIRST_S", 0.0)
    monkeypatch.setattr(reach, "_SOON_S", 0.001)
    api = StartingApi()
    async with contextlib.aclosing(_OpenAttachments(api, "only")):
        await eventually(lambda: api.tries["only"] >= 3)


async def test_many_starting_pods_are_tried_rarely_until_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "_FIRST_S", 0.0)
    monkeypatch.setattr(reach, "_EACH_S", _LONG_S)
    api = StartingApi()
    async with contextlib.aclosing(_OpenAttachments(api, "one", "two")) as attachments:
        await eventually(lambda: api.tries == {"one": 1, "two": 1})
        attachments.pods["two"].on_running()
        await eventually(lambda: api.tries["two"] == 2)
        assert api.tries["one"] == 1


async def test_a_running_pod_is_attached_to_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_FIRST_S", _LONG_S)
    api = StartingApi()
    async with contextlib.aclosing(_OpenAttachments(api, "only")) as attachments:
        await asyncio.sleep(0)
        assert not api.tries
        attachments.pods["only"].on_running()
        await eventually(lambda: api.tries["only"] >= 1)


@pytest.mark.parametrize("was_heard", [True, False], ids=["that works", "that starts"])
async def test_a_forbidden_attach_is_retried_for_a_working_pod(
    was_heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new API server knows no rights yet, so a run continues. A starting pod fails at once."""
    monkeypatch.setattr(reach, "_FIRST_S", 0.0)
    monkeypatch.setattr(reach, "_SOON_S", 0.001)
    api = StartingApi(Forbidden("not you"))
    async with contextlib.aclosing(_OpenAttachments(api, "only")) as attachments:
        line = attachments.pods["only"].line
        line.heard_at = asyncio.get_running_loop().time() if was_heard else 0.0
        await eventually(lambda: api.tries["only"] >= 3 or line.has_ended)
        assert (line.has_ended, line.end_reason) == ((False, "") if was_heard else (True, "not you"))


class _OpenAttachments:
    def __init__(self, api: StartingApi, *names: str) -> None:
        attach = reach.Attach()
        self.pods = {name: attach.open(cast(Api, api), name, "uid") for name in names}

    async def aclose(self) -> None:
        for each in self.pods.values():
            await each.close()
