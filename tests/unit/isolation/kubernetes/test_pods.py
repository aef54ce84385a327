"""Tests of pods with rare answers of the API: no pod is left, and every waiter gets an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ramet.core.errors import Gone, InvalidValue
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Grant, Isolation
from ramet.isolation.contract import SandboxSpec
from ramet.isolation.kubernetes.api import manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.connect.attach import Attach
from ramet.isolation.kubernetes.placement import single, warm_pool
from ramet.isolation.kubernetes.placement.warm_pool import PodShape, WarmPool
from ramet.isolation.kubernetes.pods import pod as life
from ramet.isolation.kubernetes.pods import watch
from ramet.isolation.kubernetes.pods.pod import Pod
from ramet.isolation.kubernetes.pods.pods import Pods, new_name, until_failure
from ramet.isolation.remote import messages
from ramet.isolation.remote.host_agent import NodeClient
from ramet.isolation.remote.line import Line
from ramet.isolation.remote.messages import VERSION, Hello
from ramet.isolation.remote.sandbox import RemoteSandbox
from tests.support.api_server import ApiServer, Reply, refusal, serving
from tests.support.lines import send_message, two_ends
from tests.support.waiting import eventually
from tests.unit.isolation.kubernetes.test_kubeconfig import write_kubeconfig
from tests.unit.isolation.kubernetes.test_manifest import BERTH, FORM

#: Longer than any word of the API takes; passed only by a kernel that is told nothing.
HANG_S = 60.0
BUSY_REPLY = Reply(
    429, "Too many requests, please try again later.\n"
)  #: as an API server says it that has enough to do
FOREIGN_REPLIES = {
    "text": BUSY_REPLY,
    "nothing": Reply(503, type=""),
    "a page that is called JSON": Reply(502, "<html>Bad Gateway</html>", "application/json"),
    "JSON of a proxy": Reply(503, '{"error": {"message": "no upstream"}}', "application/json"),
}


class AttachWithSecret(Attach):
    """Attachment whose pods have a Secret."""

    def __init__(self) -> None:
        super().__init__()
        self.known_pods = set[str]()

    def secret(self, pod: str) -> Mapping[str, str]:
        self.known_pods.add(pod)
        return {"join-key": "a key"}

    def forget(self, pod: str) -> None:
        self.known_pods.discard(pod)


@dataclass
class Kernel:
    server: ApiServer
    pods: Pods
    reach: AttachWithSecret

    def make(self) -> Pod:
        return self.pods.make(FORM, replace(BERTH, name=new_name()))

    async def make_pod(self) -> Pod:
        """Make a pod, and return it once the server has it."""
        pod = self.make()
        await eventually(lambda: ("pods", pod.name) in self.server.objects)
        return pod

    def remaining_objects(self) -> list[str]:
        return [name for _, name in self.server.objects]


@pytest.fixture
async def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kernel]:
    monkeypatch.setattr(life, "_AGAIN_S", (0.001,) * 5)
    monkeypatch.setattr(life, "_LATER_S", 0.001)
    monkeypatch.setattr(watch, "_AGAIN_S", (0.001,))
    async with serving() as (server, address):
        api = Api(FORM.namespace, write_kubeconfig(tmp_path, server=address))
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(api.close)
            pods = Pods(api, reach := AttachWithSecret(), FORM.owner, unschedulable_s=30.0)
            stack.push_async_callback(pods.close)
            yield Kernel(server, pods, reach)


@pytest.mark.parametrize("api_request", ["DELETE pods", "DELETE secrets"])
@pytest.mark.parametrize("reply", FOREIGN_REPLIES.values(), ids=FOREIGN_REPLIES.keys())
async def test_a_pod_is_deleted_after_foreign_answers(kernel: Kernel, api_request: str, reply: Reply) -> None:
    """A load balancer, or an overloaded server, answers in another format than the API."""
    pod = await kernel.make_pod()
    kernel.server.replies[api_request] = [reply, reply]

    pod.release()
    await pod.removal

    assert kernel.remaining_objects() == []


@pytest.mark.parametrize("api_request", ["DELETE pods", "DELETE secrets"])
async def test_a_pod_is_deleted_once_the_api_allows_it(
    kernel: Kernel, api_request: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No other kernel deletes it while this one lives. The delay is logged once."""
    pod = await kernel.make_pod()
    kernel.server.replies[api_request] = [refusal(403, "not now")] * 20

    pod.release()
    await pod.removal

    assert kernel.remaining_objects() == []
    assert [each.getMessage() for each in caplog.records] == [f"pod {pod.name} could not be removed yet: not now"]


BROKEN_REPLIES = {
    **FOREIGN_REPLIES,
    "half a line": Reply(200, '{"type": "ADD'),
    "a change of nothing": Reply(200, '{"type": "ADDED", "object": {}}\n'),
    "a list without metadata": Reply(200, '{"items": [], "metadata": null}'),
    "a list of nothing": Reply(200, '{"items": [{}], "metadata": {"resourceVersion": "1"}}'),
}


