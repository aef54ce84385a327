"""External agents outlive their kernel: session, question and answer are there when another one continues the run."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from ramet.core.events import ApprovalAnswered
from ramet.core.outcome import Status
from ramet.host.approvals import WITHDRAWN
from tests.support.store_addresses import run_program_until_killed
from tests.support.waiting import eventually
from tests.trips.kits.forwarding import create_file
from tests.trips.kits.isolated import usual_backend as backend
from tests.trips.programs.external_agents import COMMAND, runtime_of

__all__ = ["backend"]

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "external_agents.py"


@pytest.mark.parametrize("answered", ["after", "before"])
async def test_a_question_is_answered_after_the_kill_of_its_kernel(
    store_address: str, tmp_path: pathlib.Path, backend: str, answered: str
) -> None:
    """It is in the inbox at once, under its id. The program asks it again in its session, and gets the answer."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, backend, "asked")
    id = (tmp_path / "question").read_text()
    async with runtime_of(store_address, tmp_path, backend) as runtime:
        (handle,) = await runtime.resume()
        create_file(runtime, handle.id, "go")
        inbox = runtime.trees[handle.id].inbox
        (entry,) = inbox.pending
        assert (entry.id, entry.tool, entry.args) == (id, "Bash", COMMAND)
        if answered == "after":
            folder = runtime.sandboxes.folder_of(handle.id)
            assert folder is not None
            session = next((folder.workspace / ".home").glob("session-*"))
            await eventually(lambda: session.read_text() == "sorrel sorrel ")
        inbox.answer(id, True)
        result = await handle.result()

    assert (result.status, result.value) == (Status.COMPLETED, "allowedsorrel sorrel "), (result.error, result.stderr)
    assert result.usage.tool_calls == 2, "the call that was cut off, and the one that was done"


async def test_an_answer_on_record_is_not_asked_for_again(
    store_address: str, tmp_path: pathlib.Path, backend: str
) -> None:
    """The kernel was killed between the answer and the call."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, backend, "allowed")
    async with runtime_of(store_address, tmp_path, backend) as runtime:
        (handle,) = await runtime.resume()
        create_file(runtime, handle.id, "go")
        inbox = runtime.trees[handle.id].inbox
        ended = asyncio.ensure_future(handle.result())
        await eventually(lambda: ended.done() or inbox.pending)  # A question that is asked again has no end.
        assert inbox.pending == ()
        result = await ended

    assert (result.status, result.value) == (Status.COMPLETED, "allowedsorrel sorrel "), (result.error, result.stderr)


async def test_a_question_that_is_not_asked_again_is_closed_with_the_process(
    store_address: str, tmp_path: pathlib.Path, backend: str
) -> None:
    """The question waits in the inbox until then. Nobody may answer it later: the answer would reach nobody."""
    await run_program_until_killed(PROGRAM, store_address, tmp_path, backend, "asked-once")
    id = (tmp_path / "question").read_text()
    async with runtime_of(store_address, tmp_path, backend) as runtime:
        (handle,) = await runtime.resume()
        assert [each.id for each in runtime.trees[handle.id].inbox.pending] == [id]
        result = await handle.result()
        answers = [each async for each in handle.events() if isinstance(each, ApprovalAnswered)]

    assert (result.status, result.value) == (Status.COMPLETED, "done"), (result.error, result.stderr)
    assert [(each.approval_id, each.allowed, each.reason) for each in answers] == [(id, False, WITHDRAWN)]
