"""The client of the Agent Client Protocol, with an agent that is written with the library of the protocol."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs

from ramet.core.errors import Aborted, BudgetExceeded, Denied, TaskFailed
from ramet.core.events import PlanStep
from ramet.guest.external.acp import MAX_DENIED_TURNS
from ramet.guest.external.program_host import Permission
from ramet.wire.external_program import PermissionMode
from tests.support.recording_host import RecordingHost
from tests.unit.guest.external.driving import Step, drive, sdk_start


async def test_the_reply_is_the_text_after_the_last_call(tmp_path: Path) -> None:
    """Those who watch see every text, but no thought; the result is the last part."""
    host = RecordingHost()
    steps: list[Step] = [
        {"think": "Hm."},
        {"say": "I will "},
        {"say": "write."},
        {"call": "c1", "input": {"path": "a"}},
        {"end": "c1"},
    ]

    text = await drive(sdk_start(*steps, {"say": "It is "}, {"say": "written."}), host, tmp_path)

    assert text == "It is written."
    assert host.text == "I will write.It is written."


async def test_a_call_begins_and_ends_once(tmp_path: Path) -> None:
    """A call is known by its kind and its arguments, which may come late; one that fails is an error."""
    host = RecordingHost()
    steps: list[Step] = [
        {"call": "c1", "kind": "edit", "input": {"path": "a"}},
        {"end": "c1", "output": "it is there"},
        {"end": "c1"},
        {"call": "c2", "kind": "execute"},
        {"end": "c2", "input": {"command": "false"}, "failed": True, "output": "status 1"},
        {"call": "c3", "title": "look around"},
    ]

    await drive(sdk_start(*steps), host, tmp_path)

    (first, second) = host.calls.values()  # The third was announced, and never began.
    assert (first.tool, first.args, first.status, first.preview) == ("edit", {"path": "a"}, "ok", "it is there")
    assert (second.tool, second.args, second.status) == ("execute", {"command": "false"}, "error")


async def test_an_allowed_call_is_allowed_once(tmp_path: Path) -> None:
    """The host sees the arguments of the call that was announced, and the program gets no permission for later."""
    host = RecordingHost()
    steps: list[Step] = [{"call": "c1", "kind": "edit", "input": {"path": "a"}}, {"ask": "c1"}, {"end": "c1"}]

    text = await drive(sdk_start(*steps), host, tmp_path)

    assert text == "[id-allow_once]"
    (question,) = host.questions
    assert (question.call_id, question.tool, question.args) == ("c1", "edit", {"path": "a"})
    assert host.tools == [("edit", "ok")]


async def test_a_question_begins_a_call_that_was_not_announced(tmp_path: Path) -> None:
    """Without arguments, its title stands for them."""
    host = RecordingHost()

    await drive(sdk_start({"ask": "c1", "title": "Writing to a.txt", "kind": "edit"}, {"end": "c1"}), host, tmp_path)

    assert host.tools == [("edit", "ok")]
    assert host.questions[0].args == {"title": "Writing to a.txt"}


async def test_a_denied_call_is_rejected_once(tmp_path: Path) -> None:
    """The program goes on by itself; what it says then of the call changes nothing."""
    host = RecordingHost(decide=lambda _: Permission(False, "not today"))
    steps: list[Step] = [
        {"call": "c1", "input": {"path": "a"}},
        {"ask": "c1"},
        {"end": "c1", "failed": True},
        {"say": "Well."},
    ]

    text = await drive(sdk_start(*steps), host, tmp_path)

    assert text == "[id-reject_once]Well."
    (call,) = host.calls.values()
    assert (call.status, call.preview) == ("denied", "not today")


@pytest.mark.parametrize("mode", ["ask", "allow"])
async def test_a_permission_for_ever_is_never_given(tmp_path: Path, mode: PermissionMode) -> None:
    """Where the program offers only that, the host is not asked, and the call is not allowed."""
    host = RecordingHost()
    steps: list[Step] = [{"ask": "c1", "title": "a", "kinds": ["allow_always", "reject_always"]}]
    steps += [{"ask": "c2", "title": "b", "kinds": ["allow_always", "reject_once"]}]

    await drive(sdk_start(*steps, mode=mode), host, tmp_path)

    assert not host.questions
    assert host.text == "[cancelled][id-reject_once]"
    assert [status for _, status in host.tools] == ["denied", "denied"]


async def test_without_approvers_the_sandbox_alone_decides(tmp_path: Path) -> None:
    """A question is answered at once, and its call is counted."""
    host = RecordingHost()

    text = await drive(sdk_start({"ask": "c1", "kind": "edit"}, mode="allow"), host, tmp_path)

    assert text == "[id-allow_once]"
    assert not host.questions
    assert host.tools == [("edit", "cancelled")]  # The program never said that it ended.


async def test_a_turn_that_ends_with_a_denial_is_followed_by_its_reason(tmp_path: Path) -> None:
    """The program gets the reason as its next prompt, as the protocol has no other place for it."""
    host = RecordingHost(decide=lambda _: Permission(False, "not today"))
    steps: list[Step] = [{"call": "c1", "kind": "edit", "input": {"path": "a"}}, {"ask": "c1"}, {"say": "never said"}]

    text = await drive(sdk_start(*steps, arguments=("--ends-at-denial",)), host, tmp_path)

    assert text.startswith("You said: - edit denied: not today\n")


async def test_a_program_that_cannot_go_on_without_a_call_is_denied(tmp_path: Path) -> None:
    """After some turns in a row that ended with a denial, the denial is the end of the run."""
    host = RecordingHost(decide=lambda _: Permission(False, "never"))
    start = sdk_start({"ask": "c1", "kind": "edit"}, arguments=("--ends-at-denial", "--asks-again"))

    with pytest.raises(Denied, match="edit denied: never"):
        await drive(start, host, tmp_path)

    assert len(host.questions) == MAX_DENIED_TURNS + 1


async def test_mail_is_a_further_prompt(tmp_path: Path) -> None:
    """Ids of calls may come again in another turn, for other calls; the last reply counts."""
    call: list[Step] = [{"call": "c1", "input": {"path": "a"}}, {"end": "c1"}]
    host = RecordingHost(mails=[json.dumps([*call, {"say": "Second."}]), "Third."])

    text = await drive(sdk_start(*call, {"say": "First."}), host, tmp_path)

    assert text == "You said: Third."
    assert host.text == "First.Second.You said: Third."
    assert len(host.calls) == 2


async def test_a_plan_is_reported(tmp_path: Path) -> None:
    """Each plan has all of its steps."""
    host = RecordingHost()

    await drive(sdk_start({"plan": ["look", "write"]}, {"plan": ["write"]}), host, tmp_path)

    look, write = (PlanStep(text=text, status="in_progress") for text in ("look", "write"))
    assert host.plans == [[look, write], [write]]


@pytest.mark.parametrize("stop", ["refusal", "max_tokens", "max_turn_requests", "cancelled"])
async def test_a_turn_that_did_not_end_as_usual_has_failed(tmp_path: Path, stop: str) -> None:
    """The error names the reason, and has what was said until then."""
    with pytest.raises(TaskFailed, match=f"{stop}: So far"):
        await drive(sdk_start({"say": "So far."}, {"stop": stop}), RecordingHost(), tmp_path)


async def test_an_error_of_the_program_is_the_error_of_the_run(tmp_path: Path) -> None:
    """The message is the program's own."""
    with pytest.raises(TaskFailed, match="the model is asleep"):
        await drive(sdk_start({"fail": "the model is asleep"}), RecordingHost(), tmp_path)


