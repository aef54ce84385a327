"""The audit log: decisions and effects reach every sink, and the file reveals each later change."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet.concurrency.clock import FakeClock
from ramet.core import events
from ramet.core.errors import Damaged, InvalidValue, StoreInUse
from ramet.core.events import Event
from ramet.core.outcome import ErrorInfo, Result, Status
from ramet.core.safety import Vote
from ramet.host.journal.recorder import Recorder
from ramet.host.observability.audit import Audit, AuditEntry, to_log
from ramet.host.observability.audit_file import NOTHING, AuditFile, verify
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Script
from ramet.models.scripted.model import Call, ScriptedModel
from tests.support.context import run_info
from tests.support.waiting import alive, eventually
from tests.trips.kits.sessions import background_call, open_tree_of, specialist_call

ROOT, CHILD = run_info(), run_info(1, path="main/child", depth=1)
OF_CONSEQUENCE: list[Event] = [
    events.RunSpawned(**ROOT.stamp, name="main", prompt="a prompt", description="a description"),
    events.RunEnded(**ROOT.stamp, result=Result(status=Status.FAILED, value="a value", partial="a partial")),
    events.RunResumed(**ROOT.stamp, turn=2),
    events.RunRetried(**ROOT.stamp, attempt=1, status="crashed"),
    events.ClampEvent(**CHILD.stamp, field="memory_mb", asked=512, given=128),
    events.BudgetRefused(**ROOT.stamp, resource="usd", asked=float("inf"), left=0, scope="main"),
    events.ApprovalAsked(**ROOT.stamp, approval_id="a-1", tool="Bash", question="may it?", args={"command": "rm -r x"}),
    events.ApprovalAnswered(**ROOT.stamp, approval_id="a-1", allowed=True, reason="fine"),
    events.HookFailed(**ROOT.stamp, hook="check", event="PreToolUse", reason="timeout"),
    events.IntentionRecorded(**ROOT.stamp, tool="Bash", args={"command": "rm -r x"}, policy="house", version=3),
    events.IntentionDecided(
        **ROOT.stamp, tool="Bash", intention=10, committed=False, votes=(Vote(voter="rules", verdict="deny"),)
    ),
    events.SandboxStarted(**CHILD.stamp, backend="bwrap", level="L2"),
    events.EndpointAsked(**CHILD.stamp, host="example.org", port=443, allowed=False),
    events.CommandRun(**CHILD.stamp, argv=("ls", "-l"), code=0),
    events.MailPushed(**CHILD.stamp, mail_id="mail-1", sender="main", kind="agent", text="a letter"),
    events.ToolEnded(**ROOT.stamp, tool="Bash", status="denied", preview="a preview"),
    events.PolicyDecided(**ROOT.stamp, adapter="house rules", verdict="refuse", reason="no", child="scout"),
    events.Notice(**ROOT.stamp, text="it broke", error=ErrorInfo(type="OSError", message="disk full")),
]
OF_NONE: list[Event] = [
    events.StateChanged(**ROOT.stamp, state="running"),
    events.TurnStarted(**ROOT.stamp, turn=1),
    events.MessageRecorded(**ROOT.stamp, message={"type": "human", "content": "hello"}),
    events.ToolEnded(**ROOT.stamp, tool="Bash", status="ok"),
    events.Notice(**ROOT.stamp, text="by the way"),
]


def entries_of(*events_sent: Event, **settings: Any) -> list[AuditEntry]:
    """Return the entries that a sink gets for these events."""
    entries: list[AuditEntry] = []
    recorder = Recorder(FakeClock())
    Audit([entries.append], **settings).attach(recorder)
    for event in events_sent:
        recorder.append(event)
    recorder.close()
    return entries


def write_lines(path: Path, count: int = 5) -> list[bytes]:
    """Write a file of some entries and return its lines with their ends."""
    file = AuditFile(path)
    for number in range(count):
        file({"type": "test", "number": number})
    file.close()
    return path.read_bytes().splitlines(keepends=True)


# --- what is told


def test_decisions_and_effects_are_audited_and_nothing_else() -> None:
    """Each event makes one entry in order, with type, time and run."""
    entries = entries_of(*OF_CONSEQUENCE, *OF_NONE)

    assert [entry["type"] for entry in entries] == [type(event).__struct_config__.tag for event in OF_CONSEQUENCE]
    assert {entry["time"] for entry in entries} == {"2026-01-01T00:00:00.000Z"}
    assert all(entry["root"] == "run-00" and entry["path"] and entry["seq"] for entry in entries)
    assert all(list(entry)[:2] == ["time", "type"] for entry in entries)
    assert all("at" not in entry for entry in entries), "its time is there once"


def test_texts_are_left_out_except_what_needed_approval() -> None:
    """Prompts, mail and results are in the transcripts; an approval is audited with the question and arguments."""
    entries = entries_of(*OF_CONSEQUENCE)

    text = json.dumps(entries, allow_nan=False)
    for words in ("a prompt", "a description", "a value", "a partial", "a letter", "a preview"):
        assert words not in text
    entry = entries[6]
    assert (entry["question"], entry["args"]) == ("may it?", {"command": "rm -r x"})
    intended, decision = entries[9:11]
    assert (intended["args"], intended["policy"], intended["version"]) == ({"command": "rm -r x"}, "house", 3)
    assert (decision["committed"], decision["votes"]) == (False, [{"voter": "rules", "verdict": "deny"}])


def test_entries_are_bounded_and_hold_no_secrets() -> None:
    """Arguments of a call may hold anything that a model writes."""
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    args = {"text": "x" * 1_000_000, "many": list(range(100_000)), "deep": deep, "password": "p", "nan": float("nan")}
    args |= {"key": "sk-ant-" + "a1B2" * 10, "other": "open sesame", "object": {1: b"bytes"}, "half": "\ud800"}
    [entry] = entries_of(
        events.ApprovalAsked(**ROOT.stamp, approval_id="a", tool="t", question="?", args=args), secrets=["open sesame"]
    )

    assert len(json.dumps(entry, allow_nan=False)) < 20_000
    arguments = entry["args"]
    assert (arguments["password"], arguments["key"], arguments["other"], arguments["nan"]) == (
        "***",
        "***",
        "***",
        "nan",
    )


async def test_a_real_tree_is_audited() -> None:
    """Spawns, mail and ends of a session with children are audited from its beginning, even by a late audit."""
    early: list[AuditEntry] = []
    late: list[AuditEntry] = []
    script: Script = {
        "dig": ["found"],
        "": [[specialist_call("dig", "one"), background_call("dig", "two")], "done", "done"],
    }
    async with Session(ScriptedModel(script)) as session:
        Audit([early.append]).attach(open_tree_of(session).recorder)
        await session.ask("Go.")
        Audit([late.append]).attach(open_tree_of(session).recorder)
        await eventually(lambda: [view.state for view in session.runs()].count("completed") == 2)

    assert early == late
    assert [entry["path"] for entry in early if entry["type"] == "run_spawned"] == ["main", "main/one", "main/two"]
    ends = {entry["path"]: entry["result"]["status"] for entry in early if entry["type"] == "run_ended"}
    assert ends == {"main": "completed", "main/one": "completed", "main/two": "completed"}
    assert [entry["sender"] for entry in early if entry["type"] == "mail_pushed"] == ["main/two"]


async def test_a_denied_call_is_audited() -> None:
    """The entry of the call's end has the status "denied"."""
    entries: list[AuditEntry] = []

    async def ask(*_: object) -> dict[str, str]:
        return {"decision": "ask"}

    script: Script = [Call("Agent", {"prompt": "x", "subagent_type": "general-purpose"}), "done"]
    hooks = {"PreToolUse": [ask]}
    async with Session(ScriptedModel(script), hooks=hooks, unattended=True) as session:
        Audit([entries.append]).attach(open_tree_of(session).recorder)
        await session.ask("Go.")

    assert "denied" in [entry.get("status") for entry in entries if entry["type"] == "tool_ended"]


