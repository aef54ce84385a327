"""`ramet ask` as a real process, with terminals, signals, and a provider on a loopback connection."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
from asyncio.subprocess import PIPE
from importlib.util import find_spec
from pathlib import Path

import pytest

from ramet.core.events import Event, RunEnded, RunSpawned, decode
from ramet.core.outcome import Status
from ramet.models.scripted.dialogue import Say
from tests.support.providers import Call, Fail, Hang, Script, provider
from tests.support.waiting import alive, eventually, pid_in
from tests.trips.kits.terminal import ramet, running_ramet, terminal

EXAMPLE = Path(__file__).parents[3] / "examples" / "payment-api"
CHILD = {"prompt": "Search the LOGS", "description": "search the logs", "subagent_type": "explore", "name": "logs"}
TREE: Script = {
    "LOGS": ["`app.log:3` says: timeout"],
    "Why": [Call("Agent", CHILD), "The **timeout** is too short."],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with a log file in it."""
    (tmp_path / "app.log").write_text("one\ntwo\nERROR: timeout\n")
    return tmp_path


def events(out: str) -> list[Event]:
    """Return the events that `--json` printed."""
    return [decode(line) for line in out.splitlines()]


def transcripts(folder: Path) -> list[str]:
    """Return the relative paths of the transcript files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jsonl"))


async def test_the_answer_goes_to_stdout_and_all_other_text_to_stderr(project: Path) -> None:
    """A pipe gets the answer alone; stderr has the steps of each agent, the totals and the folder of transcripts."""
    async with provider(TREE) as server:
        result = await ramet("ask", "Why?", "--dir", str(project), server=server)

    assert (result.status, result.out) == (0, "The **timeout** is too short.\n")
    assert "main/logs: started explore: search the logs" in result.err
    assert "main/logs: completed" in result.err
    assert "✓ completed · 2 agents · 3 model calls" in result.err
    folder = Path(result.err.rpartition("transcripts: ")[2].partition("\n")[0])
    assert transcripts(folder) == ["main.jsonl", "main/logs.jsonl"]
    assert folder.is_relative_to(project / ".ramet" / "transcripts")


async def test_json_prints_every_event_of_the_tree(project: Path) -> None:
    """Each line decodes; parent and child are there; the last line is the root's end with the answer."""
    async with provider(TREE) as server:
        result = await ramet("ask", "Why?", "--dir", str(project), "--json", server=server)

    found_events = events(result.out)
    last = found_events[-1]
    assert isinstance(last, RunEnded)
    assert (result.status, last.path, last.result.status) == (0, "main", Status.COMPLETED)
    assert last.result.value == "The **timeout** is too short."
    assert [event.path for event in found_events if isinstance(event, RunSpawned)] == ["main", "main/logs"]
    assert [event.seq for event in found_events[:-1]] == sorted(event.seq for event in found_events[:-1])
    assert result.err == ""


async def test_ask_waits_for_background_agents(project: Path) -> None:
    """A root that answers before its background agents end is not done: its last text is the answer."""
    script: Script = {
        "LOGS": [Say("a finding", delay_s=0.2)],
        "Why": [Call("Agent", {**CHILD, "run_in_background": True}), "I have asked.", "It was the timeout."],
    }
    async with provider(script) as server:
        result = await ramet("ask", "Why?", "--dir", str(project), "--json", server=server)

    last = events(result.out)[-1]
    assert isinstance(last, RunEnded)
    assert (result.status, last.result.status, last.result.value) == (0, Status.COMPLETED, "It was the timeout.")
    assert last.result.usage_subtree.model_calls == 4


async def test_the_demo_finds_evidence_without_a_key(tmp_path: Path) -> None:
    """Four agents of the offline model find at least five lines of a copy of the example, and each line exists."""
    shutil.copytree(EXAMPLE, tmp_path / "copy", ignore=shutil.ignore_patterns(".ramet"))

    result = await ramet("ask", "Why is the payment API failing?", "--dir", "copy", cwd=tmp_path)

    assert result.status == 0
    assert result.err.startswith("no --model given: the offline model answers by rules, without a key or a network\n")
    assert "main/logs: started explore" in result.err
    locations = {(slot[1], int(slot[2])) for slot in re.finditer(r"([\w/.-]+\.\w+):(\d+)", result.out)}
    assert len(locations) >= 5
    for path, line in locations:
        assert len((tmp_path / "copy" / path).read_text().splitlines()) >= line
    *_, recorded, again = result.err.splitlines()
    assert recorded.startswith("  transcripts: copy/.ramet/transcripts/")
    assert again.startswith("  see it again: ramet tree run-")
    assert again.endswith(" --dir copy")


