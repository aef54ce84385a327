"""Commands and their exit statuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata

import pytest

from ramet.cli.commands.version_report import EXTRA_MODULES
from ramet.cli.main import _COMMANDS, main
from tests.unit.cli.golden import assert_golden

HELPS = {
    "": "help",
    "ask": "help-ask",
    "agents": "help-agents",
    "agents list": "help-agents-list",
    "mcp": "help-mcp",
    "mcp list": "help-mcp-list",
    "mcp install": "help-mcp-install",
    "mcp test": "help-mcp-test",
    "mcp prompts": "help-mcp-prompts",
    "mcp login": "help-mcp-login",
    "mcp logout": "help-mcp-logout",
    "trust": "help-trust",
    "config": "help-config",
    "config check": "help-config-check",
    "images": "help-images",
    "images base": "help-images-base",
    "images runtime": "help-images-runtime",
    **{
        each: f"help-{each.replace(' ', '-')}"
        for each in (
            *(
                "ps",
                "tree",
                "show",
                "logs",
                "export",
                "replay",
                "run",
                "resume",
                "gc",
                "keep",
                "send",
                "stop",
                "cp",
                "port",
                "approvals",
                "approve",
                "deny",
                "serve",
                "ui",
            ),
            "passages",
            "repair",
            *("doctor", "init", "completion"),
            *("schedule", "schedule list", "schedule add", "schedule rm", "schedule trigger"),
        )
    },
}
HEAVY = "{'langchain_core', 'pydantic', 'rich', 'asyncio', 'yaml'}"
LOAD = (
    "import sys; from ramet.cli.main import main; main(sys.argv[1:]); "
    f"sys.exit(str({HEAVY} & set(sys.modules)) if {HEAVY} & set(sys.modules) else 0)"
)


@pytest.mark.parametrize("command", HELPS)
def test_the_help_equals_the_approved_text(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command's help is checked at 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    assert main([*command.split(), "--help"]) == 0
    assert_golden(f"{HELPS[command]}.txt", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["ask"], "ramet ask: the following arguments are required: QUESTION (see ramet ask --help)\n"),
        (["ask", "x", "--dir", "/nope"], "ramet ask: --dir: '/nope' does not exist; expected a folder"),
        (
            ["ask", "x", "--max-usd", "nan"],
            "ramet ask: --max-usd: 'nan' is not accepted; expected a number from 0",
        ),
        (["ask", "x", "--max-tokens", "-5"], "ramet ask: --max-tokens: '-5' is not accepted; expected a whole number"),
        (["ask", "x", "--running", "0"], "ramet ask: --running: '0' is not accepted; expected a whole number from 1"),
        (["ask", "x", "--max", "5"], "ramet: unrecognized arguments: --max"),
        (["ask", "x", "--yes", "--no-approvals"], "ramet ask: --no-approvals: not allowed with argument --yes"),
        (["ask", "x", "--model", " "], "ramet ask: --model: '' is not accepted; expected a name"),
        (["serve", "--listen", "here"], "ramet serve: --listen: 'here' is not accepted; expected HOST:PORT"),
        (["serve", "--socket", "a", "--listen", "b:1"], "ramet serve: --listen: not allowed with argument --socket"),
        (["ui", "--port", "65536"], "ramet ui: --port: '65536' is not accepted; expected a port from 0 to 65535"),
        (["ui", "--dir", ".", "--server", "x"], "ramet ui: --server: not allowed with argument --dir"),
        (["ps", "--dir", ".", "--server", "x"], "ramet ps: --server: not allowed with argument --dir"),
        (["gc", "--server", "x"], "ramet: unrecognized arguments: --server x"),
        (["agents"], "ramet agents: the following arguments are required: VERB"),
        (["trust"], "ramet trust: the following arguments are required: DIR"),
        (["logs"], "ramet logs: the following arguments are required: ID"),
        (["gc", "--older-than", "7 weeks"], "ramet gc: --older-than: '7 weeks' is not accepted; expected a length"),
        (["replay", "run-1", "--speed", "-1"], "ramet replay: --speed: '-1' is not accepted; expected a number from 0"),
        (["schedule", "add", "a:b"], "ramet schedule add: one of the arguments --every --in --at --cron is required"),
        (
            ["schedule", "add", "a:b", "--at", "08:00"],
            "ramet schedule add: --at: '08:00' is not accepted; expected a time",
        ),
        (["schedule", "add", "a:b", "--every", "1m", "--in", "1m"], "ramet schedule add: --in: not allowed with"),
        (["sak"], "ramet: COMMAND: 'sak' is not a command; similar: ask (see ramet --help)"),
        (["cleanup"], "ramet: COMMAND: 'cleanup' is not a command; use ramet gc (see ramet --help)"),
        (["--json", "ps"], "ramet: --json: expected after a command, or with --version (see ramet --help)\n"),
        (["init", " "], "ramet init: DIR: '' is not accepted; expected a name"),
        (["cleanup", "--all"], "ramet: COMMAND: 'cleanup' is not a command; use ramet gc"),
        (["kill", "run-1"], "ramet: COMMAND: 'kill' is not a command; use ramet stop"),
        (["status"], "ramet: COMMAND: 'status' is not a command; use ramet ps"),
        (["help"], "ramet: COMMAND: 'help' is not a command; use ramet --help (see ramet --help)\n"),
        (["history"], "ramet: COMMAND: 'history' is not a command; use ramet sessions show"),
        (["wrap"], "ramet wrap: the following arguments are required: COMMAND"),
        (["wrap", "--usd", "much", "--", "x"], "ramet wrap: --usd: 'much' is not accepted; expected a number from 0"),
        (["wrap", "--memory", "2T", "--", "x"], "ramet wrap: --memory: '2T' is not accepted; expected an amount of"),
        (["wrap", "--dir", "/no/such", "--", "x"], "ramet wrap: --dir: '/no/such' does not exist; expected a folder"),
        (["wrap", "--", "no-such-program"], "ramet: COMMAND: 'no-such-program' is not accepted; expected the name of"),
        (["wrap", "--name", "a/b", "--", "sh"], "ramet: --name: 'a/b' is not accepted; expected 1 to 64 letters"),
        (
            ["wrap", "--policy", "/no/such", "--", "sh"],
            "ramet: --policy: '/no/such' is not accepted; expected a policy",
        ),
        (["nothing like it"], "ramet: COMMAND: 'nothing like it' is not a command (see ramet --help)"),
        (["config", "show"], "ramet config: VERB: 'show' is not a verb; use ramet config check"),
        (["sessions", "keep"], "ramet sessions: VERB: 'keep' is not a verb; the verbs are list, show, rm"),
        (["sessions", "remove"], "ramet sessions: VERB: 'remove' is not a verb; use ramet sessions rm"),
        (["\x1b[2J\n"], "ramet: COMMAND: '\\x1b[2J\\n' is not a command (see ramet --help)"),
        (["x" * 10_000], "ramet: COMMAND: 'xxx"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    line: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the option, the value, the accepted values and the help."""
    assert main(line) == 2

    out, err = capsys.readouterr()
    assert err.startswith(message)
    assert (out, err.count("\n"), "\x1b" in err) == ("", 1, False)


