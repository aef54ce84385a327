"""Programs that break the protocol, or never end: each has a bound, and ends with a typed error and no process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core.errors import BudgetExceeded, TaskFailed
from ramet.guest.external.acp import CANCEL_S, START_S
from ramet.guest.external.acp_updates import MAX_ANNOUNCED
from ramet.guest.external.json_lines import MAX_LINE_BYTES, MAX_REQUESTS, MAX_STRAY_LINES
from ramet.guest.external.program_host import Permission
from ramet.guest.external.reports import MAX_REPLY_CHARS
from tests.support.recording_host import RecordingHost
from tests.support.waiting import alive, eventually
from tests.unit.guest.external.driving import Step, drive, raw_start

OPTIONS: list[Step] = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
END: Step = {"on": "session/prompt", "result": {"stopReason": "end_turn"}}


def on_prompt(**step: Any) -> Step:
    """Return a step of the first prompt."""
    return {"on": "session/prompt", **step}


async def test_lines_that_are_no_messages_are_passed_over(tmp_path: Path) -> None:
    """A log on the output, invalid UTF-8 and half a surrogate pair do not end the run."""
    lines = 'starting…\n[1, 2]\n{"a": 1}\n{ not JSON\n\udcff\udcfe\n\n' + json.dumps({"id": 77, "result": {}}) + "\n"
    answers = "".join(
        f'{{"jsonrpc":"2.0","id":{each},"result":{{}}}}\n' for each in ("true", "[1]", "1.0", '"1"', "null")
    )
    half = '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":'
    half += (
        '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"half \\ud83d of a \udcff pair"}}}}\n'
    )

    steps: list[Step] = [{"on": "initialize", "write": answers}, {"on": "initialize", "result": {"protocolVersion": 1}}]
    text = await drive(raw_start(*steps, on_prompt(write=lines + half), END), RecordingHost(), tmp_path)

    assert text.startswith("half ")
    assert text.isprintable()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"do": "endless"}, f"a line of more than {MAX_LINE_BYTES} bytes"),
        ({"write": "log\n", "times": MAX_STRAY_LINES + 1}, "lines in a row that are no messages"),
        ({"write": '{"jsonrpc": "2.0", "id": $id, "result": ' + "[" * 100_000 + "\n"}, "a message that is no JSON"),
        ({"request": {"id": [1], "method": "a"}}, "whose id is no text or number"),
        ({"do": "close"}, "closed its output"),
        ({"do": "exit", "code": 3, "stderr": "\x1b[31mno memory\x1b[0m"}, "ended with status 3\n.stderr. no memory"),
        ({"write": '{"jsonrpc": "2.0", "id": $id, "error": 7}\n'}, "an error without a message"),
        ({"result": ["end_turn"]}, "ended its turn with None"),
    ],
    ids=["endless", "log", "deep", "id", "close", "exit", "error", "result"],
)
async def test_a_program_that_breaks_the_protocol_fails_its_run(tmp_path: Path, step: Step, reason: str) -> None:
    """The error says what was wrong."""
    with pytest.raises(TaskFailed, match=reason):
        await drive(raw_start(on_prompt(**step)), RecordingHost(), tmp_path)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"on": "initialize", "result": {"protocolVersion": 2}}, "speaks version 2 of the protocol; expected 1"),
        ({"on": "session/new", "result": {}}, "a session without an id"),
        ({"on": "session/new", "write": '{"id": $id, "error": {"code": -32000, "message": "sign in"}}\n'}, "sign in"),
        ({"on": "initialize", "do": "exit", "code": 41, "stderr": "no auth"}, "status 41\n.stderr. no auth"),
    ],
    ids=["version", "session", "auth", "exit"],
)
async def test_a_program_that_cannot_begin_fails_its_run(tmp_path: Path, step: Step, reason: str) -> None:
    """The error is the program's own, where it has one."""
    with pytest.raises(TaskFailed, match=reason):
        await drive(raw_start(step), RecordingHost(), tmp_path)


