"""Skills of agents: listed at the start, loaded when needed, and mounted for agents in sandboxes."""

from __future__ import annotations

import os
import pathlib
import shutil

from ramet import Agent, AgentRuntime, Policy, ScriptedModel, Session, workspace_tools
from ramet.core.events import RunSpawned
from ramet.core.outcome import Status
from ramet.models.scripted.dialogue import Call
from tests.trips.kits.isolated import BackendName
from tests.trips.kits.isolated import usual_backend as backend

__all__ = ["backend"]

SCRIPT = "print('sum', 40 + 2)\n"


def write_skill(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    skill = folder / "skills" / name
    (skill / "scripts").mkdir(parents=True)
    (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: About {name}.\n---\n{text}\n")
    (skill / "scripts" / "sum.py").write_text(SCRIPT)
    return skill


async def test_a_sandboxed_agent_loads_a_skill_and_runs_its_script(
    tmp_path: pathlib.Path, home: pathlib.Path, backend: BackendName
) -> None:
    """Names and descriptions are in the prompt, texts come by the tool, and the folder can be read only.

    A skill that the definition does not name is neither listed nor mounted. The agent's parent, in a sandbox, has none.
    """
    user_dir, cwd = home / ".ramet", tmp_path / "work"
    cwd.mkdir()
    adding = write_skill(user_dir, "adding", "Run scripts/sum.py.")
    other = write_skill(user_dir, "other", "Nothing to add.")
    command = f"python3 {adding}/scripts/sum.py; echo gone > {adding}/SKILL.md; ls {user_dir}/skills"
    model = ScriptedModel(
        {
            "Go": [Call("Agent", {"subagent_type": "adder", "prompt": "Add them."}), "done"],
            "Add them.": [
                Call("Skill", {"skill": "adding"}),
                Call("Skill", {"skill": "other"}),
                Call("Skill", {"skill": "adding", "file": "scripts/sum.py"}),
                Call("Bash", {"command": command}),
                "Added.",
            ],
        }
    )
    adder = Agent(name="adder", description="Adds", instructions="Add.", tools=["Bash", "Skill"], skills=["adding"])
    parent = Policy(allow_sub_agents=True, max_sub_agent_depth=1, max_sub_agents=1)
    async with (
        AgentRuntime(cwd, user_dir=user_dir, backend=backend) as runtime,
        Session(
            model, workspace_tools(), agents=[adder], runtime=runtime, root_policy=parent, unattended=True
        ) as session,
    ):
        assert (await session.ask("Go")).value == "done"
        run = session.handle("main/1").run
        system = run.context.system_messages[0].text
        answers = [str(each.content) for each in run.context.history if each.type == "tool"]
        recorded = [each async for each in session.handle("main/1").events() if isinstance(each, RunSpawned)]

    assert "\n- adding: About adding." in system
    assert "sum.py" not in system
    assert "other" not in system
    assert "Skill" not in [tool.name for tool in session.context.tools], "it is the child's own"
    loaded, unknown, script, output = answers
    assert loaded.split("\n") == [
        f"The skill adding. Its folder: {adding}", "Its files: scripts/sum.py (21 bytes)", "", "Run scripts/sum.py."
    ]  # fmt: skip
    assert "'other'" in unknown
    assert "Nothing to add" not in unknown
    assert script == SCRIPT
    assert "sum 42" in output
    assert (adding / "SKILL.md").read_text().endswith("Run scripts/sum.py.\n")
    assert output.split("\n")[-2:] == ["adding", "[exit code 0]"], f"{other} is not mounted"
    assert [each.birth["skill_folders"] for each in recorded] == [[str(adding)]]


async def test_a_skill_that_became_a_link_is_not_mounted(
    tmp_path: pathlib.Path, home: pathlib.Path, backend: BackendName
) -> None:
    """The folder that was found is mounted in each turn, and never what somebody put in its place."""
    cwd, secret = tmp_path / "work", tmp_path / "secret"
    skill = write_skill(cwd / ".claude", "adding", "Add.")
    shutil.copytree(skill, secret)
    (secret / "key").write_text("SECRET")
    model = ScriptedModel({"One": "1", "Two": [Call("Bash", {"command": f"cat {skill}/key"}), "2"]})
    agent = Agent(name="adder", tools=["Bash", "Skill"])  # `Skill` means every skill.
    async with Session(
        model, workspace_tools(), agent=agent, cwd=cwd, root_policy=Policy(), backend=backend, unattended=True
    ) as session:
        assert (await session.ask("One")).value == "1"
        assert "- adding: About adding." in session.context.system_messages[0].text
        shutil.rmtree(skill)
        os.symlink(secret, skill)  # noqa: PTH211
        result = await session.ask("Two")
        texts = [str(each.content) for each in session.messages]

    assert result.status is Status.FAILED
    assert "it leads through a symbolic link" in str(result.error)
    assert not any("SECRET" in each for each in texts)


async def test_a_conversation_that_goes_on_later_has_its_skills(
    tmp_path: pathlib.Path, home: pathlib.Path, backend: BackendName
) -> None:
    """The record has the folders that were mounted. What took the place of one meanwhile is not mounted."""
    cwd, user_dir = tmp_path / "work", home / ".ramet"
    cwd.mkdir()
    adding, other = (write_skill(user_dir, name, f"The text of {name}.") for name in ("adding", "other"))
    agent = Agent(name="adder", tools=["Bash"], skills=["adding", "other"])
    scripts: list[list[Call | str]] = [["1"], [Call("Skill", {"skill": "adding"}), "2"], ["3"]]
    results = []
    for script in scripts:
        async with (
            AgentRuntime(cwd, user_dir=user_dir, backend=backend) as runtime,
            Session(
                ScriptedModel(script), workspace_tools(), agent=agent, cwd=cwd, runtime=runtime, root_policy=Policy(),
                session_id="s", unattended=True,
            ) as session,
        ):  # fmt: skip
            results.append(await session.ask("Go on."))
            texts = [str(each.content) for each in session.messages]
        if len(results) == 2:
            assert any("The text of adding." in each for each in texts)
            other.rename(tmp_path / "moved")
            os.symlink(adding, other)  # noqa: PTH211

    assert [each.value for each in results[:2]] == ["1", "2"]
    assert results[2].status is Status.FAILED
    assert "it leads through a symbolic link" in str(results[2].error)
