"""Agent files of Codex, OpenCode and Deep Agents: each key is honoured, refused, or named in a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.agent.definition import Agent
from ramet.agent.files.agent_file import AgentFile
from ramet.agent.files.definitions import load_definitions
from ramet.agent.files.dialects.dialect_parser import parse_file
from ramet.agent.files.search_paths import Dialect
from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import Permissions
from ramet.tools.permissions.evaluation import Call, judge

SOURCE = Path("/p/agents/x.md")


def parse(text: str, dialect: Dialect) -> AgentFile:
    return parse_file(text, source=SOURCE, scope="project", dialect=dialect)


def opencode(more: str = "") -> AgentFile:
    return parse(f"---\ndescription: Does x.\n{more}---\nYou do x.\n", "opencode")


def test_a_whole_file_of_codex_is_read() -> None:
    """The sandbox of a file narrows. Servers and settings of Codex are named, one by one."""
    file = parse(
        'name = "scout"\ndescription = "Finds."\nmodel = "gpt-5.3-codex"\nmodel_reasoning_effort = "high"\n'
        'sandbox_mode = "read-only"\nnickname_candidates = ["Ann"]\ndeveloper_instructions = """\nLook.\n"""\n'
        '[mcp_servers.docs]\ncommand = "npx"\n[[skills.config]]\npath = "/s/SKILL.md"\n',
        "codex",
    )

    assert file.agent == Agent(
        name="scout", description="Finds.", instructions="Look.", model="gpt-5.3-codex", effort="high", read_only=True,
        scope="project", source=SOURCE,
    )  # fmt: skip
    assert [note.split(":")[0] for note in file.notes] == [
        "sandbox_mode", "nickname_candidates", "mcp_servers", "skills"
    ]  # fmt: skip
    assert all("not honoured: it is for Codex" in note for note in file.notes[1:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"', "description: None is not accepted; expected text; every agent file must have it"),
        ('name = "x"\ndescription = "d"\ndeveloper_instructions = 5', "developer_instructions: 5"),
        ('name = "../x"\ndescription = "d"\ndeveloper_instructions = "i"', "name: '../x'"),
        ('name = "x"\ndescription = "d"\ndeveloper_instructions = "i"\nsandbox_mode = "none"', "sandbox_mode: 'none'"),
        ("name = ", "expected TOML"),
        ("a = " + "[" * 500, "expected TOML"),
        ("a = " + "1" * 5_000, "expected TOML"),
        (".".join("a" * 100_000) + " = 1", "at most 1000 dots and brackets"),  # It would be read for minutes.
        ("a = [" + "[]," * 1_000 + "]", "at most 1000 dots and brackets"),
    ],
)
def test_a_bad_file_of_codex_is_a_typed_error(text: str, message: str) -> None:
    """The error names the file, the key and the accepted values."""
    with pytest.raises(InvalidValue) as refusal:
        parse(text, "codex")

    assert str(refusal.value).startswith(str(SOURCE))
    assert message in str(refusal.value)


def test_a_file_of_deep_agents_is_read() -> None:
    """A file has a name, a description and a model; other keys are named."""
    text = "---\nname: x\ndescription: d\nmodel: openai:gpt-5\ntools: [a]\n---\nYou do x.\n"

    file = parse(text, "deepagents")

    assert file.agent == Agent(
        name="x", description="d", instructions="You do x.", model="openai:gpt-5", scope="project", source=SOURCE
    )
    assert file.notes == ("tools: not honoured: it is for Deep Agents",)


def test_a_whole_file_of_opencode_is_read() -> None:
    """The name is the file's. Steps, model and denied tools are honoured, and what is not is named."""
    file = opencode(
        "mode: primary\nmodel: google/gemini-3-pro\ntemperature: 0.1\nsteps: 7\nvariant: high\nhidden: true\n"
        "tools: {write: false, bash: true}\npermission: {webfetch: deny, lsp: deny}\n"
    )

    assert file.agent == Agent(
        name="x", description="Does x.", instructions="You do x.", model="google_genai:gemini-3-pro", max_turns=7,
        effort="high", disallowed_tools=("Write", "WebFetch"), scope="project", source=SOURCE,
    )  # fmt: skip
    assert [note.split(":")[0] for note in file.notes] == ["mode", "permission", "temperature", "hidden"]
    assert not file.is_disabled
    assert opencode("disable: true\n").is_disabled
    assert "no provider" in opencode("model: nowhere/m\n").notes[0]


def ruling(permissions: Permissions, tool: str, **args: str) -> str | None:
    return judge(permissions, Call(tool, args, "/work")).verdict