@pytest.mark.parametrize("method", ["initialize", "session/new"])
async def test_the_start_has_a_time_limit(tmp_path: Path, method: str) -> None:
    """A program that does not answer is ended."""
    clock = FakeClock()
    started = tmp_path / "started"
    steps: list[Step] = [{"on": method, "touch": str(started)}]
    driving = asyncio.ensure_future(drive(raw_start(*steps), RecordingHost(), tmp_path, clock=clock))
    await eventually(started.exists)

    await clock.advance(START_S)

    with pytest.raises(TaskFailed, match=f"did not answer {method} within 60 s"):
        await driving


async def test_a_cancelled_turn_has_a_time_limit(tmp_path: Path) -> None:
    """A program that does not end its turn is ended, with a process that left its session and ignores SIGTERM."""
    clock, pids = FakeClock(), tmp_path / "pids"
    steps = [
        on_prompt(do="ignore"),
        on_prompt(do="fork", pids=str(pids)),
        on_prompt(say="Begun."),
        on_prompt(do="hang"),
    ]
    host = RecordingHost()
    driving = asyncio.ensure_future(drive(raw_start(*steps), host, tmp_path, clock=clock))
    await host.until(lambda: host.text == "Begun.")

    driving.cancel()
    await asyncio.sleep(0)
    await clock.advance(CANCEL_S)
    await asyncio.wait({driving})

    assert driving.cancelled()
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


async def test_processes_of_a_program_that_has_ended_are_ended(tmp_path: Path) -> None:
    """A process that holds the output open does not keep the run waiting."""
    pids = tmp_path / "pids"
    steps = [on_prompt(do="fork", pids=str(pids)), on_prompt(do="exit", code=0)]

    with pytest.raises(TaskFailed, match="ended with status 0"):
        await drive(raw_start(*steps), RecordingHost(), tmp_path)

    assert not any(alive(int(pid)) for pid in pids.read_text().split())


@pytest.mark.parametrize("number", [0, "", "a", None, -1.5])
async def test_ids_of_requests_are_given_back_as_they_came(tmp_path: Path, number: object) -> None:
    """Zero, a text and null are ids; what a client does not have is refused."""
    steps = [
        on_prompt(request={"id": number, "method": "fs/read_text_file", "params": []}),
        {"on": "answer", "told": True},
        {"on": "answer", "write": '{"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn"}}\n'},
    ]

    told = json.loads(await drive(raw_start(*steps), RecordingHost(), tmp_path))

    assert (told["id"], told["error"]["code"]) == (number, -32601)


async def test_open_questions_have_a_bound(tmp_path: Path) -> None:
    """Beyond it a question is refused at once; the open ones are answered when the turn ends."""
    host = RecordingHost(decide=lambda _: None)
    questions = [
        on_prompt(
            request={
                "id": number,
                "method": "session/request_permission",
                "params": {"sessionId": "s1", "toolCall": {"toolCallId": str(number)}, "options": OPTIONS},
            }
        )
        for number in range(MAX_REQUESTS + 1)
    ]
    # The answer to the one too many ends the turn.
    first = {"on": "answer", "once": True, "write": '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}\n'}

    await drive(raw_start(*questions, first), host, tmp_path)

    assert len(host.questions) == MAX_REQUESTS


async def test_a_program_that_does_not_read_is_ended(tmp_path: Path) -> None:
    """Answers that nobody reads do not fill the memory."""
    request = json.dumps({"jsonrpc": "2.0", "id": "x" * 1_000, "method": "m"}) + "\n"

    with pytest.raises(TaskFailed, match="bytes of its input unread"):
        await drive(raw_start(on_prompt(write=request, times=5_000), on_prompt(do="deaf")), RecordingHost(), tmp_path)


