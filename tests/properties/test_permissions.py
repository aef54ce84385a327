"""Permission rules only narrow what stricter rules leave: deny always wins, and ask never widens."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.policy.permissions import EFFECTS, Effect, ModeRule, PermissionRule, Permissions
from ramet.tools.permissions.command_rules import narrows
from ramet.tools.permissions.evaluation import Call, judge
from ramet.tools.permissions.parsing import parse_rule
from ramet.tools.permissions.shell.commands import parse
from ramet.tools.permissions.shell.invocations import invocations

STRENGTH: dict[Effect | None, int] = {"deny": 3, "ask": 2, None: 1, "allow": 0}
RULES = ["Bash", "Bash(rm:*)", "Bash(ls *)", "Bash(* x)", "Read", "Read(./a/**)", "Read(*.key)", "Edit(/a)", "Edit"]
COMMANDS = ["rm x", "ls", "ls; rm x", "echo $(ls)", "$X", "cat a/b", "echo 'x", "ls x && ls"]
PATHS = ["a", "a/b", "b.key", "c"]

#: Ways to put a command among others.
AROUND = ["{}", "ls; {}", "ls && {}", "ls | {}", "$({})", "({})", '"$({})"', "ls\n{}", "sudo {}", "A=1 {}", "! {}"]


def rule(text: str, effect: Effect) -> PermissionRule:
    """Parse a rule of the project `/p`."""
    return parse_rule(text, effect, source="s", field="f", root="/p")


rules = st.builds(rule, st.sampled_from(RULES), st.sampled_from(EFFECTS))
modes = st.builds(
    lambda mode: ModeRule(mode=mode, source="s"),
    st.sampled_from(["plan", "dontAsk", "acceptEdits", "bypassPermissions"]),
)
permission_sets = st.builds(
    lambda rules, modes: Permissions(rules=tuple(rules), modes=tuple(modes)),
    st.lists(rules, max_size=6),
    st.lists(modes, max_size=2),
)
calls = st.one_of(
    st.builds(lambda command: Call("Bash", {"command": command}, "/p"), st.sampled_from(COMMANDS)),
    st.builds(
        lambda tool, path: Call(tool, {"file_path": path}, "/p", changes=tool != "Read"),
        st.sampled_from(["Read", "Edit", "Write"]),
        st.sampled_from(PATHS),
    ),
)


@given(permission_sets, rules, calls)
def test_deny_always_wins_and_asking_never_widens(before: Permissions, more: PermissionRule, call: Call) -> None:
    """A rule of `deny` or `ask` makes no verdict weaker; a rule of `allow` weakens neither `deny` nor `ask`."""
    after = before.merge(Permissions(rules=(more,)))

    was, now = judge(before, call).verdict, judge(after, call).verdict

    if more.effect == "allow":
        quiet = before.mode("dontAsk") is not None  # There an allow rule is the only way through.
        assert now == was or was is None or (quiet and was == "deny")
    else:
        assert STRENGTH[now] >= STRENGTH[was]
    if judge(Permissions(rules=(more,)), call).verdict == "deny":
        assert now == "deny"


@given(permission_sets, calls)
def test_the_order_of_rules_does_not_matter(permissions: Permissions, call: Call) -> None:
    """Rules in reverse order, or decoded from data, give the same verdict."""
    turned = Permissions(rules=permissions.rules[::-1], modes=permissions.modes)

    assert judge(turned, call).verdict == judge(permissions, call).verdict
    recorded = msgspec.convert(msgspec.to_builtins(permissions), Permissions)

    assert judge(recorded, call) == judge(permissions, call)


@given(st.lists(st.sampled_from(AROUND), max_size=4))
def test_a_command_is_found_however_it_is_nested(around: list[str]) -> None:
    """A narrowing rule finds a command in any nesting, or the command counts as unknown."""
    command = "rm x"
    for each in around:
        command = each.format(command)

    run = invocations(command)

    assert narrows("rm:*", run) or run.unknown


WITHOUT_LINE_ENDS = dict.fromkeys(map(ord, "\\\n"))


@given(st.text(alphabet="ab '\"\\$`(){}<>|&;#\n=*-", max_size=60))
def test_any_text_can_be_parsed_into_commands(text: str) -> None:
    """Text of any kind is parsed without an error into commands that are parts of it, apart from joined lines."""
    joined = text.translate(WITHOUT_LINE_ENDS)

    for command in parse(text).commands:
        assert command.text.translate(WITHOUT_LINE_ENDS) in joined
    invocations(text)


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_argument_can_be_judged(value: Any) -> None:
    """A model may write any value where a path, a command or an address should be."""
    permissions = Permissions(rules=tuple(rule(text, "deny") for text in ("Bash(rm:*)", "Read(./a/**)")))

    for tool, name in (("Bash", "command"), ("Read", "file_path"), ("Grep", "path"), ("WebFetch", "url")):
        judge(permissions, Call(tool, {name: value}, "/p"))
