"""Notifications to a real endpoint that fails, hangs, redirects and never ends, and to commands and functions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import pathlib
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from ramet import Agent, AgentRuntime, Limits, ScriptedModel, Session, Watch
from ramet.concurrency.clock import FakeClock, SystemClock
from ramet.core.errors import InvalidValue
from ramet.core.events import LimitPaused
from ramet.core.outcome import Status
from ramet.host.egress.dial import Lookup
from ramet.host.notifications import CallbackTarget, CommandTarget, Notification, WebhookTarget, delivery_queue
from ramet.host.notifications.notification import NotificationWriter
from ramet.host.notifications.targets import Notifiable
from ramet.host.notifications.webhook import WebhookClient
from ramet.host.trees.project import Project
from ramet.models.scripted.model import Call, Script
from tests.support.tls import make_certificate
from tests.support.waiting import eventually
from tests.support.webhook_receiver import Post, Receiver, failing, receiver
from tests.trips.kits.sessions import Gate

KEY = b"k" * 24
SECRET = "whsec_" + base64.b64encode(KEY).decode()


@pytest.fixture
async def endpoint() -> AsyncIterator[Receiver]:
    """An endpoint of this machine."""
    async with receiver() as made:
        yield made


def target(endpoint: Receiver, **options: Any) -> WebhookTarget:
    """Return a target that leads to the endpoint, and tries again soon."""
    return WebhookTarget(
        **{
            "url": endpoint.url,
            "secret": SECRET,
            "allow_private": ["127.0.0.1"],
            "first_retry_s": 0.001,
            "longest_retry_s": 0.02,
            **options,
        }
    )


def agent(name: str = "helper", *, says: str = "done") -> Agent:
    """Return an agent that answers at once."""
    return Agent(name=name, model=ScriptedModel([says]))


def look() -> str:
    """Look."""
    return "nothing"


NOTE = Notification(id="run-1-2", kind="ended", time=SystemClock().now(), text="main ended: completed & <!channel>")


async def attempt(target: WebhookTarget, *, lookup: Lookup | None = None) -> str:
    """Return the problem of one attempt; empty if it was delivered."""
    client = WebhookClient(target, SystemClock(), **({} if lookup is None else {"lookup": lookup}))
    return (await client.deliver(NOTE)).problem


# ---- what is sent


async def test_the_end_of_a_root_is_posted_and_signed_as_standard_webhooks_describe(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """An independent computation over id, time and body gives the same signature."""
    async with AgentRuntime(tmp_path, notify={"hook": target(endpoint)}) as runtime:
        handle = await runtime.spawn(agent(), "go")
        assert (await handle.result()).status is Status.COMPLETED
        await eventually(lambda: endpoint.accepted)

    (post,) = endpoint.accepted
    fields = post.fields
    signed = b".".join([fields["webhook-id"].encode(), fields["webhook-timestamp"].encode(), post.data])
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert fields["webhook-signature"] == f"v1,{expected}"
    assert abs(int(fields["webhook-timestamp"]) - SystemClock().now().timestamp()) < 300
    assert (post.path, fields["host"]) == ("/hook?key=1", f"127.0.0.1:{endpoint.port}")
    assert post.body["id"] == fields["webhook-id"]
    assert {name: post.body[name] for name in ("kind", "tree", "run", "path", "agent", "status", "text")} == {
        "kind": "ended",
        "tree": handle.id,
        "run": handle.id,
        "path": "main",
        "agent": "helper",
        "status": "completed",
        "text": "main ended: completed",
    }
    assert "done" not in post.data.decode()  # no conversation


async def test_a_question_is_sent_with_masked_arguments_and_the_command_that_answers(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """The notification names no key and no link; the answer in the inbox ends the wait as before."""

    def pay(amount: int, api_key: str, note: str) -> str:
        """Pay."""
        return "paid"

    llm = ScriptedModel([[Call("pay", {"amount": 5, "api_key": "abc-def-ghi", "note": "x" * 5_000})], "done"])
    lead = Agent(name="lead", model=llm, hooks={"PreToolUse": [lambda payload: "ask"]})
    async with AgentRuntime(tmp_path, notify={"hook": target(endpoint, kinds=["approval"])}) as runtime:
        handle = await runtime.spawn(lead, "go", tools=[pay])
        await eventually(lambda: endpoint.accepted)
        (pending,) = runtime.trees[handle.run.info.id].inbox.pending
        runtime.trees[handle.run.info.id].inbox.answer(pending.id, True)
        assert (await handle.result()).value == "done"

    (post,) = endpoint.accepted
    body = post.body
    assert (body["kind"], body["approval"], body["tool"]) == ("approval", pending.id, "pay")
    assert body["command"] == f"ramet approve {pending.id}"
    assert body["command"] in body["text"]
    assert (body["arguments"]["amount"], body["arguments"]["api_key"]) == (5, "***")
    assert len(body["arguments"]["note"]) < 2_200
    assert "http" not in post.data.decode()


async def test_a_limit_that_pauses_is_sent_with_the_command_that_raises_it(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """The run goes on once the limit is raised, and only its end is sent after that."""
    limits = Limits(model_calls=1, at_limit="pause")
    async with AgentRuntime(tmp_path, notify={"hook": target(endpoint)}) as runtime:
        lead = Agent(name="lead", model=ScriptedModel([Call("look", {}), "done"]))
        handle = await runtime.spawn(lead, "go", tools=[look], limits=limits)
        await eventually(lambda: endpoint.accepted)
        await handle.raise_limits(Limits(model_calls=2))
        assert (await handle.result()).value == "done"
        await eventually(lambda: len(endpoint.accepted) == 2)

    body = endpoint.accepted[0].body
    assert {name: body[name] for name in ("kind", "run", "resource", "asked", "left", "scope")} == {
        "kind": "paused",
        "run": handle.id,
        "resource": "model_calls",
        "asked": 1,
        "left": 0,
        "scope": "main",
    }
    assert body["command"] == f"ramet raise {handle.id} --calls AMOUNT"
    assert "needs 1, 0 left" in body["text"]
    assert body["command"] in body["text"]
    assert endpoint.accepted[1].body["kind"] == "ended"


async def test_a_silent_and_a_looping_run_are_sent_once_with_the_command_that_shows_them(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """Secrets in the name of a tool are masked."""
    clock, gate = FakeClock(), Gate()
    hook = target(endpoint, kinds=["run_silent", "run_looping"])
    script: Script = [*[Call("sk-ant-api03-abcdefghijklmnop")] * 2, Call("gate"), "done"]
    async with AgentRuntime(tmp_path, clock=clock, notify={"hook": hook}) as runtime:
        lead = Agent(name="lead", model=ScriptedModel(script))
        handle = await runtime.spawn(lead, "go", tools=[gate.tool], watch=Watch(silent_s=60, same_call=2))
        await gate.entered.wait()
        await eventually(lambda: len(endpoint.accepted) == 1)
        await clock.advance(60)
        await eventually(lambda: len(endpoint.accepted) == 2)
        gate.open.set()
        await handle.result()

    looping, silent = (each.body for each in endpoint.accepted)
    assert (looping["kind"], silent["kind"]) == ("run_looping", "run_silent")
    assert looping["command"] == silent["command"] == f"ramet show {handle.id}"
    assert "sk-ant" not in json.dumps(looping)
    assert "2 times in a row" in looping["text"]
    assert silent["text"].startswith("main: it showed no sign of life for 60 s while it waited for its tool.\n")


def test_the_command_that_raises_a_limit_names_the_run_whose_limit_it_is() -> None:
    """The ids of the waiting run and of the root are known; of another run, the path is."""
    event = LimitPaused(
        root="run-1", run="run-3", path="main/b/c", agent="c", seq=9, resource="tool_calls", asked=1, left=0, scope=""
    )
    commands = []
    for scope in ("main", "main/b", "main/b/c"):
        sent = NotificationWriter().from_event(replace(event, scope=scope))
        assert sent is not None
        commands.append(sent.command)

    assert commands == [f"ramet raise {id} --tool-calls AMOUNT" for id in ("run-1", "ID of main/b", "run-3")]


async def test_slack_gets_a_text_in_which_nothing_is_a_mention(endpoint: Receiver) -> None:
    """A message of Slack's incoming webhooks has one field, with its special characters escaped."""
    assert await attempt(target(endpoint, format="slack")) == ""

    (post,) = endpoint.accepted
    assert post.body == {"text": "main ended: completed &amp; &lt;!channel&gt;"}


