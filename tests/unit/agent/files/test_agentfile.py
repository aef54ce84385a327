"""Agent files: each key is honoured, refused, or named in a note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramet.agent.definition import Agent, Scope
from ramet.agent.files.agent_file import AgentFile, parse_agent
from ramet.core.errors import InvalidValue
from ramet.core.limits import Limits
from ramet.core.mcp.server_entry import McpServer
from ramet.host.serialize.recipes import agent_of, recipe

SOURCE = Path("/p/.claude/agents/x.md")
SERVERS = "mcpServers:\n  - calc: {command: calc, args: [-v]}\n"
HOOKS = "hooks:\n  PreToolUse:\n    - matcher: Bash\n      hooks:\n        - {type: command, command: ./check.sh}\n"


def parse(more: str = "", *, scope: Scope = "user", trusted: bool = False) -> AgentFile:
    text = f"---\nname: x\ndescription: Does x.\n{more}---\nYou do x.\n"
    return parse_agent(text, source=SOURCE, scope=scope, trusted=trusted)


def refusal(more: str, scope: Scope = "user") -> InvalidValue:
    with pytest.raises(InvalidValue) as caught:
        parse(more, scope=scope)
    assert caught.value.field.startswith(f"{SOURCE}: ")
    return caught.value


def test_a_whole_file_of_claudes_format_is_read() -> None:
    """The names of `.claude/agents` keep their meaning."""
    file = parse(
        "tools: Read, Grep, Agent(explore, plan), Bash\ndisallowedTools: Write\nmodel: sonnet\neffort: xhigh\n"
        "maxTurns: 7\nskills: pdf, xls\nmemory: project\nbackground: true\nisolation: worktree\n"
        "initialPrompt: Begin.\n"
    )

    assert file == AgentFile(
        Agent(
            name="x",
            description="Does x.",
            instructions="You do x.",
            tools=("Read", "Grep", "Agent(explore, plan)", "Bash"),
            disallowed_tools=("Write",),
            model="sonnet",
            effort="xhigh",
            max_turns=7,
            skills=("pdf", "xls"),
            memory="project",
            background=True,
            isolation="worktree",
            initial_prompt="Begin.",
            scope="user",
            source=SOURCE,
        )
    )


def test_ramets_own_spellings_and_keys_are_read() -> None:
    """snake_case is accepted beside camelCase, and so are limits and the schema of the answer."""
    agent = parse(
        "max_turns: 3\ndisallowed_tools: [Bash]\ninitial_prompt: Go.\nlimits: {tokens: 1000, usd: 0.5, seconds: 30}\n"
        "output: {type: object, properties: {n: {type: integer}}}\n"
    ).agent

    assert (agent.max_turns, agent.disallowed_tools, agent.initial_prompt) == (3, ("Bash",), "Go.")
    assert agent.limits == Limits(tokens=1000, usd=0.5, seconds=30)
    assert agent.output == {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        ("tools: []\n", ()),
        ("tools: ''\n", ()),
        ("tools: [Read, 'Task(a, b)']\n", ("Read", "Task(a, b)")),
        ("tools: Read,Agent(a,b) , Grep\n", ("Read", "Agent(a,b)", "Grep")),
        ("tools: '*'\n", ("*",)),
    ],
)
def test_absent_tools_are_inherited_and_empty_tools_are_none(text: str, meant: Any) -> None:
    """An absent key and an empty list differ."""
    assert parse(text).agent.tools == meant


@pytest.mark.parametrize(("text", "meant"), [("inherit", None), ("opus", "opus"), ("anthropic:m-1", "anthropic:m-1")])
def test_a_model_is_kept_as_its_alias_or_id(text: str, meant: str | None) -> None:
    """`inherit` means the parent's model; the resolver of models reads aliases and ids."""
    assert parse(f"model: {text}\n").agent.model == meant


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("toolz: Read\n", "key", "tools"),
        ("Name: x\n", "key", "name"),
        ("tools:\n", "tools", "[] for no tool"),
        ("tools: 5\n", "tools", "list of names"),
        ("tools: [Read, 5]\n", "tools", "list of names"),
        ("tools: Agent(a\n", "tools", "Agent(type"),
        ("maxTurns: 0\n", "max_turns", "whole number"),
        ("maxTurns: true\n", "max_turns", "whole number"),
        ("maxTurns: 1\nmax_turns: 2\n", "key", "one spelling"),
        ("model: 5\n", "model", "text"),
        ("background: maybe\n", "background", "true or false"),
        ("memory: global\n", "memory", "user or project or local"),
        ("effort: huge\n", "effort", "none, minimal, low, medium, high"),
        ("isolation: remote\n", "isolation", "worktree"),
        ("permissionMode: bypassPermissions\n", "permission_mode", "default, plan"),
        ("permissionMode: [plan]\n", "permission_mode", "default, plan"),
        ("limits: 5\n", "limits", "tokens"),
        ("limits: {token: 5}\n", "limits", "tokens"),
        ("limits: {1: 5}\n", "limits", "tokens"),
        ("limits: {tokens: -1}\n", "limits.tokens", "whole number"),
        ("limits: {usd: .nan}\n", "limits.usd", "number from 0"),
        ("limits: {seconds: .inf}\n", "limits.seconds", "number from 0"),
        ("output: text\n", "output", "JSON schema"),
        ("output: {type: nonsense}\n", "output", "a JSON schema: at $.type"),
        ("output: {default: 2026-01-01}\n", "output", "JSON can represent"),
        ("output: {$ref: '#'}\n", "output", "without end"),
        ("output: {allOf: [{$ref: '#/$defs/a'}], $defs: {a: {anyOf: [{$ref: '#'}]}}}\n", "output", "without end"),
        ("output: {$ref: 'http://127.0.0.1:9/schema'}\n", "output", "nothing is fetched"),
        ("output: {$ref: '#/$defs/gone'}\n", "output", "reference to something in the schema"),
        ("hooks: [a]\n", "hooks", "mapping"),
        ("hooks: {PreTool: []}\n", "hooks", "unknown hook event 'PreTool'"),
        (
            "hooks: {PreToolUse: [{matcher: '(', hooks: [{type: command, command: x}]}]}\n",
            "hooks",
            "regular expression",
        ),
        ("skills: {a: b}\n", "skills", "list of names"),
        ("mcpServers: [5]\n", "mcp_servers", "names of servers, or a mapping"),
        ("mcpServers: {calc: {command: 5}}\n", "mcp.calc.command", "text of at most"),
        ("mcpServers: {calc: {command: x, cwd: y}}\n", "mcp_server.cwd", "one of the fields name, command"),
        ("mcpServers: {a__b: {command: x}}\n", "mcp.name", "without '__'"),
        ("mcpServers: {a_: {command: x}}\n", "mcp.name", "without '_' at the end"),
        ('mcpServers: {far: {url: "http://x", headers: {A: "b "}}}\n', "mcp.far.headers.A", "without blanks"),
        ("mcpServers: {far: {type: sse, url: 'https://x.example'}}\n", "mcp.far.type", "transport of 2024 (sse)"),
        ("mcpServers: {far: {type: http, command: x}}\n", "mcp.far.type", "a url with this type"),
        ("mcpServers: {far: {url: 'https://u:p@x.example'}}\n", "mcp.far.url", "without user, fragment"),
        ("mcpServers: {far: {url: 'http://*.example'}}\n", "mcp.far.url", "http://HOST[:PORT]/PATH"),
        ("mcpServers: {far: {url: 'http://0x7f.1/'}}\n", "mcp.far.url", "http://HOST[:PORT]/PATH"),
        ("mcpServers: {far: {url: 'http://x', args: [a]}}\n", "mcp.far.args", "no program is started"),
        ("mcpServers: {far: {url: 'http://x', headers: {Host: y}}}\n", "mcp.far.headers", "other than those of"),
        ('mcpServers: {far: {url: "http://x", headers: {A: "b\\nC: d"}}}\n', "mcp.far.headers.A", "printable ASCII"),
    ],
)
def test_an_invalid_key_is_refused_with_file_and_accepted_values(text: str, key: str, message: str) -> None:
    """The whole file is refused, since half a definition might have more rights."""
    error = refusal(text)

    assert error.field == f"{SOURCE}: {key}"
    assert message in error.accepted