# --- sinks


def test_a_failing_sink_is_logged_once_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The sink gets each further entry; a failure after a success is logged again."""
    good: list[AuditEntry] = []
    calls: list[bool] = []

    def bad(entry: AuditEntry) -> None:
        entry.clear()
        calls.append(len(calls) == 2)
        if not calls[-1]:
            raise OSError("no space left")

    recorder = Recorder(FakeClock())
    Audit([bad, good.append]).attach(recorder)
    for number in range(5):
        recorder.append(events.CommandRun(**ROOT.stamp, argv=("ls",), code=number))

    assert [entry["code"] for entry in good] == [0, 1, 2, 3, 4]
    assert len(calls) == 5
    failures = [record.getMessage() for record in caplog.records if record.name == "ramet.audit"]
    assert len(failures) == 2
    assert "bad failed: no space left" in failures[0]


def test_the_log_is_a_sink(caplog: pytest.LogCaptureFixture) -> None:
    """The log gets one line per entry, with the session's id and the entry."""
    recorder = Recorder(FakeClock())
    Audit([to_log]).attach(recorder)
    with caplog.at_level(logging.INFO, "ramet.audit"):
        recorder.append(OF_CONSEQUENCE[0])

    [record] = caplog.records
    assert (record.name, record.getMessage()) == ("ramet.audit", "run_spawned main")
    assert vars(record)["session_id"] == "run-00"
    assert vars(record)["audit"]["type"] == "run_spawned"


