"""`ramet config check`: the settings, their origins and their problems."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ramet.cli.main import main
from ramet.services.config.load import SETTINGS

EXAMPLE = Path(__file__).parents[3] / "examples" / "ramet.yaml"


@pytest.fixture(autouse=True)
def _nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("RAMET_"):
            monkeypatch.delenv(name)


def test_each_setting_is_shown_with_its_value_and_its_origin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of this folder is found; a secret is shown as stars or by its place."""
    Path("ramet.yaml").write_text(
        "listen: 127.0.0.1:80\ntoken: env:MY_TOKEN\n"
        "models:\n  fast: offline\n  smart: {model: 'openai:gpt-5', key: env:MY_KEY}\n"
        "teams: {a: {agents: 2, cpu: 0.5}}\n"
    )
    monkeypatch.setenv("RAMET_STORE", "postgresql://me:hunter2@h/d")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    assert main(["trust", "."]) == 0
    capsys.readouterr()

    assert main(["config", "check"]) == 0

    out, err = capsys.readouterr()
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert rows["store"].split() == ["postgresql://me:***@h/d", "RAMET_STORE"]
    assert rows["token"].split() == ["env:MY_TOKEN", "ramet.yaml:2"]
    assert rows["models.smart"].split() == ["openai:gpt-5,", "key", "env:MY_KEY", "ramet.yaml:5"]
    assert rows["teams.a"].split() == ["agents", "2,", "cpu", "0.5", "ramet.yaml:6"]
    assert rows["backend"].split() == ["-", "default"]
    assert {each.name for each in SETTINGS if not each.many} <= set(rows)
    assert err.startswith("note: models.smart.key: env:MY_KEY: ")
    assert err.count("\n") == 1
    assert "hunter2" not in out + err


def test_config_without_a_verb_checks_too(capsys: pytest.CaptureFixture[str]) -> None:
    """`ramet config` is `ramet config check`."""
    assert main(["config", "check"]) == 0
    checked = capsys.readouterr()

    assert main(["config"]) == 0
    assert capsys.readouterr() == checked


def test_each_problem_is_one_line_and_the_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    """Problems go to stdout without terminal sequences, and their number to stderr."""
    Path("other.yaml").write_text('backend: "\\x1b[2Jx"\nlimits:\n  que: 3\n')

    assert main(["config", "check", "other.yaml"]) == 1

    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("backend: ")
    assert out.splitlines()[0].endswith("(other.yaml:1)")
    assert out.splitlines()[1:] == [
        "limits.que: 'que' is not accepted; expected a key of limits: body_bytes, queue, agents, keep_failed_s "
        "(other.yaml:3)"
    ]
    assert "\x1b" not in out
    assert err == "2 problems\n"


def test_a_named_file_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """The default file may be missing."""
    assert main(["config", "check"]) == 0
    assert main(["config", "check", "ramet.yaml"]) == 1
    assert "there is no such file" in capsys.readouterr().out


def test_json_has_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings and problems are objects."""
    Path("ramet.yaml").write_text("limits: {queue: 3}\n")
    assert main(["config", "check", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"setting": "limits.queue", "value": "3", "origin": "ramet.yaml:1"} in rows

    Path("ramet.yaml").write_text("backend: moon\n")
    assert main(["config", "check", "--json"]) == 1
    (problem,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert problem["setting"] == "backend"
    assert "'moon' is not accepted" in problem["problem"]


def test_the_example_settings_pass_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs as a reader would try it."""
    assert main(["config", "check", str(EXAMPLE)]) == 0
    assert "models.fast" in capsys.readouterr().out
