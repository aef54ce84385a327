"""Files in the operator's home are for the operator only: real `ramet serve`, a team's key."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.support.team_keys import TeamClient, serve_team

SECRET = "PLANTED-4711"


@pytest.fixture
def operators_home(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make a home with a skill, an agent definition and its memory. Each of them holds a secret."""
    mine = tmp_path / ".ramet"
    files = {
        "skills/payroll/SKILL.md": f"---\ndescription: pay\n---\n{SECRET}\n",
        "agents/keeper.md": f"---\nname: keeper\ndescription: keeps {SECRET}\nmemory: user\n---\n{SECRET}\n",
        "agent-memory/keeper/MEMORY.md": f"{SECRET}\n",
    }
    for name, text in files.items():
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(text)
    return tmp_path


def _skill(client: TeamClient, name: str, text: str) -> None:
    folder = client.folder / ".ramet" / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\ndescription: of the folder\n---\n{text}\n")


def test_agents_get_skills_of_the_served_folder_only(operators_home: pathlib.Path) -> None:
    """A skill of the home is refused without its text or path. An agent is told of a skill of the served folder."""
    with serve_team(None, HOME=str(operators_home), RAMET_HOME="") as client:
        _skill(client, "greeting", "Say hello.")
        (client.folder / ".ramet" / "skills" / "out").symlink_to(operators_home / ".ramet" / "skills" / "payroll")
        for number, name in enumerate(("payroll", "nope", "out")):
            refused = client.spawn(f"no-{number}", "told", spawn_info={"skills": [name]})
            assert refused.status_code == (500 if name == "out" else 404), refused.text
            assert SECRET not in refused.text
            assert str(operators_home) not in refused.text
            assert name == "payroll" or "payroll" not in refused.text
        spawned = client.spawn("yes", "told", spawn_info={"skills": ["greeting"]}).raise_for_status().json()

        system = client.say(spawned, "system")
        assert "greeting: of the folder" in system
        assert "payroll" not in system


def test_skills_of_a_served_home_are_not_offered(tmp_path: pathlib.Path) -> None:
    """Skills of the operator's home stay private where the served folder is that home."""
    with serve_team(None, HOME=str(tmp_path), RAMET_HOME="") as client:
        (tmp_path / ".ramet").symlink_to(client.folder / ".ramet")
        _skill(client, "payroll", SECRET)

        refused = client.spawn("no", "told", spawn_info={"skills": ["payroll"]})

        assert refused.status_code == 404, refused.text
        assert "payroll" not in refused.json()["known"]


def test_agents_cannot_start_the_operators_own_definitions(operators_home: pathlib.Path) -> None:
    """Neither the list of tools nor a call by name reaches a definition or memory of the home."""
    with serve_team(None, HOME=str(operators_home), RAMET_HOME="") as client:
        spawned = client.spawn("lead", "told", spawn_info={"spawn": True}).raise_for_status().json()

        tools = client.ask(
            "POST", f"/v1/agents/{spawned['agent']['id']}/control", spawned["nonce"], json={"@type": "list_tools"}
        ).text
        reply = client.say(spawned, "call Agent " + json.dumps({"prompt": "system", "subagent_type": "keeper"}))

        assert "general-purpose" in tools
        for each in (tools, reply):
            assert SECRET not in each
        assert "keeper" not in tools
        assert "general-purpose" in reply, "it is told which types there are"