async def test_quiet_prints_the_answer_alone(project: Path) -> None:
    """`--quiet` prints nothing on stderr when no error occurs; `--agent` selects the agent type."""
    async with provider(TREE) as server:
        result = await ramet(
            "ask", "Why?", "--dir", str(project), "--quiet", "--agent", "general-purpose", server=server
        )
        assert "Do it completely and do nothing else" in str(server.bodies[0]["messages"][0])

    assert result == (0, "The **timeout** is too short.\n", "")


async def test_a_question_may_come_from_stdin(project: Path) -> None:
    """`-` reads the question from stdin, so that it may be long."""
    async with provider(["yes"]) as server:
        result = await ramet("ask", "-", "--dir", str(project), server=server, stdin=b"Is it? " + b"x" * 200_000)

    assert (result.status, result.out) == (0, "yes\n")
    assert len(str(server.bodies[0])) > 200_000


@pytest.mark.parametrize(
    ("script", "options", "status", "message"),
    [
        ([Fail(400)], [], 1, "✗ failed: "),
        ([Hang(6, "I found something")], ["--timeout", "0.5"], 124, "■ out of time: "),
        ([Call("Glob", {"pattern": "*"})] * 9, ["--max-calls", "2"], 4, "■ out of budget: "),
        (["never said"], ["--max-tokens", "5"], 4, "■ out of budget: "),
    ],
)  # fmt: skip
async def test_the_exit_status_shows_the_outcome(
    project: Path, script: Script, options: list[str], status: int, message: str
) -> None:
    """The exit status is that of the published table; stderr has the reason, and no traceback."""
    async with provider(script) as server:
        result = await ramet("ask", "Why?", "--dir", str(project), *options, server=server)

    assert result.status == status
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("line", "stdin", "status", "message"),
    [
        (["ask", "x", "--model", "nope:x"], b"", 2, "ramet: unknown model provider 'nope'; known: "),
        pytest.param(
            ["ask", "x", "--model", "google_genai:gemini-3"], b"", 1, "pip install 'langchain-google-genai<5",
            marks=pytest.mark.skipif(find_spec("langchain_google_genai") is not None, reason="the extra is installed"),
        ),
        (["ask", "x", "--model", "openai:gpt-5.4-mini"], b"", 1, "ramet: "),
        (["ask", "x", "--agent", "nobody"], b"", 2, "ramet: unknown agent type 'nobody'; known: claude-code, codex, "),
        (["ask", "x", "--transcripts", "/proc/nowhere"], b"", 2, "ramet: --transcripts: '/proc/nowhere' is not"),
        (["ask", ""], b"", 2, "ramet: QUESTION: '' is not accepted; expected text of 1 to 1000000 characters"),
        (["ask", "-"], b"\n", 2, "ramet: QUESTION: '\\n' is not accepted"),
        (["ask", "-"], b"x" * 1_100_000, 2, " characters) is not accepted"),
        (["ask", "-"], b"x" * 9_000_000, 2, " characters) is not accepted"),
    ],
)  # fmt: skip
async def test_bad_input_gets_one_line_on_stderr(
    project: Path, line: list[str], stdin: bytes, status: int, message: str
) -> None:
    """The status is 2 for a wrong argument and 1 for a missing requirement; no traceback appears and no work starts."""
    result = await ramet(*line, cwd=project, stdin=stdin)

    assert result.status == status
    assert message in result.err.splitlines()[-1]
    assert (result.out, result.err.count("\n"), "Traceback" in result.err) == ("", 1, False)


async def test_ask_works_on_a_read_only_folder(project: Path) -> None:
    """Transcripts go to a temporary folder, and stderr names it."""
    async with provider(["yes"]) as server:
        result = await ramet("ask", "Is it?", "--dir", "/proc/sys/kernel", server=server, env={"TMPDIR": str(project)})

    assert (result.status, result.out) == (0, "yes\n")
    assert "/proc/sys/kernel cannot be written to: transcripts go to a temporary folder" in result.err
    assert transcripts(project)[0].endswith("/main.jsonl")


