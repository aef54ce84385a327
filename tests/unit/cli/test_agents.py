"""`ramet agents list|check` and `ramet trust`, on real folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.cli.main import main

GOOD = "---\nname: reviewer\ndescription: Reviews\n---\nYou review.\n"
BAD = "---\nname: broken\ndescription: x\nfoo: 1\n---\n"
HOOKED = """\
---
name: hooked
description: x
hooks:
  Stop:
    - hooks:
        - type: command
          command: ./evil.sh
---
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an empty folder for agent files."""
    (tmp_path / ".claude" / "agents").mkdir(parents=True)
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    """Write an agent file of the project."""
    (project / ".claude" / "agents" / f"{name}.md").write_text(text)


def test_list_shows_the_source_of_each_definition(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of the folder and built-in agents have one line each."""
    write(project, "reviewer", GOOD)

    assert main(["agents", "list", "--dir", str(project)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["reviewer", ".claude/agents/reviewer.md", "Reviews"]
    assert [line.split()[0] for line in lines[1:]] == ["general-purpose", "explore", "plan"]


def test_list_shows_hidden_definitions(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the used and the hidden definition of one name."""
    write(project, "explore", GOOD.replace("reviewer", "explore"))

    main(["agents", "list", "--dir", str(project)])

    assert capsys.readouterr().out.splitlines()[-1].endswith(".claude/agents/explore.md is used, builtin is not")


def test_list_as_json_is_one_object_a_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs can read it."""
    write(project, "reviewer", GOOD)

    main(["agents", "list", "--json", "--dir", str(project)])

    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["name"], first["scope"], first["description"]) == ("reviewer", "project", "Reviews")


def test_list_reports_problems_and_still_lists(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad file is skipped, and stderr points to `ramet agents check`."""
    write(project, "broken", BAD)

    assert main(["agents", "list", "--dir", str(project)]) == 0
    assert capsys.readouterr().err == "1 problem in agent files: see ramet agents check\n"


def test_check_of_good_files_prints_nothing_on_stdout(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 0."""
    write(project, "reviewer", GOOD)

    assert main(["agents", "check", "--dir", str(project)]) == 0
    assert capsys.readouterr() == ("", "4 agent types, 0 problems\n")


def test_check_lists_path_and_sentence(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 1 if there is a problem; a note alone does not count."""
    write(project, "broken", BAD)
    write(project, "hooked", HOOKED)

    assert main(["agents", "check", "--dir", str(project)]) == 1

    problem, note = capsys.readouterr().out.splitlines()
    assert problem.startswith(f"{project}/.claude/agents/broken.md: key: 'foo' is not accepted")
    assert note == f"{project}/.claude/agents/hooked.md: note: hooks: off until the folder is trusted (ramet trust DIR)"


def test_check_as_json_has_kind_and_path(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each problem is one object."""
    write(project, "broken", BAD)

    assert main(["agents", "check", "--json", "--dir", str(project)]) == 1
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["kind"], Path(row["path"]).name) == ("problem", "broken.md")


def test_check_lists_the_hooks_of_the_settings_and_whether_they_wait_for_trust(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be understood is a problem."""
    settings = project / ".claude" / "settings.json"
    settings.write_text('{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "./stop.sh"}]}]}}')
    line = 'hook Stop [{"hooks": [{"type": "command", "command": "./stop.sh"}]}] .claude/settings.json'

    assert main(["agents", "check", "--dir", str(project)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{line} (waits for trust: ramet trust DIR)"]
    assert main(["trust", str(project)]) == 0
    capsys.readouterr()
    assert main(["agents", "check", "--dir", str(project)]) == 0
    assert capsys.readouterr().out.splitlines() == [line]
    settings.write_text('{"hooks": ["./stop.sh"]}')
    assert main(["agents", "check", "--json", "--dir", str(project)]) == 1
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["kind"], "a mapping of hook events" in row["sentence"]) == ("problem", True)


def test_check_names_skills_and_instructions_that_cannot_be_used(
    project: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Skills of the folder and the user are counted. What is wrong with one, or with AGENTS.md, is a problem."""
    keys = {(project, "pdf"): "allowed-tools: Bash", (home, "mail"): "name: mail", (project, "bad"): "name: x"}
    for (folder, name), key in keys.items():
        path = folder / ".agents" / "skills" / name / "SKILL.md"
        path.parent.mkdir(parents=True)
        path.write_text(f"---\ndescription: d\n{key}\n---\nDo it.\n")
    (project / "AGENTS.md").write_bytes(b"\xff")

    assert main(["agents", "check", "--dir", str(project)]) == 1

    out, err = capsys.readouterr()
    skills = project / ".agents" / "skills"
    assert out.splitlines() == [
        f"{skills}/bad/SKILL.md: name: 'x' is not accepted; expected bad, the name of its folder; skipped",
        f"{project}/AGENTS.md: it is not UTF-8 (byte 0); omitted",
        f"{skills}/pdf/SKILL.md: note: allowed-tools: known, but has no effect",
        f"{skills}/pdf/SKILL.md: note: name: missing; the standard requires it; it is known as 'pdf', like its folder",
    ]
    assert err == "3 agent types, 2 skills, 2 problems\n"


def test_trust_is_shown_recorded_and_forgotten(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change of the folder's commands withdraws the trust."""
    write(project, "hooked", HOOKED)

    assert main(["trust", str(project), "--show"]) == 0
    out = capsys.readouterr().out
    assert "./evil.sh" in out
    assert "is not trusted: it was never trusted" in out

    assert main(["trust", str(project)]) == 0
    assert "is trusted as it is now: the above may run." in capsys.readouterr().out
    assert main(["agents", "check", "--dir", str(project)]) == 0
    assert capsys.readouterr().out == ""

    write(project, "hooked", HOOKED.replace("evil", "worse"))
    main(["trust", str(project), "--show"])
    assert "is not trusted: what it would run has changed" in capsys.readouterr().out

    assert main(["trust", str(project), "--forget"]) == 0
    assert "is no longer trusted" in capsys.readouterr().out


def test_trust_of_a_harmless_folder_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output says that the folder has nothing to run."""
    assert main(["trust", str(project)]) == 0
    assert capsys.readouterr().out == f"{project} is trusted as it is now: it contains nothing to run.\n"


def test_hostile_commands_cannot_control_the_terminal(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters are not printed."""
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": {"command": "rm\x1b[2K\rls"}}}))

    main(["trust", str(project), "--show"])

    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "expected JSON"),
        ('{"mcpServers": {"x": {"command": 5}, "y": {"command": "cat"}}}', "mcp.x.command"),
    ],
)
def test_unusable_servers_of_a_project_are_reported(
    content: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with a typing error would look like none, and so would an entry."""
    (tmp_path / ".mcp.json").write_text(content)

    assert main(["mcp", "list", "--dir", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert ("cat" in out, err.count("\n"), problem in err) == ("cat" in content, 1, True)
    assert main(["agents", "check", "--dir", str(tmp_path)]) == 1
    assert problem in capsys.readouterr().out
