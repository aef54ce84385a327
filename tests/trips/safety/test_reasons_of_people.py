"""The reason of a person's denial, and questions on the command line, also after a kernel was killed."""

from __future__ import annotations

import asyncio
import json
import pathlib

import pytest

from ramet import Session
from ramet.cli.main import main
from ramet.models.scripted.model import Call, ScriptedModel
from tests.support.waiting import eventually
from tests.trips.kits.sessions import answers
from tests.trips.programs.approvals import tools
from tests.trips.safety.test_resumed_approvals import run_until_killed

HOOKS = {"PreToolUse": [lambda payload: "ask"]}
PAY = Call("pay", {"amount": 50}, id="1")


async def _denial_text(tmp_path: pathlib.Path, reason: str) -> str:
    async with Session(ScriptedModel([PAY, "Well."]), tools(tmp_path), hooks=HOOKS) as session:
        session.send("Pay.")
        await eventually(lambda: session.approvals.pending)
        session.approvals.answer(session.approvals.pending[0].id, False, reason)
        await session.wait_for_turn()
        return answers(session.messages)["1"]


async def test_the_model_reads_the_reason_of_a_denial(tmp_path: pathlib.Path) -> None:
    """The model can do something else, and need not ask again."""
    assert await _denial_text(tmp_path, "ask Ann first") == "Denied: it was not approved: ask Ann first"


async def test_a_denial_without_a_reason_has_no_reason(tmp_path: pathlib.Path) -> None:
    """ramet does not invent a reason."""
    assert await _denial_text(tmp_path, "") == "Denied: it was not approved"


async def test_the_model_does_not_read_why_an_approver_failed(tmp_path: pathlib.Path) -> None:
    """An error of the host's own code may hold addresses and keys, so the model reads only that the approver failed."""

    def approver(_: object) -> bool:
        raise RuntimeError("no route to 10.0.0.7")

    async with Session(ScriptedModel([PAY, "Well."]), tools(tmp_path), hooks=HOOKS, approver=approver) as session:
        await session.ask("Pay.")

        assert answers(session.messages)["1"] == "Denied: it was not approved: the approver failed"


async def test_a_question_of_a_killed_kernel_is_listed_and_shown(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line says that the run was interrupted.

    An answer is refused with the command that resumes the run.
    """
    folder = tmp_path / "there"
    (folder / ".ramet").mkdir(parents=True)
    id = await run_until_killed(f"sqlite {folder / '.ramet' / 'journal.db'}", tmp_path, "asked")

    async def on(*words: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, [*words, "--dir", str(folder)])  # It has a loop of its own.
        return status, *capsys.readouterr()

    status, out, err = await on("approvals")
    assert (status, id in out, "interrupted" in out, '{"amount":50}' in out) == (0, True, True, True)
    assert "first resume interrupted runs: ramet resume" in err
    _, out, _ = await on("approvals", "--json")
    (question,) = [json.loads(line) for line in out.splitlines()]
    assert (question["id"], question["state"], question["args"]) == (id, "interrupted", {"amount": 50})
    for verb in ("approve", "deny"):
        status, _, err = await on(verb, id)
        assert status == 1
        assert f"main/payer was interrupted; first resume it: ramet resume {question['run']}" in err
    _, out, _ = await on("show", question["run"])
    assert f'{id}: pay {{"amount":50}}: ' in out
    _, out, _ = await on("logs", question["run"])
    assert 'asks to run pay {"amount":50}: ' in out