async def test_a_host_that_does_not_read_stops_the_program(tmp_path: Path) -> None:
    """Updates wait in the program until the host has taken those before; all of them arrive, in order."""
    host = RecordingHost()
    host.read.clear()
    size, count = 1_000, 2_000
    pid, written = tmp_path / "pid", tmp_path / "written"
    steps = [on_prompt(pid=str(pid)), on_prompt(say="x" * size, times=count), on_prompt(touch=str(written)), END]
    driving = asyncio.ensure_future(drive(raw_start(*steps), host, tmp_path))
    await eventually(pid.exists)
    looks = 0

    def is_stopped() -> bool:
        nonlocal looks
        looks = looks + 1 if psutil.Process(int(pid.read_text())).status() == psutil.STATUS_SLEEPING else 0
        return looks > 20

    await eventually(is_stopped)

    assert not written.exists()
    host.read.set()
    text = await driving

    assert len(text) == len(host.text) == size * count


async def test_a_reply_has_a_bound(tmp_path: Path) -> None:
    """All of it was passed on, and only its beginning is kept."""
    host, count = RecordingHost(), 80
    piece = "x" * (MAX_REPLY_CHARS // 64)

    text = await drive(raw_start(on_prompt(say=piece, times=count), END), host, tmp_path)

    cut = len(piece) * (count - 64)
    assert text == "x" * MAX_REPLY_CHARS + f"\n[cut: {cut} characters more]"
    assert len(host.text) == len(piece) * count


async def test_calls_that_never_end_have_a_bound(tmp_path: Path) -> None:
    """A program cannot have the driver remember calls without end."""
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "a call"}
    steps = [on_prompt(update={**call, "toolCallId": f"c{number}"}) for number in range(MAX_ANNOUNCED + 1)]

    with pytest.raises(TaskFailed, match="calls that have not ended"):
        await drive(raw_start(*steps), RecordingHost(), tmp_path)


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"sessionUpdate": 7},
        {"sessionUpdate": "agent_message_chunk", "content": ["text"]},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": 7}, "_meta": "none"},
        {"sessionUpdate": "plan", "entries": "none"},
        {"sessionUpdate": "plan", "entries": [7, {"content": 7, "status": None}]},
        {"sessionUpdate": "tool_call", "toolCallId": None, "rawInput": [1], "locations": [7], "content": {"a": 1}},
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "c",
            "status": "completed",
            "rawOutput": {"a": [[[[[1]]]]]},
        },
        {"sessionUpdate": "subagent_update", "sessionId": 7, "state": "running"},
        {"sessionUpdate": "session_info_update", "_meta": {"codex": []}},
    ],
)
async def test_updates_of_another_shape_do_not_end_the_run(tmp_path: Path, update: Step) -> None:
    """What cannot be read is passed over."""
    steps = [on_prompt(update=update), on_prompt(say="Hello."), END]

    assert await drive(raw_start(*steps), RecordingHost(), tmp_path) == "Hello."


async def test_remarks_and_texts_of_sub_agents_are_no_part_of_the_reply(tmp_path: Path) -> None:
    """A remark is marked as such; a sub-agent's text has its session, or the call above it."""
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "no"}}
    steps = [
        on_prompt(update={**chunk, "_meta": {"claudeCode": {"kind": "informational"}}}),
        on_prompt(update={**chunk, "_meta": {"claudeCode": {"parentToolUseId": "t"}}}),
        on_prompt(update=chunk, session="child"),
        on_prompt(say="Hello."),
        END,
    ]

    assert await drive(raw_start(*steps), RecordingHost(), tmp_path) == "Hello."


