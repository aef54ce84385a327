"""The definition of an agent that is a program of another maker: checked when it is made, and data that comes back."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import ramet
from ramet.agent.external.external import External, ExternalFunction
from ramet.agent.files.agent_file import parse_agent
from ramet.core.errors import InvalidValue
from ramet.host.serialize.recipes import agent_of, recipe

OWN = External(
    command=["tool", "--acp"], models=["openai:*"], env={"A": "${key}"}, files={".x/y": "z"}, mounts=["/opt/t"]
)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "external.command"),
        ({"preset": "claude"}, "external"),
        ({"command": "tool"}, "external.command"),
        ({"command": ["a\0b"]}, "external.command"),
        ({"command": [1]}, "external.command"),
        ({"command": ["x"], "protocol": "http"}, "external.protocol"),
        ({"command": ["x"], "permission_mode": "always"}, "external.permission_mode"),
        ({"command": ["x"], "models": ["gpt"]}, "external.models"),
        ({"command": ["x"], "mounts": ["relative"]}, "external.mounts"),
        ({"command": ["x"], "env": {"A": 1}}, "external.env"),
        ({"command": ["x"], "files": {"/etc/passwd": ""}}, "external.files"),
        ({"command": ["x"], "files": {"a/../../b": ""}}, "external.files"),
        ({"command": ["x"], "memory_mb": 0}, "policy.memory_mb"),
        ({"command": ["x"], "program": "y"}, "program"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue) as error:
        External(**fields)

    assert error.value.field.endswith(named)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"external": "aider"}, "external"),
        ({"external": 5}, "external"),
        ({"external": "codex", "function": print}, "external"),
        ({"external": "codex", "tools": ["Bash"]}, "tools"),
        ({"external": "codex", "output": {"type": "object"}}, "output"),
        ({"external": "codex", "memory": "user"}, "memory"),
    ],
)
def test_an_agent_with_a_program_has_no_other_loop(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue) as error:
        ramet.Agent(name="coder", **fields)

    assert error.value.field == named


def test_a_name_a_mapping_and_an_object_mean_the_same() -> None:
    given: list[Any] = ["codex", {"preset": "codex"}, External(preset="codex")]
    agents = [ramet.Agent(name="coder", external=each) for each in given]

    assert [each.external for each in agents] == [External(preset="codex")] * 3
    assert all(isinstance(each.function, ExternalFunction) for each in agents)
    changed = agents[0].with_model("openai:gpt-5.5").with_name("other")
    assert (changed.model, changed.external) == ("openai:gpt-5.5", External(preset="codex"))


@pytest.mark.parametrize("external", [OWN, External(preset="gemini", permission_mode="allow", pids=99)])
def test_a_recipe_is_the_same_agent_again(external: External) -> None:
    """The journal has the definition as data: another process continues the run with it."""
    agent = ramet.Agent(name="coder", external=external, model="openai:gpt-5.5", instructions="Be brief.")
    again = agent_of(recipe(agent), agents={}, model=lambda name: None)

    assert again == agent
    assert again.external == external


def test_a_file_names_a_known_program_and_no_command() -> None:
    """A file of a project could otherwise start any program of the host, and mount any folder."""
    text = "---\nname: coder\ndescription: writes\nexternal: codex\nmodel: openai:gpt-5.5\n---\nBe brief.\n"
    parsed = parse_agent(text, source=pathlib.Path("coder.md"), scope="project")

    assert parsed.agent.external == External(preset="codex")
    assert parsed.agent.instructions == "Be brief."
    for value in ("aider", "{command: [sh]}"):
        with pytest.raises(InvalidValue, match="external"):
            parse_agent(text.replace("codex", value), source=pathlib.Path("coder.md"), scope="user", trusted=True)