def test_only_plain_functions_are_sinks() -> None:
    """A path and a coroutine function are refused by their position."""

    async def later(_: AuditEntry) -> None: ...

    for sink in ("audit.jsonl", later):
        with pytest.raises(InvalidValue, match=r"sinks\[1\]"):
            Audit([to_log, sink])  # type: ignore[list-item]  # as said


async def test_no_entry_follows_a_close() -> None:
    """Closing the subscription or the tree ends the audit; both may be closed twice."""
    entries: list[AuditEntry] = []
    recorder = Recorder(FakeClock())
    listening = Audit([entries.append]).attach(recorder)
    recorder.append(OF_CONSEQUENCE[0])
    listening.close()
    listening.close()
    recorder.append(OF_CONSEQUENCE[0])
    recorder.close()
    Audit([entries.append]).attach(recorder)

    assert len(entries) == 3  # the one heard live, and the two that are kept
    assert [item async for item in listening.items()] == []


# --- the file


def test_the_file_is_a_hash_chain(tmp_path: Path) -> None:
    """The file has mode 0600 and whole lines of JSON; each line holds the SHA-256 of the line before."""
    path = tmp_path / "logs" / "audit.jsonl"
    lines = write_lines(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entries = [json.loads(line) for line in lines]
    assert [(entry["n"], entry["number"]) for entry in entries] == [(n + 1, n) for n in range(5)]
    hashes = [hashlib.sha256(line.rstrip(b"\n")).hexdigest() for line in lines]
    assert [entry["prev"] for entry in entries] == [NOTHING, *hashes[:-1]]
    assert verify(path) == (5, hashes[-1], ())
    assert verify(path).ok


def test_a_reopened_file_continues_the_chain(tmp_path: Path) -> None:
    """Numbers and chain continue; a mode that others could read is corrected."""
    path = tmp_path / "audit.jsonl"
    first = write_lines(path, 3)
    path.chmod(0o644)
    lines = write_lines(path, 3)

    assert lines[:3] == first
    assert [json.loads(line)["n"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert verify(path).ok
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def change_line(lines: list[bytes], at: int) -> list[bytes]:
    return [line.replace(b'"number":', b'"numbeR":') if index == at else line for index, line in enumerate(lines)]


def forge_line(lines: list[bytes], at: int) -> list[bytes]:
    """Change a line and give it a valid hash of its own."""
    line = change_line(lines, at)[at]
    body = line[: line.rindex(b',"own"')]
    line = body + b',"own":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    return [*lines[:at], line, *lines[at + 1 :]]


@pytest.mark.parametrize("at", range(5))
def test_a_changed_line_is_found(at: int, tmp_path: Path) -> None:
    """Any changed line is named, the last included, and no other line."""
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"".join(change_line(write_lines(path), at)))

    assert verify(path).faults == ((at + 1, f"line {at + 1} was changed: entry {at + 1}"),)


@pytest.mark.parametrize("at", range(4))
def test_a_forged_line_is_found_by_the_line_after_it(at: int, tmp_path: Path) -> None:
    """The fault names both lines."""
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"".join(forge_line(write_lines(path), at)))

    [fault] = verify(path).faults
    assert fault == (at + 2, f"line {at + 2} does not follow: it was written after another line {at + 1}")


@pytest.mark.parametrize("at", range(4))
def test_a_removed_line_is_found(at: int, tmp_path: Path) -> None:
    """The fault names the line's number, the first included."""
    path = tmp_path / "audit.jsonl"
    lines = write_lines(path)
    path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))

    assert verify(path).faults == ((at + 1, f"line {at + 1} does not follow: entry {at + 1} before it was removed"),)