async def test_sub_agents_are_reported_with_their_calls(tmp_path: Path) -> None:
    """One that runs when the program ends is cancelled; an id of a call in a session of its own is its own."""
    sub_agent = {"sessionUpdate": "subagent_update", "sessionId": "child", "title": "look"}
    call = {"sessionUpdate": "tool_call", "toolCallId": "c1", "kind": "read", "rawInput": {"path": "a"}}
    nested = {**call, "toolCallId": "c2", "_meta": {"claudeCode": {"toolName": "Grep", "parentToolUseId": "t1"}}}
    steps = [
        on_prompt(update={**sub_agent, "state": {"state": "running"}}),
        on_prompt(update={**sub_agent, "state": {"state": "running"}}),
        on_prompt(update=call),
        on_prompt(update=call, session="child"),
        on_prompt(update={**sub_agent, "state": {"state": "idle", "stopReason": "end_turn"}}),
        on_prompt(update={"sessionUpdate": "tool_call", "toolCallId": "t1", "title": "ask", "rawInput": {"a": 1}}),
        on_prompt(update=nested),
        on_prompt(update={"sessionUpdate": "tool_call_update", "toolCallId": "t1", "status": "failed"}),
        on_prompt(update={**sub_agent, "sessionId": "other", "state": {"state": "running"}}),
        END,
    ]
    host = RecordingHost()

    await drive(raw_start(*steps), host, tmp_path)

    assert host.sub_agents == [
        ("child", "look", "running"),
        ("child", "look", "completed"),
        ("t1", "ask", "running"),
        ("t1", "ask", "failed"),
        ("other", "look", "running"),
        ("other", "look", "cancelled"),
    ]
    assert [call.call_id for call in host.calls.values()] == ["c1", "child:c1", "t1", "c2"]
    assert host.calls["c2"].tool == "Grep"


async def test_a_call_beyond_the_budget_is_answered_with_a_cancellation(tmp_path: Path) -> None:
    """A program that asks about such a call gets no permission, and is told to end its turn."""
    refusal = BudgetExceeded("tool_calls", asked=1, left=0, scope="main")
    host = RecordingHost(refusal=refusal, max_calls=0, decide=lambda _: Permission(True))
    log = tmp_path / "log"
    params = {"sessionId": "s1", "toolCall": {"toolCallId": "c1", "rawInput": {"a": 1}}, "options": OPTIONS}
    steps = [
        on_prompt(request={"id": 0, "method": "session/request_permission", "params": params}),
        {"on": "answer", "log": str(log)},
        {"on": "session/cancel", "log": str(log)},
        {"on": "session/cancel", "write": '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"cancelled"}}\n'},
    ]

    with pytest.raises(BudgetExceeded):
        await drive(raw_start(*steps), host, tmp_path)

    check_cancelled(log)


async def test_a_cancelled_driver_answers_what_is_open(tmp_path: Path) -> None:
    """A program is told that its turn is cancelled, and gets an answer to its question."""
    host = RecordingHost(decide=lambda _: None)
    log = tmp_path / "log"
    params = {"sessionId": "s1", "toolCall": {"toolCallId": "c1"}, "options": OPTIONS}
    steps = [
        on_prompt(request={"id": 0, "method": "session/request_permission", "params": params}),
        {"on": "session/cancel", "log": str(log)},
        {"on": "answer", "log": str(log)},
        {"on": "answer", "write": '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"cancelled"}}\n'},
    ]
    driving = asyncio.ensure_future(drive(raw_start(*steps), host, tmp_path, clock=FakeClock()))
    await host.until(lambda: bool(host.questions))

    driving.cancel()
    await asyncio.wait({driving})  # No time passes: the program ends its turn by itself.

    assert driving.cancelled()
    check_cancelled(log)


def check_cancelled(log: Path) -> None:
    """Check that a program was told of the cancellation, and got an answer to its question."""
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"outcome": {"outcome": "cancelled"}} in [each.get("result") for each in told]
    assert "session/cancel" in [each.get("method") for each in told]


async def test_a_program_that_does_not_exist_fails_its_run(tmp_path: Path) -> None:
    """The error names it."""
    start = raw_start()
    missing = type(start)(command=("no-such-program",), protocol="acp", prompt="Hello.")

    with pytest.raises(TaskFailed, match="'no-such-program' could not be started"):
        await drive(missing, RecordingHost(), tmp_path)