@pytest.mark.parametrize(
    "header", ["name: x\n", "description: d\n", "name:\ndescription: d\n", "name: x\ndescription: ''\n"]
)
def test_name_and_description_are_required(header: str) -> None:
    """A model chooses an agent by them."""
    with pytest.raises(InvalidValue, match="every agent file must have it"):
        parse_agent(f"---\n{header}---\n", source=SOURCE, scope="user")


@pytest.mark.parametrize("name", ["../x", "a/b", "-x", "x y", "1" * 65, "~", "5"])
def test_hostile_names_are_refused(name: str) -> None:
    """A name must be text; a number must be quoted."""
    with pytest.raises(InvalidValue) as caught:
        parse_agent(f"---\nname: {name}\ndescription: d\n---\n", source=SOURCE, scope="user")

    assert caught.value.field == f"{SOURCE}: name"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("color: red\n", "color"),
        ("tools: Read, Bash(git:*)\n", "tools: Bash(git:*)"),
        ("disallowedTools: Bash(rm:*)\n", "disallowed_tools: Bash(rm:*)"),
    ],
)
def test_known_but_unsupported_keys_are_noted(text: str, note: str) -> None:
    """No key is ignored silently."""
    (note_text,) = parse(text).notes

    assert note_text.startswith(note)
    assert "not supported yet" in note_text


