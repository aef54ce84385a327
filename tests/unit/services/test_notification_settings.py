"""The targets of notifications in the settings of a server, and the targets that are made of them."""

from __future__ import annotations

import base64
import json
import pathlib

import pytest

from ramet.core.errors import InvalidValue
from ramet.host.notifications import CommandTarget, WebhookTarget
from ramet.services.config.load import Config, examine, load, references

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
SETTINGS = """\
notify:
  ops:
    webhook: https://hooks.example.com/ramet
    secret: env:HOOK_SECRET
    kinds: [approval, ended]
    statuses: [failed, crashed]
    all_runs: true
    max_age_s: 3600
  chat:
    webhook: env:SLACK_URL
    format: slack
  pager:
    command: [/usr/bin/page, --now]
    kinds: [kernel_lost]
"""


def read(folder: pathlib.Path, text: str = SETTINGS, **env: str) -> Config:
    """Return the configuration in a file of this text."""
    file = folder / "ramet.yaml"
    file.write_text(text)
    return load(file, env, {})


def test_targets_are_made_of_settings_and_secrets(tmp_path: pathlib.Path) -> None:
    """The secrets come from where the settings say; what is not set has the default."""
    config = read(tmp_path)
    environ = {"HOOK_SECRET": SECRET, "SLACK_URL": "https://hooks.slack.example/T/B/secret-part"}
    made = {name: each.target(f"notify.{name}", environ) for name, each in config.notify.items()}

    assert made == {
        "ops": WebhookTarget(
            url="https://hooks.example.com/ramet",
            secret=SECRET,
            kinds=["approval", "ended"],
            statuses=["failed", "crashed"],
            all_runs=True,
            max_age_s=3600,
        ),
        "chat": WebhookTarget(url="https://hooks.slack.example/T/B/secret-part", format="slack"),
        "pager": CommandTarget(argv=("/usr/bin/page", "--now"), kinds=["kernel_lost"]),
    }
    assert {name: str(each) for name, each in references(config).items()} == {
        "notify.ops.secret": "env:HOOK_SECRET",
        "notify.chat.webhook": "env:SLACK_URL",
    }
    assert str(config.notify["ops"]) == "webhook https://hooks.example.com/***: approval, ended, secret env:HOOK_SECRET"
    assert str(config.notify["pager"]) == "command /usr/bin/page: kernel_lost"


def test_the_environment_names_targets_as_well(tmp_path: pathlib.Path) -> None:
    """A target of the environment replaces the one of that name, and the others stay."""
    config = read(tmp_path, RAMET_NOTIFY=json.dumps({"pager": {"command": ["true"]}}))

    assert set(config.notify) == {"ops", "chat", "pager"}
    assert config.notify["pager"].command == ("true",)
    assert config.origins["notify.pager"] == "RAMET_NOTIFY"
    assert config.origins["notify.ops"].endswith("ramet.yaml:2")


@pytest.mark.parametrize(
    ("target", "field", "line"),
    [
        ("{}", "notify.ops", 1),
        ("{webhook: 'https://a.example/', command: [x]}", "notify.ops", 1),
        ("{webhook: 'http://a.example/secret-part'}", "notify.ops.webhook", 1),
        ("{webhook: 'secret-part'}", "notify.ops.webhook", 1),
        ("{webhook: 5}", "notify.ops.webhook", 1),
        ("{webhook: 'https://a.example/', secret: secret-part}", "notify.ops.secret", 1),
        ("{webhook: 'https://a.example/', kinds: [deaths]}", "notify.ops.kinds", 1),
        ("{webhook: 'https://a.example/', kinds: ended}", "notify.ops.kinds", 1),
        ("{webhook: 'https://a.example/', timeout_s: never}", "notify.ops.timeout_s", 1),
        ("{webhook: 'https://a.example/', all_runs: 1}", "notify.ops.all_runs", 1),
        ("{webhook: 'https://a.example/', format: xml}", "notify.ops.format", 1),
        ("{webhook: 'https://a.example/', url: x}", "notify.ops.url", 1),
        ("{command: [x], secret: env:A}", "notify.ops.secret", 1),
        ("{command: [x], format: slack}", "notify.ops.format", 1),
        ("{command: []}", "notify.ops.command", 1),
        ("{command: [1]}", "notify.ops.command", 1),
        ("nothing", "notify.ops", 1),
    ],
)
def test_a_wrong_target_is_refused_by_its_dotted_name(
    tmp_path: pathlib.Path, target: str, field: str, line: int
) -> None:
    """The problem is one line that names the setting and where it was written, and shows no secret."""
    file = tmp_path / "ramet.yaml"
    file.write_text(f"notify: {{ops: {target}}}\n")

    (problem,) = examine(file, {}, {}).problems

    assert problem.field == field
    assert f"ramet.yaml:{line}" in str(problem)
    assert "secret-part" not in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("environ", "field"),
    [
        ({}, "env:HOOK_SECRET"),
        ({"HOOK_SECRET": "secret-part"}, "notify.ops.secret"),
    ],
)
def test_a_wrong_secret_is_refused_when_the_target_is_made(
    tmp_path: pathlib.Path, environ: dict[str, str], field: str
) -> None:
    """The error names the setting or the reference, and does not show the secret."""
    with pytest.raises(InvalidValue) as refusal:
        read(tmp_path).notify["ops"].target("notify.ops", environ)

    assert refusal.value.field == field
    assert "secret-part" not in str(refusal.value)
