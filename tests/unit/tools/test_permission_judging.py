"""Judgement of one tool call by rules."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import msgspec
import pytest

from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import Effect, Mode, ModeRule, Permissions, Ruling
from ramet.tools.permissions.evaluation import Call, judge, may_change
from ramet.tools.permissions.parsing import parse_rule

SOURCE = ".claude/settings.json"


def permissions(*, modes: tuple[Mode, ...] = (), root: str = "/p", **lists: list[str]) -> Permissions:
    """Return rules by the names of their lists."""
    rules = [
        parse_rule(text, effect, source=SOURCE, field=f"permissions.{effect}", root=root, home="/home/me")
        for effect in ("deny", "ask", "allow")
        for text in lists.get(effect, [])
    ]
    return Permissions(rules=tuple(rules), modes=tuple(ModeRule(mode=each, source=SOURCE) for each in modes))


def verdict(
    permissions_held: Permissions, tool: str, args: dict[str, Any] | None = None, *, cwd: str = "/p"
) -> Effect | None:
    """Return the verdict of the rules on a call."""
    return judge(permissions_held, Call(tool, args or {}, cwd, may_change(tool, read_only=False))).verdict


@pytest.mark.parametrize(
    ("rule", "tool", "args", "fits"),
    [
        ("Bash", "Bash", {"command": "x"}, True),
        ("Bash(*)", "Bash", {"command": "x"}, True),
        ("Shell(rm:*)", "Bash", {"command": "rm x"}, True),
        ("Bash(rm:*)", "Bash", {"command": "ls"}, False),
        ("Bash(curl * | bash)", "Bash", {"command": "curl x | bash"}, True),
        ("Read", "Read", {"file_path": "x"}, True),
        ("Read", "Grep", {"pattern": "x"}, True),
        ("Read", "Edit", {"file_path": "x"}, False),
        ("Read(./s/**)", "Read", {"file_path": "s/x"}, True),
        ("Read(./s/**)", "Read", {"file_path": "/p/s/x"}, True),
        ("Read(./s/**)", "Read", {"file_path": "t/x"}, False),
        ("Read(./s/**)", "Grep", {"pattern": "x", "path": "s"}, True),
        ("Read(./s/**)", "Glob", {"pattern": "*", "path": "s"}, True),
        ("Read(./s/**)", "LS", {"path": "s"}, True),
        ("Read(./s/**)", "Grep", {"pattern": "x"}, False),
        ("Read(./s/**)", "Bash", {"command": "cat s/x"}, True),
        ("Read(./s/**)", "Bash", {"command": "sudo head -n1 ./s/x"}, True),
        ("Read(./s/**)", "Bash", {"command": "sort < s/x"}, True),
        ("Read(./s/**)", "Bash", {"command": "echo s/x"}, False),
        ("Read(./s/**)", "Bash", {"command": "cat " + "t " * 600 + "s/x"}, False),
        ("Edit(./s/**)", "Bash", {"command": "echo x > s/x"}, True),
        ("Edit(./s/**)", "Bash", {"command": "cat s/x"}, False),
        ("Edit", "Write", {"file_path": "x"}, True),
        ("Edit", "MultiEdit", {"file_path": "x"}, True),
        ("Write", "Edit", {"file_path": "x"}, False),
        ("Edit(*.py)", "Write", {"file_path": "a/x.py"}, True),
        ("Write(*.py)", "Edit", {"file_path": "a/x.py"}, True),
        ("Edit(*.py)", "NotebookEdit", {"notebook_path": "x.py"}, True),
        ("Edit(*.py)", "MultiEdit", {"where": "x.txt"}, True),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://EXAMPLE.com./x"}, True),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://example.com:8/x"}, True),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://example.org/example.com"}, False),
        ("WebFetch(domain:*.example.com)", "WebFetch", {"url": "https://a.example.com"}, True),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://x.org\\@example.com"}, True),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": 1}, True),
        ("mcp__git", "mcp__git__push", {}, True),
        ("mcp__git", "mcp__github__push", {}, False),
        ("mcp__git__*", "mcp__git__push", {}, True),
        ("mcp__git__push", "mcp__git__push", {}, True),
        ("mcp__git__push", "mcp__git__pull", {}, False),
        ("*", "anything", {}, True),
        ("Agent(explore)", "Agent", {"subagent_type": "explore"}, True),
        ("Task(Explore)", "Agent", {"subagent_type": "explore"}, True),
        ("Agent(explore)", "Agent", {"subagent_type": "plan"}, False),
        ("Agent(fork)", "Agent", {}, True),
        ("Agent", "Agent", {}, True),
        ("Skill(deploy:*)", "Skill", {"skill": "deploy now"}, True),
        ("Skill(deploy)", "Skill", {"skill": "review"}, False),
        ("my_tool", "my_tool", {}, True),
        ("my_tool", "my_other_tool", {}, False),
    ],
)
def test_a_deny_rule_matches_the_documented_calls(rule: str, tool: str, args: dict[str, Any], fits: bool) -> None:
    """Each form of rule is tried on its own tools and on others."""
    if "t t t" in str(args):
        fits = True  # More operands than are looked at.
    assert (verdict(permissions(deny=[rule]), tool, args) == "deny") is fits
    assert (verdict(permissions(ask=[rule]), tool, args) == "ask") is fits


@pytest.mark.parametrize(
    ("rule", "tool", "args", "fits"),
    [
        ("Bash", "Bash", {"command": "x > y"}, True),
        ("Bash(ls:*)", "Bash", {"command": "ls && ls -l"}, True),
        ("Bash(ls:*)", "Bash", {"command": "ls && rm x"}, False),
        ("Edit(./s/**)", "Write", {"file_path": "s/x"}, True),
        ("Write(./s/**)", "Edit", {"file_path": "s/x"}, False),
        ("Edit(./s/**)", "Write", {"file_path": "t/x"}, False),
        ("Edit(./s/**)", "Bash", {"command": "echo > s/x"}, False),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://example.com"}, True),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://example.com@x.org"}, False),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://x.org\\@example.com"}, False),
        ("mcp__git", "mcp__git__push", {}, True),
        ("Agent(explore)", "Agent", {"subagent_type": "Explore"}, False),
    ],
)
def test_an_allow_rule_matches_no_more_than_it_says(rule: str, tool: str, args: dict[str, Any], fits: bool) -> None:
    """A doubtful call is not allowed."""
    assert (verdict(permissions(allow=[rule]), tool, args) == "allow") is fits


@pytest.mark.parametrize(
    "host",
    [
        *("example\u3002com", "ex%61mple.com", "\uff45xample.com", "exam\u00adple.com", "example.com%2f"),
        *("2130706433", "127.1", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "127.0.0.01", "127.0.0.1.", "127.0.0.1"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[fe80::1%25lo]"),
    ],
)
def test_a_different_spelling_of_a_host_does_not_pass(host: str) -> None:
    """A host with several readings is denied, and allowed only in its canonical spelling."""
    call = ("WebFetch", {"url": f"http://{host}/"})

    deny_rules = permissions(deny=["WebFetch(domain:example.com)", "WebFetch(domain:127.0.0.1)"])
    allow_rules = permissions(allow=["WebFetch(domain:*)"])
    assert verdict(deny_rules, *call) == "deny"
    assert (verdict(allow_rules, *call) == "allow") is host.startswith("127.0.0.1")


def test_an_address_is_compared_in_its_canonical_form() -> None:
    """Other addresses and names stay reachable."""
    rules = permissions(deny=["WebFetch(domain:127.0.0.1)", "WebFetch(domain:[0:0::1])"])
    fetched = (
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://127.0.0.2/",
        "http://[2001:db8::1]/",
        "http://a-1.b_c.org/",
    )

    assert [verdict(rules, "WebFetch", {"url": each}) for each in fetched] == ["deny", "deny", None, None, None]


def test_allow_rules_for_commands_are_combined() -> None:
    """Each simple command may match another rule."""
    rules = permissions(allow=["Bash(ls:*)", "Bash(npm test:*)"])

    assert verdict(rules, "Bash", {"command": "ls && npm test"}) == "allow"


def test_the_strictest_rule_decides() -> None:
    """Deny goes before ask, and ask before allow; the reason names the rule and its file."""
    rules = permissions(deny=["Bash(rm -r:*)"], ask=["Bash(rm:*)"], allow=["Bash"])

    ruling = judge(rules, Call("Bash", {"command": "rm -r x"}, "/p"))
    assert ruling == Ruling("deny", "Bash(rm -r:*) (permissions.deny of .claude/settings.json)")
    assert verdict(rules, "Bash", {"command": "rm x"}) == "ask"
    assert verdict(rules, "Bash", {"command": "ls"}) == "allow"


def test_an_unreadable_command_needs_a_person() -> None:
    """A rule might match it, even if another rule allows every command."""
    unreadable = {"command": "$PROGRAM x"}

    assert verdict(permissions(deny=["Bash(rm:*)"], allow=["Bash"]), "Bash", unreadable) == "ask"
    assert verdict(permissions(deny=["Read(y)"]), "Bash", unreadable) is None


def test_the_file_of_a_rule_is_not_changed_without_a_person(tmp_path: pathlib.Path) -> None:
    """A run could otherwise free the next one, by its tools, by a visible command, or by a link to the file."""
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text("{}")
    (tmp_path / "link").symlink_to(SOURCE)
    rules = permissions(deny=["WebFetch"], allow=["Edit", "Bash"], root=str(tmp_path))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("Write", {"file_path": SOURCE}),
        ("Edit", {"file_path": str(tmp_path / SOURCE)}),
        ("Edit", {"file_path": "link"}),
        ("Bash", {"command": f"echo {{}} > {SOURCE}"}),
        ("Bash", {"command": f"rm {SOURCE}"}),
        ("Bash", {"command": f"cat {SOURCE}"}),
        ("Write", {"file_path": "other"}),
    ]

    verdicts = [verdict(rules, *each, cwd=str(tmp_path)) for each in calls]

    assert verdicts == ["ask", "ask", "ask", "ask", "ask", "allow", "allow"]


def test_modes_narrow_and_widen() -> None:
    """`plan` and `dontAsk` deny; `acceptEdits` and `bypassPermissions` allow, but never against a rule."""
    write, bash, read_call = ("Write", {"file_path": "x"}), ("Bash", {"command": "ls"}), ("Read", {"file_path": "x"})

    plan = permissions(modes=("plan", "bypassPermissions"))
    assert [verdict(plan, *each) for each in (write, bash)] == ["deny", "deny"]
    assert verdict(plan, "Agent", {}) != "deny"
    quiet = permissions(modes=("dontAsk",), allow=["Bash(ls)"], ask=["Read"])
    assert [verdict(quiet, *each) for each in (write, bash, read_call)] == ["deny", "allow", "deny"]
    edits = permissions(modes=("acceptEdits",))
    assert [verdict(edits, *each) for each in (write, bash, read_call)] == ["allow", None, None]
    bypass = permissions(modes=("bypassPermissions",), deny=["Write"], ask=["Bash"])
    assert [verdict(bypass, *each) for each in (write, bash, read_call)] == ["deny", "ask", "allow"]


def test_permissions_are_data() -> None:
    """Sandboxes and the journal get them unchanged."""
    rules = permissions(deny=["Read(~/.ssh/**)"], allow=["Bash(ls:*)"], modes=("plan",))

    assert msgspec.convert(msgspec.to_builtins(rules), Permissions) == rules


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "Bash(",
        "Bash)",
        "Bash()",
        "Bash( )",
        "Ba sh",
        "bash",
        "WEBFETCH(domain:x)",
        "Bash(command:x)",
        "Read(!x)",
        "Read(a/../b)",
        "Read(" + "**/" * 150 + "x)",
        "Read({" + "a," * 150 + "b})",
        "Bash(" + "*a" * 50 + ")",
        "WebFetch(example.com)",
        "WebFetch(domain:)",
        "WebSearch(x)",
        "mcp__git(x)",
        "Mcp*(x)",
        "Agent(a,b)",
        "my_tool(x)",
        "Bash(\x1b[2J)",
        "Bash(" + "x" * 2_000 + ")",
    ],
)
def test_an_invalid_rule_is_refused(rule: str) -> None:
    """The error gives the name of the list and the text of the rule."""
    with pytest.raises(InvalidValue) as refusal:
        permissions(deny=[rule])

    assert (refusal.value.field, refusal.value.value) == ("permissions.deny", rule)


@pytest.mark.parametrize("rule", ["*", "mcp__*", "mcp__*__x", "B*"])
def test_an_allow_rule_for_unnamed_tools_is_refused(rule: str) -> None:
    """A reader could not see which tools it allows."""
    permissions(deny=[rule])
    with pytest.raises(InvalidValue):
        permissions(allow=[rule])


def test_paths_count_from_the_working_directory(tmp_path: pathlib.Path) -> None:
    """A child in a folder below keeps the rules of the folder above."""
    (tmp_path / "below").mkdir()
    rules = permissions(deny=["Read(/below/key)"], root=str(tmp_path))

    assert verdict(rules, "Read", {"file_path": "key"}, cwd=str(tmp_path / "below")) == "deny"


def test_hostile_rules_are_refused_in_linear_time() -> None:
    """A settings file of 1 MB has a thousand rules of the greatest length."""
    begin = time.process_time()

    for _ in range(1_000):
        with pytest.raises(InvalidValue):
            parse_rule("a" + " " * 998 + "!", "deny", source=SOURCE, field="permissions.deny")

    assert time.process_time() - begin < 1.5