@pytest.mark.parametrize("mode", ["plan", "dontAsk", "default"])
def test_a_mode_that_narrows_holds_in_every_file(mode: str) -> None:
    """The mode becomes a rule of the agent; nothing is noted."""
    file = parse(f"permissionMode: {mode}\n", scope="project")

    assert file.agent.permissions.prevailing_mode() == mode
    assert file.notes == ()


@pytest.mark.parametrize(
    ("scope", "trusted", "on"),
    [("project", False, False), ("project", True, True), ("plugin", True, False), ("user", False, True)],
)
def test_accept_edits_of_a_project_is_off_until_it_is_trusted(scope: Scope, trusted: bool, on: bool) -> None:
    """A file of a stranger does not lift the questions before changes."""
    file = parse("permissionMode: acceptEdits\n", scope=scope, trusted=trusted)

    assert file.agent.permissions.prevailing_mode() == ("acceptEdits" if on else "default")
    assert bool(file.notes) != on


@pytest.mark.parametrize(
    ("scope", "trusted", "on"),
    [
        ("project", False, False),
        ("project", True, True),
        ("plugin", True, False),
        ("user", False, True),
        ("managed", False, True),
    ],
)
def test_commands_of_a_project_are_off_until_it_is_trusted(scope: Scope, trusted: bool, on: bool) -> None:
    """Opening a folder runs nothing; a note for each key says that its commands are off."""
    file = parse(HOOKS + SERVERS, scope=scope, trusted=trusted)

    assert (file.agent.hooks is not None) == on
    assert file.agent.mcp_servers == ((McpServer(name="calc", command="calc", args=("-v",)),) if on else ())
    assert [note.partition(": off ")[0] for note in file.notes] == ([] if on else ["hooks", "mcpServers"])


@pytest.mark.parametrize(
    ("scope", "trusted"), [("project", True), ("user", False), ("managed", False)], ids=["trusted", "user", "managed"]
)
def test_a_trusted_file_may_use_notes_of_the_user(scope: Scope, trusted: bool) -> None:
    """Files of the user and of a trusted folder read and write the user's notes."""
    assert parse("memory: user\n", scope=scope, trusted=trusted).agent.memory == "user"


@pytest.mark.parametrize("scope", ["project", "plugin"])
def test_an_untrusted_file_cannot_use_notes_of_the_user(scope: Scope) -> None:
    """The refusal names the key, the value and, for a folder, the command that allows it."""
    with pytest.raises(InvalidValue) as refusal:
        parse("memory: user\n", scope=scope)

    assert (refusal.value.field.endswith(": memory"), refusal.value.value) == (True, "user")
    assert ("ramet trust DIR" in refusal.value.accepted) == (scope == "project")
    assert parse("memory: project\n", scope=scope).agent.memory == "project"


@pytest.mark.parametrize("key", ["omitInstructions", "omitClaudeMd", "omit_instructions"])
def test_a_file_says_that_its_agent_is_not_told_the_instructions_of_the_folder(key: str) -> None:
    """The definition says so, and so does its recipe in the journal."""
    agent = parse(f"{key}: true\n").agent

    assert agent.omit_instructions
    assert agent_of(recipe(agent), agents={}, model=str).omit_instructions
