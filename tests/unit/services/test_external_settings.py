"""Programs of other makers in the settings of a server."""

from __future__ import annotations

import json
import pathlib

import pytest

from ramet import External
from ramet.services.config.build import programs_of
from ramet.services.config.load import examine, load

SETTINGS = """\
external:
  codex: {preset: codex, permission_mode: allow}
  reviewer:
    command: [my-agent, --acp]
    models: ["anthropic:claude-sonnet-5-5"]
    env: {ANTHROPIC_API_KEY: "${key}"}
    files: {.config/my.json: '{"apiKey": "${key}", "env_key": "RAMET_KEY"}'}
"""


def test_programs_are_made_of_settings(tmp_path: pathlib.Path) -> None:
    """Each field is one of `External`. The text form of a program has neither variables nor files."""
    file = tmp_path / "ramet.yaml"
    file.write_text(SETTINGS)
    config = load(file, {"RAMET_EXTERNAL": json.dumps({"mine": {"command": ["mine"]}})}, {})

    assert programs_of(config) == {
        "codex": External(preset="codex", permission_mode="allow"),
        "reviewer": External(
            command=("my-agent", "--acp"),
            models=("anthropic:claude-sonnet-5-5",),
            env={"ANTHROPIC_API_KEY": "${key}"},
            files={".config/my.json": '{"apiKey": "${key}", "env_key": "RAMET_KEY"}'},
        ),
        "mine": External(command=("mine",)),
    }
    assert str(config.external["reviewer"]) == "my-agent: anthropic:claude-sonnet-5-5"
    assert (config.origins["external.mine"], config.origins["external.codex"]) == ("RAMET_EXTERNAL", f"{file}:2")


@pytest.mark.parametrize(
    ("program", "field"),
    [
        ("{}", "external.mine.command"),
        ("codex", "external.mine"),
        ("{preset: vim}", "external.mine"),
        ("{command: my-agent}", "external.mine.command"),
        ("{command: [a], shell: true}", "external.mine.shell"),
        ("{command: [a], mounts: [relative]}", "external.mine.mounts"),
        ("{command: [a], memory_mb: much}", "external.mine.memory_mb"),
        ("{command: [a], files: {../x: y}}", "external.mine.files"),
        ("{command: [a], env: {KEY: sk-secret-part-of-some-length}}", "external.mine.env.KEY"),
        ("{command: [a], env: [b]}", "external.mine.env"),
    ],
)
def test_a_wrong_program_is_refused_by_its_dotted_name(tmp_path: pathlib.Path, program: str, field: str) -> None:
    """The problem names the setting and where it was written, and shows no secret."""
    file = tmp_path / "ramet.yaml"
    file.write_text(f"external: {{mine: {program}}}\n")

    (problem,) = examine(file, {}, {}).problems

    assert problem.field == field
    assert "ramet.yaml:1" in str(problem)
    assert "secret-part" not in str(problem)
