"""Programs with one prompt: their environment, their home, their output, and their end."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import BudgetExceeded, InvalidValue, TaskFailed
from ramet.guest.external.run_program import drive_program
from ramet.wire.external_program import HOME_FOLDER, ProgramStart
from tests.support.recording_host import RecordingHost
from tests.support.waiting import alive
from tests.unit.guest.external.driving import drive, python_start

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
#: Writes each argument as a line; the last one is its exit status.
LINES = "import sys; [print(each, flush=True) for each in sys.argv[1:-1]]; sys.exit(int(sys.argv[-1]))"


# --- what it is started with


async def test_the_environment_of_a_program_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this process is in it but how commands are found; its home is below the workspace."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    start = ProgramStart(
        command=(sys.executable, "-I", "-c", SHOW), protocol="text", prompt="Hello.", env={"MODEL": "m1"}
    )

    _, env, folder = json.loads(await drive(start, RecordingHost(), tmp_path))

    home = tmp_path / HOME_FOLDER
    assert folder == str(tmp_path)
    assert (env["HOME"], env["TMPDIR"], env["MODEL"]) == (str(home), str(home / "tmp"), "m1")
    assert set(env) <= {
        "PATH",
        "LANG",
        "LC_CTYPE",
        "USER",
        "HOME",
        "TMPDIR",
        "MODEL",
        "NO_PROXY",
        "no_proxy",
        "RAMET_CALL",
    }


async def test_placeholders_have_values_and_nothing_else_changes(tmp_path: Path) -> None:
    """Other dollars stay, and a value is not looked through for placeholders; no file has the prompt in it."""
    texts = ("${anthropic_url}/v1", "$HOME ${HOME} $${key} ${unknown}", "${prompt}", "a: ${prompt}", "${home}/x")
    start = ProgramStart(
        command=(sys.executable, "-I", "-c", SHOW, *texts),
        protocol="text",
        prompt="--help ${key}",
        env={"KEY": "${key}"},
        files={"settings/a.json": '{"url": "${openai_url}", "prompt": "${prompt}", "price": "$5"}'},
    )
    values = {"anthropic_url": "http://a", "openai_url": "http://o", "key": "k1"}

    told = await drive_program(start, RecordingHost(), workspace=tmp_path, values=values)

    arguments, env, _ = json.loads(told)
    home = tmp_path / HOME_FOLDER
    # A prompt is no option of the command.
    prompts = [" --help ${key}", "a: --help ${key}"]
    assert arguments == ["http://a/v1", "$HOME ${HOME} $k1 ${unknown}", *prompts, f"{home}/x"]
    assert env["KEY"] == "k1"
    content = (home / "settings/a.json").read_text()
    assert content == '{"url": "http://o", "prompt": "${prompt}", "price": "$5"}'


async def test_files_of_a_home_are_private_and_replaced(tmp_path: Path) -> None:
    """What an earlier process left there is replaced, and a link is not followed."""
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    home = tmp_path / HOME_FOLDER
    home.mkdir()
    (home / "a.json").symlink_to(outside)
    os.link(outside, home / "b.json")
    files = {"a.json": "a", "b.json": "b", ".config/deep/c.json": "c"}

    await drive_program(python_start("", protocol="text"), RecordingHost(), workspace=tmp_path, values={})
    start = ProgramStart(command=(sys.executable, "-c", ""), protocol="text", prompt="Hello.", files=files)
    await drive_program(start, RecordingHost(), workspace=tmp_path, values={})

    assert outside.read_text() == "untouched"
    for name, text in files.items():
        path = home / name
        assert (path.read_text(), path.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == (text, False, 0o600)
    assert stat.S_IMODE((home / ".config").stat().st_mode) == 0o700


@pytest.mark.parametrize("entry", [".config", ".home"])
async def test_a_folder_of_a_home_that_is_a_link_is_refused(tmp_path: Path, entry: str) -> None:
    """A program cannot have its host write elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / HOME_FOLDER if entry == HOME_FOLDER else tmp_path / HOME_FOLDER / entry
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    start = ProgramStart(command=("true",), protocol="text", prompt="Hello.", files={".config/a.json": "a"})

    with pytest.raises(TaskFailed, match="cannot be written"):
        await drive(start, RecordingHost(), tmp_path)

    assert not any(outside.iterdir())


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b", "", "a//b", "a\0"])
async def test_files_are_below_the_home(tmp_path: Path, path: str) -> None:
    """The error names the path."""
    start = ProgramStart(command=("true",), protocol="text", prompt="Hello.", files={path: "a"})

    with pytest.raises(InvalidValue, match=r"files: .* a path below the home"):
        await drive(start, RecordingHost(), tmp_path)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cwd": "../.."}, "cwd"),
        ({"cwd": "missing"}, "cwd"),
        ({"protocol": "http"}, "protocol"),
        ({"command": ()}, "command"),
    ],
)
async def test_a_start_that_cannot_be_names_its_field(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    """Each value is checked before anything starts."""
    start = ProgramStart(**{"command": ("true",), "protocol": "text", "prompt": "Hello.", **fields})

    with pytest.raises(InvalidValue, match=f"^{field}: "):
        await drive(start, RecordingHost(), tmp_path)


async def test_a_folder_below_the_workspace_is_worked_in(tmp_path: Path) -> None:
    """A path of several names is one folder."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    start = ProgramStart(command=(sys.executable, "-I", "-c", SHOW), protocol="text", prompt="Hello.", cwd="a/b")

    assert json.loads(await drive(start, RecordingHost(), tmp_path))[2] == str(tmp_path / "a" / "b")


# --- text


async def test_what_a_program_writes_is_the_reply(tmp_path: Path) -> None:
    """Without a placeholder in its command, it reads the prompt; parts of characters come together."""
    host = RecordingHost()
    code = "import os, sys; [os.write(1, bytes([each])) for each in sys.stdin.read().encode()]"

    text = await drive(python_start(code, prompt="Grüße, 世界"), host, tmp_path)

    assert text == host.text == "Grüße, 世界"


async def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    """The error has the status, and the end of the standard error without its colours."""
    code = "import sys; print('x' * 100_000 + '\\x1b[31mno key\\x1b[0m', file=sys.stderr); sys.exit(41)"

    with pytest.raises(TaskFailed, match="ended with status 41") as failure:
        await drive(python_start(code), RecordingHost(), tmp_path)

    assert str(failure.value).endswith("xno key")
    assert len(str(failure.value)) < 3_000


async def test_mail_starts_the_program_again(tmp_path: Path) -> None:
    """The last reply counts."""
    host = RecordingHost(mails=["And now?"])

    text = await drive(python_start("import sys; print(sys.argv[1], end='')", "${prompt}"), host, tmp_path)

    assert (text, host.text) == ("And now?", "Hello.And now?")


async def test_a_process_that_outlives_its_program_is_ended(tmp_path: Path) -> None:
    """One that holds the output open does not keep the run waiting, wherever it went."""
    code = (
        "import subprocess, sys; sleep = 'import time; time.sleep(3600)';"
        "print(subprocess.Popen([sys.executable, '-c', sleep], start_new_session=True).pid)"
    )

    pid = int(await drive(python_start(code), RecordingHost(), tmp_path))

    assert not alive(pid)


# --- lines of JSON


CLAUDE_CODE: list[Any] = [
    {"type": "system", "subtype": "init", "session_id": "s"},
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "I will."}]}, "parent_tool_use_id": None},
    {
        "type": "assistant",
        "message": {"content": [{"type": "tool_use", "id": "t1", "name": "Write", "input": {"a": 1}}]},
    },
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "sub"}]}, "parent_tool_use_id": "t1"},
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "made"}]}},
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "Done."}]}},
    {"type": "result", "subtype": "success", "is_error": False, "result": "Done."},
]
CODEX: list[Any] = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "item.completed", "item": {"id": "i0", "type": "error", "message": "a warning"}},
    {"type": "item.completed", "item": {"id": "i1", "type": "agent_message", "text": "I will."}},
    {"type": "item.started", "item": {"id": "i2", "type": "command_execution", "command": "a"}},
    {"type": "item.completed", "item": {
        "id": "i2", "type": "command_execution", "command": "a", "aggregated_output": "made", "status": "completed",
    }},
    {"type": "error", "message": "Reconnecting… 1/5"},
    {"type": "item.completed", "item": {"id": "i3", "type": "agent_message", "text": "Done."}},
    {"type": "turn.completed", "usage": {}},
]  # fmt: skip
GEMINI_CLI: list[Any] = [
    {"type": "init", "session_id": "s", "model": "m"},
    {"type": "message", "role": "user", "content": "Hello."},
    {"type": "message", "role": "assistant", "content": "I will.", "delta": True},
    {"type": "tool_use", "tool_name": "write_file", "tool_id": "t1", "parameters": {"a": 1}},
    {"type": "tool_result", "tool_id": "t1", "status": "success", "output": "made"},
    {"type": "message", "role": "assistant", "content": "Do", "delta": True},
    {"type": "message", "role": "assistant", "content": "ne.", "delta": True},
    {"type": "result", "status": "success", "stats": {}},
]
OPENCODE: list[Any] = [
    {"type": "step_start", "sessionID": "s", "part": {}},
    {"type": "text", "sessionID": "s", "part": {"text": "I will."}},
    {"type": "tool_use", "sessionID": "s", "part": {
        "tool": "write", "callID": "t1", "state": {"status": "completed", "input": {"a": 1}, "output": "made"},
    }},
    {"type": "step_finish", "sessionID": "s", "part": {"reason": "tool-calls"}},
    {"type": "text", "sessionID": "s", "part": {"text": "Done."}},
]  # fmt: skip
MAKERS = {"Write": CLAUDE_CODE, "command_execution": CODEX, "write_file": GEMINI_CLI, "write": OPENCODE}


def lines_start(*lines: Any, status: int = 0) -> ProgramStart:
    """Return a program that writes these lines."""
    return python_start(LINES, *map(json.dumps, lines), str(status), protocol="stream-json")


@pytest.mark.parametrize("tool", MAKERS)
async def test_lines_of_each_maker_are_calls_and_a_reply(tmp_path: Path, tool: str) -> None:
    """The call begins with its arguments, and ends with its output; the reply is what follows it."""
    host = RecordingHost()

    text = await drive(lines_start("a log line", 7, *MAKERS[tool]), host, tmp_path)

    assert text == "Done."
    assert host.text == "I will.Done."
    (call,) = host.calls.values()
    assert (call.tool, call.status, call.preview) == (tool, "ok", "made")
    assert call.args


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([CLAUDE_CODE[0], {"type": "result", "is_error": True, "result": "API Error"}], "API Error"),
        ([CLAUDE_CODE[0], {"type": "result", "subtype": "error_max_turns"}], "error_max_turns"),
        ([CODEX[0], {"type": "turn.failed", "error": {"message": "402 Payment Required"}}], "402 Payment Required"),
        ([GEMINI_CLI[0], {"type": "result", "status": "error", "error": {"message": "quota"}}], "quota"),
        ([{"type": "error", "sessionID": "s", "error": {"name": "APIError", "data": {"message": "402"}}}], "402"),
        ([OPENCODE[0], {"type": "error", "sessionID": "s", "error": 7}], "reported an error"),
        ([{"type": "unknown"}], "no line of a format that is known"),
        ([], "no line of a format that is known"),
    ],
)
async def test_lines_that_report_an_error_fail_the_run(tmp_path: Path, lines: list[Any], reason: str) -> None:
    """The error is the program's own, whatever its status is."""
    with pytest.raises(TaskFailed, match=reason):
        await drive(lines_start(*lines), RecordingHost(), tmp_path)


@pytest.mark.parametrize("tool", MAKERS)
async def test_a_status_that_is_not_zero_fails_the_run(tmp_path: Path, tool: str) -> None:
    """Lines that look well do not count then."""
    with pytest.raises(TaskFailed, match="ended with status 3"):
        await drive(lines_start(*MAKERS[tool], status=3), RecordingHost(), tmp_path)


@pytest.mark.parametrize("tool", MAKERS)
async def test_a_call_beyond_the_budget_ends_the_program(tmp_path: Path, tool: str) -> None:
    """The refusal of the host is the error of the run."""
    refusal = BudgetExceeded("tool_calls", asked=1, left=0, scope="main")
    host = RecordingHost(refusal=refusal, max_calls=0)

    with pytest.raises(BudgetExceeded):
        await drive(lines_start(*MAKERS[tool]), host, tmp_path)

    assert host.text == "I will."


@pytest.mark.parametrize("first", [each[0] for each in MAKERS.values()])
@pytest.mark.parametrize("value", [None, 7, "a", [7], {"type": 7, "content": [7, {}], "state": [], "id": 7}])
async def test_lines_of_another_shape_are_passed_over(tmp_path: Path, first: Any, value: Any) -> None:
    """A line that cannot be read does not end the run."""
    names = ("message", "item", "part", "tool_name", "tool_id", "parameters", "content", "output")
    kinds = ("assistant", "user", "item.started", "item.completed", "message", "tool_use", "tool_result", "text")
    lines = [{"type": kind, "role": "assistant", **dict.fromkeys(names, value)} for kind in kinds]

    await drive(lines_start(first, *lines), RecordingHost(), tmp_path)
