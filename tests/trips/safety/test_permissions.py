"""The `permissions` of a folder's settings hold for every tool call of a tree that works in that folder."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Literal

import pytest

from ramet.agent.definition import Agent
from ramet.cli.main import main
from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import ApprovalAsked, ToolEnded, ToolStarted
from ramet.core.policy.permissions import ModeRule, Permissions
from ramet.core.schedules.schedule import AgentTarget
from ramet.host.approvals import Pending
from ramet.host.recovery.resume import resolve_inputs, unfinished_trees
from ramet.host.runtime import AgentRuntime
from ramet.host.schedules.target import load, target_of
from ramet.host.serialize.recipes import agent_of, recipe
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.store.sqlite.store import SqliteStore
from ramet.tools.workspace import workspace_tools
from ramet.wire.guest_protocol.guest_to_host import Approve, FireHook
from tests.support.providers import provider
from tests.trips.isolation.test_hostile_guests import Guest, run_hostile_guest
from tests.trips.kits.sessions import answers, of_kind, run_of, session_events
from tests.trips.kits.terminal import ramet

SECRET = "the secret"
WORKER = Agent(name="worker", description="Works", instructions="Work.")
both = pytest.mark.parametrize("backend", ["bwrap", "local"])


@pytest.fixture
def project(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a secret, a link to the secret, and a public file, which is not trusted."""
    folder = tmp_path / "project"
    (folder / "secrets").mkdir(parents=True)
    (folder / "secrets" / "key").write_text(SECRET)
    (folder / "link").symlink_to("secrets/key")
    (folder / "public").write_text("this is public, not the secret")
    return folder


def write_settings(project: pathlib.Path, permissions: object, *, file: str = ".claude/settings.json") -> None:
    """Write the `permissions` of a settings file."""
    path = project / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"permissions": permissions}))


def shell_call(command: str, id: str) -> Call:
    """Return a call of the shell."""
    return Call("Bash", {"command": command}, id=id)


def read_call(path: str | pathlib.Path, id: str) -> Call:
    """Return a call of Read."""
    return Call("Read", {"file_path": str(path)}, id=id)


async def answers_to(project: pathlib.Path, calls: list[Call], **options: Any) -> dict[str, str]:
    """Run a session with one turn of calls, and return their results by call id."""
    model = ScriptedModel([calls, "done"])
    async with Session(model, workspace_tools(), cwd=project, **options) as session:
        assert (await session.ask("Go.")).value == "done"
        return answers(session.messages)


@pytest.mark.parametrize("file", [".claude/settings.json", ".claude/settings.local.json", ".ramet/settings.json"])
async def test_a_deny_rule_holds_in_an_untrusted_folder(project: pathlib.Path, file: str) -> None:
    """A deny rule narrows, so it needs no trust. The result names the rule and its file."""
    write_settings(project, {"deny": ["Bash(rm:*)"]}, file=file)

    results = await answers_to(project, [shell_call("echo hi && rm public", "c1"), shell_call("echo hi", "c2")])

    assert results["c1"].startswith("Denied: ")
    assert "Bash(rm:*)" in results["c1"]
    assert file in results["c1"]
    assert "hi" in results["c2"]
    assert (project / "public").exists()


async def test_a_denied_file_is_not_read_by_any_name(project: pathlib.Path) -> None:
    """The rule holds for the file itself, for an absolute name, for a link to the file, and for searches."""
    write_settings(project, {"deny": ["Read(./secrets/**)"]})
    calls = [
        read_call("secrets/key", "plain"),
        read_call(project / "secrets" / "key", "absolute"),
        read_call("link", "link"),
        Call("Grep", {"pattern": "secret", "output_mode": "content"}, id="grep"),
        Call("Grep", {"pattern": "secret", "path": "secrets", "output_mode": "content"}, id="grep below"),
        Call("Glob", {"pattern": "**/*"}, id="glob"),
        read_call("public", "public"),
    ]

    results = await answers_to(project, calls)

    assert all("Read(./secrets/**)" in results[id] for id in ("plain", "absolute", "link", "grep below"))
    assert "public:1:" in results["grep"]
    assert "secrets/key" not in results["grep"]
    assert "public" in results["glob"]
    assert "secrets/key" not in results["glob"]
    assert "this is public" in results["public"]


