"""A program in a real guest process, whose host is the test: what passes over the channel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.core.errors import BudgetExceeded
from ramet.guest.external.run_program import run_program
from ramet.wire.code.capsule import pack, unpack
from ramet.wire.external_program import HOME_FOLDER, ProgramStart
from ramet.wire.guest_protocol.answer_data import ApprovalReply, Checkpoint
from ramet.wire.guest_protocol.guest_to_host import (
    AskPermission,
    EndToolCall,
    LoadCheckpoint,
    ReportText,
    SaveCheckpoint,
    StartToolCall,
)
from ramet.wire.values.values import decode
from tests.unit.guest.external.driving import Step, sdk_start
from tests.unit.guest.scripted_host import Host, guest


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that guests start in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def open_session(host: Host) -> None:
    """Answer a driver that opens its first session."""
    load, _ = host.expect(LoadCheckpoint)
    host.answer(load.id, Checkpoint(found=False))
    save, body = host.expect(SaveCheckpoint)
    assert decode(body, save.json_size) == "session-1"
    host.answer(save.id)


def test_a_program_speaks_with_its_host() -> None:
    """Its session is saved first; a call is asked about after it began, and the reply is the value."""
    steps: list[Step] = [{"call": "c1", "kind": "edit", "input": {"path": "a"}}, {"ask": "c1"}, {"end": "c1"}]
    with guest() as host:
        host.start(run_program, sdk_start(*steps, {"say": "Done."}))
        open_session(host)

        begun, _ = host.expect(StartToolCall)
        assert (begun.call_id, begun.tool, begun.args) == ("c1", "edit", {"path": "a"})
        host.answer(begun.id)
        asked, _ = host.expect(AskPermission)
        assert (asked.call_id, asked.args) == ("c1", {"path": "a"})
        host.answer(asked.id, ApprovalReply(allowed=True))
        said = ""
        while "Done." not in said:
            message, _ = host.hear() or pytest.fail("the guest has closed")
            if isinstance(message, ReportText):
                said += message.text
            else:
                assert isinstance(message, EndToolCall)
                assert message.status == "ok"

        assert host.value(str) == said == "[id-allow_once]Done."


def test_a_refusal_of_the_host_is_the_error_of_the_run() -> None:
    """Its values are those that the host gave."""
    with guest() as host:
        host.start(run_program, sdk_start({"call": "c1", "input": {"path": "a"}}, {"hang": True}))
        open_session(host)
        begun, _ = host.expect(StartToolCall)
        host.refuse(begun.id, BudgetExceeded("tool_calls", asked=1, left=0, scope="main/a"))

        failed = host.failure()

    assert failed.error is not None
    assert (failed.error.type, failed.error.scope) == ("BudgetExceeded", "main/a")


def test_a_program_gets_the_address_and_the_key_of_its_endpoint(workspace: Path) -> None:
    """Both are of this sandbox; a program that needs no model gets neither."""
    code = "import os; print(os.environ['URL'], os.environ['KEY'], end='')"
    start = ProgramStart(
        command=(sys.executable, "-I", "-c", code),
        protocol="text",
        prompt="Hello.",
        env={"URL": "${anthropic_url}", "KEY": "${key}"},
        files={"a.json": '{"key": "${key}"}'},
    )
    with guest() as host:
        host.start(run_program, start)
        host.expect(ReportText)
        url, key = host.value(str).split()

    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("/anthropic")
    assert json.loads((workspace / HOME_FOLDER / "a.json").read_text()) == {"key": key}
    assert len(key) > 20


def test_a_program_needs_no_import_that_is_slow() -> None:
    """A sandbox starts it as fast as a plain function."""
    start = sdk_start({"say": "Hello."})
    capsule = pack(run_program, (start,), {})
    look = "import sys, ramet.guest.external.run_program; print([each for each in sys.modules if '.' not in each])"

    loaded = subprocess.run([sys.executable, "-I", "-c", look], capture_output=True, text=True, check=True).stdout

    assert unpack(capsule.data, capsule.tag).args == (start,)
    assert not capsule.is_heavy
    assert "msgspec" in loaded
    assert not any(f"'{each}'" in loaded for each in ("langchain_core", "pydantic", "acp"))
