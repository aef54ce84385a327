"""Questions for a person outlive their process, with the same id and deadline. Each is asked once and answered once."""

from __future__ import annotations

import asyncio
import pathlib
from datetime import datetime, timedelta

import pytest

from ramet import Agent
from ramet.concurrency.clock import SystemClock
from ramet.core.errors import DefinitionMissing, Unknown
from ramet.core.events import ApprovalAnswered, ApprovalAsked, Event, decode
from ramet.core.outcome import Status
from tests.support.store_addresses import run_program_until_killed, store_at
from tests.trips.programs.approvals import effects, living_paths, model, question, resumed_root, runtime_of, tools

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "approvals.py"


class ClockOneHourLater(SystemClock):
    """The clock of a process that starts an hour after the other one was killed."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def run_until_killed(store_address: str, folder: pathlib.Path, kill_point: str) -> str:
    """Run the program until it kills itself, and return the id of its last question."""
    await run_program_until_killed(PROGRAM, store_address, folder, kill_point)
    return (folder / "question").read_text().split()[-1]


async def recorded_approvals(store_address: str) -> list[Event]:
    """Return the questions and answers of a journal."""
    store = await store_at(store_address).open()
    try:
        events = [decode(each.data) for each in await store.read(limit=10_000)]
    finally:
        await store.close()
    return [event for event in events if isinstance(event, ApprovalAsked | ApprovalAnswered)]


@pytest.mark.parametrize(
    ("store_address", "word", "deaths"),
    [
        *(("sqlite", word, deaths) for word in (True, False) for deaths in (1, 2)),
        ("postgres", True, 1),
        ("postgres", False, 2),
    ],
    indirect=["store_address"],
)
async def test_a_question_keeps_its_id_after_kills_and_only_its_run_resumes(
    store_address: str, tmp_path: pathlib.Path, deaths: int, word: bool
) -> None:
    """The process is killed once or twice while a person thinks. No other run and no model is disturbed."""
    ids = {await run_until_killed(store_address, tmp_path, "asked") for _ in range(deaths)}
    llm = model()
    async with runtime_of(store_address) as runtime:
        handle = await resumed_root(runtime, tmp_path, llm)
        inbox = runtime.trees[handle.id].inbox
        before = inbox.pending  # at once: nobody has had a turn of the event loop yet
        assert await question(inbox) in ids
        await asyncio.wait({asyncio.ensure_future(handle.run.context.wait_persisted())})
        assert (effects(tmp_path), llm.requests) == (["note"], [])
        assert living_paths(runtime, handle) == ["main", "main/payer"]

        inbox.answer(before[0].id, word, "by somebody")
        with pytest.raises(Unknown):
            inbox.answer(before[0].id, not word)
        result = await handle.result()

    assert result.status is Status.COMPLETED
    assert effects(tmp_path) == (["note", "pay"] if word else ["note"])
    assert [request.messages[-1].type for request in llm.requests] == ["tool", "tool"]  # the payer, then the lead
    question_event, answer_event = await recorded_approvals(store_address)
    assert isinstance(question_event, ApprovalAsked)
    assert isinstance(answer_event, ApprovalAnswered)
    assert question_event.at is not None
    assert {question_event.approval_id, answer_event.approval_id} == ids == {each.id for each in before}
    assert (before[0].path, before[0].args, before[0].asked_at) == ("main/payer", {"amount": 50}, question_event.at)
    assert before[0].deadline == question_event.at + timedelta(seconds=600)
    assert (answer_event.allowed, answer_event.reason) == (word, "by somebody")


async def test_an_answer_before_the_run_has_asked_again_counts(store_address: str, tmp_path: pathlib.Path) -> None:
    """A person may answer at the moment of the restart."""
    id = await run_until_killed(store_address, tmp_path, "asked")
    async with runtime_of(store_address) as runtime:
        handle = await resumed_root(runtime, tmp_path, model())
        runtime.trees[handle.id].inbox.answer(id, True)

        assert runtime.trees[handle.id].inbox.pending == ()
        assert (await handle.result()).status is Status.COMPLETED

    assert effects(tmp_path) == ["note", "pay"]
    assert [type(event) for event in await recorded_approvals(store_address)] == [ApprovalAsked, ApprovalAnswered]


@pytest.mark.parametrize("word", ["allowed", "denied"])
async def test_an_answered_question_is_not_asked_again(store_address: str, tmp_path: pathlib.Path, word: str) -> None:
    """The process was killed between answer and call: the recorded answer decides about the call."""
    id = await run_until_killed(store_address, tmp_path, word)
    llm = model()
    async with runtime_of(store_address) as runtime:
        handle = await resumed_root(runtime, tmp_path, llm)
        assert runtime.trees[handle.id].inbox.pending == ()
        with pytest.raises(Unknown):
            runtime.trees[handle.id].inbox.answer(id, word == "denied")

        assert (await handle.result()).status is Status.COMPLETED

    assert effects(tmp_path) == (["note", "pay"] if word == "allowed" else ["note"])
    assert ("Denied: it was not approved: by somebody" in str(llm.requests[0].messages)) is (word == "denied")
    assert [type(event) for event in await recorded_approvals(store_address)] == [ApprovalAsked, ApprovalAnswered]


async def test_resume_requires_the_hook_that_asked(store_address: str, tmp_path: pathlib.Path) -> None:
    """Resume refuses the tree without the hook that asked for approval. With the hook, the question still waits."""
    id = await run_until_killed(store_address, tmp_path, "asked")
    llm = model()
    async with runtime_of(store_address) as runtime:
        with pytest.raises(DefinitionMissing, match="PreToolUse hook 'of main/payer'"):
            await runtime.resume(llm=llm, tools=tools(tmp_path), agents=[Agent(name="lead", model=llm)])
        assert effects(tmp_path) == ["note"]

        handle = await resumed_root(runtime, tmp_path, llm)
        runtime.trees[handle.id].inbox.answer(id, True)
        await handle.result()

    assert effects(tmp_path) == ["note", "pay"]


async def test_a_question_past_its_deadline_is_denied_after_a_restart(
    store_address: str, tmp_path: pathlib.Path
) -> None:
    """An answer is refused, and the run continues without the call."""
    id = await run_until_killed(store_address, tmp_path, "asked")
    async with runtime_of(store_address, ClockOneHourLater()) as runtime:
        handle = await resumed_root(runtime, tmp_path, model())
        with pytest.raises(Unknown):
            runtime.trees[handle.id].inbox.answer(id, True)

        assert (await handle.result()).status is Status.COMPLETED

    assert effects(tmp_path) == ["note"]
    _, answer_event = await recorded_approvals(store_address)
    assert isinstance(answer_event, ApprovalAnswered)
    assert (answer_event.approval_id, answer_event.allowed) == (id, False)
    assert answer_event.reason == "no answer within 600 s"