async def test_a_rule_for_edit_holds_for_every_tool_that_changes_files(project: pathlib.Path) -> None:
    """Write and Edit are both refused below the folder that the rule names."""
    write_settings(project, {"deny": ["Edit(/secrets/**)"]})
    calls = [
        Call("Write", {"file_path": "secrets/new", "content": "x"}, id="write"),
        read_call("secrets/key", "read"),
        Call("Edit", {"file_path": "secrets/key", "old_string": "secret", "new_string": "x"}, id="edit"),
        Call("Write", {"file_path": "elsewhere", "content": "x"}, id="elsewhere"),
    ]

    results = await answers_to(project, calls)

    assert [id for id in results if "Edit(/secrets/**)" in results[id]] == ["write", "edit"]
    assert SECRET in results["read"]
    assert (project / "elsewhere").read_text() == "x"
    assert (project / "secrets" / "key").read_text() == SECRET


async def test_rules_hold_in_a_child(project: pathlib.Path) -> None:
    """A child is refused the denied call as its parent would be."""
    write_settings(project, {"deny": ["Bash(rm:*)"]})
    script: dict[str, list[Any]] = {
        "Go.": [Call("Agent", {"subagent_type": "worker", "prompt": "below", "name": "one"}), "done"],
        "below": [shell_call("rm public", "c1"), "I may not."],
    }
    async with Session(ScriptedModel(script), workspace_tools(), agents=[WORKER], cwd=project) as session:
        await session.ask("Go.")
        results = answers(run_of(session, "one").context.history)

    assert "Bash(rm:*)" in results["c1"]
    assert (project / "public").exists()


async def test_rules_of_a_definition_hold_for_it_and_below_it(project: pathlib.Path) -> None:
    """The parent is not bound by them. The children are, and `dontAsk` holds for them, too."""
    (project / ".opencode" / "agents").mkdir(parents=True)
    (project / ".opencode" / "agents" / "careful.md").write_text(
        "---\ndescription: Careful\npermission: {bash: {'*': deny, 'echo *': allow}}\n---\nBe careful.\n"
    )
    quiet = WORKER.replace(
        name="quiet",
        permissions=Permissions(modes=(ModeRule(mode="dontAsk", source="quiet"),)),
        tools=["Write", "Agent"],
    )
    script: dict[str, list[Any]] = {
        "Go.": [
            shell_call("rm link", "c0"),
            Call("Agent", {"subagent_type": "careful", "prompt": "be careful", "name": "one"}),
            Call("Agent", {"subagent_type": "quiet", "prompt": "be quiet", "name": "three"}),
            "done",
        ],
        "be careful": [
            shell_call("rm public", "c1"),
            shell_call("echo yes", "c2"),
            Call("Agent", {"subagent_type": "worker", "prompt": "below", "name": "two"}),
            "I may not.",
        ],
        "below": [shell_call("echo yes; rm public", "c3"), "I may not either."],
        "be quiet": [
            Call("Agent", {"subagent_type": "worker", "prompt": "write it", "name": "four"}), "done"
        ],
        "write it": [Call("Write", {"file_path": "new", "content": "x"}, id="c4"), "I may not."],
    }  # fmt: skip
    agents = [WORKER, quiet]
    async with Session(ScriptedModel(script), workspace_tools(), agents=agents, cwd=project) as session:
        await session.ask("Go.")
        texts = {
            key: text
            for name in ("main", "one", "two", "four")
            for key, text in answers(run_of(session, name).context.history).items()
        }
        careful = session.project["careful"].replace(model="openai:gpt-5")

    assert not (project / "link").is_symlink(), "the root has no rules"
    assert "Bash except echo *" in texts["c1"]
    assert "yes" in texts["c2"]
    assert "Bash except echo *" in texts["c3"]
    assert "quiet says dontAsk" in texts["c4"]
    assert (project / "public").exists()
    assert not (project / "new").exists()
    assert agent_of(recipe(careful), agents={}, model=str).permissions == careful.permissions
    target = target_of(careful, dict)
    assert isinstance(target, AgentTarget)
    assert load(target, dict).agent == careful


async def test_an_agent_type_can_be_denied(project: pathlib.Path) -> None:
    """`Agent(worker)` denies the spawn of that type, and of no other."""
    write_settings(project, {"deny": ["Agent(worker)"]})
    script: dict[str, list[Any]] = {
        "Go.": [
            Call("Agent", {"subagent_type": "worker", "prompt": "below"}, id="worker"),
            Call("Agent", {"subagent_type": "explore", "prompt": "below"}, id="explore"),
            "done",
        ],
        "below": ["found"],
    }
    async with Session(ScriptedModel(script), workspace_tools(), agents=[WORKER], cwd=project) as session:
        await session.ask("Go.")
        results = answers(session.messages)

    assert "Agent(worker)" in results["worker"]
    assert "found" in results["explore"]