def test_no_command_prints_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    """The page goes to stdout with status 0; each command that it names exists."""
    assert main([]) == 0
    out, err = capsys.readouterr()

    assert_golden("overview.txt", out)
    assert err == ""
    assert set(re.findall(r"ramet ([a-z]+)", out.partition("\n")[2])) <= set(_COMMANDS)


def test_version_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The line begins with "ramet"."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ramet ")


def test_version_as_json_names_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """Extras of the package that are not for developers have their modules in the table."""
    assert main(["--version", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert set(report) == {"version", "python", "platform", "extras", "backends"}
    assert "server" in report["extras"]
    assert set(report["backends"]) == {"bwrap", "local", "kubernetes"}
    declared = set(metadata("ramet").get_all("Provides-Extra") or ())
    assert set(EXTRA_MODULES) == declared - {"all", "dev", "docs", "ui-test"}


@pytest.mark.parametrize(
    "line", [[], ["--help"], ["ask", "x", "--dir", "/nope"], ["--version"], ["--version", "--json"]]
)
def test_help_imports_nothing_heavy(line: list[str]) -> None:
    """Help and usage errors stay fast."""
    process_result = subprocess.run([sys.executable, "-c", LOAD, *line], capture_output=True, text=True, check=False)

    assert process_result.returncode == 0, process_result.stderr


def test_arguments_in_another_encoding_are_accepted() -> None:
    """Such arguments cause no traceback."""
    process_result = subprocess.run(
        [sys.executable.encode(), b"-m", b"ramet", b"ask", b"caf\xe9", b"--dir", b"/n\xff"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )

    assert process_result.returncode == 2
    assert process_result.stderr.decode().startswith("ramet ask: --dir: '/n\ufffd' does not exist")
