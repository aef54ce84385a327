"""Approvals before an agent changes the folder."""

from __future__ import annotations

import pytest

from ramet.core.policy.permissions import Effect, ModeRule, Permissions
from ramet.host.safety.write_approval import require_approval_for_writes
from ramet.tools.permissions.parsing import parse_rule
from tests.support.context import make_context


@pytest.mark.parametrize(("tool", "verdict"), [("Bash", "ask"), ("Write", "ask"), ("Edit", "ask"), ("Grep", "allow")])
async def test_a_tool_that_changes_files_needs_approval(tool: str, verdict: str) -> None:
    """A reading tool does not."""
    hooks = require_approval_for_writes()

    decision = await hooks.fire("PreToolUse", make_context(), {"tool_name": tool, "tool_input": {}})

    assert decision.verdict == verdict


async def test_an_agent_that_accepts_edits_is_asked_about_commands_only() -> None:
    """The mode of the run counts, as its context has it, and lifts no rule of deny or ask."""
    hooks, context = require_approval_for_writes(parse_permissions("ask", "Edit(*.lock)")), make_context()
    context.permissions = Permissions(modes=(ModeRule(mode="acceptEdits", source="agent x"),))

    verdicts = []
    for tool, arguments in (
        ("Write", {"file_path": "a.py"}), ("Write", {"file_path": "a.lock"}), ("Bash", {"command": "ls"})
    ):  # fmt: skip
        decision = await hooks.fire("PreToolUse", context, {"tool_name": tool, "tool_input": arguments})
        verdicts.append(decision.verdict)

    assert verdicts == ["allow", "ask", "ask"]


def parse_permissions(effect: Effect, text: str) -> Permissions:
    return Permissions(rules=(parse_rule(text, effect, source="settings.json", field="ask"),))