@both
async def test_rules_hold_in_a_sandbox(project: pathlib.Path, backend: Literal["bwrap", "local"]) -> None:
    """A sandboxed child is refused commands and files. A person reads the host's question."""
    write_settings(project, {"deny": ["Bash(rm:*)", "Read(./secrets/**)"], "ask": ["Bash(echo asked:*)"]})
    calls = [
        shell_call("rm -f nothing", "rm"),
        read_call(project / "secrets" / "key", "read"),
        read_call(project / "link", "link"),
        Call("Grep", {"pattern": "secret", "output_mode": "content"}, id="grep"),
        shell_call("echo asked", "asked"),
        shell_call("echo free", "free"),
    ]
    script: dict[str, list[Any]] = {
        "Go.": [Call("Agent", {"subagent_type": "worker", "prompt": "below", "name": "one"}), "done"],
        "below": [calls, "I may not."],
    }
    questions: list[Pending] = []

    def approve(pending: Pending) -> bool:
        questions.append(pending)
        return True

    session = Session(
        ScriptedModel(script), workspace_tools(), agents=[WORKER], cwd=project, backend=backend, approver=approve
    )
    async with session:
        await session.ask("Go.")
        results = answers(run_of(session, "one").context.history)
        child_events = [each for each in session_events(session) if each.path == "main/one"]

    assert "Bash(rm:*)" in results["rm"]
    assert all("Read(./secrets/**)" in results[id] for id in ("read", "link"))
    assert "public:1:" in results["grep"]
    assert "secrets/key" not in results["grep"]
    assert ("asked" in results["asked"], "free" in results["free"]) == (True, True)
    assert [(each.path, each.tool, "Bash(echo asked:*)" in each.question) for each in questions] == [
        ("main/one", "Bash", True)
    ]
    assert {each.call_id for each in of_kind(child_events, ToolStarted)} == {"grep", "asked", "free"}
    assert {each.status for each in of_kind(child_events, ToolEnded) if each.call_id in ("rm", "read", "link")} == {
        "denied"
    }


async def test_a_guest_that_begins_a_denied_call_fails(project: pathlib.Path) -> None:
    """The host checks the rules against the model's own call, and ends a guest that begins it after a denial."""
    write_settings(project, {"deny": ["Read(./secrets/**)"]})

    async def attack(guest: Guest) -> None:
        await guest.reply()
        guest.ask(FireHook, b'{"tool_use_id": "c1"}', event="PreToolUse", matcher="Bash")
        answer, _ = await guest.answer()
        assert b"Read(./secrets/**)" in bytes(answer.data)
        guest.begin("c1")

    _, result = await run_hostile_guest([read_call("secrets/key", "c1"), "done"], attack, project)

    assert result.error is not None
    assert "may not begin" in result.error.message


@pytest.mark.parametrize("tells", [True, False], ids=["after the rules", "at once"])
async def test_a_sandbox_cannot_word_the_question_of_a_rule(project: pathlib.Path, tells: bool) -> None:
    """A person sees the host's question and the call that the model made, whatever the guest sends."""
    write_settings(project, {"ask": ["Read(./secrets/**)"]})
    questions: list[Pending] = []

    def approve(pending: Pending) -> bool:
        questions.append(pending)
        return False

    async def attack(guest: Guest) -> None:
        await guest.reply()
        if tells:
            guest.ask(FireHook, b'{"tool_use_id": "c1"}', event="PreToolUse", matcher="Read")
            await guest.answer()
        guest.ask(Approve, tool="Read", question="May it rest?", args={"file_path": "public"}, call_id="c1")
        answer, _ = await guest.answer()
        assert b"false" in bytes(answer.data)

    await run_hostile_guest([read_call("secrets/key", "c1"), "done"], attack, project, approver=approve)

    assert [each.args for each in questions] == [{"file_path": "secrets/key"}]
    assert ["Read(./secrets/**)" in each.question for each in questions] == [True]