async def test_files_and_terminals_of_the_client_do_not_exist(tmp_path: Path) -> None:
    """A program reads its files by itself, inside its sandbox."""
    with pytest.raises(TaskFailed, match="no such method: fs/read_text_file"):
        await drive(sdk_start({"read": "/etc/passwd"}), RecordingHost(), tmp_path)


@pytest.mark.parametrize("refusal", [BudgetExceeded("tool_calls", asked=1, left=0, scope="main"), Aborted("stopped")])
async def test_a_refusal_of_the_host_ends_the_turn(tmp_path: Path, refusal: Exception) -> None:
    """The turn is cancelled, and the refusal is the error of the run; nothing more is reported."""
    assert isinstance(refusal, BudgetExceeded | Aborted)
    host = RecordingHost(refusal=refusal, max_calls=1)
    calls = [{"call": f"c{number}", "input": {"path": "a"}} for number in range(3)]

    with pytest.raises(type(refusal)):
        await drive(sdk_start(*calls, {"say": "never reported"}, {"hang": True}), host, tmp_path)

    assert (host.tools, host.text) == ([("A call", "cancelled")], "")


async def test_a_cancelled_driver_ends_the_turn(tmp_path: Path) -> None:
    """A question that is open has no answer any more."""
    host = RecordingHost(decide=lambda _: None)
    driving = asyncio.ensure_future(drive(sdk_start({"ask": "c1", "kind": "edit"}), host, tmp_path))
    await host.until(lambda: bool(host.questions))

    driving.cancel()
    await asyncio.wait({driving})

    assert driving.cancelled()
    assert host.tools == [("edit", "cancelled")]


@pytest.mark.parametrize("way", ["--load", "--resume"])
async def test_a_session_of_another_process_goes_on(tmp_path: Path, way: str) -> None:
    """The prompt says that the work was interrupted. What was said and done before is not reported again."""
    host = RecordingHost(session="session-1")
    start = structs.replace(sdk_start({"say": "again"}, arguments=(way,)), resumes=True)

    text = await drive(start, host, tmp_path)

    assert text.startswith("You said: This session was interrupted")
    assert text.endswith('[{"say": "again"}]')
    assert host.text == text
    assert not host.calls


async def test_a_further_turn_has_its_own_prompt(tmp_path: Path) -> None:
    """Where nothing was cut off, a session of another process gets the prompt as it is."""
    host = RecordingHost(session="session-1")

    assert await drive(sdk_start({"say": "Second."}, arguments=("--resume",)), host, tmp_path) == "Second."


@pytest.mark.parametrize("arguments", [("--load",), ("--resume",), ()])
async def test_a_session_that_is_lost_begins_anew(
    tmp_path: Path, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The new session's id is saved, and the log of the run says so."""
    host = RecordingHost(session="unknown")

    text = await drive(sdk_start({"say": "Hello."}, arguments=arguments), host, tmp_path)

    assert (text, host.session) == ("Hello.", "session-1")
    assert "begins anew" in capsys.readouterr().err