async def test_ask_works_in_an_ascii_locale(project: Path) -> None:
    """The answer is readable without UTF-8, and JSON is still UTF-8."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    async with provider({"": ["“é” → 漢"]}) as server:
        result = await ramet("ask", "Why?", "--dir", str(project), server=server, env=ascii_only)
        as_json = await ramet("ask", "Why?", "--dir", str(project), "--json", server=server, env=ascii_only)

    assert (result.status, result.out) == (0, '"?" ? ?\n')
    assert "+ completed - 1 agent" in result.err
    last = events(as_json.out)[-1]
    assert isinstance(last, RunEnded)
    assert last.result.value == "“é” → 漢"


# --- at a terminal


async def test_a_terminal_shows_the_tree_and_the_formatted_answer(project: Path) -> None:
    """Rows show the state of each agent, then come the answer without Markdown signs, and the totals.

    The cursor is visible again.
    """
    async with provider(TREE) as server, terminal("ask", "Why?", "--dir", str(project), server=server) as screen:
        status = await screen.end()

    assert status == 0
    assert "└─ ✓ " in _plain(screen.text)
    assert "The timeout is too short." in _plain(screen.text)
    assert "✓ completed\n  2 agents · 3 model calls · 1 tool call" in _plain(screen.text)
    assert screen.text.count("\x1b[?25l") == screen.text.count("\x1b[?25h") == 1


@pytest.mark.parametrize("columns", [20, 200])
async def test_rows_fit_the_width_of_the_terminal(project: Path, columns: int) -> None:
    """No row is wider than the terminal."""
    async with (
        provider(TREE) as server,
        terminal("ask", "Why?", "--dir", str(project), server=server, columns=columns, lines=6) as screen,
    ):
        assert await screen.end() == 0

    rows = [line for line in _plain(screen.text).replace("\r", "\n").splitlines() if line.startswith(("└─", "├─", "⠋"))]
    assert rows
    assert max(map(len, rows)) <= columns


async def test_hostile_text_does_not_control_the_terminal(project: Path) -> None:
    """A model's names, arguments and answers cannot set the title, clear the screen, or reverse text."""
    bad = "\x1b]0;owned\x07\x1b[2Jwords\x1b]52;c;cm0=\x07\u202e"
    script: Script = {
        "CHILD": [bad],
        "Why": [[Call("Agent", {"prompt": f"CHILD {bad}", "description": bad}), Call(f"Bad{bad}", {"x": bad})], bad],
    }
    async with provider(script) as server, terminal("ask", "Why?", "--dir", str(project), server=server) as screen:
        assert await screen.end() == 0

    for attack in ("\x1b]0;", "\x1b]52", "\x1b[2J", "\u202e"):
        assert attack not in screen.text
    assert "words" in screen.text


async def test_ctrl_c_cancels_the_tree_and_prints_partial_results(project: Path) -> None:
    """Ctrl-C prints the texts of the children so far, gives status 130, and leaves a usable terminal."""
    script: Script = {
        "LOGS": ["`app.log:3` says: timeout"],
        "OTHER": [Hang(24, "Half of a finding, so far, and more")],
        "Why": [
            [Call("Agent", CHILD), Call("Agent", {"prompt": "OTHER", "name": "other", "subagent_type": "explore"})]
        ],
    }
    async with provider(script) as server, terminal("ask", "Why?", "--dir", str(project), server=server) as screen:
        await screen.shows("app.log:3 says")
        await eventually(lambda: server.count == 3)
        await screen.shows("writes")
        screen.type("\x03")
        status = await screen.end()
        await asyncio.wait_for(server.client_left.wait(), 180)

    after = _plain(screen.text).rpartition("No answer. This is what was found so far:")[2]
    assert status == 130
    assert "main/logs · completed" in after
    assert "app.log:3 says: timeout" in after
    assert "main/other · cancelled" in after
    assert "Half of a finding" in after
    assert "■ cancelled: Ctrl-C" in after
    assert "Traceback" not in after
    assert screen.text.count("\x1b[?25l") == screen.text.count("\x1b[?25h")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_cancel_the_tree_without_a_terminal(project: Path, number: signal.Signals) -> None:
    """The last line of `--json` is the root's end after SIGINT and after SIGTERM."""
    line = ("ask", "Why?", "--json", "--dir", str(project))
    async with (
        provider([Hang(6, "I found it")]) as server,
        running_ramet(*line, server=server, stdout=PIPE, stderr=PIPE) as process,
    ):
        await eventually(lambda: server.count)
        process.send_signal(number)
        out, err = await process.communicate()

    last = events(out.decode())[-1]
    assert isinstance(last, RunEnded)
    assert (process.returncode, last.path, last.result.status) == (130, "main", Status.CANCELLED)
    assert b"Traceback" not in err