@pytest.mark.parametrize("yes", [True, False])
async def test_an_ask_rule_waits_for_an_approval(project: pathlib.Path, yes: bool) -> None:
    """The call runs only after a person approves it."""
    write_settings(project, {"ask": ["Bash(rm:*)"]})
    questions: list[str] = []
    model = ScriptedModel([[shell_call("rm public", "c1")], "done"])
    async with Session(model, workspace_tools(), cwd=project) as session:
        async for item in session.submit_message("Go."):
            if isinstance(item, ApprovalAsked):
                assert (project / "public").exists()
                (pending,) = session.approvals.pending
                questions.append(pending.question)
                session.approvals.answer(pending.id, yes)

    assert ["Bash(rm:*)" in each for each in questions] == [True]
    assert (project / "public").exists() is not yes


async def test_an_ask_rule_denies_in_an_unattended_session(project: pathlib.Path) -> None:
    """The call does not run without a person who could answer."""
    write_settings(project, {"ask": ["Bash(rm:*)"]})

    results = await answers_to(project, [shell_call("rm public", "c1")], unattended=True)

    assert results["c1"].startswith("Denied")
    assert (project / "public").exists()


async def test_deny_goes_before_ask_and_ask_before_allow(project: pathlib.Path) -> None:
    """The strictest matching rule decides, whatever file it comes from."""
    write_settings(project, {"allow": ["Bash"], "ask": ["Bash(rm:*)"]})
    write_settings(project, {"allow": ["Bash(rm:*)"], "deny": ["Bash(rm -r:*)"]}, file=".claude/settings.local.json")
    questions: list[str] = []

    def approve(pending: Pending) -> bool:
        questions.append(pending.args["command"])
        return True

    results = await answers_to(
        project, [shell_call("rm -r secrets", "deny"), shell_call("rm public", "ask")], approver=approve
    )

    assert "Bash(rm -r:*)" in results["deny"]
    assert questions == ["rm public"]
    assert ((project / "secrets").exists(), (project / "public").exists()) == (True, False)


async def test_an_allow_rule_holds_once_the_folder_is_trusted(project: pathlib.Path) -> None:
    """`ramet ask` without a person refuses changes. An allow rule permits one only in a trusted folder."""
    write_settings(project, {"allow": ["Bash(touch:*)"]})
    arguments = ("ask", "Go.", "--dir", str(project), "--no-approvals")
    async with provider([shell_call("touch untrusted", "c1"), "done"]) as server:
        before = await ramet(*arguments, server=server)
    assert main(["trust", str(project)]) == 0
    async with provider([shell_call("touch trusted", "c1"), shell_call("mkdir other", "c2"), "done"]) as server:
        after = await ramet(*arguments, server=server)

    assert (before.status, after.status) == (0, 0)
    assert "Bash(touch:*)" in before.err
    assert [each for each in ("untrusted", "trusted", "other") if (project / each).exists()] == ["trusted"]