@pytest.mark.parametrize("at", range(4))
def test_swapped_lines_are_found(at: int, tmp_path: Path) -> None:
    """The fault names both lines."""
    path = tmp_path / "audit.jsonl"
    lines = write_lines(path)
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    path.write_bytes(b"".join(lines))

    assert verify(path).faults == (
        (at + 2, f"line {at + 2} is out of order: entry {at + 1} comes after entry {at + 2}"),
    )


def cut_end(lines: list[bytes]) -> list[bytes]:
    return lines[:-2]


def rebuild(lines: list[bytes]) -> list[bytes]:
    """Return forged lines that form a valid chain."""
    forged_lines: list[bytes] = []
    prev = NOTHING
    for line in lines:
        body = line[: line.rindex(b',"own"')].replace(line[15:79], prev.encode()).replace(b"test", b"fake")
        forged_lines.append(body + b',"own":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n')
        prev = hashlib.sha256(forged_lines[-1].rstrip(b"\n")).hexdigest()
    return forged_lines


@pytest.mark.parametrize("change", [cut_end, rebuild, lambda _: []], ids=["cut", "anew", "empty"])
def test_a_kept_head_reveals_a_cut_or_rebuilt_file(
    change: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    """Such a file is valid in itself, but does not contain the kept head."""
    path = tmp_path / "audit.jsonl"
    lines = write_lines(path)
    head = verify(path).head
    path.write_bytes(b"".join(change(lines)))

    assert verify(path).ok
    assert "does not follow the given head" in verify(path, head=head).faults[0].problem


def test_a_head_holds_while_the_file_grows(tmp_path: Path) -> None:
    """An older head stays valid."""
    path = tmp_path / "audit.jsonl"
    write_lines(path, 2)
    head = verify(path).head
    write_lines(path, 2)

    assert verify(path, head=head).ok


def test_an_invalid_line_is_found(tmp_path: Path) -> None:
    """Garbage, a repeated line and an unfinished line are each one fault, and do not affect the other lines."""
    path = tmp_path / "audit.jsonl"
    lines = write_lines(path)
    path.write_bytes(b"".join([*lines[:2], b"\xff\x00 garbage\n", *lines[2:4], lines[3], lines[4].rstrip(b"\n")]))

    assert [fault.problem for fault in verify(path).faults] == [
        "line 3 is not a line of an audit log",
        "line 6 is a duplicate: entry 4",
        "line 7 is cut off, or too long",
    ]


def test_a_half_written_line_is_removed_and_reported(tmp_path: Path) -> None:
    """The next process continues after the last whole line, and the chain holds."""
    path = tmp_path / "audit.jsonl"
    lines = write_lines(path)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:30])
    write_lines(path, 1)

    assert verify(path).ok
    cut_line = json.loads(path.read_bytes().splitlines()[4])
    assert (cut_line["type"], cut_line["bytes"]) == ("line_cut_off", 30)