async def test_a_target_gets_only_what_it_wants(tmp_path: pathlib.Path) -> None:
    """Kinds, statuses, all runs or roots, and the text of results are settings of each target."""
    failed, every, roots = list[Notification](), list[Notification](), list[Notification]()
    call = Call("Agent", {"prompt": "help", "name": "child", "subagent_type": "general-purpose"})
    llm = ScriptedModel({"help": ["child says"], "go": [call, "root says"]})
    async with AgentRuntime(
        tmp_path,
        notify={
            "failed": CallbackTarget(function=failed.append, statuses=[Status.FAILED]),
            "every": CallbackTarget(function=every.append, all_runs=True, with_text=True),
            "roots": roots.append,
        },
    ) as runtime:
        agents = Project.open(None, user_dir=None)
        await (await runtime.spawn(Agent(name="lead", model=llm), "go", agents=agents)).result()

    assert failed == []
    assert [(each.path, each.result) for each in every] == [("main/child", "child says"), ("main", "root says")]
    assert [(each.path, each.result) for each in roots] == [("main", "")]


async def test_a_question_that_is_answered_before_it_is_sent_is_not_sent(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """The first question fails at the endpoint; its answer takes it back, and the end is sent."""
    endpoint.answer = failing(10_000)

    def pay() -> str:
        """Pay."""
        return "paid"

    llm = ScriptedModel([[Call("pay", {})], "done"])
    lead = Agent(name="lead", model=llm, hooks={"PreToolUse": [lambda payload: "ask"]})
    notify = {"hook": target(endpoint, first_retry_s=0.2, longest_retry_s=0.2)}
    async with AgentRuntime(tmp_path, notify=notify) as runtime:
        handle = await runtime.spawn(lead, "go", tools=[pay])
        await eventually(lambda: endpoint.tried)
        inbox = runtime.trees[handle.run.info.id].inbox
        inbox.answer(inbox.pending[0].id, True)
        await handle.result()
        endpoint.answer = failing(0)
        await eventually(lambda: endpoint.accepted)
        assert runtime.notifier is not None
        await eventually(lambda: runtime.notifier.is_done)  # type: ignore[union-attr]  # checked above
        assert runtime.notifier.queues["hook"].outcomes["answered"] == 1

    assert [each.body["kind"] for each in endpoint.accepted] == ["ended"]


# ---- failures


async def test_a_failing_endpoint_gets_each_notification_in_order_and_the_log_says_so_once(
    endpoint: Receiver, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty trees end while the endpoint refuses; the id of a notification is the same at each attempt."""
    endpoint.answer = failing(60)
    async with AgentRuntime(tmp_path, notify={"hook": target(endpoint)}) as runtime:
        handles = [await runtime.spawn(agent(), "go") for _ in range(20)]
        for each in handles:
            await each.result()
        await eventually(lambda: len(endpoint.ids) == 20)
        assert runtime.notifier is not None
        queue = runtime.notifier.queues["hook"]
        await eventually(lambda: queue.outcomes["delivered"] == 20)
        assert (queue.outcomes["failed"], queue.waiting) == (60, 0)

    assert {each.fields["webhook-id"] for each in endpoint.tried} == set(endpoint.ids)
    assert len(endpoint.accepted) == 20
    lines = [each.getMessage() for each in caplog.records if each.name == "ramet.notifications"]
    assert len([each for each in lines if "fails, and is tried again" in each]) == 1
    assert len([each for each in lines if "no failures any more" in each]) == 1


async def test_an_endpoint_that_fails_for_a_minute_gets_each_notification_of_a_paused_run_once_and_in_order(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """A run pauses three times and ends in that minute of the clock; all four are delivered after it."""
    clock, is_down = FakeClock(), True

    async def answer(post: Post, writer: asyncio.StreamWriter) -> int:
        return 503 if is_down else 204

    endpoint.answer = answer
    script: Script = [Call("look", {}), Call("look", {}), "done"]
    lead = Agent(name="lead", model=ScriptedModel(script))
    notify = {"hook": target(endpoint, first_retry_s=1, longest_retry_s=10)}
    async with AgentRuntime(tmp_path, clock=clock, notify=notify) as runtime:
        assert runtime.notifier is not None
        queue = runtime.notifier.queues["hook"]
        limits = Limits(model_calls=0, at_limit="pause")
        handle = await runtime.spawn(lead, "go", tools=[look], limits=limits)
        for number in range(1, 4):
            await eventually(partial(_has_waiting, queue, number))
            await handle.raise_limits(Limits(model_calls=1))
        assert (await handle.result()).value == "done"
        await eventually(lambda: queue.waiting == 4)
        for _ in range(60):
            await clock.advance(1)
            await eventually(lambda: queue.is_settled)
        assert (len(endpoint.accepted), queue.waiting) == (0, 4)
        is_down = False
        await clock.advance(10)
        await eventually(lambda: queue.waiting == 0)

    assert [each.body["kind"] for each in endpoint.accepted] == ["paused", "paused", "paused", "ended"]
    assert len(endpoint.ids) == len(endpoint.accepted) == 4
    assert len(endpoint.tried) >= 8  # Attempts, further apart each time.
    assert endpoint.tried[0].fields["webhook-id"] == endpoint.accepted[0].fields["webhook-id"]


async def test_a_run_whose_endpoint_hangs_holds_up_no_other_run_and_no_other_target(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """The endpoint does not answer for one run; meanwhile the other runs and the function get theirs."""
    heard, release = list[Notification](), asyncio.Event()
    bad = ""

    async def answer(post: Post, writer: asyncio.StreamWriter) -> int:
        if post.body["run"] == bad:
            await release.wait()
        return 204

    endpoint.answer = answer
    targets: dict[str, Notifiable] = {"hook": target(endpoint, timeout_s=1_000), "function": heard.append}
    async with AgentRuntime(tmp_path, notify=targets) as runtime:
        bad = runtime.mint()
        await (await runtime.spawn(agent(), "go", run=bad)).result()
        await eventually(lambda: endpoint.tried)
        for _ in range(12):
            await (await runtime.spawn(agent(), "go")).result()
        await eventually(lambda: len(endpoint.ids) == 12)
        await eventually(lambda: len(heard) == 13)
        release.set()
        await eventually(lambda: len(endpoint.ids) == 13)


async def test_a_backlog_that_fills_the_memory_stays_in_the_journal(
    endpoint: Receiver, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue has room for two; thirty trees end while the endpoint refuses. Then all are delivered once."""
    monkeypatch.setattr(delivery_queue, "MAX_BYTES", 2_000)
    is_down = True

    async def answer(post: Post, writer: asyncio.StreamWriter) -> int:
        return 503 if is_down else 204

    endpoint.answer = answer
    heard = list[Notification]()
    notify: dict[str, Notifiable] = {"hook": target(endpoint), "function": heard.append}
    async with AgentRuntime(tmp_path, notify=notify) as runtime:
        for _ in range(30):
            await (await runtime.spawn(agent(), "go")).result()
        assert runtime.notifier is not None
        queue = runtime.notifier.queues["hook"]
        await eventually(lambda: len(heard) == 30)
        assert queue.waiting <= 2
        is_down = False
        await eventually(lambda: len(endpoint.ids) == 30)
        await eventually(lambda: runtime.notifier.is_done)  # type: ignore[union-attr]  # checked above

    assert len(endpoint.accepted) == 30
    assert {each.id for each in heard} == set(endpoint.ids)


async def test_a_conversation_that_is_opened_again_has_another_end(endpoint: Receiver, tmp_path: pathlib.Path) -> None:
    """Each end is sent once, by the process in which it happens."""
    ids = []
    for _ in range(3):
        async with AgentRuntime(tmp_path, notify={"hook": target(endpoint)}) as runtime:
            session = Session(ScriptedModel(["said"]), runtime=runtime, session_id="talk")
            await session.ask("hello")
            await session.close()
            assert runtime.notifier is not None
            await eventually(lambda: runtime.notifier.is_done)  # type: ignore[union-attr]  # checked above
        ids.append([each.fields["webhook-id"] for each in endpoint.accepted])

    assert [len(each) for each in ids] == [1, 2, 3]
    assert len(set(ids[-1])) == 3


async def test_a_target_that_is_new_begins_with_what_happens_from_then_on(
    endpoint: Receiver, tmp_path: pathlib.Path
) -> None:
    """A tree that ended before is not told; neither is what happened before in a conversation that goes on."""
    async with AgentRuntime(tmp_path) as runtime:
        await (await runtime.spawn(agent(), "go")).result()
        session = Session(ScriptedModel(["said"]), runtime=runtime, session_id="talk")
        await session.ask("hello")
        await session.close()
    async with AgentRuntime(tmp_path, notify={"hook": target(endpoint)}) as runtime:
        session = Session(ScriptedModel(["said"]), runtime=runtime, session_id="talk")
        await session.ask("hello")
        await session.close()
        await eventually(lambda: endpoint.accepted)
        assert runtime.notifier is not None
        await eventually(lambda: runtime.notifier.is_done)  # type: ignore[union-attr]  # checked above

    assert [each.body["path"] for each in endpoint.accepted] == ["main"]


async def test_redirects_are_not_followed_and_endless_answers_are_not_read(endpoint: Receiver) -> None:
    """A redirect is a failure; an endless head is one; a body without an end costs nothing."""

    async def redirect(post: Post, writer: asyncio.StreamWriter) -> int | None:
        writer.write(f"HTTP/1.1 307 x\r\nlocation: {endpoint.url}\r\n\r\n".encode())
        await writer.drain()
        return None

    async def endless(post: Post, writer: asyncio.StreamWriter) -> int | None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async def endless_head(post: Post, writer: asyncio.StreamWriter) -> int | None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-more: " + b"y" * 10_000 + b"\r\n")
            await writer.drain()

    async def no_http(post: Post, writer: asyncio.StreamWriter) -> int | None:
        writer.write(b"SSH-2.0-server\r\n\r\n")
        await writer.drain()
        return None

    async def interim(post: Post, writer: asyncio.StreamWriter) -> int | None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await writer.drain()
        return 200

    problems = []
    for answer in (redirect, endless, endless_head, no_http, interim):
        endpoint.answer = answer
        problems.append(await attempt(target(endpoint)))

    assert problems[0] == "it answered 307, and redirects are not followed"
    assert problems[1] == ""
    assert "connection failed" in problems[2]
    assert "connection failed" in problems[3]
    assert problems[4] == ""
    assert len(endpoint.tried) == 5


async def test_an_endpoint_that_hangs_is_given_up_after_the_time_of_an_attempt(endpoint: Receiver) -> None:
    """A connection that is accepted and never answered is a failure of that attempt."""

    async def hang(post: Post, writer: asyncio.StreamWriter) -> int | None:
        await asyncio.Event().wait()
        return None

    endpoint.answer = hang

    assert await attempt(target(endpoint, timeout_s=0.2)) == "it did not answer within 0.2 s"


async def test_a_target_that_is_gone_is_logged_and_stops_only_if_its_settings_say_so(
    endpoint: Receiver, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After 410 the one target tries again, and the other gets nothing more, which is counted."""
    endpoint.answer = failing(1, status=410)
    async with AgentRuntime(tmp_path / "a", notify={"hook": target(endpoint)}) as runtime:
        await (await runtime.spawn(agent(), "go")).result()
        await eventually(lambda: len(endpoint.accepted) == 1)
    endpoint.answer = failing(1, status=410)
    async with AgentRuntime(tmp_path / "b", notify={"hook": target(endpoint, stop_when_gone=True)}) as runtime:
        assert runtime.notifier is not None
        queue = runtime.notifier.queues["hook"]
        await (await runtime.spawn(agent(), "go")).result()
        await eventually(lambda: queue.outcomes["dropped"] == 1)  # Those of two runs are sent side by side.
        await (await runtime.spawn(agent(), "go")).result()
        await eventually(lambda: queue.outcomes["dropped"] == 2)

    assert len(endpoint.accepted) == 1
    assert len([each for each in caplog.records if "is gone, and gets nothing more" in each.getMessage()]) == 1


async def test_a_notification_that_is_too_old_is_given_up_and_logged(
    endpoint: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """With a fake clock a day passes in an instant, and the waits between attempts stay bounded."""
    clock = FakeClock()
    endpoint.answer = failing(10_000_000)
    notify = {"hook": target(endpoint, first_retry_s=60, longest_retry_s=7_200)}
    async with AgentRuntime(clock=clock, notify=notify) as runtime:
        await (await runtime.spawn(agent(), "go")).result()
        assert runtime.notifier is not None
        queue = runtime.notifier.queues["hook"]
        for hour in range(30):
            tried = len(endpoint.tried)
            await clock.advance(3_600)
            if queue.outcomes["expired"]:
                break
            if hour < 2:
                await eventually(partial(_is_tried_again, endpoint, tried))
        await eventually(lambda: queue.outcomes["expired"] == 1)

    assert queue.waiting == 0
    assert any("too old, and given up" in each.getMessage() for each in caplog.records)


def _has_waiting(queue: delivery_queue.DeliveryQueue, number: int) -> bool:
    return queue.waiting == number


def _is_tried_again(endpoint: Receiver, tried: int) -> bool:
    return len(endpoint.tried) > tried


# ---- where it goes


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "168.63.129.16",
        "0.0.0.0",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
@pytest.mark.parametrize("is_name", [True, False])
async def test_a_host_that_is_not_listed_must_have_a_public_address(
    endpoint: Receiver, address: str, is_name: bool
) -> None:
    """A name that resolves to such an address is refused, and so is its number in the URL. Nothing is sent."""
    host = "hooks.example.com" if is_name else f"[{address}]" if ":" in address else address
    refused = WebhookTarget(url=f"https://{host}:{endpoint.port}/", allow_private=["elsewhere.example.com"])

    problem = await attempt(refused, lookup=lambda host, port: [address])

    assert "leads to" in problem
    assert endpoint.tried == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "localhost", "LOCALHOST."])
async def test_other_spellings_of_the_loopback_address_are_refused(endpoint: Receiver, host: str) -> None:
    """The resolver of this machine reads them, and the address that it returns is checked."""
    assert "leads to" in await attempt(WebhookTarget(url=f"https://{host}:{endpoint.port}/"))
    assert endpoint.tried == []


async def test_a_name_is_looked_up_once_and_its_address_is_connected_to(endpoint: Receiver) -> None:
    """A name server that answers otherwise the second time changes nothing. One private address refuses all."""
    answers = [["127.0.0.1"], ["8.8.8.8"]]
    listed = WebhookTarget(url=f"http://hook.test:{endpoint.port}/", allow_private=["hook.test"])
    assert await attempt(listed, lookup=lambda host, port: answers.pop(0)) == ""
    assert len(answers) == 1
    assert endpoint.accepted[0].fields["host"] == f"hook.test:{endpoint.port}"

    mixed = WebhookTarget(url=f"https://hook.test:{endpoint.port}/")
    assert "leads to 127.0.0.1" in await attempt(mixed, lookup=lambda host, port: ["8.8.8.8", "127.0.0.1"])


async def test_a_certificate_must_be_valid_for_the_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate of localhost is accepted for that name alone, and an unknown authority never."""
    import ssl

    certificate = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with receiver(context) as made:
        known = WebhookTarget(url=f"https://localhost:{made.port}/", allow_private=["localhost"])
        other = WebhookTarget(url=f"https://hook.test:{made.port}/", allow_private=["hook.test"])

        def lookup(host: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        assert "certificate is not accepted" in await attempt(known, lookup=lookup)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await attempt(known, lookup=lookup) == ""
        assert "certificate is not accepted" in await attempt(other, lookup=lookup)
    assert len(made.accepted) == 1


async def test_a_proxy_of_the_environment_is_not_used(endpoint: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would resolve the name again."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert await attempt(target(endpoint)) == ""


# ---- commands and functions


async def test_a_command_gets_json_and_no_shell_reads_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of a command are arguments, its output is dropped, and a key in the environment is not passed on."""
    monkeypatch.setenv("MY_API_KEY", "not for commands")
    out = tmp_path / "out"
    code = (
        "import json, os, sys\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    json.dump([json.load(sys.stdin), sys.argv[2:], dict(os.environ)], file)\n"
        "print('x' * 10**6)\n"
    )
    command = CommandTarget(argv=[sys.executable, "-c", code, str(out), "$(id); `id`"])
    async with AgentRuntime(tmp_path / "a", notify={"command": command}) as runtime:
        await (await runtime.spawn(agent(), "go")).result()
        assert runtime.notifier is not None
        await eventually(lambda: runtime.notifier.queues["command"].outcomes["delivered"])  # type: ignore[union-attr]  # checked above

    body, arguments, environment = json.loads(out.read_text())
    assert (body["kind"], arguments) == ("ended", ["$(id); `id`"])
    assert "MY_API_KEY" not in environment


async def test_a_command_that_fails_or_hangs_is_tried_again(tmp_path: pathlib.Path) -> None:
    """The first attempt hangs and is ended with its children; the second fails; a later one delivers."""
    script = tmp_path / "notify"
    script.write_text(
        f"#!/bin/sh\nn=$(cat {tmp_path}/n 2>/dev/null || echo 0)\necho $((n+1)) > {tmp_path}/n\n"
        f"[ $n = 0 ] && sleep 1000\n[ $n = 1 ] && exit 3\ncat > {tmp_path}/out\n"
    )
    script.chmod(0o755)
    command = CommandTarget(argv=[str(script)], timeout_s=1.0, first_retry_s=0.01)
    async with AgentRuntime(tmp_path / "a", notify={"command": command}) as runtime:
        await (await runtime.spawn(agent(), "go")).result()
        await eventually(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text().endswith("\n"))

    assert int((tmp_path / "n").read_text()) >= 3  # On a busy machine the time ends one that would have delivered.


async def test_functions_may_be_async_and_may_fail(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A function that raises is called again with the same notification; the run does not see it."""
    calls, heard = list[str](), list[str]()

    def sync(notification: Notification) -> None:
        calls.append(notification.id)
        if len(calls) < 3:
            raise SystemExit("not now")

    async def coroutine(notification: Notification) -> None:
        heard.append(notification.id)
        if len(heard) < 3:
            raise SystemExit("not now either")

    targets: dict[str, Notifiable] = {
        "sync": CallbackTarget(function=sync, first_retry_s=0.001),
        "async": CallbackTarget(function=coroutine, first_retry_s=0.001),
    }
    async with AgentRuntime(tmp_path, notify=targets) as runtime:
        assert (await (await runtime.spawn(agent(), "go")).result()).status is Status.COMPLETED
        await eventually(lambda: len(calls) == 3 == len(heard))

    assert set(calls) == set(heard)


async def test_a_runtime_without_a_journal_sends_notifications_too(endpoint: Receiver) -> None:
    """Nothing is on disk, so nothing outlives the process; what has not failed is delivered before the stop."""
    async with AgentRuntime(notify={"hook": target(endpoint)}) as runtime:
        await (await runtime.spawn(agent(), "go")).result()

    assert len(endpoint.accepted) == 1


def test_wrong_targets_are_refused_by_name() -> None:
    """The error names the field, and shows neither a URL nor a secret."""
    with pytest.raises(InvalidValue, match=r"notify: .* a mapping of names"):
        AgentRuntime(notify=[print])  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidValue, match=r"notify\.ops: 5 is not accepted"):
        AgentRuntime(notify={"ops": 5})  # type: ignore[dict-item]  # on purpose
    url = "https://hooks.example.com/T0/secret-part"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("url", {"url": "http://hooks.example.com/T0/secret-part"}),
        ("url", {"url": "https://user:secret-part@hooks.example.com/"}),
        ("url", {"url": "https://hooks.example.com/a b\r\nsecret-part"}),
        ("url", {"url": "ftp://secret-part"}),
        ("secret", {"url": url, "secret": "secret-part"}),
        ("secret", {"url": url, "secret": "whsec_c2hvcnQ="}),
        ("kinds", {"url": url, "kinds": ["deaths"]}),
        ("kinds", {"url": url, "kinds": "ended"}),
        ("kinds", {"url": url, "kinds": []}),
        ("statuses", {"url": url, "statuses": ["dead"]}),
        ("format", {"url": url, "format": "xml"}),
        ("timeout_s", {"url": url, "timeout_s": 0}),
        ("allow_private", {"url": url, "allow_private": "127.0.0.1"}),
    ]
    for field, options in wrong:
        with pytest.raises(InvalidValue) as refusal:
            WebhookTarget(**options)
        assert refusal.value.field == field
        assert "secret-part" not in str(refusal.value)
    assert "secret-part" not in repr(WebhookTarget(url=url))
    with pytest.raises(InvalidValue):
        CommandTarget(argv="rm -rf")
