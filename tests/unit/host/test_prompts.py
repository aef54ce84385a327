"""host/trees/prompts.py: What an agent reads before its task."""

from __future__ import annotations

import json
import math
import pathlib
import sys
from typing import Literal

import pytest

from ramet import Agent
from ramet.agent.files.skills import skill_search_paths
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import InvalidValue, Unknown
from ramet.host.trees.prompts import Prompts


def test_capabilities_are_listed_by_their_visibility() -> None:
    """High shows the docstring and medium the signature; low and unloaded capabilities show the name."""
    agent = Agent(name="solver", primer="You solve.")
    agent.module(math, include=["sin"], visibility="high")
    agent.fn(json.dumps)
    agent.module("not_loaded_here.part", visibility="high")

    prompt = Prompts(None, None).system(agent, pathlib.Path())

    assert prompt.startswith("You solve.")
    assert "Return the sine of x" in prompt
    assert "- function dumps(obj, " in prompt
    assert "- module not_loaded_here.part" in prompt
    assert "not_loaded_here" not in sys.modules


def test_skills_are_given_by_definitions_and_not_by_agents(tmp_path: pathlib.Path) -> None:
    """A name, `*` and the entry `Skill` give skills, unless the tool is denied, or another agent made the agent."""
    skill = tmp_path / ".agents" / "skills" / "pdf" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: pdf\ndescription: Reads PDFs.\n---\nRead.\n")
    prompts = Prompts(tmp_path, None, skills=skill_search_paths(tmp_path, None))
    made = AgentRef("root", "1", ("child",), "2")
    agents = {
        "named": Agent(name="x", skills=["pdf"]),
        "every": Agent(name="x", skills=["*"]),
        "entry": Agent(name="x", tools=["Read", "Skill"]),
        "root": Agent(name="x", tools=["Skill"], ref=AgentRef("x", "1", (), "1")),
        "none": Agent(name="x"),
        "denied": Agent(name="x", skills=["pdf"], disallowed_tools=["Skill"]),
        "made": Agent(name="x", tools=["Skill"], skills=["pdf"], ref=made),
    }

    given = {name: [tool.name for tool in prompts.tools(each, tmp_path)] for name, each in agents.items()}
    listed = {name: "- pdf: Reads PDFs." in prompts.system(each, tmp_path) for name, each in agents.items()}

    assert given == {name: ["Skill"] if name in ("named", "every", "entry", "root") else [] for name in agents}
    assert listed == {name: bool(tools) for name, tools in given.items()}
    with pytest.raises(Unknown, match="xls"):
        prompts.system(Agent(name="x", skills=["xls"]), tmp_path)
    assert prompts.tools(Agent(name="x", skills=["xls"]), tmp_path) == ()


@pytest.mark.parametrize(("memory", "kept_in"), [("project", "project"), ("local", "project"), ("user", "user")])
def test_notes_are_stored_by_their_scope(
    memory: Literal["user", "project", "local"], kept_in: str, tmp_path: pathlib.Path
) -> None:
    """Project notes need the project's folder, and user notes the user's; neither replaces the other."""
    agent, folders = Agent(name="scout", memory=memory), {"project": tmp_path / "p", "user": tmp_path / "u"}
    one_folder = {name: folder if name == kept_in else None for name, folder in folders.items()}
    without_folder = {name: None if name == kept_in else folder for name, folder in folders.items()}

    for folders_given in (folders, one_folder):
        notes = Prompts(folders_given["project"], folders_given["user"]).memory(agent)
        assert notes is not None
        assert notes.path.is_relative_to(folders[kept_in])
    with pytest.raises(InvalidValue, match=f"a session with a {memory} folder"):
        Prompts(without_folder["project"], without_folder["user"]).memory(agent)


def test_an_agent_without_notes_needs_no_folder() -> None:
    """Such an agent gets no notes and no tool for them."""
    assert Prompts(None, None).memory(Agent(name="scout")) is None
    assert Prompts(None, None).tools(Agent(name="scout"), pathlib.Path()) == ()