def test_the_last_line_that_fits_decides_in_permissions_of_opencode() -> None:
    """A later, weaker line is an exception of a stricter one, as far as a call certainly fits it."""
    agent = opencode(
        "permission:\n  edit: {'*': deny, 'docs/**': allow}\n  read: {'*.env': ask}\n  task: deny\n"
        "  bash: {'*': ask, 'git *': allow, 'git push *': deny, 'git push --dry-run': ask}\n"
    ).agent
    rules = agent.permissions

    assert agent.disallowed_tools == ("Agent",)
    expected = {
        "ls": "ask",
        "git status": None,
        "git status; ls": "ask",
        "git push origin": "deny",
        "sh -c 'git push origin'": "deny",
        "git push --dry-run": "ask",
        "git log > src/x": "ask",
    }
    assert {command: ruling(rules, "Bash", command=command) for command in expected} == expected
    assert ruling(rules, "Edit", file_path="/work/src/a.py") == "deny"
    assert ruling(rules, "Write", file_path="docs/a/b.md") is None
    assert ruling(rules, "Edit", file_path="docs/../src/a.py") == "deny"
    assert ruling(rules, "Read", file_path=".env") == "ask"
    assert ruling(rules, "Read", file_path="README.md") is None
    assert "Bash except git *" in [each.text for each in rules.rules]


def test_a_permission_for_every_tool_comes_first() -> None:
    """`deny` leaves exactly the tools that are named after it, `ask` asks about all others."""
    reader = opencode("permission: {'*': deny, read: allow, grep: allow, bash: {'git diff*': ask}}\n").agent
    asking = opencode("permission: {'*': ask, read: allow}\n").agent
    silent = opencode("permission: allow\n").agent

    assert reader.tools == ("Read", "Grep", "Bash")
    assert opencode("permission: deny\n").agent.tools == ()
    assert (ruling(asking.permissions, "Bash", command="ls"), ruling(asking.permissions, "Write")) == ("ask", "ask")
    assert ruling(asking.permissions, "Read", file_path="x") is None
    assert (silent.tools, silent.permissions) == (None, Permissions())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("permission: {bash: never}\n", "permission.bash: 'never' is not accepted; expected allow, ask, deny"),
        ("permission: [bash]\n", "permission: ['bash']"),
        ("permission: {edit: {'!x': deny}}\n", "permission.edit: 'Edit(!x)'"),
        (
            "permission: {bash: {"
            + ", ".join(f"{each}{n}: {each}" for each in ("deny", "allow") for n in range(100))
            + "}}\n",
            "fewer patterns",
        ),
        ("permission: {edit: {" + ", ".join(f"'{n}': deny" for n in range(501)) + "}}\n", "at most 500 patterns"),
        ("tools: {bash: 1}\n", "tools: {'bash': 1}"),
        ("prompt: '{file:../x}'\n", "prompt: "),
        ("mode: other\n", "primary or subagent or all"),
        ("steps: 0\n", "max_turns: 0"),
    ],
)
def test_a_bad_file_of_opencode_is_a_typed_error(more: str, message: str) -> None:
    """A rule that does nothing is worse than none."""
    with pytest.raises(InvalidValue) as refusal:
        opencode(more)

    assert message in str(refusal.value)


def test_every_dialect_is_found_in_its_folders(tmp_path: Path, home: Path) -> None:
    """Folders of ramet and Claude come first. Only files of the dialect are read; a disabled one defines no agent."""
    markdown = "---\nname: {0}\ndescription: in {1}\n---\nx\n"
    toml = 'name = "{0}"\ndescription = "in {1}"\ndeveloper_instructions = "x"\n'
    files = {
        ".agents/agents/a.md": markdown.format("a", ".agents"),
        ".codex/agents/b.toml": toml.format("b", ".codex"),
        ".codex/agents/README.md": "no agent",
        ".opencode/agents/a.md": markdown.format("a", ".opencode"),
        ".opencode/agent/c.md": markdown.format("c", ".opencode"),
        ".opencode/agent/off.md": "---\ndescription: x\ndisable: true\n---\n",
        ".deepagents/agents/d/AGENTS.md": markdown.format("d", ".deepagents"),
        ".deepagents/agents/AGENTS.md": "no agent",
        ".deepagents/agents/d/notes.md": "no agent",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (home / ".config" / "opencode" / "agents").mkdir(parents=True)
    (home / ".config" / "opencode" / "agents" / "e.md").write_text(markdown.format("e", "home"))
    (tmp_path / ".codex" / "agents" / "out.toml").symlink_to("/etc/passwd")

    found = load_definitions(tmp_path, user_dir=home / ".ramet", home=home)

    assert {name: found[name].description for name in sorted(found)[:5]} == {
        "a": "in .agents", "b": "in .codex", "c": "in .opencode", "d": "in .deepagents", "e": "in home"
    }  # fmt: skip
    assert "off" not in found
    assert [str(each.path) for each in found.problems] == [f"{tmp_path}/.codex/agents/out.toml"]
    assert [each.name for each in found.shadowed_definitions] == ["a"]
