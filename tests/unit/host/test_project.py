"""Settings and definitions that a folder brings to a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet import Agent, AgentRuntime, ScriptedModel, Session
from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.trust import trust
from ramet.agent.hooks.hooks import HookRunner
from ramet.core.errors import InvalidValue
from ramet.host.trees.project import UNTRUSTED, Project

GATE = {"hooks": {"PreToolUse": [{"matcher": "Read", "hooks": [{"type": "command", "command": "exit 2"}]}]}}
CODER = "---\nname: coder\ndescription: {}\n---\nYou write code.\n"


def settings(project: Path, text: str) -> None:
    """Write the project's settings."""
    (project / ".claude").mkdir(exist_ok=True)
    (project / ".claude" / "settings.json").write_text(text)


def definition(project: Path, description: str) -> None:
    """Write the project's agent type."""
    (project / ".ramet" / "agents").mkdir(parents=True, exist_ok=True)
    (project / ".ramet" / "agents" / "coder.md").write_text(CODER.format(description))


def test_the_hooks_of_a_folder_need_trust(tmp_path: Path) -> None:
    """Hooks without trust are off, and a note says so."""
    folder, user_folder = tmp_path / "project", tmp_path / "mine"
    folder.mkdir()
    settings(folder, json.dumps(GATE))

    stranger = Project.open(folder, user_dir=user_folder)
    trust(folder, user_folder)
    trusted = Project.open(folder, user_dir=user_folder)

    assert (stranger.hooks, stranger.notes) == ((), (UNTRUSTED,))
    assert [HookRunner(each).listens("PreToolUse") for each in trusted.hooks] == [True]


@pytest.mark.parametrize(("text", "error"), [("{", Unreadable), ("[]", InvalidValue), ('{"hooks": []}', InvalidValue)])
def test_an_invalid_gate_is_an_error(tmp_path: Path, text: str, error: type[Exception]) -> None:
    """Trusted settings that cannot be read raise an error before anything starts."""
    folder, user_folder = tmp_path / "project", tmp_path / "mine"
    folder.mkdir()
    settings(folder, text)
    trust(folder, user_folder)

    with pytest.raises(error):
        Project.open(folder, user_dir=user_folder)


async def test_a_definition_of_an_administrator_takes_precedence_in_a_session(tmp_path: Path) -> None:
    """`AgentRuntime(managed_dir=…)` names the folder. Those of the session come after it."""
    (tmp_path / "managed" / "agents").mkdir(parents=True)
    (tmp_path / "managed" / "agents" / "coder.md").write_text(CODER.format("Managed"))
    given = [Agent(name=name, description="Mine", instructions="x") for name in ("coder", "helper")]
    async with AgentRuntime(managed_dir=tmp_path / "managed") as runtime:
        session = Session(ScriptedModel([]), agents=given, runtime=runtime)
        combined = runtime.open_project(None).with_call(given)

        for definitions in (session.project, combined):
            assert [definitions[each.name].description for each in given] == ["Managed", "Mine"]


async def test_definitions_of_a_session_change_only_by_reload(tmp_path: Path) -> None:
    """A file that a run writes does not change its own tree; `reload` of the owner does (AC-S1-16)."""
    definition(tmp_path, "Writes.")
    async with Session(ScriptedModel(["ok"]), cwd=tmp_path) as session:

        def listing() -> str:
            return next(tool.description for tool in session.context.tools if tool.name == "Agent")

        before = listing()
        definition(tmp_path, "Writes better.")
        unchanged = listing()
        is_changed = session.reload()

        assert ("- coder: Writes." in before, unchanged == before, is_changed) == (True, True, True)
        assert "- coder: Writes better." in listing()


async def test_a_definition_of_the_call_goes_before_the_projects(tmp_path: Path) -> None:
    """The order is managed, call, project, user, plugin, built in (AC-S1-16)."""
    definition(tmp_path, "From the project.")
    own_agent = Agent(name="coder", description="From the call.")
    async with Session(ScriptedModel(["ok"]), cwd=tmp_path, agents=[own_agent]) as session:
        assert session.project["coder"].description == "From the call."