async def test_a_second_ctrl_c_exits_immediately_and_ends_commands(project: Path) -> None:
    """The second Ctrl-C also ends a command that ignores SIGTERM."""
    stubborn = "trap '' TERM; echo $$ > pid; while :; do sleep 1; done"
    script: Script = [Call("Bash", {"command": stubborn}), "done"]
    async with (
        provider(script) as server,
        terminal("ask", "Why?", "--yes", "--dir", str(project), server=server) as screen,
    ):
        await eventually(pid_in(project / "pid"))
        pid = pid_in(project / "pid")()
        screen.type("\x03")
        await screen.shows("again: exit immediately")
        screen.type("\x03")
        assert await screen.end() == 130
        await eventually(lambda: not alive(pid))

    assert screen.text.rstrip().endswith("\x1b[?25h")


@pytest.mark.parametrize(("word", "is_changed"), [("y", True), ("n", False)])
async def test_a_terminal_asks_the_person_before_a_change(project: Path, word: str, is_changed: bool) -> None:
    """The question shows the tool and its arguments.

    Only "y" allows the call, and the agent continues after either answer.
    """
    script: Script = [Call("Bash", {"command": "touch made"}), "Well."]
    async with provider(script) as server, terminal("ask", "Why?", "--dir", str(project), server=server) as screen:
        await screen.shows("[y/N]")
        screen.type(f"{word}\r")
        assert await screen.end() == 0

    assert (project / "made").exists() == is_changed
    assert "asks to use Bash" in _plain(screen.text)
    assert "command: touch made" in _plain(screen.text)


@pytest.mark.parametrize(("options", "is_changed"), [([], False), (["--no-approvals"], False), (["--yes"], True)])
async def test_without_a_terminal_a_change_needs_the_option_yes(
    project: Path, options: list[str], is_changed: bool
) -> None:
    """A call that changes a file runs with `--yes` only; the agent continues without it."""
    script: Script = [Call("Bash", {"command": "touch made"}), "Well."]
    async with provider(script) as server:
        result = await ramet("ask", "Why?", "--dir", str(project), *options, server=server)

    assert (result.status, result.out, (project / "made").exists()) == (0, "Well.\n", is_changed)


async def test_a_closed_stdout_stops_the_work(project: Path) -> None:
    """A closed pipe on stdout ends the run without any text, with status 141."""
    reading, writing = os.pipe()
    line = ("ask", "Why?", "--json", "--dir", str(project))
    async with (
        provider([Call("Glob", {"pattern": "*"}), Hang()]) as server,
        running_ramet(*line, server=server, stdout=writing, stderr=PIPE) as process,
    ):
        os.close(writing)
        os.close(reading)
        _, err = await process.communicate()

    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_a_closed_stderr_does_not_stop_the_work(project: Path, unbuffered: str) -> None:
    """The answer still goes to stdout when the reader of stderr has left, and the status is that of the work."""
    reading, writing = os.pipe()
    os.close(reading)
    async with (
        provider(TREE) as server,
        running_ramet(
            *("ask", "Why?", "--dir", str(project)),
            server=server,
            env={"PYTHONUNBUFFERED": unbuffered},
            stdout=PIPE,
            stderr=writing,
        ) as process,
    ):
        os.close(writing)
        out, _ = await process.communicate()

    assert (process.returncode, out) == (0, b"The **timeout** is too short.\n")


async def test_hooks_of_a_folder_are_off_until_the_user_trusts_it(project: Path) -> None:
    """The hooks of an unknown folder do not run; after `ramet trust` its gate decides."""
    settings = project / ".claude" / "settings.json"
    settings.parent.mkdir()
    command = {"type": "command", "command": "touch ran; exit 2"}
    settings.write_text(json.dumps({"hooks": {"PreToolUse": [{"matcher": "Glob", "hooks": [command]}]}}))
    script: Script = {"Why": [Call("Glob", {"pattern": "*"}), "Well."]}
    async with provider(script) as server:
        before = await ramet("ask", "Why?", "--dir", str(project), server=server)
        assert (before.status, (project / "ran").exists()) == (0, False)
        assert "hooks in this folder's settings are off until you trust it" in before.err

        assert (await ramet("trust", str(project))).status == 0
        after = await ramet("ask", "Why?", "--dir", str(project), server=server)

    assert (after.status, (project / "ran").exists()) == (0, True)
    assert "Glob denied" in after.err


def _plain(text: str) -> str:
    from ramet.cli.render.sanitize import sanitize

    return sanitize(text)
