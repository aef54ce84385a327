"""Kills of kernels that send notifications: each is delivered at least once, and those of a run in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
from collections import defaultdict

import pytest

from ramet import AgentRuntime
from ramet.host.journal.journal import TREES
from ramet.host.notifications.delivery_record import DELIVERIES
from ramet.host.notifications.lost_kernels import LOST_KERNELS
from ramet.store.contract import Store
from tests.support.store_addresses import ROOT, store_at, wait_until_released
from tests.support.waiting import eventually
from tests.support.webhook_receiver import Answer, Post, Receiver, receiver
from tests.trips.programs.notifying import NOTIFICATIONS, finish, lead, model, pay, store_of, wait_recorded, webhook

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "notifying.py"


def noting(folder: pathlib.Path, *, refusals: int = 0) -> Answer:
    """Return an answer that accepts after some refusals, and notes the questions that it has accepted."""
    (folder / "accepted").touch()
    left = refusals

    async def answer(post: Post, writer: asyncio.StreamWriter) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            return 500
        with (folder / "accepted").open("a") as file:
            file.write(f"{post.body.get('approval', '')}\n")
        return 204

    return answer


async def run_program(*words: object) -> int:
    """Run the program to its end; return its exit code."""
    env, arguments = {**os.environ, "PYTHONPATH": str(ROOT)}, list(map(str, words))
    process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, *arguments, env=env)
    return await process.wait()


async def recorded_ids(store: Store) -> dict[str, list[str]]:
    """Return the ids of the notifications that a journal implies, by run, in order."""
    ids = defaultdict[str, list[str]](list)
    for each in await store.read(limit=10_000):
        if each.type in ("approval_asked", "run_ended"):
            ids[each.run].append(f"{each.tree}-{each.seq}")
    return dict(ids)


def ids_by_run(endpoint: Receiver) -> dict[str, list[str]]:
    """Return the ids that the endpoint has accepted, by run, each at its first acceptance."""
    ids = defaultdict[str, dict[str, None]](dict)
    for each in endpoint.accepted:
        if each.body["kind"] != "kernel_lost":
            ids[each.body["run"]][each.body["id"]] = None
    return {run: list(each) for run, each in ids.items()}


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize(
    ("store_address", "first"),
    [*(("sqlite", nth) for nth in range(1, 10)), ("postgres", 2)],
    indirect=["store_address"],
)
async def test_a_kill_at_a_record_loses_no_notification_and_keeps_the_order_of_each_run(
    store_address: str, tmp_path: pathlib.Path, first: int, phase: str
) -> None:
    """The process is killed at one write of the record, its successor at another one; the third one finishes."""
    async with receiver() as endpoint:
        endpoint.answer = noting(tmp_path, refusals=first % 3)
        codes = []
        for kill in ((phase, first), (phase, 2), ()):
            codes.append(await run_program(store_address, tmp_path, endpoint.url, "kernel", *kill))
            await wait_until_released(store_address)
            if not codes[-1]:
                break

    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    store = await store_at(store_address).open()
    try:
        expected = await recorded_ids(store)
        assert await store.list(DELIVERIES) == []
        (document,) = await store.list(TREES)
        facts = json.loads(document.data)
        assert facts["notified"]["ended"] == facts["ended"]
    finally:
        await store.close()
    assert sum(map(len, expected.values())) == NOTIFICATIONS
    assert ids_by_run(endpoint) == expected
    if (phase, first) == ("before", NOTIFICATIONS + 1):  # The last end was delivered, and its record was not written.
        assert [each.fields["webhook-id"] for each in endpoint.accepted][-2:] == [endpoint.ids[-1]] * 2


@pytest.mark.parametrize("store_address", ["sqlite", "postgres"], indirect=True)
async def test_a_tree_that_ended_is_notified_by_the_next_process_without_being_resumed(
    store_address: str, tmp_path: pathlib.Path
) -> None:
    """The endpoint refuses the end of the root, and the process is stopped. Nothing but the notification is left."""
    async with receiver() as endpoint:
        endpoint.answer = noting(tmp_path, refusals=0)
        accept = endpoint.answer
        is_down = True

        async def answer(post: Post, writer: asyncio.StreamWriter) -> int | None:
            return 500 if is_down and post.body["kind"] == "ended" else await accept(post, writer)

        endpoint.answer = answer
        first = asyncio.create_task(run_program(store_address, tmp_path, endpoint.url, "kernel", "after", 10**6))
        await eventually(
            lambda: any(each.body.get("path") == "main" for each in endpoint.tried if each.body["kind"] == "ended")
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert await first == -signal.SIGKILL
        await wait_until_released(store_address)
        is_down = False
        async with AgentRuntime(store=store_at(store_address), notify={"hook": webhook(endpoint.url)}) as runtime:
            assert runtime.notifier is not None
            await eventually(lambda: runtime.notifier.is_done and len(endpoint.ids) == NOTIFICATIONS)  # type: ignore[union-attr]  # checked above
            assert runtime.trees == {}

        accepted = len(endpoint.accepted)
        async with AgentRuntime(store=store_at(store_address), notify={"hook": webhook(endpoint.url)}) as again:
            await again.spawn(lead(model()), "nothing", tools=[pay])
            await eventually(lambda: len(endpoint.accepted) > accepted)
        assert len(endpoint.ids) == NOTIFICATIONS + 1  # the end of the new root; nothing was sent again


@pytest.mark.parametrize("store_address", ["postgres"], indirect=True)
async def test_a_kernel_that_takes_over_goes_on_from_the_recorded_place_and_says_which_kernel_was_lost(
    store_address: str, tmp_path: pathlib.Path
) -> None:
    """The first kernel is killed between a delivery and its record, while the second one watches."""
    async with receiver() as endpoint:
        endpoint.answer = noting(tmp_path)
        llm = model()
        two = store_of(store_address, "two")
        async with AgentRuntime(store=two, grace_s=1.0, notify={"hook": webhook(endpoint.url)}) as runtime:
            await runtime.adopt(llm=llm, tools=[pay], agents=[lead(llm)])
            assert await run_program(store_address, tmp_path, endpoint.url, "one", "before", 4) == -signal.SIGKILL
            await eventually(lambda: runtime.trees)
            await finish(runtime, tmp_path)
            await wait_recorded(runtime, two)
            lost = [each.body for each in endpoint.accepted if each.body["kind"] == "kernel_lost"]
            assert [each["kernel"] for each in lost] == ["one"]
            assert "kernel two" in lost[0]["text"]
            assert ids_by_run(endpoint) == await recorded_ids(two)
            assert len(await two.list(LOST_KERNELS)) == 1


@pytest.mark.parametrize("store_address", ["postgres"], indirect=True)
async def test_a_kernel_that_ends_in_order_is_not_lost(store_address: str, tmp_path: pathlib.Path) -> None:
    """A kernel that closes its store leaves nothing to be said about it."""
    async with receiver() as endpoint:
        endpoint.answer = noting(tmp_path)
        two = store_of(store_address, "two")
        async with AgentRuntime(store=two, grace_s=1.0, notify={"hook": webhook(endpoint.url)}) as runtime:
            async with AgentRuntime(
                store=store_of(store_address, "one"), notify={"hook": webhook(endpoint.url)}
            ) as one:
                await one.open_store()
            await (await runtime.spawn(lead(model()), "nothing", tools=[pay])).result()
            await eventually(lambda: endpoint.accepted)
            assert await two.list(LOST_KERNELS) == []


async def test_a_tree_that_another_runtime_of_the_folder_resumes_is_notified_to_its_end(tmp_path: pathlib.Path) -> None:
    """The runtime with targets sees no event of the tree: it reads them when the tree is over."""
    folder = tmp_path / "work"
    (folder / ".ramet").mkdir(parents=True, mode=0o700)
    address = f"sqlite {folder / '.ramet' / 'journal.db'}"
    async with receiver() as endpoint:
        endpoint.answer = noting(tmp_path)
        assert await run_program(address, tmp_path, endpoint.url, "kernel", "before", 4) == -signal.SIGKILL
        llm, notify = model(), {"hook": webhook(endpoint.url)}
        async with AgentRuntime(folder, notify=notify) as teller, AgentRuntime(folder) as runtime:
            assert teller.notifier is not None
            await eventually(lambda: teller.notifier.is_done)  # type: ignore[union-attr]  # checked above
            await runtime.resume(llm=llm, tools=[pay], agents=[lead(llm)])
            while runtime.trees:  # The endpoint hears of what follows only in the end.
                for tree in runtime.trees.values():
                    for question in tree.inbox.pending:
                        tree.inbox.answer(question.id, True)
                await asyncio.sleep(0.002)
            assert runtime.journal is not None
            store = runtime.journal.store
            await wait_recorded(teller, store)
            ends = [each.body["path"] for each in endpoint.accepted if each.body["kind"] == "ended"]
            assert ends == ["main/payer", "main"]
            assert {each for ids in ids_by_run(endpoint).values() for each in ids} <= {
                each for ids in (await recorded_ids(store)).values() for each in ids
            }