async def test_a_resumed_tree_keeps_its_deny_and_ask_rules(project: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The journal has those rules, so removing the settings while no process runs permits nothing.

    New rules are added.
    """
    write_settings(project, {"deny": ["Bash(rm:*)"], "ask": ["Bash(mv:*)"], "allow": ["Bash(ls:*)"]})
    async with AgentRuntime(store=SqliteStore(tmp_path / "journal.db")) as runtime:
        session = Session(ScriptedModel(["done"]), workspace_tools(), cwd=project, runtime=runtime)
        await session.ask("Go.")
        (project / ".claude" / "settings.json").unlink()
        write_settings(project, {"deny": ["Read(.env)"]}, file=".claude/settings.local.json")

        (tree,) = await unfinished_trees(runtime.journal)
        plan = tree.plan(resolve_inputs(), AgentRuntime().open_project)

    assert plan.permissions is not None
    assert [each.text for each in plan.permissions.rules] == ["Bash(rm:*)", "Bash(mv:*)", "Read(.env)"]


async def test_an_agent_without_a_session_has_the_rules_of_its_folder(project: pathlib.Path) -> None:
    """A tree that a runtime spawns without a session follows the settings of its folder."""
    write_settings(project, {"deny": ["Bash(rm:*)"]})
    model = ScriptedModel([[shell_call("rm public", "c1")], "I may not."])
    agent = Agent(name="worker", model=model, instructions="Work.")
    async with AgentRuntime() as runtime:
        handle = await runtime.spawn(agent, "Go.", tools=workspace_tools(), cwd=project)
        assert (await handle.result()).value == "I may not."
        results = answers(handle.run.context.history)

    assert "Bash(rm:*)" in results["c1"]
    assert (project / "public").exists()


@pytest.mark.parametrize(
    ("permissions", "message"),
    [
        ([], "permissions"),
        ({"denny": []}, "denny"),
        ({"deny": "Bash"}, "permissions.deny"),
        ({"deny": [1]}, "permissions.deny"),
        ({"deny": ["Bash(rm"]}, "Bash(rm"),
        ({"deny": ["Bash()"]}, "Bash()"),
        ({"deny": ["bash(rm:*)"]}, "bash(rm:*)"),
        ({"deny": ["Bash(command:rm *)"]}, "Bash(command:rm *)"),
        ({"deny": ["Read(!x)"]}, "Read(!x)"),
        ({"deny": ["Read(../x)"]}, "Read(../x)"),
        ({"deny": ["WebFetch(https://example.com)"]}, "WebFetch(https://example.com)"),
        ({"deny": ["Unheard(of)"]}, "Unheard(of)"),
        ({"allow": ["mcp__*"]}, "mcp__*"),
        ({"defaultMode": "yolo"}, "yolo"),
        ({"deny": ["Bash(x:*)"] * 10_000}, "permissions.deny"),
        ({"deny": ["Bash(" + "x" * 100_000 + ")"]}, "permissions.deny"),
    ],
)
async def test_an_invalid_rule_is_refused_when_the_session_is_made(
    project: pathlib.Path, permissions: object, message: str
) -> None:
    """The error names the file and the rule: a rule without effect would be worse than none."""
    write_settings(project, permissions)

    with pytest.raises(InvalidValue) as refusal:
        Session(ScriptedModel(["done"]), workspace_tools(), cwd=project)

    assert message[:50] in str(refusal.value)
    assert "settings.json" in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"permissions": {"deny": ["Bash"]}, "permissions": {}}',
        '{"permissions": {"deny": ["Bash"], "deny": []}}',
        '{"permissions": {"deny": ["Bash"]}',
    ],
)
async def test_settings_with_duplicate_keys_or_invalid_json_are_refused(project: pathlib.Path, text: str) -> None:
    """Such a file may hold rules that a reader would not see."""
    write_settings(project, {})
    (project / ".claude" / "settings.json").write_text(text)

    with pytest.raises(RametError, match=r"settings\.json"):
        Session(ScriptedModel(["done"]), workspace_tools(), cwd=project)


async def test_a_settings_file_that_links_out_of_the_folder_is_refused(
    project: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A link to a file outside, or to nothing, does not count as settings without rules."""
    (project / ".claude").mkdir()
    (tmp_path / "outside.json").write_text("{}")
    for target in (tmp_path / "outside.json", tmp_path / "nothing"):
        (project / ".claude" / "settings.json").unlink(missing_ok=True)
        (project / ".claude" / "settings.json").symlink_to(target)
        with pytest.raises(RametError, match=r"settings\.json"):
            Session(ScriptedModel(["done"]), workspace_tools(), cwd=project)


def test_ramet_ask_refuses_an_unknown_rule_on_one_line(
    project: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line names file, key and rule, without a traceback."""
    write_settings(project, {"deny": ["Unheard(of)"]})

    status = main(["ask", "Go.", "--dir", str(project)])

    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert all(each in line for each in (".claude/settings.json", "permissions.deny", "Unheard(of)"))


def test_agents_check_shows_the_permissions(project: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ramet agents check` shows each rule with its file, and which allow rules wait for trust."""
    write_settings(project, {"deny": ["Bash(rm:*)"], "ask": ["Read(.env)"], "allow": ["Bash(ls:*)"]})

    assert main(["agents", "check", "--dir", str(project)]) == 0
    before = capsys.readouterr().out.splitlines()
    assert main(["trust", str(project)]) == 0
    capsys.readouterr()
    assert main(["agents", "check", "--dir", str(project), "--json"]) == 0
    after = capsys.readouterr().out.splitlines()

    (allow,) = [line for line in before if "Bash(ls:*)" in line]
    assert "trust" in allow
    (deny,) = [line for line in before if "Bash(rm:*)" in line]
    assert ("deny" in deny, ".claude/settings.json" in deny, "trust" in deny) == (True, True, False)
    changes = [each for each in map(json.loads, after) if each["kind"] == "permission"]
    assert [(each["list"], each["rule"], each["holds"]) for each in changes] == [
        ("deny", "Bash(rm:*)", True),
        ("ask", "Read(.env)", True),
        ("allow", "Bash(ls:*)", True),
    ]