@pytest.mark.parametrize("api_request", ["LIST pods", "WATCH pods"])
@pytest.mark.parametrize("reply", BROKEN_REPLIES.values(), ids=BROKEN_REPLIES.keys())
async def test_pods_are_watched_again_after_any_failed_watch(kernel: Kernel, api_request: str, reply: Reply) -> None:
    """A kernel without a watch would get no news of its pods."""
    kernel.server.replies[api_request] = [reply]
    pod = await kernel.make_pod()

    kernel.server.change("pods", pod.name, spec={"nodeName": "a"})

    await pod.connection_future


async def test_an_api_without_old_changes_is_not_asked_without_a_pause(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer of that kind leads to a new list at once. Its repetition is a fault of the API."""
    monkeypatch.setattr(watch, "_AGAIN_S", (3600.0,))
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
        "metadata": {},
    }
    line = json.dumps({"type": "ERROR", "object": status | {"message": "too old resource version"}})
    kernel.server.replies["WATCH pods"] = [Reply(200, f"{line}\n")] * 10_000

    waiting_pod = await kernel.make_pod()
    await eventually(lambda: kernel.server.received_requests.count("WATCH pods") == 2)
    for _ in range(20):  # Meanwhile the watch would ask about as often.
        pod = await kernel.make_pod()
        pod.release()
        await pod.removal
    waiting_pod.release()

    assert kernel.server.received_requests.count("WATCH pods") == 2


async def test_pods_are_watched_again_after_an_unexpected_error(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of the client is logged, and a run whose pod ends learns of it."""

    def fail(*arguments: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Api, "pods", fail)
    pod = await kernel.make_pod()
    await eventually(lambda: kernel.server.received_requests.count("WATCH pods") == 1)

    kernel.server.remove("pods", pod.name)

    assert (await asyncio.wait_for(pod.failure_future, HANG_S)).kind == "deleted"
    assert ["a defect" in each.getMessage() or each.exc_info is not None for each in caplog.records] == [True]


QUOTA_CONFLICT = (
    'Operation cannot be fulfilled on resourcequotas "all": the object has been modified; please apply your changes'
)
RETRIED_REPLIES = {
    "not done": BUSY_REPLY,
    "done, and not told": BUSY_REPLY._replace(is_done=True),
    "another was counted": refusal(409, QUOTA_CONFLICT, "Conflict"),
}


@pytest.mark.parametrize("api_request", ["POST secrets", "POST pods"])
@pytest.mark.parametrize("reply", RETRIED_REPLIES.values(), ids=RETRIED_REPLIES.keys())
async def test_a_pod_is_made_once_when_requests_must_be_repeated(
    kernel: Kernel, api_request: str, reply: Reply
) -> None:
    """The pod and its Secret exist once each; many pods are made at a time, and a quota counts them one by one."""
    kernel.server.replies |= {api_request: [reply], "PATCH secrets": [BUSY_REPLY]}
    pod = await kernel.make_pod()
    kernel.server.change("pods", pod.name, spec={"nodeName": "a"})

    await pod.connection_future

    assert kernel.remaining_objects() == [pod.name] * 2
    assert kernel.server.objects["secrets", pod.name]["metadata"]["ownerReferences"][0]["uid"] == pod.uid


@pytest.mark.parametrize("by", ["us", "somebody"])
async def test_a_deleted_pod_is_forgotten(kernel: Kernel, by: str) -> None:
    """The order of the watch event and the answer to the deletion does not matter."""
    pod, watching = await kernel.make_pod(), kernel.pods._context.watch
    await eventually(lambda: kernel.server.received_requests.count("WATCH pods") == 1)
    if by == "somebody":
        kernel.server.remove("pods", pod.name)
        await pod.failure_future

    pod.release()
    await pod.removal

    await eventually(lambda: not watching._callbacks and not watching._existing)
    assert not kernel.reach.known_pods


async def test_a_refused_pod_is_forgotten(kernel: Kernel) -> None:
    with pytest.raises(InvalidValue, match="readonly_mounts"):
        kernel.pods.make(FORM, replace(BERTH, name=new_name(), folders=("/etc",)))

    assert not kernel.reach.known_pods


async def test_a_pod_that_vanished_while_the_api_was_away_is_reported(kernel: Kernel) -> None:
    """The run learns of it once the API is there again, and not when its time is up."""
    first = await kernel.make_pod()
    away = [BUSY_REPLY] * 100_000
    kernel.server.replies |= {"WATCH pods": away, "LIST pods": away}
    kernel.server.break_watches()
    await eventually(lambda: len(away) < 100_000)
    pod = await kernel.make_pod()
    await eventually(lambda: kernel.server.received_requests.count("PATCH secrets") == 2)

    kernel.server.remove("pods", pod.name)
    away.clear()

    assert (await pod.failure_future).kind == "deleted"
    assert not first.failure_future.done()


async def test_a_pod_that_vanished_during_a_pending_list_is_reported(kernel: Kernel) -> None:
    """The list was requested before the pod was made, and answered after its removal; other missing pods may exist."""
    first = await kernel.make_pod()
    await eventually(lambda: kernel.server.received_requests.count("WATCH pods") == 1)
    kernel.server.held["LIST pods"] = may_answer = asyncio.Event()
    kernel.server.break_watches()
    await eventually(lambda: "LIST pods" not in kernel.server.held)
    pods = [await kernel.make_pod() for _ in range(2)]
    await eventually(lambda: kernel.server.received_requests.count("PATCH secrets") == 3)

    kernel.server.remove("pods", pods[0].name)
    may_answer.set()

    assert (await asyncio.wait_for(pods[0].failure_future, HANG_S)).kind == "deleted"
    assert not pods[1].failure_future.done()
    assert not first.failure_future.done()


async def test_a_warm_pod_that_does_not_answer_gets_no_run(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node may be lost, which the cluster learns minutes later: the run gets another pod."""
    monkeypatch.setattr(single, "_ANSWER_S", 0.01)
    pod, spec = await kernel.make_pod(), SandboxSpec(run="one", grant=Grant(), workspace=tmp_path)
    async with two_ends() as (near_end, far_end):
        machine = NodeClient(near_end, level=Isolation.L2)
        await send_message(far_end, Hello(version=VERSION, python="", level=Isolation.L2, mechanisms={}))
        await machine.hello()
        patch = manifest.claim_patch(FORM, replace(BERTH, name=pod.name), waited_s=0)
        home = single.ConnectedPod(pod, machine)

        with pytest.raises(Gone, match="has not answered"):
            await single.start_in(home, spec, pods=kernel.pods, patch=patch, places={}, within_s=60.0)

    await pod.removal
    assert kernel.remaining_objects() == []
    assert "PATCH pods" not in kernel.server.received_requests


async def test_warm_pods_that_cannot_be_deleted_make_no_room(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would wait for the room forever; `make_room` works once they can be deleted."""
    monkeypatch.setattr(warm_pool, "_GONE_S", 0.01)
    waiting = WarmPool(kernel.pods, 1, within_s=60.0, on_threshold=lambda *_: None)
    waiting.request(PodShape.of(FORM, replace(BERTH, folders=(), size_mb=0), Isolation.L2))
    await eventually(lambda: kernel.server.received_requests.count("PATCH secrets") == 1)
    replies = kernel.server.replies["DELETE pods"] = [refusal(403, "not now")] * 100_000

    assert not await waiting.wait_for_capacity()
    replies.clear()
    monkeypatch.setattr(warm_pool, "_GONE_S", 60.0)
    assert await waiting.wait_for_capacity()
    assert kernel.remaining_objects() == []
    await waiting.close()


async def test_a_result_after_a_cancelled_wait_is_dropped(kernel: Kernel) -> None:
    """A run that started at the moment of the cancel has no owner."""
    pod, dropped_pods = await kernel.make_pod(), list[str]()

    async def work() -> str:
        asking.cancel()
        return "it"

    asking = asyncio.create_task(until_failure(pod, work(), drop=dropped_pods.append))
    await asyncio.wait((asking,))

    assert (asking.cancelled(), dropped_pods) == (True, ["it"])


async def test_a_run_that_starts_after_a_cancelled_wait_ends_in_its_pod(kernel: Kernel, tmp_path: Path) -> None:
    """Other runs may be in the pod, so the pod itself stays."""
    (workspace := tmp_path / "work").mkdir()
    pod, spec = await kernel.make_pod(), SandboxSpec(run="one", grant=Grant(), workspace=workspace)
    async with two_ends() as (near_end, far_end):
        machine = NodeClient(near_end, level=Isolation.L2)
        await send_message(far_end, Hello(version=VERSION, python="", level=Isolation.L2, mechanisms={}))
        hearing = asyncio.create_task(_start(far_end))

        async def begun() -> RemoteSandbox:
            sandbox = await machine.start(spec)
            asking.cancel()
            return sandbox

        asking = asyncio.create_task(until_failure(pod, begun(), drop=RemoteSandbox.drop))
        await asyncio.wait((asking,))

        assert asking.cancelled()
        await hearing
        await eventually(lambda: not machine._sandboxes)
        await machine.close()


async def _start(line: Line) -> None:
    """Answer as a machine does for one run, until the kernel forgets the run."""
    while (frame := await line.receive()) is not None:
        match word := messages.from_kernel(frame.control):
            case messages.Start():
                await send_message(line, messages.Started(number=word.number))
            case messages.Signal():
                await send_message(line, messages.Ended(number=word.number, code=-9, reason="signalled"))
            case messages.Fetch():
                await send_message(
                    line, messages.Answer(ask=word.ask, error=ErrorInfo(type="SandboxFailed", message="nothing"))
                )
            case messages.Forget():
                return await send_message(line, messages.Answer(ask=word.ask))
