"""Known programs on a machine: where each is found, how it is started and configured, and what is mounted for it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tomllib
from collections.abc import Callable

import pytest

from ramet.agent.external.external import PRESETS, External
from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Policy, resolve_root_policy
from ramet.host.external import presets
from ramet.host.external.locate import find
from ramet.host.external.program_finder import ProgramFinder
from ramet.host.external.tool_configuration import with_tree_tools
from tests.support.agent_programs import PINS

Install = Callable[[str, str], pathlib.Path]
MODELS = {
    "claude-code": "anthropic:claude-sonnet-5-5",
    "codex": "openai:gpt-5.5",
    "gemini": "google_genai:gemini-2.5-pro",
    "opencode": "anthropic:claude-sonnet-5-5",
}


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that puts a program into the only folder of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(path: str, text: str) -> pathlib.Path:
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
        link = folder / program.stem
        if link != program:
            link.symlink_to(program)
        return program

    return put


def test_every_name_of_a_definition_is_a_preset() -> None:
    """The packages that errors name are those with which the programs are tested."""
    assert tuple(presets.PRESETS) == PRESETS
    named = {each.package for preset in presets.PRESETS.values() for each in preset.candidates}
    assert named <= {each.get("package") for each in tomllib.loads(PINS.read_text()).values() if isinstance(each, dict)}


def test_a_script_is_started_by_its_interpreter_and_brings_its_packages(install: Install) -> None:
    """A package of npm is a link to a script below `node_modules`, whose first line names node."""
    node = install("runtimes/node/bin/node", "\x7fELF")
    script = install("lib/node_modules/@maker/tool/dist/tool.js", "#!/usr/bin/env node\nrun()\n")
    found = find("tool")

    assert found is not None
    assert found.command == (str(node), str(script))
    assert found.mounts == (str(script.parents[3]), str(node))


def test_a_program_in_machine_code_is_mounted_alone(install: Install) -> None:
    program = install("opt/maker/tool", "\x7fELF")
    found = find("tool")

    assert found is not None
    assert (found.command, found.mounts) == ((str(program),), (str(program),))


def test_what_every_sandbox_sees_is_not_mounted() -> None:
    found = find("sh", "/usr/bin:/bin")

    assert found is not None
    assert found.mounts == ()


def test_a_script_without_its_interpreter_is_an_error(install: Install) -> None:
    install("lib/tool", "#!/usr/bin/env node\n")

    with pytest.raises(InvalidValue, match="node"):
        find("tool")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_program_that_is_not_installed_is_an_error_that_names_it(install: Install, preset: str) -> None:
    with pytest.raises(InvalidValue, match=presets.PRESETS[preset].candidates[0].executable):
        ProgramFinder().find(External(preset=preset), MODELS[preset])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_asks_its_models_at_the_endpoint_with_no_key_of_the_user(install: Install, preset: str) -> None:
    """Whatever a program reads, variables or files, has the places of address and key, and its own file format."""
    install(f"opt/{presets.PRESETS[preset].candidates[0].executable}", "\x7fELF")
    program = ProgramFinder().find(External(preset=preset), MODELS[preset])
    texts = " ".join([*program.start.env.values(), *program.start.files.values()])

    assert "_url}" in texts
    assert "${key}" in texts
    assert program.models == (MODELS[preset],)
    assert program.start.protocol == "acp"
    for name, text in program.start.files.items():
        assert tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


@pytest.mark.parametrize(
    ("preset", "model"),
    [("claude-code", "openai:gpt-5.5"), ("codex", "gpt-5.5"), ("gemini", "google_genai:"), ("opencode", None)],
)
def test_a_model_that_the_program_cannot_ask_is_an_error(install: Install, preset: str, model: str | None) -> None:
    install(f"opt/{presets.PRESETS[preset].candidates[0].executable}", "\x7fELF")

    with pytest.raises(InvalidValue, match="model"):
        ProgramFinder().find(External(preset=preset), model)


def test_without_a_model_the_program_chooses_among_those_of_its_provider(install: Install) -> None:
    install("opt/codex-acp", "\x7fELF")
    program = ProgramFinder().find(External(preset="codex"), None)

    assert program.models == ("openai:*",)
    assert "model" not in tomllib.loads(program.start.files[".codex/config.toml"])


def test_a_program_that_asks_nobody_needs_permission_for_all(install: Install) -> None:
    """Without its adapter Codex asks nobody: to run it so is a decision of the user."""
    adapter = r"codex-acp in PATH \(npm install -g @agentclientprotocol/codex-acp\)"
    with pytest.raises(InvalidValue, match=rf"codex-acp or codex in PATH \({adapter.partition('(')[2]}"):
        ProgramFinder().find(External(preset="codex"), None)
    install("opt/codex", "\x7fELF")

    with pytest.raises(InvalidValue, match=rf'{adapter}.*External\(preset="codex", permission_mode="allow"\)'):
        ProgramFinder().find(External(preset="codex"), None)
    program = ProgramFinder().find(External(preset="codex", permission_mode="allow"), None)
    assert (program.start.command[1:4], program.start.protocol) == (
        ("exec", "--skip-git-repo-check", "--json"),
        "stream-json",
    )


@pytest.mark.parametrize(("executable", "preset"), [("claude", "claude-code"), ("codex", "codex")])
def test_a_program_without_a_session_is_configured_for_the_tools_of_its_tree(
    install: Install, executable: str, preset: str
) -> None:
    """Where its grant lets it start agents. A file of the definition is in the place of that of the preset."""
    install(f"opt/{executable}", "\x7fELF")
    external = External(preset=preset, permission_mode="allow")
    program = ProgramFinder().find(external, None)
    spawns, spawns_not = (resolve_root_policy(Policy(allow_sub_agents=each)) for each in (True, False))
    (name,) = (name for name, text in program.start_under(spawns).files.items() if "${mcp_url}" in text)

    assert program.start_under(spawns).tree_tools
    assert program.start_under(spawns_not) == program.start
    own = dataclasses.replace(external, files={name: "mine"})
    assert ProgramFinder().find(own, None).start_under(spawns).files[name] == "mine"


def test_fields_of_the_definition_come_before_those_of_the_preset(install: Install) -> None:
    install("opt/codex-acp", "\x7fELF")
    external = External(
        preset="codex", env={"RAMET_KEY": "x", "A": "b"}, memory_mb=2000, pids=7, models=["openai:*"], mounts=["/opt/x"]
    )
    program = ProgramFinder().find(external, "openai:gpt-5.5")

    assert (program.start.env["RAMET_KEY"], program.start.env["A"]) == ("x", "b")
    assert (tuple(program.needs), program.models) == ((2000, 7), ("openai:*",))
    assert program.mounts[-1] == "/opt/x"


@pytest.mark.parametrize("preset", PRESETS)
def test_the_tools_of_the_tree_are_added_to_the_configuration(install: Install, preset: str) -> None:
    """Where a program has no session to get them with. What else its files say stays."""
    install(f"opt/{presets.PRESETS[preset].candidates[0].executable}", "\x7fELF")
    files = ProgramFinder().find(External(preset=preset), MODELS[preset]).start.files
    offered = with_tree_tools(preset, files)
    loads = {name: tomllib.loads if name.endswith(".toml") else json.loads for name in offered}

    changed = [name for name in offered if offered[name] != files.get(name)]
    (name,) = changed
    assert "${mcp_url}" in offered[name]
    before, after = (loads[name](texts.get(name, "{}" if name.endswith(".json") else "")) for texts in (files, offered))
    assert {key: after[key] for key in before} == before
    assert any("ramet" in after[key] for key in after.keys() - before.keys())
