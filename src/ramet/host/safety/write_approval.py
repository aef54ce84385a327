"""Approval before changes to the folder: in trees of `ramet ask` every changing tool call needs a person's consent."""

from __future__ import annotations

from typing import Any, Final

from ramet.agent.hooks.config import hook
from ramet.agent.hooks.hooks import HookRunner
from ramet.core.policy.permissions import NO_PERMISSIONS, ModeRule, Permissions
from ramet.tools.decisions import HookDecision
from ramet.tools.dispatch import tool_flag
from ramet.tools.permissions.evaluation import Call, judge
from ramet.tools.workspace import workspace_tools

#: The key of a tree's document with the facts of `ramet ask`. A tree with it has the gate, whoever resumes the tree.
ASK_FACTS: Final = "ask"


def require_approval_for_writes(permissions: Permissions = NO_PERMISSIONS) -> HookRunner:
    """Return a gate before every workspace tool that is not read-only, unless a permission rule allows the call."""
    changing = "|".join(tool.name for tool in workspace_tools() if not tool_flag(tool, "read_only"))

    @hook("PreToolUse", matcher=changing)
    def require_approval(payload: dict[str, Any]) -> HookDecision:
        call, rules = Call(payload["tool_name"], payload["tool_input"], payload["cwd"]), permissions
        if payload["permission_mode"] == "acceptEdits":  # of the tree's settings, or of the agent's definition
            rules = rules.merge(Permissions(modes=(ModeRule(mode="acceptEdits", source=payload["agent_type"]),)))
        if rules and judge(rules, call).verdict == "allow":
            return HookDecision()
        return HookDecision("ask", "it may change files or run commands")

    return HookRunner([require_approval])