def test_a_file_with_a_forged_end_is_not_continued(tmp_path: Path) -> None:
    """A chain on a false line would make it look valid; the file stays unchanged."""
    path = tmp_path / "audit.jsonl"
    for content in (b"".join(change_line(write_lines(path), 4)), b"notes of somebody\n"):
        path.write_bytes(content)
        with pytest.raises(Damaged, match="last line"):
            AuditFile(path)
        assert path.read_bytes() == content


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    """A second writer would fork the chain and is refused until the first has closed."""
    path = tmp_path / "audit.jsonl"
    first = AuditFile(path)
    with pytest.raises(StoreInUse):
        AuditFile(path)
    first.close()
    first.close()
    AuditFile(path).close()
    with pytest.raises(OSError, match="was closed"):
        first({"type": "late"})


def test_an_audit_file_must_be_a_regular_file(tmp_path: Path) -> None:
    """A pipe would block, and a link may lead anywhere."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidValue, match="regular file"):
        AuditFile(tmp_path / "pipe")
    for name in ("link", "."):
        with pytest.raises(OSError, match=r"link|directory"):
            AuditFile(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_whole_lines_and_a_count_of_lost_entries(tmp_path: Path) -> None:
    """The process's files may not grow: a half line is removed, and the chain continues once there is room."""
    path = tmp_path / "audit.jsonl"
    program = textwrap.dedent(
        """
        import resource, signal, sys
        from ramet.host.observability.audit_file import AuditFile
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        file = AuditFile(sys.argv[1])
        file({"type": "first"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
        for _ in range(3):
            try:
                file({"type": "lost"})
            except OSError as error:
                print(error.errno)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        file({"type": "again"})
        """
    )
    process_result = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )

    assert process_result.stdout.split() == ["27"] * 3  # EFBIG
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [entry["type"] for entry in entries] == ["first", "entries_lost", "again"]
    assert entries[1]["count"] == 3
    assert verify(path).ok


async def test_every_line_survives_a_kill(tmp_path: Path) -> None:
    """Each entry before SIGKILL is whole in the file without fsync, and another process can continue."""
    path = tmp_path / "audit.jsonl"
    program = textwrap.dedent(
        """
        import sys
        from ramet.host.observability.audit_file import AuditFile
        file = AuditFile(sys.argv[1])
        for number in range(10**9):
            file({"type": "test", "number": number})
            print(number, flush=True)
        """
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    while int(await process.stdout.readline()) < 50:
        pass
    process.send_signal(signal.SIGKILL)
    rest = await process.stdout.read()
    await process.wait()
    last = int(rest.split(b"\n")[-2] if b"\n" in rest else b"50")
    assert not alive(process.pid)

    assert len(write_lines(path, 1)) >= last + 2
    assert verify(path).ok


def test_fsync_can_be_switched_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched on, fsync writes each line to disk before the run continues; otherwise closing the file does."""
    synced: list[str] = []

    def watched(name: str) -> Callable[[int], None]:
        real: Callable[[int], None] = getattr(os, name)

        def sync(fd: int) -> None:
            synced.append(name)
            real(fd)

        return sync

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, watched(name))
    for fsync, expected in ((False, ["fsync"]), (True, ["fsync", "fdatasync", "fdatasync", "fsync"])):
        synced.clear()
        file = AuditFile(tmp_path / "audit.jsonl", fsync=fsync)
        file({"type": "one"})
        file({"type": "two"})
        file.close()
        assert synced == expected
